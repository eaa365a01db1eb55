"""The terms of remembered text: the code graph's terms, and what other scripts need besides.

English prose and identifiers are split and stemmed as the graph does it, so that a name in a memory and the
same name in a request meet, however each spells it. Scripts that are written without blanks give pairs of
neighbouring characters, other scripts their words, case folded.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator
from itertools import pairwise
from typing import Final

import regex

from worker.graph import terms as graph_terms

_UNSPACED: Final = r"\p{Han}\p{Hiragana}\p{Katakana}\p{Thai}"
_RUN: Final = regex.compile(
    rf"(?P<unspaced>[{_UNSPACED}]+)|(?P<ascii>[A-Za-z0-9_]+(?![\p{{L}}\p{{M}}--[{_UNSPACED}]]))"
    rf"|(?P<other>[[\p{{L}}\p{{M}}\p{{N}}_]--[{_UNSPACED}]]+)",
    regex.VERSION1,
)
_PART: Final = regex.compile(r"\p{Lu}+(?!\p{Ll})|\p{Lu}?\p{Ll}[\p{Ll}\p{M}]*|[\p{L}\p{M}]+|\p{N}+")
_MAX_PARTS: Final = 12


def terms_of(text: str) -> list[str]:
    """The terms in order, repeats included; function words are left out. O(length).

    Compatible spellings are one (NFKC). A single digit is a term, since "step 2" is not "step 3".
    """
    if text.isascii():
        return [term for word in graph_terms.words_of(text) for term in _ascii_terms(word)]
    found: list[str] = []
    for run in _RUN.finditer(unicodedata.normalize("NFKC", text)):
        if unspaced := run["unspaced"]:
            found += map("".join, pairwise(unspaced)) if len(unspaced) > 1 else unspaced
        elif ascii_run := run["ascii"]:
            found += (term for word in graph_terms.words_of(ascii_run) for term in _ascii_terms(word))
        else:
            found += _other_terms(run["other"])
    return found


def _ascii_terms(word: str) -> tuple[str, ...]:
    if len(word) == 1 and word.isdigit():
        return (word,)
    return graph_terms.terms_of(word)


def _other_terms(word: str) -> Iterator[str]:
    """Parts between underscores and humps, then the whole where it has several parts."""
    if len(word) > graph_terms.MAX_WORD_CHARS:
        return
    parts = [part.casefold() for part in _PART.findall(word)][:_MAX_PARTS]
    for part in parts:
        # "Straße" folds to letters of English: it gives the term that "STRASSE" gives.
        yield from _ascii_terms(part) if part.isascii() else (part,)
    if len(parts) > 1:
        yield "_".join(parts)
