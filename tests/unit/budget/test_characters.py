from __future__ import annotations

import sys

import pytest
import tiktoken

from worker.budget.characters import kinds_of

EVERYTHING = "".join(map(chr, (*range(0xD800), *range(0xE000, sys.maxunicode + 1))))
BYTES = {bytes([value]): value for value in range(256)}


@pytest.fixture(scope="module")
def kind_of_each() -> dict[str, int]:
    return dict(zip(EVERYTHING, kinds_of(EVERYTHING), strict=True))


@pytest.mark.parametrize(
    ("category", "kinds"),
    [
        (r"[\p{Lu}\p{Lt}]", "u"),
        (r"\p{Ll}", "l"),
        (r"[\p{Lm}\p{Lo}]", "o"),
        (r"\p{M}", "m"),
        (r"\p{N}", "d"),
        (r"\s", " tn"),
        (r"[^\s\p{L}\p{N}\p{M}]", "s/'"),
    ],
)
def test_a_character_of_known_kind_is_of_that_kind_for_tiktoken_too(
    category: str, kinds: str, kind_of_each: dict[str, int]
) -> None:
    # What no piece holds is left out of an encoding, so this one keeps the characters of one category.
    only = tiktoken.Encoding("only", pat_str=category, mergeable_ranks=BYTES, special_tokens={})
    kept = set(bytes(only.encode_ordinary(EVERYTHING)).decode())
    known = {character for character, kind in kind_of_each.items() if kind in kinds.encode()}
    others = {character for character, kind in kind_of_each.items() if kind not in b"?" + kinds.encode()}
    assert known, "else the test proves nothing"
    assert not known - kept
    assert not others & kept


def test_what_people_write_is_of_known_kind() -> None:
    assert kinds_of("Ab1é中ー😀👍🏽️\u200d🇩🏴\U000e0067𠀀क््'/ \t\u3000\r\n") == b"uldloosssmssssoomm'/ ttnn"


def test_a_lone_surrogate_is_of_unknown_kind() -> None:
    assert kinds_of("a\ud800b") == b"l?l"
