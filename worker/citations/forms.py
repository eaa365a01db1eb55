"""The forms that ids have in texts: short ids, ids of code, numbered ids, and paths.

All that reads or writes such ids takes the form from here.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

from schemas.citations import LETTERS

SHORT_DIGITS: Final = 6
"""Two tokens; among 500 of a kind one in eight bundles has two alike, which get more digits."""
MOST_DIGITS: Final = 18
_LETTERS: Final = "".join(sorted(LETTERS.values()))
LETTER: Final = rf"[{_LETTERS}]"
"""One letter of a kind, as an expression."""
SHORT: Final = rf"{LETTER}:[0-9]{{{SHORT_DIGITS},{MOST_DIGITS}}}"
"""A short id, as an expression; in answers its letter may be a capital."""

_LEAST_ID_CHARS: Final = 4
_SHORT: Final = re.compile(rf"{SHORT}\Z")
_MOST_NUMBERED_CHARS: Final = 64
_CODE: Final = re.compile(r"[^\s:]+\.\w+::[\w.<>]+(?:#\d+)?\Z")
_NUMBERED: Final = re.compile(
    r"([A-Z]{2,16}(?:[-_][A-Z]+)*[-_]?|[A-Z](?:[-_][A-Z]+)*[-_])[0-9]+(?:[-_.][0-9]+)*[a-z]?\Z"
)
_PATH: Final = re.compile(r"(?:[\w.@+-]+/)*[\w@+-][\w.@+-]*\.\w+\Z|(?:[\w.@+-]+/)+[\w.@+-]+\Z")


def can_be_read(own_id: str) -> bool:
    """Whether the id is unlike the words of a language, so that where it stands it is meant."""
    return (len(own_id) >= _LEAST_ID_CHARS and not own_id.isalpha()) or family_of(own_id) is not None


def is_short(word: str) -> bool:
    """Whether the word is a short id, its letter small."""
    return _SHORT.match(word) is not None


def is_code_id(word: str) -> bool:
    """Whether the word has the form `pay/client.py::Client.retry`."""
    return _CODE.match(word) is not None


def is_path(word: str) -> bool:
    """Whether the word may be a file's path: it has folders, or a suffix."""
    return _PATH.match(word) is not None


def family_of(own_id: str) -> str | None:
    """What a numbered id has in common with its like: `REQ-` of `REQ-106-030`; None of other ids.

    Capital letters, in groups, and numbers; a single letter needs a dash or an underscore between. Whatever
    has more words behind its numbers (`REQ-9-compliant`) is of no family.
    """
    if len(own_id) > _MOST_NUMBERED_CHARS:
        return None
    found = _NUMBERED.match(own_id)
    return None if found is None else found[1]


def families_of(own_ids: Iterable[str]) -> frozenset[str]:
    """The families of the numbered ids among these."""
    return frozenset(family for one in own_ids if (family := family_of(one)) is not None)
