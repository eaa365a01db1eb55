"""Short ids in calls, as prompts show them: which thing one stands for, in the thread of whoever calls.

A short id is unique within one bundle only, so the bundle that the call is made for is asked first. Without
one it may mean several things of a large project; then the caller is told all of them.
"""

from __future__ import annotations

import asyncio
import re
from collections import OrderedDict
from dataclasses import dataclass
from typing import Any, Final, cast
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray
from pydantic_core import from_json

from schemas.citations import LETTERS, CitationKind
from schemas.tools import MAX_NEAR
from worker.citations.forms import MOST_DIGITS, SHORT, SHORT_DIGITS
from worker.citations.labels import KINDS_OF_NODES, digits_of, kind_of_label
from worker.graph.snapshot import Snapshot
from worker.ports import OutcomeKey, OutcomeRecord, Scope
from worker.retrieval.entities import most_alike
from worker.retrieval.found import ToolFailed
from worker.retrieval.newest import Outcomes, newest_outcome

_SHORT: Final = re.compile(rf"\[?({SHORT})!?\]?")
_KINDS: Final[dict[str, CitationKind]] = {letter: kind for kind, letter in LETTERS.items()}
_IN_GRAPHS: Final = frozenset(LETTERS[kind] for kind in KINDS_OF_NODES)
_LEAST_EQUAL: Final = 4
"""Of six digits: two that changed places, or two slips."""
_COMPARED: Final = 40
_INDEXES_KEPT: Final = 8
"""Of one snapshot, for as long as that is held."""


def short_in(text: str) -> str | None:
    """The short id that the text is, without brackets and mark; None where it is another text."""
    found = _SHORT.fullmatch(text.strip())
    return None if found is None else found[1]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Index:
    """The nodes of one kind by the digits that their short ids are cut from, ascending."""

    digits: NDArray[np.int64]
    numbers: NDArray[np.int64]


class ShortIds:
    """Reads short ids; one per process."""

    def __init__(self, outcomes: Outcomes) -> None:
        """Ask there what a bundle showed."""
        self._outcomes = outcomes
        self._indexes: WeakKeyDictionary[Snapshot, OrderedDict[tuple[Scope, str], _Index]] = (
            WeakKeyDictionary()
        )

    async def shown(self, scope: Scope, request_id: str, short: str) -> str | None:
        """The own id of what the newest bundle of that request shows under `short`.

        None where it shows no such thing, or is another thread's, or is not there. Raises StoreUnavailable.
        O(bundle), off the event loop.
        """
        held = await newest_outcome(
            self._outcomes, OutcomeKey(project_id=scope.project_id, request_id=request_id)
        )
        if not isinstance(held, OutcomeRecord):
            return None
        body = held.reply if held.bundle is None else held.bundle
        return await asyncio.to_thread(_own_id, body, scope.thread_id, short)

    def in_graph(self, snapshot: Snapshot, scope: Scope, short: str) -> str:
        """The own id of the node that has this short id in this thread.

        Raises ToolFailed, `not_found`, where none has it or several have, with what is near. The first call
        of a thread takes some 4 us a node of that kind, others a millisecond.
        """
        letter, wanted = short[0], short[2:]
        if letter not in _IN_GRAPHS:
            raise ToolFailed("not_found", f"{short} stands for no code, requirement or decision")
        index = self._index(snapshot, scope, letter)
        width: int = 10 ** (MOST_DIGITS - len(wanted))
        first = int(wanted) * width
        start = int(np.searchsorted(index.digits, first, side="left"))
        stop = int(np.searchsorted(index.digits, first + width - 1, side="right"))
        numbers: list[int] = index.numbers[start:stop].tolist()
        ids = sorted({snapshot.nodes[number].id for number in numbers})
        if len(ids) == 1:
            return ids[0]
        if ids:
            raise ToolFailed(
                "not_found",
                f"{short} means {len(ids)} things here; name one by its own id, or the request it is from",
                near=tuple(ids[:MAX_NEAR]),
            )
        near = _near(index, snapshot, short)
        raise ToolFailed("not_found", f"nothing has the id {short} in this thread", near=near)

    def _index(self, snapshot: Snapshot, scope: Scope, letter: str) -> _Index:
        indexes, key = self._indexes.setdefault(snapshot, OrderedDict()), (scope, letter)
        index = indexes.pop(key, None) or _index(snapshot, scope, letter)
        indexes[key] = index
        while len(indexes) > _INDEXES_KEPT:
            indexes.popitem(last=False)
        return index


def _index(snapshot: Snapshot, scope: Scope, letter: str) -> _Index:
    kind = _KINDS[letter]
    numbers = [n for n, node in enumerate(snapshot.nodes) if kind_of_label(node.label) == kind]
    digits = np.array([int(digits_of(scope, kind, snapshot.nodes[n].id)) for n in numbers], dtype=np.int64)
    order = np.argsort(digits, kind="stable")
    return _Index(digits=digits[order], numbers=np.array(numbers, dtype=np.int64)[order])


def _own_id(bundle: bytes, thread_id: str | None, short: str) -> str | None:
    """What that short id stands for in a bundle of that thread."""
    body = cast("dict[str, Any]", from_json(bundle))
    if body.get("kind") != "bundle" or body.get("thread_id") != thread_id:
        return None
    citations = cast("dict[str, list[dict[str, str]]]", body.get("citations") or {})
    return next((item["id"] for item in citations.get("items", ()) if item["short"] == short), None)


def _near(index: _Index, snapshot: Snapshot, short: str) -> tuple[str, ...]:
    """Own ids of nodes whose short ids are written much alike, the most alike first."""
    shown = index.digits // 10 ** (MOST_DIGITS - SHORT_DIGITS)
    wanted = int(short[2 : 2 + SHORT_DIGITS])
    equal = np.zeros(len(shown), dtype=np.int64)
    for place in range(SHORT_DIGITS):
        equal += shown // 10**place % 10 == wanted // 10**place % 10
    places = np.flatnonzero(equal >= _LEAST_EQUAL)
    best: list[int] = places[np.argsort(-equal[places], kind="stable")][:_COMPARED].tolist()
    own: dict[str, str] = {}
    for place in best:
        node = snapshot.nodes[int(index.numbers[place])]
        own[f"{short[0]}:{int(shown[place]):0{SHORT_DIGITS}d}"] = node.id
    return tuple(own[near] for near in most_alike(own, short))
