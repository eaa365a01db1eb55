from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from worker.providers.words import words_of


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("parse_json parseJSON ParseJson", {"parse", "json"}),
        ("HTTPServer2", {"http", "server", "2"}),
        ("v1.2-beta", {"v", "1", "2", "beta"}),
        ("Straße STRASSE", {"strasse"}),
        ("Größe", {"grösse"}),
        ("漢字かな", {"漢字", "字か", "かな"}),
        ("漢", {"漢"}),
        ("прочитать ФайлЛога", {"прочитать", "файл", "лога"}),
        ("한국어 문장", {"한국어", "문장"}),
        ("a\ud800b", {"a", "b"}),
        ("!?. \n", set[str]()),
        ("", set[str]()),
    ],
)
def test_words_are_what_a_reader_would_call_words(text: str, words: set[str]) -> None:
    assert words_of(text) == words


@given(st.text(st.characters(max_codepoint=127)))
def test_words_are_what_is_left_without_blanks_marks_and_humps(text: str) -> None:
    words = words_of(text)
    assert all(word.isalnum() and word == word.lower() for word in words)
    assert words_of(" ".join(words)) == words


@pytest.mark.parametrize("scrap", ["a", "aA", "漢", "\u0301", "_", "1", "Ⅷa"])
def test_a_megabyte_takes_bounded_time(scrap: str) -> None:
    started = time.process_time()
    words_of(scrap * (1_000_000 // len(scrap)))
    assert time.process_time() - started < 5
