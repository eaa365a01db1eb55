from __future__ import annotations

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from worker.memory.words import terms_of


@pytest.mark.parametrize(
    ("text", "terms"),
    [
        ("the retries of HTTPServer2", ["retri", "http", "server", "http_server_2"]),
        ("step 3 of 12, not step 4", ["step", "3", "12", "step", "4"]),
        ("Straße STRASSE", ["strass", "strass"]),
        ("漢字かな", ["漢字", "字か", "かな"]),
        ("漢", ["漢"]),
        ("漢字retry_loop", ["漢字", "retri", "loop", "retry_loop"]),
        ("прочитать ФайлЛога", ["прочитать", "файл", "лога", "файл_лога"]),
        ("한국어 문장", ["한국어", "문장"]),
        ("हिन्दी", ["हिन्दी"]),
        ("ﬁle １２", ["file", "12"]),
        ("a\ud800b !?. \n", []),
        ("", []),
    ],
)
def test_terms_are_stems_names_and_pairs_of_unspaced_characters(text: str, terms: list[str]) -> None:
    assert terms_of(text) == terms


@pytest.mark.parametrize("other", ["RetryLoop", "retryLoop", "retry_loop", "RETRY_LOOP"])
def test_spellings_of_one_name_give_one_term(other: str) -> None:
    assert "retry_loop" in terms_of(other)
    assert "retry_loop" in terms_of(f"é {other}")


@settings(max_examples=40)
@given(st.text(max_size=60), st.text(max_size=60))
def test_terms_of_lines_are_those_of_each_line(one: str, other: str) -> None:
    assert terms_of(f"{one}\n\n{other}") == terms_of(one) + terms_of(other)


@pytest.mark.parametrize("scrap", ["a", "aA", "漢", "\u0301", "_", "1", "Ⅷa", "éA"])
def test_a_quarter_of_a_megabyte_takes_bounded_time(scrap: str) -> None:
    started = time.process_time()
    terms_of(scrap * (250_000 // len(scrap)))
    assert time.process_time() - started < 3
