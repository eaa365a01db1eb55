"""What an index kept of source files: their facts, for whoever does not see the files themselves."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from worker.code.catalogue import KEY, decode_catalogue
from worker.code.facts import ModuleFacts
from worker.code.facts_codec import decode_reading
from worker.code.kept import reading_key
from worker.graph.model import GraphHead
from worker.graph.store import GraphChanging, GraphStore

_ATTEMPTS: Final = 2
_PROJECTS_KEPT: Final = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexedModules:
    """The facts of some files, as an index of the project has them."""

    modules: tuple[ModuleFacts, ...]
    """Of the files that the index holds and that are source it can link, in the order asked for."""
    not_whole: tuple[str, ...]
    """The paths of those that were read in part."""


class ModuleIndex:
    """Reads what indexes kept; for one event loop.

    Costs a question for the head, and what the files at hand take. Which keys they have is read once a
    version: O(files of the project), in a thread.
    """

    def __init__(self, store: GraphStore) -> None:
        """Read nothing yet."""
        self._store = store
        self._keys: OrderedDict[str, tuple[GraphHead, dict[str, str]]] = OrderedDict()

    async def find(self, project_id: str, paths: Sequence[str]) -> IndexedModules | None:
        """What is kept of these files; None where the project was never indexed, or nothing is kept of it.

        Of a graph that changes meanwhile, what was there before or after. Raises StoreUnavailable, also where
        a graph is being changed and not all of what is kept was found.
        """
        wanted: list[str] = []
        found: Mapping[str, bytes] = {}
        keys: dict[str, str] | None = None
        changing: GraphChanging | None = None
        for _ in range(_ATTEMPTS):
            try:
                head, changing = await self._store.head(project_id), None
                keys = None if head is None else await self._keys_of(project_id, head)
            except GraphChanging as error:
                # Facts are there before the catalogue names them, and go after it has ceased to.
                changing, keys = error, await self._read_keys(project_id)
            if keys is None:
                break
            wanted = [keys[path] for path in dict.fromkeys(paths) if path in keys]
            found = await self._store.load_facts(project_id, wanted) if wanted else {}
            if len(found) == len(wanted):
                return await asyncio.to_thread(_modules, [found[key] for key in wanted])
        if changing is not None:
            raise changing
        if keys is None:
            return None
        return await asyncio.to_thread(_modules, [found[key] for key in wanted if key in found])

    async def _keys_of(self, project_id: str, head: GraphHead) -> dict[str, str] | None:
        """Under which key the reading of each file is kept; read once a version."""
        kept = self._keys.get(project_id)
        if kept is None or kept[0] != head:
            keys = await self._read_keys(project_id)
            if keys is None:
                return None
            kept = self._keys[project_id] = head, keys
        self._keys.move_to_end(project_id)
        while len(self._keys) > _PROJECTS_KEPT:
            self._keys.popitem(last=False)
        return kept[1]

    async def _read_keys(self, project_id: str) -> dict[str, str] | None:
        facts = await self._store.load_facts(project_id, [KEY])
        return await asyncio.to_thread(_keys, facts.get(KEY, b""))


def _keys(value: bytes) -> dict[str, str] | None:
    catalogue = decode_catalogue(value)
    if catalogue is None:
        return None
    return {
        path: reading_key(path, entry.sha256, rules=catalogue.rules)
        for path, entry in catalogue.files.items()
    }


def _modules(values: Sequence[bytes]) -> IndexedModules:
    readings = [reading for value in values if (reading := decode_reading(value)) is not None]
    known = [(reading, reading.facts) for reading in readings if reading.facts is not None]
    return IndexedModules(
        modules=tuple(facts for _, facts in known),
        not_whole=tuple(reading.path for reading, _ in known if reading.status == "partly_parsed"),
    )
