"""Words of code and prose as search terms: identifiers whole and split, folded and stemmed.

A name of several parts gives each part and the whole, whose spelling is folded, so that `retry_loop`,
`RetryLoop` and `retryLoop` meet. Parts are stemmed by Snowball's English (Porter 2) rules, so that "retries"
in a request meets `retry` in a name.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from typing import Any, Final, cast

import snowballstemmer  # pyright: ignore[reportMissingTypeStubs]  # the package ships none

_WORD: Final = re.compile(r"[^\W\d]\w*|\d+")
_PART: Final = re.compile(r"[A-Z]{2,}s(?![a-z])|[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[A-Z]+(?=[A-Z][a-z])|\d+")
_OTHER_PART: Final = re.compile(r"[^\W\d_]+|\d+")
MAX_WORD_CHARS: Final = 80
"""A longer word is data, not language: it gives no term."""
_MAX_PARTS: Final = 12
_MAX_KEPT: Final = 400_000

STOP_WORDS: Final = frozenset(
    re.findall(
        r"\w+",
        """
        a an and are as at be been but by can cannot could did do does doing done for from had has
        have he her him his how i if in into is it its itself just me my no nor not now of off on once
        only or other our out own s same shall she should so some such t than that the their them then
        there these they this those to too up us very was we were what when where which while who whom
        why will with would you your
        """,
    )
)
"""English function words; several of them are Python's keywords too."""


_TALK: Final = """
    again ahead all alright anyway bye carry cheers continue cool excellent fine go good goodbye great hello
    hey hi hm kindly later maybe morning much ok okay perfect please proceed ready right sorry sure thank
    thanks today tomorrow well yeah yep yes
"""


def words_of(text: str) -> list[str]:
    """Every identifier, word and number of the text, in order. O(length)."""
    return _WORD.findall(text)


def terms_of(word: str) -> tuple[str, ...]:
    """The terms of one word: its parts in order, each once, then the whole where it has several parts.

    Empty for function words, single letters and what is too long to be a word. Safe between threads;
    remembered, since words repeat and stemming takes some 50 µs.
    """
    known = _terms.get(word)
    if known is None:
        if len(_terms) >= _MAX_KEPT:
            _terms.clear()
        known = _terms[word] = tuple(dict.fromkeys(_new_terms(word)))
    return known


_terms: dict[str, tuple[str, ...]] = {}
_stems: dict[str, str] = {}
_lock: Final = threading.Lock()
_stemmer: Final = cast("Any", snowballstemmer).stemmer("english")


def _new_terms(word: str) -> Iterator[str]:
    if len(word) > MAX_WORD_CHARS:
        return
    # Humps are split in ASCII only: elsewhere capitals seldom mean a new part.
    pattern = _PART if word.isascii() else _OTHER_PART
    parts = [part.lower() for part in pattern.findall(word)][:_MAX_PARTS]
    for part in parts:
        if len(part) > 1 and part not in STOP_WORDS:
            yield _stem(part)
    if len(parts) > 1:
        yield "_".join(parts)


def _stem(part: str) -> str:
    if len(part) < 3 or not part.isalpha():  # noqa: PLR2004 - shorter words have no endings
        return part
    known = _stems.get(part)
    if known is None:
        if len(_stems) >= _MAX_KEPT:
            _stems.clear()
        # The stemmer keeps the word that it works on in itself.
        with _lock:
            known = _stems[part] = cast("str", _stemmer.stemWord(part))
    return known


SMALL_TALK: Final = frozenset(term for word in words_of(_TALK) for term in terms_of(word))
"""Terms of words that people say to each other and to agents about any work: alone they name nothing."""
