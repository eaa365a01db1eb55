"""Names to guesses, for source whose scopes nobody has worked out: same language, same name, few of them.

What is defined in the file itself comes before what is defined elsewhere. An import is linked to the files
that its path can mean; one that is relative leaves a single reading and is exact.
"""

from __future__ import annotations

import posixpath
import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from typing import Final

from worker.code.facts import Class, Definition, Function, ModuleFacts
from worker.code.reading import FileReading
from worker.graph.model import Edge, NodeRef

MAX_CANDIDATES: Final = 5
_FAMILIES: Final[Mapping[str, str]] = {
    "tsx": "script",
    "typescript": "script",
    "jsx": "script",
    "javascript": "script",
}
_LAST_NAME: Final = re.compile(r"[\w$]+\Z")
_PARTS: Final = re.compile(r"[./:\\]+")
_NO_PART: Final = frozenset({"", "crate", "self", "super", "index", "mod"})


class LooseLinker:
    """Finds what a name may mean among all files of a family of languages."""

    def __init__(self, readings: Mapping[str, FileReading]) -> None:
        """Index what is no Python. O(definitions)."""
        self._named: defaultdict[tuple[str, str], list[Definition]] = defaultdict(list)
        self._files: defaultdict[tuple[str, str], list[str]] = defaultdict(list)
        self._paths: dict[str, str] = {}
        for path in sorted(readings):
            reading = readings[path]
            if reading.facts is None or reading.language == "python":
                continue
            family = family_of(reading.language)
            self._paths[path] = family
            parts = _parts_of_file(path)
            if parts:
                self._files[family, parts[-1]].append(path)
            for item in (*reading.facts.functions, *reading.facts.classes):
                self._named[family, item.name].append(item)

    def link(self, facts: ModuleFacts, language: str, add: Callable[[Edge], None]) -> tuple[int, int]:
        """Give the file's edges to `add`; returns how many of its calls are guessed, and are not."""
        family = family_of(language)
        guessed = unresolved = 0
        module = NodeRef("Module", facts.id)
        for item in facts.imports:
            for edge in self._imports(item.module, module, facts.path, family):
                add(edge)
        for owner in facts.classes:
            for base in owner.bases:
                found = [item for item in self._find(base, family, facts.path) if isinstance(item, Class)]
                for item in found:
                    add(Edge(_ref(owner), "INHERITS_FROM", _ref(item), "guess", len(found)))
        bodies = [(module, facts.calls)]
        bodies += [(_ref(item), item.calls) for item in (*facts.functions, *facts.classes)]
        for source, calls in bodies:
            for call in calls:
                found = self._find(call.name, family, facts.path)
                guessed += bool(found)
                unresolved += not found
                for item in found:
                    add(Edge(source, "CALLS", _ref(item), "guess", len(found)))
        return guessed, unresolved

    def _find(self, name: str, family: str, path: str) -> list[Definition]:
        last = _LAST_NAME.search(name)
        found = self._named.get((family, last[0]), []) if last else []
        own = [item for item in found if item.id.startswith(f"{path}::")]
        found = own or found
        return found if len(found) <= MAX_CANDIDATES else []

    def _imports(self, module: str, source: NodeRef, path: str, family: str) -> Iterator[Edge]:
        is_relative = module.startswith((".", "/"))
        if is_relative:
            joined = posixpath.normpath(posixpath.join(posixpath.dirname(path), module))
            wanted = _parts_of_file(joined) if joined.split("/")[-1] not in {".", ".."} else ()
        else:
            wanted = tuple(part for part in _PARTS.split(module) if part not in _NO_PART)
        if not wanted:
            return
        found = [
            file
            for file in self._files.get((family, wanted[-1]), ())
            if file != path and _matches(_parts_of_file(file), wanted, is_whole=is_relative)
        ]
        if len(found) <= MAX_CANDIDATES:
            for file in found:
                is_exact = is_relative and len(found) == 1
                yield Edge(
                    source,
                    "IMPORTS",
                    NodeRef("Module", f"{file}::<module>"),
                    "exact" if is_exact else "guess",
                    len(found),
                )


def family_of(language: str) -> str:
    """Languages whose files import one another are one family."""
    return _FAMILIES.get(language, language)


def _matches(parts: tuple[str, ...], wanted: tuple[str, ...], *, is_whole: bool) -> bool:
    return parts == wanted if is_whole else parts[-len(wanted) :] == wanted


def _parts_of_file(path: str) -> tuple[str, ...]:
    """The names on the way to a file, without suffix; an index file stands for its folder."""
    *folders, name = path.split("/")
    stem = re.sub(r"\.d\.[mc]?ts\Z|\.\w+\Z", "", name)
    return tuple(folders) if stem in _NO_PART else (*folders, stem)


def _ref(item: Definition) -> NodeRef:
    return NodeRef("Function" if isinstance(item, Function) else "Class", item.id)
