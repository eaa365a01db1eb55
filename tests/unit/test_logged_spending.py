"""The log line of a bundle names what used more than half of its reservation, lent tokens or not."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest
import structlog
import structlog.testing

from tests.support.assembling import assemble, wire_request


@pytest.fixture(autouse=True)
def _everything_is_logged() -> Iterator[None]:  # pyright: ignore[reportUnusedFunction]  # pytest uses it
    """Other tests run commands, which set another level for their process."""
    before = structlog.get_config()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.INFO))
    yield
    structlog.configure(**before)


async def over_half(mission_tokens: int, goal: str) -> list[str]:
    request = wire_request(
        budget={"total": 8_000, "layers": {"mission": mission_tokens, "output": 100}},
        payload={"task_context": "More than its layer holds. " * 2_000},
        session={"goal": {"id": "g", "statement": goal, "status": "active"}},
    )
    with structlog.testing.capture_logs() as told:
        await assemble(request)
    (line,) = [entry for entry in told if entry["event"] == "bundle.assembled"]
    assert "task" in line["over_half"]
    return line["over_half"]


async def test_a_layer_that_lent_what_it_did_not_need_is_not_named_for_spending_the_rest() -> None:
    assert "mission" not in await over_half(400, "Mend it.")


async def test_a_layer_that_took_more_than_half_of_its_reservation_is_named() -> None:
    assert "mission" in await over_half(60, "Mend it. " * 6)
    assert "mission" in await over_half(30, "Mend it. " * 6)
