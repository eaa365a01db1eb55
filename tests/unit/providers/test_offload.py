from __future__ import annotations

import threading
from typing import Any

import pytest

from schemas.session import LegacyPayload, SessionContext
from worker.providers.offload import HEAVY_CHARS, is_heavy, run_by_weight
from worker.providers.threads import SourceThreads


@pytest.mark.parametrize(
    "light",
    [None, "", "x" * (HEAVY_CHARS - 100), [], {"a": [1, 2, {"b": None}]}, SessionContext(), 1e300],
)
def test_small_inputs_are_light(light: object) -> None:
    assert not is_heavy(light)


@pytest.mark.parametrize(
    "heavy",
    [
        "x" * (HEAVY_CHARS + 1),
        {"a": {"b": ["x" * HEAVY_CHARS]}},
        {"x" * HEAVY_CHARS: 1},
        [None] * 10_000,
        ("x" * 100,) * 1_000,
        SessionContext.model_validate({"goal": {"statement": "x" * HEAVY_CHARS}}),
    ],
)
def test_long_texts_and_many_items_are_heavy_wherever_they_stand(heavy: object) -> None:
    assert is_heavy(heavy)


def test_inputs_are_weighed_together() -> None:
    half = "x" * (HEAVY_CHARS // 2)
    assert not is_heavy(half)
    assert is_heavy(half, half)


def test_extra_fields_of_a_model_count() -> None:

    assert is_heavy(LegacyPayload.model_validate({"unknown": "x" * HEAVY_CHARS}))


@pytest.mark.parametrize(("given", "is_elsewhere"), [("x", False), ("x" * (HEAVY_CHARS + 1), True)])
async def test_only_heavy_work_leaves_the_event_loop(given: Any, *, is_elsewhere: bool) -> None:
    thread = await run_by_weight(SourceThreads(), threading.get_ident, given)
    assert (thread != threading.get_ident()) == is_elsewhere
