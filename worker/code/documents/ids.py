"""Requirement ids in text: one at the start of a line, many in a list, ranges between two."""

from __future__ import annotations

import re
from typing import Final

ID: Final = r"[A-Z][A-Z0-9]*(?:-[A-Z0-9]+)*-\d+[a-z]?(?:\.[A-Z][A-Z0-9]*-\d+[a-z]?)?(?![^\W_]|-|_(?!_))"
"""`REQ-123`, `REQ-AUTH-001`, `FR-001a`, `REQ-005.AC-05`."""

MAX_RANGE: Final = 500
"""A longer range is given by its two ends."""

_END: Final = r"[A-Za-z0-9]+(?:[.-][A-Za-z0-9]+)*"
_RANGE: Final = re.compile(
    rf"(?P<first>(?:[A-Z][A-Z0-9]*-)*[A-Z]*\d+[a-z]?(?:\.\d+)*)"
    # A plain hyphen joins dotted numbers alone: `A-1-2` is one id, and a date none.
    rf"(?:\s*(?:\.\.\.?|[…–—〜～~])\s*|(?<=\.\d)-(?=\d)|(?<=\.\d\d)-(?=\d)|\s+(?:through|thru|to)\s+)"
    rf"(?P<last>{_END})"
)
_ANY: Final = re.compile(rf"(?<![\w.-]){ID}|(?<![\w.-])\d+(?:\.\d+)+(?![\w-])")
_NUMBERED: Final = re.compile(r"(?P<prefix>(?:.*\D)?)(?P<digits>\d{1,9})\Z", re.DOTALL)

_FOREIGN: Final = frozenset(
    [
        "UTF",
        "SHA",
        "ISO",
        "RFC",
        "CVE",
        "CWE",
        "MD",
        "IEEE",
        "PEP",
        "GPT",
        "AES",
        "RSA",
        "HTTP",
        "IP",
        "IPV",
        "TLS",
        "SSL",
        "UTC",
        "GMT",
        "RS",
        "ES",
        "HS",
        "PR",
        "GH",
        "COVID",
        "H",
        "TASK",
        "STEP",
        "BUG",
        "ISSUE",
        "WP",
        "PHASE",
        "SPRINT",
        "MILESTONE",
        "M",
        "T",
        "ADR",
        "ADL",
        "D",
        "DEC",
        "DR",
        "AD",
        "RISK",
        "TODO",
        "NOTE",
        "CHANGE",
        "PLAN",
        "WCAG",
        "OWASP",
        "ECMA",
        "ASCII",
        "BASE",
        "UUID",
        "CRC",
        "X",
        "P",
        "UTC",
        "V",
        "JSR",
        "ANSI",
        "EN",
        "DIN",
        "NIST",
        "PKCS",
        "ED",
        "ECDSA",
        "CP",
        "KB",
        "EPIC",
    ]
)
"""First words of ids that name standards, formats, work items or decisions."""


def is_requirement_id(literal: str) -> bool:
    """Whether an id of the right form may name a requirement, by its first word."""
    return literal.split("-", 1)[0] not in _FOREIGN


def read_ids(text: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The ids in a list, ranges expanded, each once and in order; and the ranges that do not expand.

    Ids are `REQ-1` and the like, and dotted numbers (`1.2`). A range expands when its ends share what stands
    before the last number: `FR-001..003`, `FR-001 through FR-004`, `1.1-1.4`, `1.1–1.4`. Of any other range,
    and of one over `MAX_RANGE`, both ends are given. O(n).
    """
    unexpanded: list[str] = []

    def expand(match: re.Match[str]) -> str:
        before = text[match.start() - 1 : match.start()]
        after = text[match.end() : match.end() + 1]
        if (before and (before.isalnum() or before in "-._")) or after == "-":
            return match[0]
        values = _expand(match["first"], match["last"])
        if values is None:
            last = _last_id(match["first"], match["last"])
            if _looks_like_id(match["first"]) and _looks_like_id(last):
                unexpanded.append(match[0])
            return f"{match['first']}, {last}"
        return ", ".join(values)

    found = (match[0] for match in _ANY.finditer(_RANGE.sub(expand, text)))
    return tuple(dict.fromkeys(found)), tuple(unexpanded)


def _last_id(first: str, last: str) -> str:
    """The end of a range as an id: a bare number has the prefix of the beginning."""
    low = _NUMBERED.match(first)
    return f"{low['prefix']}{last}" if low and last.isdigit() else last


def _looks_like_id(text: str) -> bool:
    return _ANY.fullmatch(text) is not None


def _expand(first: str, last: str) -> list[str] | None:
    low, high = _NUMBERED.match(first), _NUMBERED.match(last)
    if low is None or high is None:
        return None
    prefix = low["prefix"]
    if not prefix or (high["prefix"] and high["prefix"] != prefix):
        return None
    start, end = int(low["digits"]), int(high["digits"])
    if not start < end < start + MAX_RANGE:
        return None
    width = len(low["digits"])
    return [f"{prefix}{value:0{width}d}" for value in range(start, end + 1)]
