"""The newest outcome of a request: a redrive raises the generation, and callers know the request alone."""

from __future__ import annotations

from dataclasses import replace
from itertools import count
from typing import Protocol

from worker.errors import OutcomeDamaged
from worker.ports import OutcomeKey, OutcomeRecord, Tombstone


class Outcomes(Protocol):
    """What is used of the outcome store."""

    async def get(self, key: OutcomeKey) -> OutcomeRecord | Tombstone | None:
        """What is held. Raises StoreUnavailable and OutcomeDamaged."""
        ...


async def newest_outcome(outcomes: Outcomes, key: OutcomeKey) -> OutcomeRecord | Tombstone | None:
    """The outcome of the last generation, whichever the key names.

    Each generation follows the one before, and the first may be forgotten. One that is damaged is passed over
    where another follows, and is as good as not kept where it is the last: an older outcome is not what the
    caller was told. Raises StoreUnavailable.
    """
    newest = None
    for generation in count():
        try:
            held = await outcomes.get(replace(key, generation=generation))
        except OutcomeDamaged:
            newest = None
            continue
        if held is None and generation:
            break
        newest = held
    return newest
