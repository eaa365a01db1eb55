from __future__ import annotations

import sys

import pytest
import regex
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.budget.hostile_text import FAMILY, hostile_text
from worker.budget.boundaries import (
    _MAYBE_WORD_END,  # pyright: ignore[reportPrivateUsage]  # the claim is about this pattern
    grapheme_ends,
    is_grapheme_end,
    paragraph_ends,
    sentence_ends,
    word_ends,
)


def pieces(text: str, ends: list[int]) -> list[str]:
    return [text[:end] for end in ends]


def test_paragraphs_end_before_the_white_space_of_a_blank_line() -> None:
    text = "one\ntwo  \n \t\n\n\nthree\r\n\r\nfour\r\rfive\n\n"
    assert pieces(text, list(paragraph_ends(text, len(text)))) == [
        text[:-2],
        "one\ntwo  \n \t\n\n\nthree\r\n\r\nfour",
        "one\ntwo  \n \t\n\n\nthree",
        "one\ntwo",
    ]


def test_a_single_line_break_of_two_characters_is_no_blank_line() -> None:
    assert list(paragraph_ends("one\r\ntwo", 8)) == []


def test_blank_lines_at_the_start_end_no_paragraph() -> None:
    assert list(paragraph_ends("\n\n\n  one", 8)) == []


def test_sentences_end_after_a_terminator_and_its_quotes_before_white_space() -> None:
    text = 'He said "Go." And v1.2 ran! (Why?) Yes… 中文。对吗？」好'
    assert pieces(text, list(sentence_ends(text, len(text)))) == [
        'He said "Go." And v1.2 ran! (Why?) Yes… 中文。对吗？」',
        'He said "Go." And v1.2 ran! (Why?) Yes… 中文。',
        'He said "Go." And v1.2 ran! (Why?) Yes…',
        'He said "Go." And v1.2 ran! (Why?)',
        'He said "Go." And v1.2 ran!',
        'He said "Go."',
    ]


def test_words_end_before_white_space_and_at_each_character_of_unspaced_script() -> None:
    text = "one  two\n中文ok ends"
    assert [len(prefix) for prefix in pieces(text, list(word_ends(text, len(text))))] == [13, 11, 10, 8, 3]


def test_nothing_is_yielded_beyond_the_high_mark() -> None:
    text = "a b. c\n\nd e"
    assert list(word_ends(text, 6)) == [6, 4, 1]
    assert list(word_ends(text, 5)) == [4, 1]
    assert list(sentence_ends(text, 4)) == [4]
    assert list(sentence_ends(text, 3)) == []
    assert list(paragraph_ends(text, 6)) == [6]
    assert list(paragraph_ends(text, 5)) == []


def test_graphemes_are_whole_families_flags_and_line_breaks() -> None:
    text = f"a{FAMILY}🇩🇪🇫🇷e\u0301\u0301\r\nक्षि한"
    ends = list(grapheme_ends(text, len(text)))
    assert ends == sorted({found.end() for found in regex.finditer(r"\X", text)}, reverse=True)


@given(text=hostile_text)
@settings(max_examples=300, deadline=None)
def test_every_kind_of_end_is_the_end_of_a_grapheme_as_counted_from_the_start(text: str) -> None:
    clusters = [found.end() for found in regex.finditer(r"\X", text)]
    assert list(grapheme_ends(text, len(text))) == clusters[::-1]
    assert [p for p in range(1, len(text) + 1) if is_grapheme_end(text, p)] == clusters
    for kind in (paragraph_ends, sentence_ends, word_ends):
        ends = list(kind(text, len(text)))
        assert ends == sorted(set(ends), reverse=True)
        assert set(ends) <= set(clusters)


@given(text=hostile_text)
@settings(max_examples=100, deadline=None)
def test_a_lower_mark_only_cuts_the_list_short(text: str) -> None:
    for kind in (paragraph_ends, sentence_ends, word_ends, grapheme_ends):
        ends = list(kind(text, len(text)))
        for high in {len(text) // 2, len(text) // 3}:
            assert list(kind(text, high)) == [end for end in ends if end <= high]


@pytest.mark.parametrize(
    "text",
    [
        "\n" * 200_000,
        "\n \t" * 70_000,
        "\n" + " " * 200_000 + "x",
        '"' * 200_000 + " ",
        "”" * 200_000,
        "." * 200_000 + " ",
        "e" + "\u0301" * 200_000,
        "🇩" * 100_000,
        "中\u0301" * 100_000,
        FAMILY * 10_000,
    ],
    ids=lambda text: repr(text[:4]),
)
def test_hostile_text_takes_no_more_than_linear_time(text: str) -> None:
    # Quadratic work on these would run into the time limit of the test.
    for kind in (paragraph_ends, sentence_ends):
        assert len(list(kind(text, len(text)))) < 3
    assert next(grapheme_ends(text, len(text))) == len(text)


def test_what_may_hold_an_end_is_wider_than_what_ends() -> None:
    everything = "".join(map(chr, range(sys.maxunicode + 1)))
    found = set(regex.findall(r"[\s\p{Han}\p{Hiragana}]", everything))
    assert len(found) > 90_000
    assert found <= set(_MAYBE_WORD_END.findall(everything))


@given(text=st.lists(st.sampled_from([*"。！.?”)_ \n中a", "\r\n", "😀"]), max_size=40).map("".join))
@settings(max_examples=300, deadline=None)
def test_ends_are_the_same_wherever_a_stretch_begins(text: str) -> None:
    for kind in (sentence_ends, word_ends):
        ends = list(kind(text, len(text)))
        for padding in (4_085, 4_090, 4_096):
            shifted = list(kind("x" * padding + "\n" + text, padding + 1 + len(text)))
            assert [end - padding - 1 for end in shifted if end > padding + 1] == [
                end for end in ends if end > 0
            ]
