"""Texts that make a regular expression work hard: derived from the expression itself, one for each repeat.

Everything before a repeat is written as short as it matches, the repeat's body many times, and behind it
something that nothing matches, so that a matcher that can go back has to.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator, Sequence
from typing import Any, Final

with warnings.catch_warnings():
    # Its home moved between versions of Python; what is used of it did not change.
    warnings.simplefilter("ignore", DeprecationWarning)
    import sre_constants
    import sre_parse

_parse: Final[Any] = sre_parse.parse  # pyright: ignore[reportUnknownMemberType]
_REPEATS: Final = frozenset({"MAX_REPEAT", "MIN_REPEAT", "POSSESSIVE_REPEAT"})
_NO_END: Final = "\x00\U0010ffff"
_CATEGORIES: Final = {
    "CATEGORY_DIGIT": "7",
    "CATEGORY_WORD": "w",
    "CATEGORY_SPACE": " ",
    "CATEGORY_NOT_DIGIT": "q",
    "CATEGORY_NOT_WORD": "%",
    "CATEGORY_NOT_SPACE": "q",
}
del sre_constants


def pumped(pattern: re.Pattern[Any], times: int) -> Iterator[str]:
    """One text for each repeat of the pattern, as long as `times` bodies of it."""
    source = pattern.pattern if isinstance(pattern.pattern, str) else pattern.pattern.decode("latin-1")
    tree = _parse(
        source, pattern.flags & ~re.UNICODE if isinstance(pattern.pattern, bytes) else pattern.flags
    )
    for number in range(_count(tree)):
        yield _Writer(number, times).text(tree) + _NO_END


def _count(items: Any) -> int:
    return sum(_count_in(str(code), argument) for code, argument in items)


def _count_in(code: str, argument: Any) -> int:
    return int(code in _REPEATS) + sum(_count(inner) for inner in _inner(code, argument))


def _inner(code: str, argument: Any) -> Sequence[Any]:
    match code:
        case "MAX_REPEAT" | "MIN_REPEAT" | "POSSESSIVE_REPEAT":
            return (argument[2],)
        case "SUBPATTERN":
            return (argument[3],)
        case "BRANCH":
            return tuple(argument[1])
        case "ATOMIC_GROUP":
            return (argument,)
        case _:
            return ()


class _Writer:
    """Writes the shortest match of a tree, but for one repeat."""

    def __init__(self, pumped_repeat: int, times: int) -> None:
        self._pumped_repeat = pumped_repeat
        self._times = times
        self._seen = 0

    def text(self, items: Any) -> str:
        return "".join(self._one(str(code), argument) for code, argument in items)

    def _one(self, code: str, argument: Any) -> str:
        match code:
            case "LITERAL":
                return chr(argument)
            case "NOT_LITERAL":
                return "q" if argument != ord("q") else "w"
            case "ANY":
                return "q"
            case "IN":
                return _member(argument)
            case "BRANCH":
                return self._branch(argument[1])
            case "SUBPATTERN":
                return self.text(argument[3])
            case "ATOMIC_GROUP":
                return self.text(argument)
            case "MAX_REPEAT" | "MIN_REPEAT" | "POSSESSIVE_REPEAT":
                return self._repeat(argument)
            case _:
                return ""

    def _repeat(self, argument: Any) -> str:
        least, most, body = argument
        is_pumped, self._seen = self._seen == self._pumped_repeat, self._seen + 1
        before = self._seen
        text = self.text(body)
        holds_pumped = before <= self._pumped_repeat < self._seen
        return text * (min(int(most), self._times) if is_pumped else max(int(least), int(holds_pumped)))

    def _branch(self, branches: Sequence[Any]) -> str:
        """The branch that holds the pumped repeat, else the first."""
        texts: list[tuple[bool, str]] = []
        for branch in branches:
            before = self._seen
            text = self.text(branch)
            texts.append((before <= self._pumped_repeat < self._seen, text))
        return next((text for holds, text in texts if holds), texts[0][1])


def _member(items: Any) -> str:
    """A character of a class."""
    if str(items[0][0]) == "NEGATE":
        excluded = re.compile("[" + "".join(_written(item) for item in items[1:]) + "]")
        return next(character for character in "q w7-_.%é\n\x01" if not excluded.match(character))
    code, argument = str(items[0][0]), items[0][1]
    if code == "LITERAL":
        return chr(argument)
    if code == "RANGE":
        return chr(argument[0])
    return _CATEGORIES.get(str(argument), "q")


def _written(item: Any) -> str:
    code, argument = str(item[0]), item[1]
    if code == "LITERAL":
        return re.escape(chr(argument))
    if code == "RANGE":
        return f"{re.escape(chr(argument[0]))}-{re.escape(chr(argument[1]))}"
    name = str(argument).removeprefix("CATEGORY_")
    letter = {"DIGIT": "d", "WORD": "w", "SPACE": "s"}[name.removeprefix("NOT_")]
    return "\\" + (letter.upper() if name.startswith("NOT_") else letter)
