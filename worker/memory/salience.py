"""How much a sentence matters by itself: whether it decides, blocks, or names something, or merely chats."""

from __future__ import annotations

import re
from typing import Final

_WORD: Final = re.compile(r"[a-z]+(?:'[a-z]+)?")
_DECISIONS: Final = frozenset(
    """decide decides decided deciding decision decisions agree agreed chose chosen choosing reject rejects
    rejected approve approves approved adopt adopts adopted settled conclude concludes concluded conclusion
    resolved ruling""".split()  # noqa: SIM905  # a list of words reads better than a list of strings
)
_BLOCKERS: Final = frozenset(
    """block blocked blocker blockers blocking blocks fail fails failed failing failure failures broke broken
    cannot can't stuck missing regression regressions regressed crash crashes crashed deadlock deadlocks
    unresolved""".split()  # noqa: SIM905  # as above
)
_RULES: Final = frozenset(("must", "never", "always", "require", "requires", "required", "shall", "we'll"))
_DECISION_PHRASES: Final = ("going with", "go with", "root cause")
_BLOCKER_PHRASES: Final = ("waiting for", "waiting on", "depends on", "time out", "times out", "timed out")
_RULE_PHRASES: Final = ("instead of", "only if", "from now on", "we will")
_CHAT: Final = re.compile(
    r"\W*(?:ok|okay|thanks?|sure|great|cool|hello|hi|hey|got it|sounds good|will do|lgtm|nice|yes|no|yep"
    r"|let me|perfect|awesome)\b"
)
_IDENTIFIER: Final = re.compile(r"[./:_]\w|`")
_DIGIT: Final = re.compile(r"\d")

_DECISION_POINTS, _BLOCKER_POINTS, _RULE_POINTS = 30, 20, 10
_ERROR_POINTS: Final = 20
_NAME_POINTS, _NUMBER_POINTS = 8, 4
_CHAT_POINTS, _QUESTION_POINTS, _STUMP_POINTS, _LONG_POINTS = -15, -6, -12, -8
_STUMP_CHARS, _LONG_CHARS = 16, 300


def points_of(sentence: str) -> int:
    """Points for what a reader would want to keep, from about -40 to 70; 0 for plain prose. O(length).

    The signal words are English; in other languages names, numbers and lengths speak alone.
    """
    folded = sentence.lower()
    points = _signal_points(folded)
    if points < _BLOCKER_POINTS and _CHAT.match(folded):
        points += _CHAT_POINTS
    # A capital behind the first letter is a name, an acronym or a hump.
    if folded[1:] != sentence[1:] or _IDENTIFIER.search(folded):
        points += _NAME_POINTS
    if _DIGIT.search(folded):
        points += _NUMBER_POINTS
    if folded.endswith(("?", "？")):
        points += _QUESTION_POINTS
    if len(sentence) < _STUMP_CHARS and sentence.isascii():
        points += _STUMP_POINTS
    elif len(sentence) > _LONG_CHARS:
        points += _LONG_POINTS
    return points


def _signal_points(folded: str) -> int:
    words = _WORD.findall(folded)
    points = _ERROR_POINTS if "error:" in folded or "exception:" in folded else 0
    if _has(folded, words, _DECISIONS, _DECISION_PHRASES):
        points += _DECISION_POINTS
    if _has(folded, words, _BLOCKERS, _BLOCKER_PHRASES):
        points += _BLOCKER_POINTS
    if _has(folded, words, _RULES, _RULE_PHRASES):
        points += _RULE_POINTS
    return points


def _has(folded: str, words: list[str], signals: frozenset[str], phrases: tuple[str, ...]) -> bool:
    return not signals.isdisjoint(words) or any(phrase in folded for phrase in phrases)
