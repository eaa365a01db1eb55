"""Bundles with what explains them, made by the assembler that the worker has."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

from schemas.bundle import to_wire
from schemas.request import AssemblyRequest
from tests.support import hostile
from tests.support.assembling import AS_OF, assemble, assembler, settings, wire_request
from worker.assembly import Assembled, Assembler
from worker.demo_requests import ARTIFACTS, DIFF, MEMORY, SESSION
from worker.errors import Rejected
from worker.explaining.stored import Stored, read_file, write_file
from worker.planning import ContentPolicy
from worker.wiring import content_policy

CROWDED: dict[str, Any] = {
    "request_id": "r-17",
    "thread_id": "t1",
    "system_prompt": "You are smith.",
    "user_message": "Make the retry loop respect its deadline.",
    "session": SESSION,
    "memory": MEMORY,
    "artifacts": ARTIFACTS,
    "working": {"current_diff": DIFF},
    "budget": {"total": 1_200, "layers": {"output": 100}},
}
"""More than its window holds."""


def policy() -> ContentPolicy:
    return content_policy(settings())


def crowded(**more: Any) -> AssemblyRequest:
    return wire_request(**{**CROWDED, **more})


def stored(assembled: Assembled, *, max_bytes: int = 10_000_000) -> Stored:
    return read_file(
        write_file(
            to_wire(assembled.bundle),
            record=assembled.trail.record,
            usage=to_wire(assembled.usage),
            capture=assembled.trail.capture(max_bytes=max_bytes),
        )
    )


async def stored_of(request: AssemblyRequest, using: Assembler | None = None) -> Stored:
    return stored(await assemble(request, using))


def bare(one: Stored) -> Stored:
    """The same without its capture."""
    return replace(one, capture_bytes=None)


async def served(seed: int, count: int) -> list[Assembled]:
    """What the assembler makes of generated requests, those that it refuses left out."""
    rng, using = random.Random(seed), assembler()
    found: list[Assembled] = []
    for number in range(count):
        body = hostile.request(rng, number) | {"as_of": AS_OF, "layer_timeouts_ms": {"ast": 20_000}}
        body["deadline_ms"] = 20_000
        if number % 3 == 0:
            body["budget"] = {"total": rng.choice([500, 1_500, 4_000])}
        if number % 4 == 0:
            body["strategy"] = rng.choice(["relevance", "recency+relevance", "tiered", "layered+recency"])
        try:
            found.append(await assemble(AssemblyRequest.model_validate(body), using))
        except Rejected:
            continue
    return found
