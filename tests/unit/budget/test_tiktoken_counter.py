from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.budget.hostile_text import check_counting_up_to, hostile_text, lone_surrogates, long_runs
from worker.budget import tiktoken_counter
from worker.budget.tiktoken_counter import TiktokenCounter
from worker.budget.vocabulary import PACKAGED

COUNTERS = [TiktokenCounter(name) for name in PACKAGED]
by_counter = pytest.mark.parametrize("counter", COUNTERS, ids=lambda counter: counter.name)


def recount(counter: TiktokenCounter, text: str) -> int:
    return len(counter._encoding.encode(text, disallowed_special=()))  # pyright: ignore[reportPrivateUsage]  # the oracle


@by_counter
@given(text=st.one_of(hostile_text, lone_surrogates, long_runs))
@settings(max_examples=50, deadline=None)
def test_a_count_is_what_tiktoken_says(counter: TiktokenCounter, text: str) -> None:
    assert counter.count(text) == recount(counter, text)


@given(st.lists(st.sampled_from(["", "a b\n", "a b", "\ud800", "x" * 20_000, "of it " * 300]), max_size=12))
@settings(max_examples=25, deadline=None)
def test_what_is_remembered_is_bounded_and_changes_no_count(texts: list[str]) -> None:
    forgetful = TiktokenCounter("o200k_base", remembered_texts=0)
    remembering = TiktokenCounter(forgetful.name, remembered_texts=2)
    for text in texts:
        assert remembering.count_up_to(text, 150) == forgetful.count_up_to(text, 150)
        assert remembering.count(text) == recount(forgetful, text)
        assert len(remembering._counts) <= 2  # pyright: ignore[reportPrivateUsage]  # the claim


@by_counter
@given(text=hostile_text)
@settings(max_examples=50, deadline=None)
def test_utf8_bytes_are_an_upper_bound(counter: TiktokenCounter, text: str) -> None:
    assert counter.count(text) <= len(text.encode())


@by_counter
@given(text=st.one_of(hostile_text, lone_surrogates, long_runs), data=st.data())
@settings(max_examples=50, deadline=None)
def test_counting_up_to_a_limit_agrees_below_it_and_exceeds_it_above(
    counter: TiktokenCounter, text: str, data: st.DataObject
) -> None:
    check_counting_up_to(counter, text, data)


@by_counter
def test_counting_up_to_a_small_limit_reads_little_of_a_large_text(
    counter: TiktokenCounter, monkeypatch: pytest.MonkeyPatch
) -> None:
    read_chars: list[int] = []
    count = counter.count

    def record(text: str) -> int:
        read_chars.append(len(text))
        return count(text)

    monkeypatch.setattr(counter, "count", record)
    text = "Some words, and more of them.\n" * 2_000
    assert counter.count_up_to(text, 600) > 600
    assert 2_000 < sum(read_chars) < 5_000
    assert not counter.fits("word " * 100_000, 600)
    assert counter.fits("word", 600)
    assert sum(read_chars) < 10_000


@by_counter
@given(text=st.one_of(hostile_text, long_runs))
@settings(max_examples=40, deadline=None)
def test_token_ends_cut_the_bytes_into_the_tokens(counter: TiktokenCounter, text: str) -> None:
    encoding = counter._encoding  # pyright: ignore[reportPrivateUsage]  # the oracle
    tokens = encoding.decode_tokens_bytes(encoding.encode(text, disallowed_special=()))
    ends = counter.token_ends(text).tolist()
    data = text.encode()
    assert [data[a:b] for a, b in zip([0, *ends], ends, strict=False)] == tokens


@by_counter
@pytest.mark.parametrize("tail", ["", "x", "\n", "\nx", " \u3000"])
def test_a_million_spaces_are_counted_and_said_to_be_beyond_confirmation(
    counter: TiktokenCounter, tail: str
) -> None:
    text = "before" + " " * 1_000_000 + tail
    assert 7_800 < counter.count(text) < 7_830
    assert not counter.is_exact(text)


@by_counter
def test_spaces_that_tiktoken_still_takes_are_counted_as_it_does(counter: TiktokenCounter) -> None:
    text = "x" + " " * 900_000 + "y"
    assert counter.count(text) == recount(counter, text)


@by_counter
def test_ordinary_text_is_exact(counter: TiktokenCounter) -> None:
    assert counter.exact
    assert counter.is_exact("a" * 100_000 + " " * 100_000)


@by_counter
@pytest.mark.parametrize(
    "unit", ["a", "中", "中文测试字符", "😀", "👨‍👩‍👧‍👦", "\n", "0", "aB", "e\u0301", "<|endoftext|>", "\x00"]
)
def test_hundreds_of_kilobytes_of_one_thing_are_counted_exactly(counter: TiktokenCounter, unit: str) -> None:
    text = unit * (100_000 // len(unit))
    assert counter.count(text) == recount(counter, text)


@by_counter
def test_a_long_piece_whose_seams_never_hold_is_still_counted(
    counter: TiktokenCounter, monkeypatch: pytest.MonkeyPatch
) -> None:
    def never(_left: int, _right: int) -> bool:
        return False

    monkeypatch.setattr(counter, "joins", never)
    text = "abc" * 10_000
    assert counter.count(text) == recount(counter, text)


def test_the_seam_of_two_blocks_moves_back_where_a_token_would_cross_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    counter = COUNTERS[0]
    text = "international" * 1_000
    expected = recount(counter, text)
    for block_bytes in (64, 65, 67, 71, 97):
        monkeypatch.setattr(tiktoken_counter, "_BLOCK_BYTES", block_bytes)
        assert counter.count(text) == expected
