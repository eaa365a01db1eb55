from __future__ import annotations

import time

import pytest
import regex
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.budget.hostile_text import hostile_text, long_runs
from worker.budget.tokens import counter_for
from worker.memory.compression import compress
from worker.memory.filler import is_count, without_code_middles, without_frame_middles, without_repetitions
from worker.memory.sentences import pieces_of
from worker.ports import TokenCounter

BYTES = counter_for("bytes")
O200K = counter_for("o200k_base")
COUNTERS = [BYTES, O200K, counter_for("cl100k_base", safety_factor="1.1")]

TRACE = (
    "Traceback (most recent call last):\n"
    + "".join(f'  File "/app/m{n}.py", line {n}, in f{n}\n    call_{n}(x)\n    ^^^^^^\n' for n in range(40))
    + "BudgetTooSmall: the fixed layers need 900 tokens\n"
)
LOG = "connecting to the broker\n" * 60
CODE = "```python\n" + "".join(f"x{n} = compute({n})\n" for n in range(100)) + "```\n"
STORY = (
    "We met about the store. Somebody came late. We decided to use SQLite for the outcome store. The weather "
    "was fine, e.g. sunny. SQLite needs no server. Lunch was good. Redis may come later, as a cache of it."
)


def compressed(text: str, max_tokens: int) -> str:
    return compress(text, max_tokens=max_tokens, counter=O200K)


def test_what_fits_is_left_alone() -> None:
    text = LOG + TRACE + CODE + STORY
    assert compressed(text, O200K.count(text)) == text


def test_repeated_lines_become_one_and_a_count() -> None:
    assert compressed(LOG, 40) == "connecting to the broker\n… 59 more repetitions\n"


def test_lines_that_alternate_become_one_pair_and_a_count() -> None:
    text = "retrying in 1 s\nconnection refused by the broker\n" * 30
    expected = "retrying in 1 s\nconnection refused by the broker\n… 29 more repetitions\n"
    assert without_repetitions(text) == expected


@pytest.mark.parametrize("text", ["a\na\na\n", "", "\n\n\n", "one\ntwo\none\nthree"])
def test_a_repetition_shorter_than_its_count_stays(text: str) -> None:
    assert without_repetitions(text) == text


def test_a_stack_trace_keeps_its_ends_and_its_error() -> None:
    text = compressed(TRACE, 200)
    lines = text.splitlines()
    assert [line for line in lines if line.startswith("  File")] == [
        f'  File "/app/m{n}.py", line {n}, in f{n}' for n in (0, 1, 38, 39)
    ]
    assert "  … 36 more frames" in lines
    assert lines[-1] == "BudgetTooSmall: the fixed layers need 900 tokens"


@pytest.mark.parametrize(
    "frame",
    [
        "\tat com.acme.Store.put(Store.java:{})",
        "\tat java.base/java.lang.Thread.run(Unknown Source {})",
        "    at assemble (/app/dist/index.js:{}:17)",
        "\t/go/src/worker/main.go:{} +0x1d",
        "  {}: 0x55d0c3 - core::panicking::panic",
        "\tfrom lib/store.rb:{}:in `put'",
        "#{} 0x00007f in tokenize () from libtok.so",
    ],
)
def test_frames_of_other_languages_are_known(frame: str) -> None:
    text = "it failed\n" + "".join(frame.format(n) + "\n" for n in range(30)) + "the end\n"
    lines = without_frame_middles(text).splitlines()
    assert len(lines) == 7
    assert lines[3].strip() == "… 26 more frames"


def test_a_long_code_block_keeps_its_fences_head_and_tail() -> None:
    lines = without_code_middles(CODE).splitlines()
    assert lines[0] == "```python"
    assert lines[6:9] == ["x5 = compute(5)", "… 90 more lines", "x96 = compute(96)"]
    assert lines[-1] == "```"


def test_the_decision_outlives_the_small_talk() -> None:
    text = compressed(STORY, 22)
    assert "We decided to use SQLite for the outcome store." in text
    assert "Lunch" not in text
    assert "…" in text


def test_what_was_said_before_is_not_said_again() -> None:
    text = "It rained. " * 20 + "We decided to use SQLite. " + "It rained again. " * 20
    assert compressed(text, 30).count("It rained.") == 1
    assert "We decided to use SQLite." in compressed(text, 30)


def test_where_no_sentence_fits_the_beginning_stands_for_the_text() -> None:
    assert compressed("word " * 500, 9) == "word word word word word word word word word"


@pytest.mark.parametrize("max_tokens", [0, -5])
def test_without_a_budget_nothing_is_left(max_tokens: int) -> None:
    assert compressed(STORY, max_tokens) == ""


compressible = st.lists(
    st.one_of(hostile_text, st.sampled_from([LOG, TRACE, CODE, STORY, "```\nopen", "\r\n", "at x (y:1)\n"])),
    max_size=5,
).map("".join)


@settings(max_examples=25, deadline=None)
@given(compressible, st.integers(-1, 400), st.sampled_from(COUNTERS))
def test_the_result_fits_is_no_longer_and_stays_as_it_is(
    text: str, max_tokens: int, counter: TokenCounter
) -> None:
    result = compress(text, max_tokens=max_tokens, counter=counter)
    assert counter.count(result) <= max(0, max_tokens)
    assert counter.count(result) <= counter.count(text)
    assert compress(result, max_tokens=max_tokens, counter=counter) == result


@settings(max_examples=25, deadline=None)
@given(compressible, st.integers(1, 120))
def test_no_grapheme_is_split(text: str, max_tokens: int) -> None:
    whole = set(regex.findall(r"\X", text)) | set(" \n…morepetitionsframeslines0123456789`~")
    assert set(regex.findall(r"\X", compressed(text, max_tokens))) <= whole


@settings(max_examples=30)
@given(compressible)
def test_pieces_cover_the_text_at_grapheme_ends(text: str) -> None:
    pieces = list(pieces_of(text))
    assert "".join(text[p.start : p.end] for p in pieces) == text
    assert all(p.start < p.end for p in pieces)
    ends = {found.end() for found in regex.finditer(r"\X", text)}
    assert all(p.end in ends for p in pieces)


@settings(max_examples=30)
@given(compressible)
def test_filler_never_grows_and_going_over_it_again_changes_little(text: str) -> None:
    for stage in (without_repetitions, without_frame_middles, without_code_middles):
        shorter = stage(text)
        assert len(shorter) <= len(text)
        kept = [line for line in shorter.splitlines() if not is_count(line)]
        assert set(kept) <= set(text.splitlines())


@settings(max_examples=8, deadline=None)
@given(long_runs, st.integers(20, 60))
def test_long_runs_are_cut_to_the_budget(text: str, max_tokens: int) -> None:
    result = compressed(text, max_tokens)
    assert O200K.count(result) <= max_tokens
    assert result or not text.strip()


@pytest.mark.parametrize(
    "scrap",
    [
        "a",
        "漢",
        "a b. ",
        "Is it? No",
        "line\n",
        "```\n",
        "\u0600 x. ",
        "\n",
        " ",
        "at a(b:1)\n",
        '  File "x", line 3\n',
    ],
)
def test_a_quarter_of_a_megabyte_takes_bounded_time(scrap: str) -> None:
    text = scrap * (250_000 // len(scrap))
    started = time.process_time()
    result = compressed(text, 50)
    assert time.process_time() - started < 3
    assert O200K.count(result) <= 50


def test_three_thousand_different_sentences_take_bounded_time() -> None:
    text = " ".join(f"Sentence {n} speaks of topic{n % 97} and of nothing else." for n in range(3_000))
    started = time.process_time()
    assert O200K.count(compressed(text, 500)) <= 500
    assert time.process_time() - started < 3
