from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from worker.kafka.offsets import OffsetTracker


def test_nothing_can_be_committed_before_the_first_record():
    tracker = OffsetTracker()
    assert (tracker.committable, tracker.next_offset, tracker.span, tracker.is_idle) == (None, None, 0, True)


def test_the_first_unfinished_record_holds_the_commit():
    tracker = OffsetTracker()
    for offset in (5, 6, 7):
        tracker.admit(offset)
    tracker.done(7)
    tracker.done(6)
    assert (tracker.committable, tracker.span) == (5, 3)
    tracker.done(5)
    assert (tracker.committable, tracker.span) == (8, 0)


def test_a_gap_in_the_log_is_passed_with_the_record_before_it():
    tracker = OffsetTracker()
    tracker.admit(5)
    tracker.admit(900)
    tracker.done(5)
    assert (tracker.committable, tracker.span) == (900, 1)


def test_markers_at_the_end_of_the_log_can_be_skipped():
    tracker = OffsetTracker()
    tracker.admit(5)
    tracker.skip_to(8)
    assert tracker.committable == 5
    tracker.done(5)
    assert tracker.committable == 8
    tracker.skip_to(3)
    assert tracker.committable == 8


@pytest.mark.parametrize("offset", [3, 4])
def test_an_offset_that_does_not_rise_is_refused(offset: int):
    tracker = OffsetTracker()
    tracker.admit(4)
    with pytest.raises(ValueError, match=f"offset {offset} comes after 4"):
        tracker.admit(offset)


@pytest.mark.parametrize("offset", [3, 5, 9])
def test_ending_what_is_not_in_work_is_refused(offset: int):
    tracker = OffsetTracker()
    for admitted in (4, 5, 6):
        tracker.admit(admitted)
    tracker.done(5)
    with pytest.raises(ValueError, match=f"offset {offset} is not in work"):
        tracker.done(offset)


class Tracking(RuleBasedStateMachine):
    """The tracker against the plain definition: sets of offsets, looked through from the start."""

    def __init__(self) -> None:
        super().__init__()
        self.tracker = OffsetTracker()
        self.unfinished: set[int] = set()
        self.next = 0
        self.seen = False
        self.highest_commit = -1
        self.admitted: list[int] = []

    @rule(gap=st.integers(0, 3))
    def admit(self, gap: int) -> None:
        self.tracker.admit(self.next + gap)
        self.unfinished.add(self.next + gap)
        self.admitted.append(self.next + gap)
        self.next += gap + 1
        self.seen = True

    @precondition(lambda self: bool(self.admitted))
    @rule(data=st.data())
    def withdraw(self, data: st.DataObject) -> None:
        offset = data.draw(st.sampled_from(self.admitted[-2:]))
        is_last = offset == self.admitted[-1] and offset in self.unfinished
        assert self.tracker.withdraw(offset) is is_last
        if is_last:
            self.unfinished.remove(offset)
            self.admitted.pop()
            self.next = offset

    @precondition(lambda self: bool(self.unfinished))
    @rule(data=st.data())
    def finish_any(self, data: st.DataObject) -> None:
        offset = data.draw(st.sampled_from(sorted(self.unfinished)))
        self.tracker.done(offset)
        self.unfinished.remove(offset)

    @precondition(lambda self: bool(self.unfinished))
    @rule()
    def finish_newest(self) -> None:
        offset = max(self.unfinished)
        self.tracker.done(offset)
        self.unfinished.remove(offset)

    @rule(ahead=st.integers(0, 2))
    def skip(self, ahead: int) -> None:
        self.tracker.skip_to(self.next + ahead)
        self.next += ahead
        self.seen = True

    @rule(offset=st.integers(-2, 60))
    def finishing_twice_or_never_admitted_is_refused(self, offset: int) -> None:
        if offset in self.unfinished:
            return
        with pytest.raises(ValueError, match="not in work"):
            self.tracker.done(offset)

    @invariant()
    def the_commit_is_the_first_unfinished_offset(self) -> None:
        expected = min(self.unfinished, default=self.next)
        assert self.tracker.committable == (expected if self.seen else None)

    @invariant()
    def the_commit_never_goes_back(self) -> None:
        commit = self.tracker.committable
        if commit is not None:
            assert commit >= self.highest_commit
            self.highest_commit = commit

    @invariant()
    def the_span_covers_all_that_a_crash_brings_back(self) -> None:
        expected = self.next - min(self.unfinished) if self.unfinished else 0
        assert self.tracker.span == expected
        assert self.tracker.is_idle == (not self.unfinished)


Tracking.TestCase.settings = settings(max_examples=150, stateful_step_count=40)
TestTracking = Tracking.TestCase
