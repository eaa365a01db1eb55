"""Texts that look like the given ones and say nothing of them.

Same number of characters, same white space and ASCII punctuation, words for words of the same length and
case, digits for digits: about as many tokens, the same paragraphs, lists, fences and lines, so that a worker
has the same work with it. What stands for a word depends on a secret, on the whole text and on the word's
place: without the secret nobody can try whether a guess is right, equal texts stay equal, and the same word
in two texts does not.

Kept as they are, besides white space and punctuation: the marks of a unified diff at the beginning of a line
(`diff --git`, `@@ -1,2 +3,4 @@`), without which a diff would be none.
"""

from __future__ import annotations

import hashlib
import re
import unicodedata
from collections.abc import Iterator
from functools import lru_cache
from typing import Final

from worker.load.synthetic_words import WORDS_BY_LENGTH

_DIGEST_BYTES: Final = 32
_PIECE: Final = re.compile(
    r"^(?P<diff>diff --git(?= )|@@ -\d{1,9}(?:,\d{1,9})? \+\d{1,9}(?:,\d{1,9})? @@)"
    r"|(?P<word>[A-Z]?[a-z]+|[A-Z]+(?![a-z])|[A-Z])"
    r"|(?P<digits>\d)"
    r"|(?P<plain>[\x00-\x7f])"
    r"|(?P<other>.)",
    re.MULTILINE | re.DOTALL | re.ASCII,
)
_KEPT_CATEGORIES: Final = frozenset(
    {"Zs", "Zl", "Zp", "Cc", "Cf", "Cs", "Pc", "Pd", "Ps", "Pe", "Pi", "Pf", "Po"}
)
_STAND_IN: Final = "\u00d7"


class TextReplacer:
    """Replaces texts under one secret; equal texts get equal ones."""

    def __init__(self, secret: bytes) -> None:
        """Whoever has the `secret`, at most 64 bytes, can try whether a guessed text is the original."""
        self._secret = secret

    def text(self, text: str) -> str:
        """A text of the same length and shape. Linear."""
        choices = _choices(self.digest(text))
        return "".join(_replaced(piece, choices) for piece in _PIECE.finditer(text))

    def digest(self, text: str) -> bytes:
        """32 bytes that tell equal texts from others, and nothing else to whoever lacks the secret."""
        data = text.encode("utf-8", "surrogatepass")
        return hashlib.blake2b(data, key=self._secret, digest_size=_DIGEST_BYTES).digest()


def _choices(seed: bytes) -> Iterator[int]:
    """Numbers below 2^32, without end, decided by the seed."""
    counter = 0
    while True:
        block = hashlib.blake2b(counter.to_bytes(8, "big"), key=seed).digest()
        for at in range(0, len(block), 4):
            yield int.from_bytes(block[at : at + 4], "big")
        counter += 1


def _replaced(piece: re.Match[str], choices: Iterator[int]) -> str:
    original = piece[0]
    match piece.lastgroup:
        case "word":
            return _cased_like(original, _other_word(original.lower(), choices))
        case "digits":
            return str((int(original) + 1 + next(choices) % 9) % 10)
        case "other":
            return _other_character(original, next(choices))
        case _:
            return original


def _other_word(word: str, choices: Iterator[int]) -> str:
    """Another word of the same length; longer than the table has, several in a row."""
    made: list[str] = []
    left = len(word)
    while left:
        size = min(left, len(WORDS_BY_LENGTH))
        start = len(word) - left
        words = WORDS_BY_LENGTH[size - 1]
        at = next(choices) % len(words)
        if words[at] == word[start : start + size]:
            at = (at + 1) % len(words)
        made.append(words[at])
        left -= size
    return "".join(made)


def _cased_like(original: str, word: str) -> str:
    if original.isupper():
        return word.upper()
    return word.capitalize() if original[0].isupper() else word


def _other_character(character: str, choice: int) -> str:
    """Another character of the same kind and row; white space, punctuation and controls as they are."""
    if unicodedata.category(character) in _KEPT_CATEGORIES:
        return character
    others = [other for other in _neighbours(character) if other != character]
    return others[choice % len(others)] if others else _STAND_IN


@lru_cache(maxsize=4_096)
def _neighbours(character: str) -> tuple[str, ...]:
    """The characters of the same row of 64 code points, so of the same size, and of the same category."""
    category = unicodedata.category(character)
    first = ord(character) & ~0x3F
    row = map(chr, range(first, first + 64))
    return tuple(other for other in row if unicodedata.category(other) == category)
