from __future__ import annotations

import json
import random
import time
import tracemalloc
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.budget.hostile_text import hostile_text
from tests.unit.memory.thread import DECISIONS, START, message, staged_thread
from worker.budget.tokens import counter_for
from worker.memory.summary import Summary, summarize, summary_of
from worker.memory.thread_state import SENTENCE_CHARS, ThreadMessage, ThreadState

BYTES = counter_for("bytes")
O200K = counter_for("o200k_base")


def summary(messages: list[ThreadMessage], max_tokens: int = 200) -> Summary:
    return summarize(messages, max_tokens=max_tokens, counter=O200K)


def test_a_summary_holds_the_goal_the_decisions_and_the_last_word() -> None:
    found = summary(staged_thread(400))
    lines = found.text.splitlines()
    assert lines[0] == "- ann: Please make the outcome store survive a crash of the worker."
    for decision in DECISIONS:
        assert any(line.startswith("- medic: ") and decision in line for line in lines)
    assert lines[-1] == "- smith: The crash test of the outcome store passes on my branch."


@pytest.mark.parametrize(
    "text",
    ["we agreed to wait with the next round.", "the upload is stuck since noon.", "it must stay as it was."],
)
def test_a_plain_sentence_that_decides_blocks_or_rules_stands_out(text: str) -> None:
    messages = staged_thread(300)
    messages = [m for m in messages if not any(decision in m.text for decision in DECISIONS)]
    messages.insert(150, message(150_000, text, speaker="medic"))
    # In the middle of the thread: neither the first nor the last word.
    messages[150] = replace(messages[150], occurred_at=messages[149].occurred_at)
    assert f"- medic: {text}" in summary(messages, max_tokens=90).text


def test_lines_stand_in_order_of_time() -> None:
    text = summary(staged_thread(400)).text
    places = [text.index(decision) for decision in DECISIONS]
    assert places == sorted(places)


def test_a_summary_counts_the_messages_that_it_does_not_quote() -> None:
    messages = [message(n, f"We decided on point {n} of area{n}.") for n in range(30)]
    found = summary(messages, max_tokens=60)
    assert 0 < found.left_out < 30
    assert found.left_out + len(found.text.splitlines()) == 30
    assert found.tokens == O200K.count(found.text) <= 60


def test_sentences_of_one_message_share_a_line() -> None:
    found = summary([message(1, "We chose SQLite for outcomes. It rained. Redis was rejected for receipts.")])
    assert found.text.splitlines() == [
        "- smith: We chose SQLite for outcomes. It rained. Redis was rejected for receipts."
    ]


def test_what_is_repeated_is_said_once_as_it_was_said_last() -> None:
    messages = [message(n, "We decided to use SQLite.", speaker=who) for n, who in enumerate("abcab")]
    assert summary(messages) == Summary("- b: We decided to use SQLite.", 9, 4)


def test_code_and_stack_traces_are_passed_over() -> None:
    code, trace = "```python\nprint('decided')\n```\n", '  File "a.py", line 3, in decided\n    decided()\n'
    assert summary([message(1, f"{code}The retry works.\n{trace}")]).text == "- smith: The retry works."


def test_chat_alone_is_better_than_nothing_but_never_beside_something() -> None:
    assert summary([message(1, "Ok, thanks!")]).text == "- smith: Ok, thanks!"
    assert "thanks" not in summary(staged_thread(300), max_tokens=4_000).text


def test_a_user_is_heard_before_a_tool() -> None:
    messages = [
        message(1, "The layout of the page has three columns.", speaker="grep", role="tool"),
        message(2, "The colour of the button is a dark green.", speaker="ann", role="user"),
        message(3, "The shape of the picture is a wide one.", speaker="grep", role="tool"),
    ]
    assert summary(messages, max_tokens=14).text.startswith("- ann: ")


def test_where_no_line_fits_the_beginning_of_the_best_stands_for_all() -> None:
    found = summarize([message(1, "We decided to keep outcomes in SQLite.")], max_tokens=24, counter=BYTES)
    assert found == Summary("- smith: We decided to", 22, 0)


@pytest.mark.parametrize("max_tokens", [0, -1])
def test_without_a_budget_there_is_no_summary(max_tokens: int) -> None:
    assert summary([message(1, "We decided.")], max_tokens) == Summary("", 0, 1)


@pytest.mark.parametrize("text", ["", " \n", "!!! ...", "```\ncode\n```", "\x00", "\u0301"])
def test_messages_that_say_nothing_give_no_summary(text: str) -> None:
    assert summary([message(1, text)]) == Summary("", 0, 1)
    assert summary([]) == Summary("", 0, 0)


def test_undated_messages_come_first() -> None:
    messages = [
        message(1, "Redis was rejected."),
        replace(message(2, "SQLite was chosen."), occurred_at=None),
    ]
    assert summary(messages).text.splitlines() == [
        "- smith: SQLite was chosen.",
        "- smith: Redis was rejected.",
    ]


texts = st.one_of(
    hostile_text,
    st.sampled_from(
        [
            "We decided to use SQLite. Redis waits.",
            "we decided to use sqlite.",
            "Ok.",
            "It fails in parse_json().",
        ]
    ),
)
threads = st.lists(
    st.builds(
        message,
        st.integers(0, 3),
        texts,
        speaker=st.sampled_from(["ann", "smith", "a\nb", ""]),
        role=st.sampled_from(["user", "assistant", "tool", "?"]),
    ),
    max_size=8,
).map(lambda messages: [replace(m, id=f"{n % 3}:{n}") for n, m in enumerate(messages)])


@settings(max_examples=25, deadline=None)
@given(threads, st.integers(0, 2**32), st.integers(-1, 120))
def test_a_summary_depends_on_the_set_of_messages_alone(
    messages: list[ThreadMessage], seed: int, max_tokens: int
) -> None:
    shuffled = random.Random(seed).sample(messages, len(messages))
    found = summary(messages, max_tokens)
    assert found == summary(shuffled, max_tokens)
    assert found.tokens == O200K.count(found.text) <= max(0, max_tokens)
    assert found.left_out + len(found.text.splitlines()) == len(messages)


@settings(max_examples=25, deadline=None)
@given(threads, st.integers(0, 8))
def test_a_stored_state_goes_on_where_it_stopped(messages: list[ThreadMessage], split: int) -> None:
    state = advanced(ThreadState(), messages[:split])
    resumed = advanced(ThreadState.from_bytes(state.to_bytes()), messages[split:])
    fresh = advanced(ThreadState(), messages)
    assert resumed.to_bytes() == fresh.to_bytes()
    assert summary_of(resumed, max_tokens=99, counter=O200K) == summary(messages, 99)


def advanced(state: ThreadState, messages: list[ThreadMessage]) -> ThreadState:
    for each in messages:
        state.advance(each)
    return state


def test_a_long_thread_in_any_order_and_in_parts_ends_alike() -> None:
    messages = staged_thread(900)
    expected = advanced(ThreadState(), messages).to_bytes()
    for seed in range(2):
        shuffled = random.Random(seed).sample(messages, len(messages))
        assert advanced(ThreadState(), shuffled).to_bytes() == expected
    state = ThreadState()
    for start in range(0, len(messages), 250):
        state = advanced(ThreadState.from_bytes(state.to_bytes()), messages[start : start + 250])
    assert state.to_bytes() == expected


@pytest.mark.parametrize("share", [0, 1, 7, 250])
def test_two_states_joined_are_the_state_that_read_all_messages(share: int) -> None:
    messages = [*staged_thread(400), message(900_000, "We chose SQLite for outcomes.")]
    order = random.Random(5)
    order.shuffle(messages)
    one, other = (advanced(ThreadState(), some) for some in (messages[:share], messages[share:]))
    one.join(other)
    assert one.to_bytes() == advanced(ThreadState(), messages).to_bytes()
    assert one.messages == len(messages)


def test_every_message_is_different_and_the_state_stays_small() -> None:
    state = ThreadState()

    def size_after(start: int, stop: int) -> int:
        for n in range(start, stop):
            state.advance(message(n, f"We decided that topic{n} is {'very ' * 40}important number {n}. " * 3))
        return tracemalloc.get_traced_memory()[0]

    tracemalloc.start()
    try:
        early = size_after(0, 250)
        assert size_after(250, 600) < early + 100_000
    finally:
        tracemalloc.stop()
    assert len(state.to_bytes()) < 80_000


def test_the_bytes_of_a_state_are_compact_json_with_a_version() -> None:
    state = advanced(ThreadState(), [message(1, "Größe was decided.")])
    assert state.to_bytes().decode() == (
        '{"version":1,"messages":1,"sentences":'
        f"[[{(START - START.min.replace(tzinfo=START.tzinfo)).days * 86_400_000_000 + 1_000_000},"
        '"m000001",0,0,35,"smith","Größe was decided."]]}'
    )
    assert json.loads(state.to_bytes())["version"] == 1


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{",
        b"[]",
        b"7",
        b"null",
        b"\xff",
        b'{"version":0,"messages":1,"sentences":[]}',
        b'{"version":1,"sentences":[]}',
        b'{"version":1,"messages":-1,"sentences":[]}',
        b'{"version":1,"messages":true,"sentences":[]}',
        b'{"version":1,"messages":1,"sentences":[[1]]}',
        b'{"version":1,"messages":1,"sentences":7}',
        b'{"version":1,"messages":1,"sentences":[[1,"m",0,0,0,"s",null]]}',
        b'{"version":1,"messages":1,"sentences":[["1","m",0,0,0,"s","t"]]}',
        b"[" * 100_000,
    ],
)
def test_bytes_that_are_no_state_are_refused(data: bytes) -> None:
    with pytest.raises(ValueError, match=r".*"):
        ThreadState.from_bytes(data)


def test_a_sentence_without_an_end_is_cut_between_graphemes() -> None:
    [sentence] = advanced(ThreadState(), [message(1, "👨‍👩‍👧‍👦x" * 9_000)]).candidates().salient
    assert len(sentence.text) <= SENTENCE_CHARS
    assert sentence.text.removesuffix("…").removesuffix("x").endswith("👨‍👩‍👧‍👦")


@pytest.mark.parametrize("scrap", ["a", "漢", "a. ", "Is it? No ", "\n", "```\n", "🇩🇪", "\x00", "x_"])
def test_a_quarter_of_a_megabyte_takes_bounded_time(scrap: str) -> None:
    started = time.process_time()
    found = summary([message(1, scrap * (250_000 // len(scrap))), message(2, "Done.")], 50)
    assert time.process_time() - started < 3
    assert found.tokens <= 50
