"""What follows an answer: a pure function of the steps taken so far."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from schemas.citations import Step
from worker.citations.validator import Judgement

MAX_ATTEMPTS: Final = 3
"""Answers that one request may have; the last one that fails is escalated."""


def next_step(judgement: Judgement, taken: Sequence[Step], *, max_attempts: int = MAX_ATTEMPTS) -> Step:
    """The step after this answer; `taken` are those after the answers before it, the first first.

    An answer that complied is accepted. The last of `max_attempts` is escalated whatever came before. One
    that cites what exists and was not shown lacked context: it gets more, once. Else the first is warned, and
    any later one is shown less.
    """
    if judgement.has_complied:
        return "accept"
    if len(taken) + 1 >= max_attempts:
        return "escalate"
    if judgement.not_injected and "expand" not in taken:
        return "expand"
    return "shrink" if taken else "warn"
