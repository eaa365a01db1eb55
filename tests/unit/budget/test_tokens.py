from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal
from fractions import Fraction
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.budget.hostile_text import check_counting_up_to, hostile_text, lone_surrogates, long_runs
from worker.budget.tokens import (
    BytesCounter,
    ScaledCounter,
    TokenCounter,
    charge_spans,
    count_lines,
    count_lines_up_to,
    counter_for,
    lines_fit,
)
from worker.budget.utf8 import byte_length, byte_offsets, well_formed

COUNTERS = [
    counter_for("o200k_base"),
    counter_for("cl100k_base"),
    counter_for("bytes"),
    counter_for("o200k_base", safety_factor="1.15"),
    counter_for("bytes", safety_factor=3),
]
by_counter = pytest.mark.parametrize("counter", COUNTERS, ids=lambda c: f"{c.name}-{c.scale(100)}")


def test_counters_are_kept_and_shared_between_threads() -> None:
    def ask(_: int) -> int:
        return id(counter_for("cl100k_base", safety_factor=1.25))

    with ThreadPoolExecutor(8) as pool:
        got = set(pool.map(ask, range(32)))
    assert len(got) == 1
    assert counter_for("o200k_base") is counter_for("o200k_base", safety_factor=1.0)
    assert counter_for("o200k_base") is not counter_for("cl100k_base")


def test_an_unknown_encoding_is_refused_with_the_known_ones() -> None:
    known = r"o200k_base, cl100k_base, bytes, file:<tokenizer.json>"
    with pytest.raises(ValueError, match=f"unknown encoding 'p50k_base'; known: {known}"):
        counter_for("p50k_base")


def test_a_tokenizer_file_is_named_by_its_path(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="cannot load the tokenizer file"):
        counter_for(f"file:{tmp_path}/none.json")


@pytest.mark.parametrize("factor", [0, "0.99", -1, "nan", "much"])
def test_a_safety_factor_below_one_is_refused(factor: float | str) -> None:
    with pytest.raises(ValueError, match=r"."):
        counter_for("bytes", safety_factor=factor)


@pytest.mark.parametrize("factor", [1.1, "1.1", Decimal("1.1"), Fraction(11, 10)])
def test_a_safety_factor_is_the_decimal_that_it_prints_as(factor: float | str) -> None:
    counter = counter_for("bytes", safety_factor=factor)
    assert counter.count("x" * 10) == 11  # 10 * 1.1 in binary floating point is above 11
    assert counter.count("x" * 11) == 13
    assert not counter.exact
    assert not counter.is_exact("x")


@given(raw=st.integers(0, 10**9), budget=st.integers(0, 10**9), factor=st.decimals(1, 5, places=3))
def test_the_raw_budget_is_the_most_that_scales_into_the_budget(
    raw: int, budget: int, factor: Decimal
) -> None:
    counter = ScaledCounter(BytesCounter(), Fraction(str(factor)))
    assert (counter.scale(raw) <= budget) is (raw <= counter.raw_budget(budget))
    assert raw * factor <= counter.scale(raw) < raw * factor + 1


def test_bytes_say_aloud_that_they_are_a_bound() -> None:
    counter = counter_for("bytes")
    assert counter.count("é中😀") == 9
    assert counter.token_ends("é!").tolist() == [1, 2, 3]
    assert not counter.exact
    assert not counter.is_exact("")


@by_counter
@given(text=st.one_of(hostile_text, lone_surrogates), data=st.data())
@settings(max_examples=30, deadline=None)
def test_counting_up_to_a_limit_agrees_below_it_and_exceeds_it_above(
    counter: TokenCounter, text: str, data: st.DataObject
) -> None:
    check_counting_up_to(counter, text, data)


@by_counter
@given(
    parts=st.lists(st.tuples(st.sampled_from("abc"), st.one_of(hostile_text, lone_surrogates)), max_size=6)
)
@settings(max_examples=40, deadline=None)
def test_charges_sum_to_the_count_of_the_joined_text(
    counter: TokenCounter, parts: list[tuple[str, str]]
) -> None:
    text = "".join(part for _, part in parts)
    spans: list[tuple[str, int]] = []
    for name, part in parts:
        spans.append((name, (spans[-1][1] if spans else 0) + len(part)))
    charged = charge_spans(counter, text, spans)
    assert sum(charged.values()) == counter.count(text)
    assert set(charged) == {name for name, _ in parts}
    assert all(tokens >= 0 for tokens in charged.values())


@given(text=st.one_of(hostile_text, long_runs), data=st.data())
@settings(max_examples=40, deadline=None)
def test_a_token_is_charged_to_the_part_that_holds_its_first_byte(text: str, data: st.DataObject) -> None:
    counter = counter_for("o200k_base")
    cut = data.draw(st.integers(0, len(text)))
    first_bytes = [0, *counter.token_ends(text).tolist()][:-1]
    expected = sum(start < len(text[:cut].encode()) for start in first_bytes)
    assert charge_spans(counter, text, [("a", cut), ("b", len(text))])["a"] == expected


def test_a_merge_across_a_seam_belongs_to_the_part_where_it_begins() -> None:
    counter = counter_for("o200k_base")
    # "hello", " world": the space alone is a part, and the token that begins with it is its own.
    spans = [("left", 5), ("separator", 6), ("right", 11)]
    assert charge_spans(counter, "hello world", spans) == {"left": 1, "separator": 1, "right": 0}


def test_spans_that_do_not_cover_the_text_in_order_are_refused() -> None:
    counter = counter_for("bytes")
    for spans in ([], [("a", 2)], [("a", 4)], [("a", 3), ("b", 2), ("c", 3)], [("a", -1), ("b", 3)]):
        with pytest.raises(ValueError, match="must cover the 3 characters"):
            charge_spans(counter, "xyz", spans)
    assert charge_spans(counter, "", []) == {}


@given(text=st.one_of(hostile_text, lone_surrogates))
@settings(max_examples=100)
def test_byte_offsets_are_those_of_the_encoded_characters(text: str) -> None:
    formed = well_formed(text)
    assert byte_length(text) == len(formed.encode())
    assert byte_offsets(formed).tolist() == [len(formed[:i].encode()) for i in range(len(formed) + 1)]


@by_counter
@given(
    lines=st.lists(st.one_of(hostile_text, lone_surrogates), max_size=6),
    seams=st.sampled_from(["\n", "", "\r\n"]),
    data=st.data(),
)
@settings(max_examples=60)
def test_lines_count_as_much_one_by_one_as_joined(
    counter: TokenCounter, lines: list[str], seams: str, data: st.DataObject
) -> None:
    given = [line + seams for line in lines]
    text = "".join(given)
    tokens = counter.count(text)
    limit = data.draw(st.integers(-1, tokens + 2))
    assert count_lines(counter, given) == tokens
    # Once more: what was counted by itself is remembered.
    assert count_lines(counter, given) == tokens
    assert count_lines_up_to(counter, given, limit) == counter.count_up_to(text, limit)
    assert lines_fit(counter, given, limit) == (tokens <= limit)
