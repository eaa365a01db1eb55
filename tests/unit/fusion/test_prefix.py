"""What is said of the next prompt's prefix, against the next prompt."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from schemas.bundle import Message
from tests.support.assembling import assemble, assembler, wire_request
from worker.assembly import Assembled, Assembler
from worker.budget.tiktoken_counter import TiktokenCounter
from worker.budget.tokens import counter_for
from worker.demo_requests import ARTIFACTS, DIFF, MEMORY, SESSION

COUNTER = counter_for("o200k_base")
USING = assembler()
STATE = {
    "thread_id": "t1",
    "system_prompt": "You are smith.",
    "session": SESSION,
    "memory": MEMORY,
    "artifacts": ARTIFACTS,
    "payload": {"files_created": ["worker/errors.py"]},
    "working": {"current_diff": DIFF, "failing_tests": [{"id": "test_a", "message": "31 > 30"}]},
}
WORDS = ("Fix", "the", "retry", "loop.", "Review", "Korean", "trimming", "why", "do", "tests", "fail?")
TOTALS = st.sampled_from([2_000, 3_500, 8_000, 60_000])


def bundle(message: str, total: int, using: Assembler = USING, **more: object) -> Assembled:
    body = {**STATE, **more, "user_message": message, "budget": {"total": total}}
    return asyncio.run(assemble(wire_request(**body), using))


def ids_of(text: str) -> list[int]:
    assert isinstance(COUNTER, TiktokenCounter)
    return [int(token) for token in COUNTER.encode(text)]


def shared_tokens(one: tuple[Message, ...], other: tuple[Message, ...]) -> int:
    """Tokens at the beginning that two prompts have in common, message by message."""
    total = 0
    for a, b in zip(one, other, strict=True):
        x, y = ids_of(a.content), ids_of(b.content)
        total += next((n for n, pair in enumerate(zip(x, y, strict=False)) if pair[0] != pair[1]), len(x))
        if x != y:
            break
    return total


@settings(max_examples=25, deadline=None)
@given(
    st.lists(st.sampled_from(WORDS), min_size=1, max_size=9), st.sampled_from([2_000, 3_500, 8_000, 60_000])
)
def test_never_more_is_promised_than_the_next_prompt_shares(words: list[str], total: int) -> None:
    first, second = bundle("Do it.", total), bundle(" ".join(words), total)
    assert first.bundle.messages is not None
    assert second.bundle.messages is not None
    promised = first.usage.reusable_prefix_tokens
    assert promised is not None
    assert promised <= shared_tokens(first.bundle.messages, second.bundle.messages)


def test_in_a_wide_window_all_that_outlasts_the_message_is_promised() -> None:
    first, second = bundle("Do it.", 60_000), bundle("Why does trimming of Korean text fail?", 60_000)
    assert first.bundle.messages is not None
    assert second.bundle.messages is not None
    promised = first.usage.reusable_prefix_tokens or 0
    shared = shared_tokens(first.bundle.messages, second.bundle.messages)
    assert promised > 0.8 * shared
    spent = first.usage.usage.layers if first.usage.usage else {}
    assert promised > spent["mission"].spent + spent["plan"].spent


def test_where_nothing_outlasts_the_message_the_system_prompt_is_promised() -> None:
    promised = bundle("Do it.", 8_000, **dict.fromkeys(("session", "memory", "working")), artifacts=[])
    assert promised.usage.reusable_prefix_tokens == COUNTER.count("You are smith.")


@pytest.mark.parametrize("total", [2_000, 60_000])
def test_the_groups_that_change_least_stand_first(total: int) -> None:
    parts = bundle("Do it.", total, include=["messages", "layers", "usage", "parts"]).bundle.parts or {}
    mission = parts["mission"]
    assert 0 < mission.find("## Handed over: decisions") < mission.find("## Blockers")
