"""Prints one digest of what all sources give for a hundred hostile requests; run under several hash seeds."""

from __future__ import annotations

import asyncio
import hashlib
import random

from tests.support import hostile
from tests.unit.providers.frames import BUDGET, SCOPE, frame
from tests.unit.providers.test_contract import PROVIDERS


async def digest(requests: int) -> str:
    """SHA-256 over every contribution, in order."""
    rng, seen = random.Random(7), hashlib.sha256()
    for number in range(requests):
        body = hostile.request(rng, number) | {"project_id": "shop"}
        body.pop("pack", None)  # names a project of its own
        for make in PROVIDERS:
            contribution = await make().provide(frame(**body), SCOPE, BUDGET)
            seen.update(repr(contribution).encode("utf-8", "surrogatepass"))
    return seen.hexdigest()


if __name__ == "__main__":
    print(asyncio.run(digest(100)))  # noqa: T201 - the test reads it
