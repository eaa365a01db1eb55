from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from worker.graph.terms import terms_of, words_of


@pytest.mark.parametrize(
    ("word", "terms"),
    [
        ("retry_loop", ("retri", "loop", "retry_loop")),
        ("RetryLoop", ("retri", "loop", "retry_loop")),
        ("retryLoop", ("retri", "loop", "retry_loop")),
        ("getHTTPResponse", ("get", "http", "respons", "get_http_response")),
        ("parse_URLs", ("pars", "url", "parse_urls")),
        ("__init__", ("init",)),
        ("retries", ("retri",)),
        ("the", ()),
        ("x", ()),
        ("Überprüfung", ("überprüfung",)),
        ("a" * 81, ()),
    ],
)
def test_a_word_gives_its_parts_stemmed_and_the_whole_folded(word: str, terms: tuple[str, ...]) -> None:
    assert terms_of(word) == terms


@given(st.text(max_size=200))
def test_any_text_gives_terms_and_the_same_ones_again(text: str) -> None:
    first = [terms_of(word) for word in words_of(text)]
    assert first == [terms_of(word) for word in words_of(text)]
    assert all(term == term.strip() and term for terms in first for term in terms)
