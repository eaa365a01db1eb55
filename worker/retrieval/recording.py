"""That a tool was answered, and what it showed, as events of the thread's state: answers are judged by that.

A call that names the request that it is made for leaves one note a thread, request and tool, and one for each
thing that it showed the text of: a call that is delivered twice, or repeated, changes nothing, and the state
grows by tools and things and not by the calls. A call that names none counts for what was asked before it, so
its notes say when it was: one of the second, and two of the longer spans that it lies in, so that the time
from a prompt to its answer, however long, is asked for by few ids. Calls that failed are not noted, nor those
that name neither thread nor request: nothing could ask for them.

Ids of notes begin with a control character. No event that is published may have such an id, so nobody can
note calls that were not made.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import pairwise
from typing import Final

from schemas.state import ToolCall, ToolCallEvent
from schemas.wire import canonical_json, sha256_hex
from worker.ports import Scope
from worker.state.records import StateRecord, microseconds, to_record

_PREFIX: Final = "\x1fcall\x1f"
_SECOND_US: Final = 1_000_000
_FANOUT: Final = 64
_SPANS: Final = (1, _FANOUT, _FANOUT**2)
"""In seconds; the longest is a little more than an hour."""
_MOST_LONGEST: Final = 48
"""Of the longest spans that are asked for: more than two days, in which every bundle is forgotten."""
_SLACK_SECONDS: Final = 300
"""How far the clock of who published the answer may be behind that of who answered the calls."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CallsFor:
    """Which calls count for an answer."""

    request_ids: tuple[str, ...]
    """Made for one of these requests."""
    since: datetime
    """Made for none, and not before that second."""
    until: datetime
    """Nor long after that."""


def call_records(
    scope: Scope, *, request_id: str | None, tool: str, shown: Sequence[str], answered_at: datetime
) -> tuple[StateRecord, ...]:
    """The events of an answered call, without a time of their own: the earliest record's counts.

    `shown` are own ids of what it showed the text of. O(shown): one event each, or one for each span.
    """
    subjects = [tool, *map(text_of, shown)]
    if request_id is not None:
        notes = [_note(scope.thread_id, subject, request_id) for subject in subjects]
    elif scope.thread_id is not None:
        second = microseconds(answered_at) // _SECOND_US
        notes = [
            _unbound(scope.thread_id, subject, span, second // span)
            for subject in subjects
            for span in _SPANS
        ]
    else:
        notes = []
    called = _record(scope, tool, answered_at)
    return tuple([replace(called, event_id=note) for note in notes])


def text_of(own_id: str) -> str:
    """What notes call the text of the thing with this id, where else they name a tool."""
    return f"\x1f{own_id}"


def notes_of(scope: Scope, *, subject: str, calls: CallsFor) -> Iterator[str]:
    """Ids of all events that say that the tool was answered so, or the text shown.

    Some two hundred at the most, each once.
    """
    yield from bound_notes_of(scope, subject=subject, calls=calls)
    if scope.thread_id is None:
        return
    since, until = (microseconds(instant) // _SECOND_US for instant in (calls.since, calls.until))
    for span, number in _spans(since, max(since, until) + _SLACK_SECONDS):
        yield _unbound(scope.thread_id, subject, span, number)


def bound_notes_of(scope: Scope, *, subject: str, calls: CallsFor) -> Iterator[str]:
    """Of these ids those of calls that named one of the requests: two a request at the most."""
    for request_id in dict.fromkeys(calls.request_ids):
        # Whoever names the request may leave out its thread.
        for thread_id in dict.fromkeys((scope.thread_id, None)):
            yield _note(thread_id, subject, request_id)


def _spans(since: int, until: int) -> Iterator[tuple[int, int]]:
    """Spans, by length and number, that begin with the first second and together hold the last one.

    Short ones up to where a longer one begins; the last may go on beyond the end.
    """
    at = since
    for span, longer in pairwise(_SPANS):
        while at % longer and at <= until:
            yield span, at // span
            at += span
    if at <= until:
        first = at // _SPANS[-1]
        for number in range(first, min(until // _SPANS[-1], first + _MOST_LONGEST) + 1):
            yield _SPANS[-1], number


def _note(thread_id: str | None, subject: str, request_id: str) -> str:
    return _PREFIX + sha256_hex(canonical_json([thread_id, subject, request_id]))


def _unbound(thread_id: str, subject: str, span: int, number: int) -> str:
    return _PREFIX + sha256_hex(canonical_json([thread_id, subject, span, number]))


def _record(scope: Scope, tool: str, answered_at: datetime) -> StateRecord:
    """What all notes of the call say, under an id that stands for theirs: the contract has none such."""
    event = ToolCallEvent(
        event="tool_call",
        event_id=tool,
        project_id=scope.project_id,
        thread_id=scope.thread_id,
        body=ToolCall(tool=tool),
    )
    return to_record(event, record_timestamp=answered_at)
