from __future__ import annotations

from itertools import pairwise

import pytest
import tiktoken
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.budget.hostile_text import SNIPPETS, hostile_text, long_runs
from worker.budget.splits import (
    LONG_PIECE_CHARS,
    chunk_end,
    has_long_space,
    is_split,
    last_split,
    long_pieces,
    next_split,
)
from worker.budget.vocabulary import PACKAGED, load_vocabulary

ENCODINGS = [load_vocabulary(name).encoding for name in PACKAGED]
by_encoding = pytest.mark.parametrize("encoding", ENCODINGS, ids=lambda encoding: encoding.name)

edge_characters = st.sampled_from(
    [*" \t\n\r/'\"!.,-_()#aZ9é中。！한😀ß²Ⅷ", "\u0301", "\u200d", "\x1c", "\u3000", "ʼ"]
)
edges = st.lists(st.one_of(edge_characters, st.sampled_from(SNIPPETS)), min_size=2, max_size=12).map("".join)


def ids(encoding: tiktoken.Encoding, text: str) -> list[int]:
    return encoding.encode(text, disallowed_special=())


@by_encoding
@given(text=st.one_of(edges, hostile_text))
@settings(max_examples=150, deadline=None)
def test_at_every_split_the_tokens_of_both_sides_are_those_of_the_whole(
    encoding: tiktoken.Encoding, text: str
) -> None:
    whole = ids(encoding, text)
    for position in range(1, len(text)):
        if is_split(text[position - 1], text[position]):
            assert ids(encoding, text[:position]) + ids(encoding, text[position:]) == whole, position


def test_prose_and_code_have_splits_at_words_lines_and_marks() -> None:
    text = 'It is 12.5 cm, (see "b").\n\n    return x1\nend 😀7'
    cuts = [0, *(p for p in range(1, len(text)) if is_split(text[p - 1], text[p])), len(text)]
    assert [text[a:b] for a, b in pairwise(cuts)] == [
        "It",
        " is",
        " 12",
        ".",
        "5",
        " cm",
        ",",
        " (see",
        ' "b',
        '").\n\n    return',
        " x",
        "1",
        "\n",
        "end",
        " 😀",
        "7",
    ]


def test_the_last_split_is_looked_for_backwards_and_the_next_one_forwards() -> None:
    text = "one two three"
    assert last_split(text, 0, 12) == 7
    assert last_split(text, 0, 7) == 7
    assert last_split(text, 3, 6) == 0
    assert next_split(text, 4, 12) == 7
    assert next_split(text, 8, 12) == 12


def test_a_chunk_ends_at_a_split_and_grows_where_there_is_none() -> None:
    assert chunk_end("one two three", 0, 9) == 7
    assert chunk_end("one two three", 7, 100) == 13
    text = "a" * 5_000 + " " + "b" * 5_000
    assert chunk_end(text, 0, 1_000) == len(text)
    assert chunk_end(text + " c" * 5_000, 0, 1_000) == 15_999


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (" " * 100_000, False),
        (" " * 100_001, True),
        ("x" * 99_999 + "\n \u3000\x85" * 25_000 + "x", False),
        ("x" * 99_999 + "\n \u3000\x85" * 25_000 + "\n", True),
        ("x" * 150_000 + " " * 100_001 + "x", True),
        (("x" + " " * 99_999) * 3, False),
        ("", False),
    ],
)
def test_only_white_space_beyond_a_hundred_thousand_characters_is_long(text: str, *, found: bool) -> None:
    assert has_long_space(text) is found


@by_encoding
@given(text=long_runs)
@settings(max_examples=40, deadline=None)
def test_what_lies_between_long_pieces_counts_separately(encoding: tiktoken.Encoding, text: str) -> None:
    whole = ids(encoding, text)
    done = 0
    parts: list[int] = []
    for start, end in long_pieces(text):
        assert end - start >= LONG_PIECE_CHARS
        parts += ids(encoding, text[done:start])
        parts += encoding._encode_single_piece(text[start:end])  # pyright: ignore[reportPrivateUsage]  # proves that it is one piece
        done = end
    assert parts + ids(encoding, text[done:]) == whole


@pytest.mark.parametrize(
    ("text", "pieces"),
    [
        ("a" * 9_000, [(0, 9_000)]),
        ("see(" + "a" * 9_000 + ").", [(3, 9_004)]),
        ("see (" + "a" * 9_000 + ").", []),
        ("x " + "中" * 9_000 + "。", [(1, 9_002)]),
        ("x" + " " * 9_000 + "y", [(1, 9_000)]),
        ("x" + " " * 9_000, [(1, 9_001)]),
        ("x" + " " * 9_000 + "\n", []),
        ("a" * 9_000 + "'s", []),
        ("a" * 9_000 + "\u0301", []),
        ("." * 9_000 + "\n", []),
        ("a" * 8_000, []),
        ("a" * 9_000 + " " + "b" * 9_000, [(0, 9_000), (9_000, 18_001)]),
    ],
)
def test_runs_are_one_piece_only_where_their_neighbours_prove_it(
    text: str, pieces: list[tuple[int, int]]
) -> None:
    assert list(long_pieces(text)) == pieces
