from __future__ import annotations

from itertools import pairwise

import pytest
import regex
import tiktoken
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.budget.hostile_text import SNIPPETS, hostile_text, long_runs, mixed_runs
from worker.budget.splits import LONG_PIECE_CHARS, RUN_CHARS, SPLIT_RULES, has_long_space
from worker.budget.vocabulary import PACKAGED, load_vocabulary

RULES = SPLIT_RULES["o200k_base"]
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
def test_at_every_split_the_tokens_of_both_sides_are_those_of_the_whole(
    encoding: tiktoken.Encoding, text: str
) -> None:
    whole = ids(encoding, text)
    for position in range(1, len(text)):
        if SPLIT_RULES[encoding.name].is_split(text, position):
            assert ids(encoding, text[:position]) + ids(encoding, text[position:]) == whole, position


def test_prose_and_code_have_splits_at_words_lines_and_marks() -> None:
    text = 'It is 12.5 cm, (see "b").\n\n    return x1\nend 😀7'
    cuts = [p for p in range(len(text) + 1) if RULES.is_split(text, p)]
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
    assert RULES.last_split(text, 0, 12, anchor=0) == 7
    assert RULES.last_split(text, 0, 7, anchor=0) == 7
    assert RULES.last_split(text, 3, 6, anchor=0) == 0
    assert RULES.next_split(text, 4, 12) == 7
    assert RULES.next_split(text, 8, 12) == 12


def test_a_chunk_ends_at_a_split_and_grows_where_there_is_none() -> None:
    assert RULES.chunk_end("one two three", 0, 9) == 7
    assert RULES.chunk_end("one two three", 7, 100) == 13
    text = "a" * 5_000 + " " + "b" * 5_000
    assert RULES.chunk_end(text, 0, 1_000) == 5_000
    assert RULES.chunk_end(text, 0, 6_000) == len(text)


@by_encoding
@given(text=mixed_runs, data=st.data())
def test_a_split_found_by_where_its_run_begins_is_one(
    encoding: tiktoken.Encoding, text: str, data: st.DataObject
) -> None:
    rules = SPLIT_RULES[encoding.name]
    anchors = [p for p in range(min(len(text), 60)) if rules.is_split(text, p)]
    anchor = data.draw(st.sampled_from(anchors))
    high = data.draw(st.integers(anchor + 1, len(text) - 1))
    split = rules.last_split(text, anchor, high, anchor=anchor)
    assert split == 0 or anchor < split <= high
    assert ids(encoding, text[:split]) + ids(encoding, text[split:]) == ids(encoding, text)


def test_every_third_digit_and_every_marked_symbol_of_a_run_is_followed_by_a_split() -> None:
    assert RULES.last_split("1" * 500, 0, 400, anchor=0) == 399
    assert RULES.last_split("x" + "1" * 500, 1, 400, anchor=1) == 400
    assert RULES.last_split("❤️" * 300, 0, 401, anchor=0) == 400
    assert RULES.last_split(" " + "❤️" * 300, 0, 401, anchor=0) == 0, "the space begins a piece of them all"
    assert SPLIT_RULES["cl100k_base"].last_split("❤️" * 300, 0, 401, anchor=0) == 0


@by_encoding
@given(
    text=mixed_runs, goes_on=st.one_of(mixed_runs, st.sampled_from(["", "x", "A", "\n", "'s", "/", "1", " "]))
)
def test_what_is_deep_inside_a_piece_stays_there_however_the_text_goes_on(
    encoding: tiktoken.Encoding, text: str, goes_on: str
) -> None:
    rules, pieces = SPLIT_RULES[encoding.name], pieces_of(encoding, text + goes_on)
    for end in (*range(3, 40), *range(RUN_CHARS, len(text) + 1, 97)):
        if rules.in_piece(text, end, anchor=0):
            start = max(start for start in pieces if start < end)
            assert start <= max(end - RUN_CHARS + 96, 0)
            assert max(pieces_of(encoding, text[:end])) == start, (
                "the piece begins where it would without the rest"
            )


def pieces_of(encoding: tiktoken.Encoding, text: str) -> list[int]:
    """Where the pieces of a text begin, by the encoding's own pattern."""
    pattern = regex.compile(encoding._pat_str.replace("$", r"\Z"))  # pyright: ignore[reportPrivateUsage]  # the oracle
    return [found.start() for found in pattern.finditer(text)]


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
@given(text=st.one_of(long_runs, mixed_runs.map(lambda text: text * 9)))
@settings(max_examples=40, deadline=None)
def test_what_lies_between_long_pieces_counts_separately(encoding: tiktoken.Encoding, text: str) -> None:
    whole = ids(encoding, text)
    done = 0
    parts: list[int] = []
    for start, end in SPLIT_RULES[encoding.name].long_pieces(text):
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
        ("a" * 9_000 + "\u0301", [(0, 9_001)]),
        ("\u0301" + "a" * 9_000, [(0, 9_001)]),
        ("中" * 9_000 + "C", []),
        ("中" + "C" * 9_000, []),
        ("!C" + "C" * 9_000, [(0, 9_002)]),
        ("x" + "😀\u200d❤️" * 3_000 + "x", [(1, 12_001)]),
        ("❤️" * 9_000, []),
        ("❤️" * 9_000 + "😀" * 9_000, [(18_000, 27_000)]),
        ("x " + "❤️" * 9_000, [(1, 18_002)]),
        ("😀" * 9_000 + "'", []),
        ("." * 9_000 + "\n", []),
        ("a" * 8_000, []),
        ("a" * 9_000 + " " + "b" * 9_000, [(0, 9_000), (9_000, 18_001)]),
    ],
)
def test_runs_are_one_piece_only_where_their_neighbours_prove_it(
    text: str, pieces: list[tuple[int, int]]
) -> None:
    assert list(RULES.long_pieces(text)) == pieces
