"""An answer cut into words, in one pass, and the ids among them.

Most words of a text are letters and digits alone, and no id is, as a rule: of those no word is made. What is
left is looked up in the ids; only what is no id as it stands, a few hundred words of a long answer, is freed
of what may be around one.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

import numpy as np

from schemas.citations import LETTERS
from worker.citations.forms import LETTER, MOST_DIGITS, SHORT, SHORT_DIGITS, can_be_read
from worker.citations.sequences import standing_in

_BETWEEN: Final = b"`\"'()[]{},;|*"
"""Around words, and never in them."""
_BLANKS: Final = bytes(range(33)) + b"\x7f"
_ASCII: Final = bytes(range(128))
_NUMBERS: Final = b"0123456789"
_LETTERS_OF_WORDS: Final = bytes(one for one in _ASCII if chr(one).isalpha())
_BLANK, _LETTER, _TELLING = 0, 1, 2
"""Classes of bytes: a word of letters alone tells nothing. What is beyond ASCII is telling."""


def _classes(letters: bytes) -> bytes:
    """The class of each byte."""
    table = bytearray([_TELLING]) * 256
    for kind, among in ((_BLANK, _BETWEEN + _BLANKS), (_LETTER, letters)):
        for one in among:
            table[one] = kind
    return bytes(table)


_TELLING_MARKS: Final = _classes(_LETTERS_OF_WORDS + _NUMBERS)
_TELLING_NUMBERS: Final = _classes(_LETTERS_OF_WORDS)
_TELLING_ALL: Final = _classes(b"")
_MOST_MARKS: Final = 32
_MARK: Final = re.compile(r"[^\w\x00-\x7f]")
_ENDS: Final = ".:!?"
_AROUND: Final = _ENDS + "<>"

_FIRST: Final = frozenset("".join(LETTERS.values()) + "".join(LETTERS.values()).upper())
_PLAIN_SHORT: Final = re.compile(rf"{SHORT}\Z", re.IGNORECASE)
_INNER_SHORT: Final = rf"(?i:{LETTER}):[0-9]{{{SHORT_DIGITS}}}"
# Begins with what is rare, which is what makes looking for it cheap; what has to stand before it is looked at
# afterwards.
_DIGITS: Final = re.compile(
    rf":[0-9]{{{SHORT_DIGITS},{MOST_DIGITS}}}(?!_*[^\W_])(?!(?::[:/]*|/+|-)(?!{_INNER_SHORT})\w)"
)
_NOT_BEFORE: Final = frozenset("/:.#?=&%@+-_")
_LINKS: Final = frozenset(":/+&-")
"""What may stand between two short ids."""
_MOST_KEY_CHARS: Final = 40
_MOST_EMPHASIS: Final = 3
_KEY: Final = re.compile(rf"(?!{_INNER_SHORT})[^\W\d]\w*[:=](?![:/=])")


class Wanted:
    """The ids that are looked for, prepared once for the texts of one answer."""

    def __init__(self, ids: Iterable[str]) -> None:
        """Of `ids` those that are unlike words."""
        self.ids = frozenset([one for one in ids if can_be_read(one)])
        self.of_several_words = [one for one in self.ids if _is_split(one)]
        self.classes = _TELLING_NUMBERS if any(map(str.isalnum, self.ids)) else _TELLING_MARKS


@dataclass(frozen=True, slots=True, kw_only=True)
class Words:
    """What a text holds that may be an id."""

    shorts: frozenset[str]
    """Everything of the form of a short id, its letter small."""
    found: frozenset[str]
    """Of the wanted ids, those that stand there."""
    others: frozenset[str]
    """Other words that are more than letters and digits, with and without what may be around an id. Such as
    are no more are among them where a wanted id is none either (`FR12`)."""


def read_words(text: str, wanted: Wanted) -> Words:
    """The ids in the text, and what else may be one. O(length of text and ids)."""
    cut = _cut(text, wanted.classes)
    found = {*(wanted.ids & cut)}
    rest = [word for word in cut if word not in found]
    shorts = {word for word in rest if word[1:2] == ":" and _PLAIN_SHORT.match(word)}
    rest = [word for word in rest if word not in shorts]
    cleaned = _cleaned(rest)
    chains = [word.split("/") for word in cleaned if "/" in word]
    found |= wanted.ids & cleaned
    found.update(*(parts for parts in chains if wanted.ids.issuperset(parts)))
    found |= standing_in(text, [one for one in wanted.of_several_words if one not in found])
    return Words(
        shorts=frozenset([short.lower() for short in shorts]).union(_decorated_shorts("\n".join(rest))),
        found=frozenset(found),
        others=frozenset(cleaned - wanted.ids),
    )


def _cut(text: str, classes: bytes) -> set[str]:
    """The words that hold something telling by this table of classes."""
    data = text.encode(errors="replace")
    if not data.isascii():
        data = _without_marks(text, data)
    # Of a long text some hundred thousand bytes are classed at once, and one word in ten is made at all.
    kinds = np.frombuffer(data.translate(classes), dtype=np.uint8)
    blanks = np.flatnonzero(kinds == _BLANK)
    words = np.searchsorted(blanks, np.flatnonzero(kinds == _TELLING))
    words = words[np.flatnonzero(np.diff(words, prepend=-1))]
    edges = np.concatenate(([-1], blanks, [len(data)]))
    places = zip((edges[words] + 1).tolist(), edges[words + 1].tolist(), strict=True)
    return {word.decode() for word in {data[start:end] for start, end in places}}


def _without_marks(text: str, data: bytes) -> bytes:
    """The bytes with a blank for each character beyond ASCII that belongs to no word."""
    marks = [mark for mark in set(data.translate(None, _ASCII).decode()) if _MARK.match(mark)]
    if len(marks) > _MOST_MARKS:
        return _MARK.sub(" ", text).encode(errors="replace")
    for mark in marks:
        data = data.replace(mark.encode(), b" ")
    return data


@lru_cache(maxsize=8_192)
def _is_split(own_id: str) -> bool:
    """Whether the id is no single word, as words are cut here."""
    return _cut(own_id, _TELLING_ALL) != {own_id} or own_id[-1] in _ENDS


def _cleaned(words: Iterable[str]) -> set[str]:
    """The words with and without what may be around an id: a key, emphasis, what ends a sentence."""
    cleaned = set(words)
    cleaned.discard("")
    cleaned.update(
        [word[key.end() :] for word in cleaned if (key := _KEY.match(word)) and key.end() < len(word)]
    )
    framed = [word for word in cleaned if word[-1] in _AROUND or word[0] == "<"]
    cleaned.update([word.rstrip(_ENDS) for word in framed], [word.strip(_AROUND) for word in framed])
    cleaned.update(
        [_plain(word) for word in cleaned if word[:1] == "_" or (word[-1:] == "_" and "::" not in word)]
    )
    cleaned.discard("")
    return cleaned


def _plain(word: str) -> str:
    """The word without what sets it in emphasis; names that end in underscores keep theirs."""
    marks = len(word) - len(word.lstrip("_"))
    return word[marks:].removesuffix("_" * marks) if marks else word.rstrip("_")


def _decorated_shorts(words: str) -> Iterator[str]:
    """Short ids beside something else, of words that stand a line each."""
    end = -1
    for found in _DIGITS.finditer(words):
        at = found.start() - 1
        if at < 0 or words[at] not in _FIRST:
            continue
        if (at - 1 == end and words[end] in _LINKS) or _may_begin(words, at):
            end = found.end()
            yield words[at:end].lower()


def _may_begin(words: str, at: int) -> bool:
    """Whether what begins there is no part of a longer token."""
    least = max(0, at - _MOST_EMPHASIS)
    while at > least and words[at - 1] == "_":
        at -= 1
    return _is_free(words, at) or (words[at - 1] in ":=" and _is_behind_key(words, at - 1))


def _is_free(words: str, at: int) -> bool:
    return at == 0 or not (words[at - 1].isalnum() or words[at - 1] in _NOT_BEFORE)


def _is_behind_key(words: str, at: int) -> bool:
    """Whether a word ends there that is no part of a longer token either, or something closed."""
    start = at
    while start > max(0, at - _MOST_KEY_CHARS) and (words[start - 1].isalnum() or words[start - 1] == "_"):
        start -= 1
    is_at_start = start == 0 or words[start - 1] == "\n"
    return is_at_start if start == at else not words[start].isdigit() and _is_free(words, start)
