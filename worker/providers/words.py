"""The words of a text, for telling which remembered items speak of the same things as a message."""

from __future__ import annotations

from typing import Final

import regex

_WORD: Final = regex.compile(
    r"""
      [\p{Han}\p{Hiragana}\p{Katakana}\p{Thai}]+   # written without blanks: taken in pairs below
    | \p{Lu}+(?!\p{Ll})                            # HTTP in HTTPServer
    | \p{Lu}?\p{Ll}[\p{Ll}\p{M}]*                  # Server, snake
    | [\p{L}\p{M}]+                                # scripts without cases
    | \p{N}+
    """,
    regex.VERBOSE,
)
_UNSPACED: Final = regex.compile(r"[\p{Han}\p{Hiragana}\p{Katakana}\p{Thai}]")


def words_of(text: str) -> frozenset[str]:
    """The distinct words, case folded; identifiers are split at underscores and humps.

    Scripts that are written without blanks give pairs of neighbouring characters. O(length).
    """
    found: set[str] = set()
    for match in _WORD.finditer(text):
        word = match[0]
        if len(word) > 1 and not word.isascii() and _UNSPACED.match(word):
            found.update(word[at : at + 2] for at in range(len(word) - 1))
        else:
            found.add(word.casefold())
    return frozenset(found)
