"""Ids of steps: at the beginning of a text, and in lists of them, ranges included."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

NUMBERED: Final = r"\d{1,9}(?:\.\d{1,9}){0,8}[a-z]?(?![\w-])"
"""`3`, `3.4`, `7.4d`."""
LETTERED: Final = r"[A-Z][A-Z0-9]{0,11}?[-_.]?\d{1,9}(?:\.\d{1,9}){0,4}[a-z]?(?![\w-])"
"""`T012`, `M1`, `WP01`, `AUTH-12`, `T020a`."""

_WORDS: Final = r"(?:(?:task|step|phase|milestone|day|week|sprint|stage|part)s?\s+#?)"
_START: Final = re.compile(
    rf"(?P<open>[*_`~\[(]*)(?P<id>(?P<word>{_WORDS})?(?:(?P<number>{NUMBERED})|(?P<letters>{LETTERED})))"
    r"(?P<close>[*_`~\])]*)(?P<sign>\s*[:：.)—–]+[*_`~]*|\s+[—–-](?=\s))?(?P<gap>\s*)",
    re.IGNORECASE,
)
_MAX_RANGE: Final = 100
"""A longer range is given by its two ends."""
_LISTED: Final = re.compile(
    rf"(?<![\w.-])(?P<word>{_WORDS})?(?P<first>(?:[A-Za-z][A-Za-z0-9]{{0,11}}?[-_.]?)?\d{{1,9}}(?:\.\d{{1,9}}){{0,8}}[a-z]?)"
    rf"(?:\s*(?:\.\.\.?|[…–—〜～~-])\s*{_WORDS}?(?P<last>[A-Za-z]{{0,12}}[-_]?\d{{1,9}}(?:\.\d{{1,9}}){{0,8}}[a-z]?)"
    rf"|\s+(?:through|thru|to)\s+{_WORDS}?(?P<through>[A-Za-z]{{0,12}}[-_]?\d{{1,9}}(?:\.\d{{1,9}}){{0,8}}[a-z]?))?(?![\w])",
    re.IGNORECASE,
)
_PARTS: Final = re.compile(r"(?P<prefix>(?:.*\D)?)(?P<digits>\d{1,9})(?P<letter>[a-z]?)\Z", re.DOTALL)


@dataclass(frozen=True, slots=True, kw_only=True)
class LeadingId:
    """An id at the beginning of a text."""

    id: str
    """As written, without the word in front of it ("Task 3b" is `3b`)."""
    word: str = ""
    """That word, in small letters: `task`, `step`, `phase`, …"""
    rest: str
    is_struck: bool = False
    is_numbered: bool = False
    is_marked_off: bool = False
    """Whether a sign, brackets or bold type set it off from the text."""


def leading_id(text: str) -> LeadingId | None:
    """The id that a text begins with.

    A whole number without a word in front or a sign behind it is none ("3 retries"), and neither is a word
    in small letters with a number.
    """
    match = _START.match(text[:400])
    if match is None or not (match["sign"] or match["gap"] or match["close"] or match.end() == len(text)):
        return None
    word = (match["word"] or "").strip(" #").lower()
    literal = match["number"] or match["letters"]
    sign = (match["sign"] or "").strip()
    is_plain_number = match["number"] is not None and "." not in literal
    if match["letters"] and not literal[0].isupper():
        return None
    if is_plain_number and not word and not sign and not match["close"]:
        return None
    if is_plain_number and not word and sign[:1] in {"—", "–", "-"} and not match["close"]:
        return None
    opened = match["open"].strip("~")
    return LeadingId(
        id=literal,
        word=word.removesuffix("s") if word else "",
        rest=_unopened(match, text),
        is_struck="~~" in match["open"] and "~~" in match["close"],
        is_numbered=match["number"] is not None,
        is_marked_off=bool(sign or word or (opened and match["close"])),
    )


def _unopened(match: re.Match[str], text: str) -> str:
    """What follows the id, with the bold type that goes on over it opened again."""
    rest = text[match.end() :]
    for mark in ("**", "~~"):
        closed = match["close"] + (match["sign"] or "")
        if mark in match["open"] and mark not in closed and mark in rest:
            rest = f"{mark}{rest}"
    return rest.strip()


@dataclass(frozen=True, slots=True)
class ListedIds:
    """The ids in a list, ranges expanded, each once, and the ranges that do not expand.

    A word in front stays (`Step 1`).
    """

    ids: tuple[str, ...]
    unexpanded: tuple[str, ...]


def listed_ids(text: str) -> ListedIds:
    """The ids that a list names: `T010, T011`, `1.1-1.4`, `Step 1`, `T010 through T014`. O(n)."""
    found: list[str] = []
    unexpanded: list[str] = []
    for match in _LISTED.finditer(text[:4_000]):
        word = (match["word"] or "").strip(" #").capitalize().removesuffix("s")
        last = match["last"] or match["through"]
        expanded = [match["first"]] if last is None else _expand(match["first"], last)
        if expanded is None:
            unexpanded.append(match[0])
            expanded = [match["first"], _with_prefix(match["first"], last or "")]
        found += (f"{word} {literal}" if word else literal for literal in expanded)
    return ListedIds(tuple(dict.fromkeys(found)), tuple(unexpanded))


def _expand(first: str, last: str) -> list[str] | None:
    low, high = _PARTS.match(first), _PARTS.match(last)
    if low is None or high is None or low["letter"] or high["letter"]:
        return None
    if high["prefix"] not in {"", low["prefix"]} or (high["prefix"] == "" and low["prefix"].endswith(".")):
        return None
    start, end = int(low["digits"]), int(high["digits"])
    if not start < end < start + _MAX_RANGE:
        return None
    width = len(low["digits"])
    return [f"{low['prefix']}{value:0{width}d}" for value in range(start, end + 1)]


def _with_prefix(first: str, last: str) -> str:
    low = _PARTS.match(first)
    return f"{low['prefix']}{last}" if low and last.isdigit() and not low["prefix"].endswith(".") else last


def letters_of(literal: str) -> str:
    """What an id begins with, its number taken off."""
    return literal.rstrip("0123456789.abcdefghijklmnopqrstuvwxyz")


def families(ids: Iterable[str]) -> frozenset[str]:
    """The letters that at least two ids begin with, by which `T1` is an id and `S3` a product."""
    seen: set[str] = set()
    repeated: set[str] = set()
    for literal in ids:
        letters = letters_of(literal)
        (repeated if letters in seen else seen).add(letters)
    return frozenset(repeated)
