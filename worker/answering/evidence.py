"""What is known beside the bundle: which tools were called, what exists, and who answers for it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace
from heapq import nsmallest
from itertools import chain
from typing import Final

import structlog

from schemas.citations import CitationKind
from schemas.graph import NodeLabel
from schemas.tools import TOOL_NAMES
from worker.citations.answers import MAX_FOREIGN
from worker.citations.forms import is_code_id, is_short
from worker.citations.labels import kind_of_label, shorts_of
from worker.errors import StateUnavailable, StoreUnavailable
from worker.graph.adjacency import kind
from worker.graph.model import NodeRef
from worker.graph.snapshot import Snapshot
from worker.ports import Scope
from worker.providers.plan import read_steps
from worker.providers.snapshots import Snapshots
from worker.providers.states import StateReading, ThreadStates
from worker.retrieval.recording import CallsFor, bound_notes_of, notes_of, text_of
from worker.state.records import WHOLE_PROJECT
from worker.state.store import StateStore

log = structlog.get_logger()

MAX_LOOKED_FOR: Final = 3 * MAX_FOREIGN
"""Things that an answer cites, was not given, and may have been shown by tools: as many as are read."""

MAX_ASKED: Final = 2_000
"""Events that one question to the state is about: others wait while it is answered."""

_CODE: Final[tuple[NodeLabel, ...]] = ("Function", "Class", "Module")
_OTHERS: Final[tuple[NodeLabel, ...]] = ("RequirementItem", "Requirement", "Spec", "Decision", "File")
_OWNED_BY: Final = (kind("OWNS", backward=True),)


class Evidence:
    """Asks graph and state; one per worker."""

    def __init__(self, *, snapshots: Snapshots, states: ThreadStates, store: StateStore) -> None:
        """Ask these; `store` is the one that `states` reads."""
        self._snapshots = snapshots
        self._states = states
        self._store = store

    async def noted(
        self, scope: Scope, tools: Iterable[str], own_ids: Iterable[str], calls: CallsFor
    ) -> tuple[frozenset[str], frozenset[str]]:
        """Of these tools those that were called, and of these own ids those whose text such calls showed.

        Calls for one of the requests, or unbound and in that time; known from the notes that answered calls
        leave, and so never from what an agent says. Of very many ids the first are looked for. One round
        trip where the calls named their request, some more where they did not. Raises StoreUnavailable.
        """
        # Of other names nothing is ever noted, and an answer may claim any.
        asked = frozenset(TOOL_NAMES).intersection(tools)
        looked_for = nsmallest(MAX_LOOKED_FOR, frozenset(own_ids))
        if not asked and not looked_for:
            return frozenset(), frozenset()
        subjects = {*asked, *map(text_of, looked_for)}
        noted = await self._with_notes(scope, subjects, bound_notes_of, calls)
        unbound = replace(calls, request_ids=())
        noted |= await self._with_notes(scope, subjects - noted, notes_of, unbound)
        shown = frozenset([own_id for own_id in looked_for if text_of(own_id) in noted])
        return asked & noted, shown

    async def _with_notes(
        self, scope: Scope, subjects: AbstractSet[str], ids_of: Callable[..., Iterator[str]], calls: CallsFor
    ) -> set[str]:
        """Of these subjects those that such calls left a note of, `ids_of` saying which that would be."""

        def name() -> list[tuple[str, str]]:
            return [
                (note, subject)
                for subject in sorted(subjects)
                for note in ids_of(scope, subject=subject, calls=calls)
            ]

        # Up to some two hundred digests a subject, which the loop does not wait for.
        named = await asyncio.to_thread(name)
        threads = [scope.thread_id or WHOLE_PROJECT]
        known: set[str] = set()
        # Notes are only ever added, so that several questions are as good as one.
        for start in range(0, len(named), MAX_ASKED):
            some = dict(named[start : start + MAX_ASKED])
            heads = await self._store.heads(scope.project_id, threads, event_ids=[*some])
            known.update([subject for note, subject in some.items() if note not in heads.missing])
        return known

    async def existing(self, scope: Scope, cited: Sequence[str], *, plan_id: str | None) -> dict[str, str]:
        """Of these ids, short or own ones, those that name something in project or thread.

        Each with its own id. What lies in state is this thread's, and short ids are, too: another thread's
        name nothing. Steps are those of the plan with `plan_id`, else of the current one. Of a graph that is
        too large to be held, the part around the own ids is looked through. Raises StoreUnavailable. O(nodes)
        where there are short ids.
        """
        shorts = frozenset(filter(is_short, cited))
        ids = [one for one in cited if one not in shorts]
        roots = sorted({NodeRef(label, one) for one in ids for label in _labels_of(one)})
        snapshot = await self._snapshots.latest(scope.project_id, roots=roots)
        found = (
            {} if snapshot is None else {ref.id: ref.id for ref in roots if snapshot.find(ref) is not None}
        )
        left = frozenset(ids).difference(found)
        if not shorts and all(map(is_code_id, left)):
            return found
        try:
            reading = await self._states.read(scope)
        except StateUnavailable as error:
            raise StoreUnavailable("state", str(error)) from error

        def look() -> dict[str, str]:
            identities = [*_in_state(reading, plan_id)]
            known = {own_id: own_id for _, own_id in identities if own_id in left}
            nodes = () if snapshot is None else _in_graph(snapshot)
            return known | shorts_of(shorts, chain(nodes, identities), scope)

        return found | await asyncio.to_thread(look)

    async def owners(self, project_id: str, ids: Iterable[str]) -> tuple[str, ...]:
        """Who answers for the files that these ids of code stand in, sorted; none where that is unknown."""
        files = sorted({NodeRef("File", one.partition("::")[0]) for one in ids if "::" in one})
        if not files:
            return ()
        try:
            snapshot = await self._snapshots.latest(project_id, roots=files)
        except StoreUnavailable as error:
            log.warning("answer.owners_unknown", cause=str(error))
            return ()
        if snapshot is None:
            return ()
        numbers = [number for ref in files if (number := snapshot.find(ref)) is not None]
        owners = {owner for number in numbers for owner in snapshot.edges.of(number, _OWNED_BY)}
        return tuple(sorted(snapshot.nodes[owner].id for owner in owners))


def _labels_of(own_id: str) -> tuple[NodeLabel, ...]:
    return _CODE if is_code_id(own_id) else _OTHERS


def _in_graph(snapshot: Snapshot) -> Iterator[tuple[CitationKind, str]]:
    for node in snapshot.nodes:
        kind_of_node = kind_of_label(node.label)
        if kind_of_node is not None:
            yield kind_of_node, node.id


def _in_state(reading: StateReading, plan_id: str | None) -> Iterator[tuple[CitationKind, str]]:
    handoff = None if reading.session is None else reading.session.handoff
    for decision in () if handoff is None else handoff.decisions:
        if decision.id:
            yield "decision", decision.id
    for artifact in reading.artifacts:
        if artifact.id:
            yield "artifact", artifact.id
    for fact in reading.memories.current():
        yield "memory", fact.id
    stored = reading.plan(plan_id)
    if stored is not None:
        for step in read_steps(stored.plan).plan.steps:
            if step.id:
                yield "step", f"{stored.plan.plan_id}/{step.id}"
