"""Which outcome of a request is its newest, also where one of them cannot be read."""

from __future__ import annotations

import pytest

from worker.errors import OutcomeDamaged
from worker.ports import OutcomeKey, Tombstone
from worker.retrieval.newest import newest_outcome

FIRST, SECOND, THIRD = (Tombstone(request_digest="d", reply_sha256=str(number)) for number in range(3))
DAMAGED = OutcomeDamaged("sqlite", "the checksum differs")


class Generations:
    """What is held of one request, generation by generation."""

    def __init__(self, held: list[Tombstone | OutcomeDamaged | None]) -> None:
        self._held = held

    async def get(self, key: OutcomeKey) -> Tombstone | None:
        held = self._held[key.generation] if key.generation < len(self._held) else None
        if isinstance(held, OutcomeDamaged):
            raise held
        return held


@pytest.mark.parametrize(
    ("held", "newest"),
    [
        ([], None),
        ([FIRST, SECOND], SECOND),
        ([None, SECOND], SECOND),
        ([DAMAGED, SECOND], SECOND),
        ([FIRST, DAMAGED, THIRD], THIRD),
        ([DAMAGED], None),
        ([FIRST, DAMAGED], None),
    ],
)
async def test_the_newest_is_the_last_one_unless_that_is_damaged(
    held: list[Tombstone | OutcomeDamaged | None], newest: Tombstone | None
) -> None:
    key = OutcomeKey(project_id="shop", request_id="r-1")
    assert await newest_outcome(Generations(held), key) == newest
