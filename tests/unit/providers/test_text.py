from __future__ import annotations

import time

import pytest
import regex
from hypothesis import given
from hypothesis import strategies as st

from worker.providers.text import cut, fenced, first_line, first_sentence, fold

FAMILY = "👩‍👩‍👧‍👦"
HOSTILE = st.text(
    st.sampled_from(
        ["a", "b", " ", "\n", "\t", "\u2028", "\x00", "e\u0301"[1], "\u200d", "👩", "🇩", "ก", "。", "."]
    )
)


def test_folding_leaves_one_blank_for_each_run_of_white_space() -> None:
    assert fold("  a\r\n\t b\u2028c\x0bd  ") == "a b c d"


@given(HOSTILE, st.integers(0, 12))
def test_a_cut_is_a_prefix_of_the_folded_text_between_graphemes(text: str, max_chars: int) -> None:
    whole, shown = fold(text), cut(text, max_chars=max_chars)
    if len(whole) <= max_chars:
        assert shown == whole
        return
    kept = shown.removesuffix("…")
    assert shown != kept
    assert len(kept) <= max_chars
    boundaries = {0, *(match.end() for match in regex.finditer(r"\X", whole))}
    assert whole.startswith(kept)
    end = len(kept) + (len(whole[len(kept) :]) - len(whole[len(kept) :].lstrip(" ")))
    assert {len(kept), end} & boundaries


def test_a_grapheme_that_does_not_fit_is_left_out_whole() -> None:
    assert cut(f"ab{FAMILY}c", max_chars=5) == "ab…"
    assert cut(f"ab{FAMILY}", max_chars=9) == f"ab{FAMILY}"
    assert cut("e" + "\u0301" * 500, max_chars=200) == "…"
    assert cut("🇩🇪🇫🇷", max_chars=3) == "🇩🇪…"


def test_a_preview_of_exactly_the_limit_is_whole() -> None:
    assert cut("x" * 200, max_chars=200) == "x" * 200
    assert cut("x" * 201, max_chars=200) == "x" * 200 + "…"
    assert cut("x" * 200 + " \n ", max_chars=200) == "x" * 200


@pytest.mark.parametrize(
    "text",
    ["x" * 10_000_000, " " * 10_000_000 + "x", "x " * 5_000_000, "é\u0301" * 3_000_000, "\n" * 10_000_000],
)
def test_a_preview_reads_no_more_than_it_needs(text: str) -> None:
    started = time.process_time()
    assert len(cut(text, max_chars=200)) <= 201
    assert time.process_time() - started < 0.5


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("Wrote it. Then tested it.", "Wrote it."),
        ("Is it done? Yes.", "Is it done?"),
        ("Uses e.g. the cache. Fast.", "Uses e.g. the cache."),
        ("Python 3.14 is out", "Python 3.14 is out"),
        ("終わった。次へ。", "終わった。"),
        ("One\nline. Two", "One line."),
        ("", ""),
        ("   ", ""),
        ("x" * 30, "x" * 20 + "…"),
        ("Ends in time. " + "X" * 30, "Ends in time."),
    ],
)
def test_the_first_sentence_ends_where_a_reader_would_stop(text: str, sentence: str) -> None:
    assert first_sentence(text, max_chars=20) == sentence


def test_the_first_line_is_the_first_that_says_something() -> None:
    assert first_line("\n  \n  AssertionError: x  \nmore", max_chars=80) == "AssertionError: x"
    assert first_line("\n \n", max_chars=80) == ""


@given(st.text(st.sampled_from("`~a\n "), max_size=40))
def test_nothing_inside_closes_the_fence_around_it(text: str) -> None:
    opening, *inside, closing = fenced(text, info="diff").split("\n")
    fence = opening.removesuffix("diff")
    assert set(fence) == {"`"}
    assert closing == fence
    assert "\n".join(inside) == text
    assert fence not in text
