"""The tool that shows an artifact whole: of the thread, else of the project; never another thread's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from schemas.citations import CitationKind
from schemas.tools import MAX_NEAR, GetArtifactArguments
from worker.citations.labels import shorts_of
from worker.graph.rendering import one_line
from worker.ports import Scope
from worker.providers.threads import SourceThreads
from worker.retrieval.entities import most_alike
from worker.retrieval.found import Found, Piece, ToolFailed
from worker.retrieval.short_ids import short_in
from worker.state.records import WHOLE_PROJECT
from worker.state.store import Place, StateStore
from worker.state.view import Entity, decode_group

_LISTED: Final = 1_000


def _own_id(scope: Scope, text: str, known: Sequence[Entity]) -> str:
    """The artifact's own id where the text is the short one of a prompt; else the text."""
    short = short_in(text)
    if short is None:
        return text
    identities: list[tuple[CitationKind, str]] = [("artifact", one.id) for one in known]
    return shorts_of([short], identities, scope).get(short, text)


class Artifacts:
    """Finds artifacts in the state store, and the long contents that are kept apart from them."""

    def __init__(self, store: StateStore, threads: SourceThreads) -> None:
        """Read from `store`; decode in `threads`."""
        self._store = store
        self._threads = threads

    async def get(self, scope: Scope, arguments: GetArtifactArguments) -> Found:
        """The artifact with its whole content. Raises ToolFailed, `not_found`, and StoreUnavailable."""
        known = await self._known(scope)
        wanted = _own_id(scope, arguments.artifact_id, known)
        found = next((one for one in known if one.id == wanted), None)
        if found is None:
            near = most_alike([one.id for one in known[:_LISTED]], arguments.artifact_id)
            raise ToolFailed(
                "not_found", "the thread and its project have no such artifact", near=near[:MAX_NEAR]
            )
        body = found.document["body"]
        content: str = body["content"]
        if (digest := body.get("content_sha256")) is not None:
            whole = await self._store.content(scope.project_id, digest)
            content = content if whole is None else whole
        path = f" ({one_line(body['path'])})" if body.get("path") else ""
        title = (
            f"## Artifact {one_line(found.id)}{path} · {one_line(body['stage'])}, {one_line(body['type'])}"
        )
        return Found(pieces=(Piece(text=f"{title}\n\n{content}", node_id=found.id),))

    async def _known(self, scope: Scope) -> Sequence[Entity]:
        """Artifacts of the thread, then of the project, by id."""
        threads = list(dict.fromkeys((scope.thread_id or WHOLE_PROJECT, WHOLE_PROJECT)))
        heads = await self._store.heads(scope.project_id, threads)
        versions = {place: version for place, version in heads.versions.items() if place.group == "artifacts"}
        if not versions:
            return ()
        groups = await self._store.groups(scope.project_id, versions)
        data = [groups[place].data for thread in threads if (place := Place(thread, "artifacts")) in groups]
        return await self._threads.run(
            lambda: [one for group in data for one in decode_group(group) if one.kind == "artifact"]
        )
