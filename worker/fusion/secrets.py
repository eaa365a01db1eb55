"""Where values that look like credentials stand in a text: the detectors of detect-secrets, placed exactly.

The plug-ins say which values there are; here their expressions are asked for places, and only where a cheap
look found something that they could match. Their global settings, scanning and verification are not used: the
same text gives the same places in every process, and nothing is asked of a network.

Left out are the detectors of high entropy alone, of IP addresses, and those whose values have no mark of
their own: digests, lock files and test data are full of such values. An assignment to a name that speaks of a
secret counts where the value is one that nobody would type.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, AnyStr, Final, cast

if TYPE_CHECKING:
    from detect_secrets.plugins.base import RegexBasedDetector
    from detect_secrets.plugins.jwt import JwtTokenDetector

_LINE_CHARS: Final = 1_024
"""Longer lines are looked at in pieces, since some expressions take time in the square of a line."""
_OVERLAP_CHARS: Final = 320
_MARK_CHARS: Final = 512
"""What follows a mark is looked at so far; the first part of a web token is shorter."""
_SET_CHARS: Final = 320
"""A longer line is none of an environment file."""

_RUN: Final = 20
"""The tokens of most vendors hold that many letters and digits in a row; few other words do."""
_LETTERS_AND_DIGITS: Final = bytes(
    ord("a") if chr(code).isascii() and chr(code).isalnum() else 0 for code in range(256)
)
_LONG_RUN: Final = b"a" * _RUN
_NEAR_RUN: Final = re.compile(
    r"A3T|A[BCKS][CI]A|gh[oprsu]_|k_live_|T3BlbkFJ|(?:AC|SK)[a-z0-9]{32}|[0-9a-z]{32}-us\d"
)
"""What such a run begins with or stands beside where it is a token."""
_BEFORE_RUN: Final = 8
_AFTER_RUN: Final = 4
_MARKS: Final = {
    "://": re.compile(r"[^\s/?#@:]*:[^\s]*@"),
    "eyJ": re.compile(r"[\w=-]{8,}\.[\w=-]"),
    "xox": re.compile(r"[abposr]-\d", re.IGNORECASE),
    "hooks.slack.com": re.compile(r"/services/T", re.IGNORECASE),
    "SG.": re.compile(r"[\w-]{22}\."),
    "sq0csp-": re.compile(r"."),
    "pypi-Ag": re.compile(r"E"),
    "_authToken": re.compile(r"="),
    "GR1348941": re.compile(r"[\w-]"),
    "AccountKey=": re.compile(r"[\w+/]"),
}
"""What values without such a run begin with, and what follows it there; GitLab's have a mark of their own."""
_GITLAB_MARKS: Final = ("t-", "gloas-")
_GITLAB: Final = re.compile(r"gl(?:pa|d|f|soa|r|cb|im|pt|agen)t-|gloas-")

_NAMES: Final = (b"key", b"pass", b"pwd", b"secret", b"token", "contraseña".encode("latin-1"))
"""What stands in the names of variables that hold secrets."""
_ASSIGNED: Final = re.compile(r"[\"'`][^\"'`\s]{12,}[\"'`]")
"""A value in quotes, to which such a name may be set or compared."""
_COMPARED: Final = re.compile(r"[!=]{2}")
_SET: Final = re.compile(
    r"[ \t]*(?:export[ \t]+|set[ \t]+|-[ \t]+)?[\"']?[\w.-]*(?:key|pass|pwd|secret|token)[\w.-]*[\"']?[ \t]*"
    r"[=:][ \t]*(?P<value>[^\s\"'`#;,(){}\[\]<>$=]{12,})[ \t]*\r?",
    re.IGNORECASE,
)
"""A line of an environment or configuration file: no quotes, nothing else in the line."""

_KEY_HEADER: Final = re.compile(
    # Kinds are few and short: without an end to them, each BEGIN of a thousand would be read to the last.
    r"BEGIN (?:[A-Z0-9]{1,16} ){0,4}PRIVATE KEY(?: BLOCK)?-*|PuTTY-User-Key-File-\d"
)
_KEY_END: Final = "-----END"
_KEY_CHARS: Final = 16_384
_KEY_TEXT: Final = re.compile(r"[A-Za-z0-9+/=]{24,}(?:(?:[ \t]*\r?\n[ \t]*|(?:\\r)?\\n)[A-Za-z0-9+/=]+)*")
"""Base64 as keys have it, over lines or over what a string literal writes for their ends."""

_TOKEN_TAIL: Final = re.compile(r"[A-Za-z0-9_\-.=+/]*")
_LEAST_BITS: Final = 3.0
"""Entropy of a value that was made, not thought of, per character; most words and paths have less."""
_PLACEHOLDER: Final = re.compile(
    r"example|change|dummy|placeholder|sample|your|xxx|fake|test|\*{3}|\.{3}|masked:|none|null|true|false"
    r"|redacted|insert|replace|undefined",
    re.IGNORECASE,
)
_LEAST_MADE: Final = 12
_MOST_MADE: Final = 512
_LEAST_PASSWORD: Final = 4
_SAID: Final = frozenset(
    {"pass", "passwd", "password", "pwd", "secret", "token", "guest", "admin", "repo", "user"}
)
_REFERENCE: Final = re.compile(r"[\w.\-/]*")


@dataclass(frozen=True, slots=True, order=True)
class Secret:
    """A value that looks like a credential: characters `start` to `end` of the text, and which kind."""

    start: int
    end: int
    kind: str


@dataclass(frozen=True, slots=True)
class _Rule:
    kind: str
    expressions: tuple[re.Pattern[str], ...]
    is_in_group: bool
    """Whether the value is the expression's first group, where that took part, or the whole match."""


def find_secrets(text: str) -> tuple[Secret, ...]:
    """The values in `text` that look like credentials, in order and without overlap.

    Linear in the text, in pieces of bounded size where lines are long.
    """
    return tuple(_without_overlap(sorted(_found(text))))


def prepare() -> None:
    """Load the detectors now: the first value that needs them takes some tenths of a second else."""
    _rules()
    _keyword_expressions()


def _found(text: str) -> Iterator[Secret]:
    if "PRIVATE KEY" in text or "PuTTY-User-Key" in text:
        yield from _private_keys(text)
    # One byte a character, so that offsets are the same: what is beyond Latin-1 is in no token and no name.
    plain = text.encode("latin-1", "replace")
    for start, end in _pieces(text, _suspects(text, plain)):
        yield from _tokens(text, start, end)
    for start, end in _pieces(text, _occurrences(plain.lower(), _NAMES)):
        yield from _assigned(text, start, end)


# --- Where to look -----------------------------------------------------------------------------------


def _suspects(text: str, plain: bytes) -> Iterator[int]:
    """Offsets of characters in whose line a vendor's token may stand."""
    for mark, rest in _MARKS.items():
        for at in _occurrences(text, (mark,)):
            if rest.match(text, at + len(mark), at + _MARK_CHARS):
                yield at
    for at in _occurrences(text, _GITLAB_MARKS):
        if _GITLAB.search(text, max(0, at - _BEFORE_RUN), at + _BEFORE_RUN):
            yield at
    runs = plain.translate(_LETTERS_AND_DIGITS)
    at = runs.find(_LONG_RUN)
    while at >= 0:
        end = runs.find(b"\0", at)
        end = len(runs) if end < 0 else end
        near = _NEAR_RUN.search(text, max(0, at - _BEFORE_RUN), end + _AFTER_RUN)
        if near is not None:
            yield near.start()
        at = runs.find(_LONG_RUN, end)


def _occurrences(text: AnyStr, words: Iterable[AnyStr]) -> Iterator[int]:
    """Where one of the words stands; word by word, which takes a tenth of what an expression takes."""
    for word in words:
        at = text.find(word)
        while at >= 0:
            yield at
            at = text.find(word, at + len(word))


def _pieces(text: str, suspects: Iterator[int]) -> Iterator[tuple[int, int]]:
    """The lines that hold suspects, each once, by their first and last-plus-one characters.

    Long ones in pieces that overlap.
    """
    done = -1
    for at in sorted(suspects):
        if at <= done:
            continue
        start = text.rfind("\n", 0, at) + 1
        end = text.find("\n", at)
        done = end = len(text) if end < 0 else end
        step = _LINE_CHARS - _OVERLAP_CHARS
        for begin in range(start, max(start + 1, end - _OVERLAP_CHARS), step):
            yield begin, min(end, begin + _LINE_CHARS)


# --- What stands there -------------------------------------------------------------------------------


def _tokens(text: str, start: int, end: int) -> Iterator[Secret]:
    for rule in _rules():
        for expression in rule.expressions:
            for match in expression.finditer(text, start, end):
                first, last = match.span(1 if rule.is_in_group and match.re.groups and match[1] else 0)
                if last == end or rule.kind == "json_web_token":
                    # The piece ends within the token, or the expression stops as soon as it may.
                    last = _tail_end(text, last)
                if _is_meant(rule.kind, text[first:last]):
                    yield Secret(first, last, rule.kind)


def _tail_end(text: str, end: int) -> int:
    match = _TOKEN_TAIL.match(text, end)
    return end if match is None else match.end()


def _is_meant(kind: str, value: str) -> bool:
    """Whether a value of the right form is more than an illustration."""
    if kind == "url_password":
        return not _is_said(value)
    return not _is_drawn(value) and (kind != "json_web_token" or _is_web_token(value))


def _is_web_token(value: str) -> bool:
    header, _, rest = value.partition(".")
    return _jwt_detector().is_formally_valid(header + ".e30") and len(rest) >= _RUN


def _assigned(text: str, start: int, end: int) -> Iterator[Secret]:
    if _ASSIGNED.search(text, start, end):
        for match, group in _keyword_matches(text, start, end):
            if _is_made_up(match[group]):
                yield Secret(*match.span(group), "secret")
    elif end - start <= _SET_CHARS:
        line = _SET.fullmatch(text, start, end)
        if line is not None and _is_made_up(line["value"]):
            yield Secret(*line.span("value"), "secret")


def _keyword_matches(text: str, start: int, end: int) -> Iterator[tuple[re.Match[str], int]]:
    """What the detector's expressions match in the piece, each with the value's group.

    What follows a name is asked for once, where the word that the name stands in ends: the expressions
    themselves ask again for every place in the word that they could go on from.
    """
    name, following, preceding = _keyword_expressions()
    words = [(word.start(), word.end()) for word in name.finditer(text, start, end)]
    if not words:
        return
    for expression, group in following:
        done = start
        for begin, stop in words:
            match = expression.match(text, stop, end) if begin >= done else None
            if match is not None:
                yield match, group
                done = match.end()
    if _COMPARED.search(text, start, end):
        for expression, group in preceding:
            for match in expression.finditer(text, start, end):
                yield match, group


def _private_keys(text: str) -> Iterator[Secret]:
    for start, end in _key_places(text):
        for body in _KEY_TEXT.finditer(text, start, end):
            yield Secret(*body.span(), "private_key")


def _key_places(text: str) -> Iterator[tuple[int, int]]:
    """Where the text of a key may stand: from a header to its end; places that overlap are one."""
    start = end = stop = -1
    for header in _KEY_HEADER.finditer(text):
        if stop < header.end():
            found = text.find(_KEY_END, header.end())
            stop = len(text) if found < 0 else found
        limit = min(stop, header.end() + _KEY_CHARS)
        if header.end() > end:
            if start >= 0:
                yield start, end
            start = header.end()
        end = max(end, limit)
    if start >= 0:
        yield start, end


def _is_made_up(value: str) -> bool:
    """Whether a value reads like one that a program made: mixed, without blanks, and no placeholder."""
    if not _LEAST_MADE <= len(value) <= _MOST_MADE or any(character.isspace() for character in value):
        return False
    if _is_placeholder(value) or not any(c.isdigit() for c in value) or not any(c.isalpha() for c in value):
        return False
    from detect_secrets.filters import heuristic  # noqa: PLC0415  # takes tenths of a second to load

    if heuristic.is_sequential_string(value) or heuristic.is_potential_uuid(value):
        return False
    return _bits(value) >= _LEAST_BITS and not _is_spoken(value)


def _is_said(password: str) -> bool:
    """Whether the password of an address only says what would stand there, or is the usual one of a demo."""
    return len(password) < _LEAST_PASSWORD or _is_placeholder(password) or password.lower() in _SAID


def _is_drawn(value: str) -> bool:
    """Whether documentation only draws what a token looks like."""
    return "xxxx" in value.lower()


def _is_placeholder(value: str) -> bool:
    return (
        _PLACEHOLDER.search(value) is not None or "$" in value or "{" in value or "<" in value or "%" in value
    )


def _is_spoken(value: str) -> bool:
    """Whether the value consists of words and short numbers, as names, paths and addresses do."""
    words = re.split(r"[^A-Za-z0-9]+", value)
    return _REFERENCE.fullmatch(value) is not None and all(
        re.fullmatch(r"[A-Z]?[a-z]*\d{0,4}|[A-Z]*\d{0,4}|\d{0,4}", word) for word in words
    )


def _bits(value: str) -> float:
    size = len(value)
    return -sum(count / size * math.log2(count / size) for count in Counter(value).values())


def _without_overlap(found: Sequence[Secret]) -> Iterator[Secret]:
    """Of those that overlap one, from where the first begins to where the last ends."""
    kept: Secret | None = None
    for secret in found:
        if kept is not None and secret.start < kept.end:
            kept = Secret(kept.start, max(kept.end, secret.end), kept.kind)
            continue
        if kept is not None:
            yield kept
        kept = secret
    if kept is not None:
        yield kept


# --- The detectors -----------------------------------------------------------------------------------


@lru_cache(maxsize=1)
def _rules() -> tuple[_Rule, ...]:
    from detect_secrets.plugins import (  # noqa: PLC0415  # takes tenths of a second to load
        aws,
        azure_storage_key,
        basic_auth,
        github_token,
        gitlab_token,
        jwt,
        mailchimp,
        npm,
        openai,
        pypi_token,
        sendgrid,
        slack,
        square_oauth,
        stripe,
        twilio,
    )

    whole: tuple[tuple[str, type[RegexBasedDetector]], ...] = (
        ("azure_storage_key", azure_storage_key.AzureStorageKeyDetector),
        ("github_token", github_token.GitHubTokenDetector),
        ("gitlab_token", gitlab_token.GitLabTokenDetector),
        ("json_web_token", jwt.JwtTokenDetector),
        ("mailchimp_key", mailchimp.MailchimpDetector),
        ("openai_key", openai.OpenAIDetector),
        ("pypi_token", pypi_token.PypiTokenDetector),
        ("sendgrid_key", sendgrid.SendGridDetector),
        ("slack_token", slack.SlackDetector),
        ("square_secret", square_oauth.SquareOAuthDetector),
        ("stripe_key", stripe.StripeDetector),
        ("twilio_key", twilio.TwilioKeyDetector),
    )
    grouped: tuple[tuple[str, type[RegexBasedDetector]], ...] = (
        ("aws_key", aws.AWSKeyDetector),
        ("npm_token", npm.NpmDetector),
        ("url_password", basic_auth.BasicAuthDetector),
    )
    return tuple(
        _Rule(kind, tuple(cast("Iterable[re.Pattern[str]]", detector.denylist)), is_in_group)
        for detectors, is_in_group in ((whole, False), (grouped, True))
        for kind, detector in detectors
    )


_Grouped = tuple[re.Pattern[str], int]


@lru_cache(maxsize=1)
def _keyword_expressions() -> tuple[re.Pattern[str], tuple[_Grouped, ...], tuple[_Grouped, ...]]:
    """A name like `password` to its word's end, what may follow it there, and what has it at its own end.

    Of the latter two each with the group of the value in quotes that the name is set to or compared with.
    """
    from detect_secrets.plugins import keyword  # noqa: PLC0415  # takes tenths of a second to load

    name = keyword.DENYLIST_REGEX
    following: list[_Grouped] = []
    preceding: list[_Grouped] = []
    for expression, group in keyword.QUOTES_REQUIRED_DENYLIST_REGEX_TO_GROUP.items():
        if expression.pattern.startswith(name):
            # An empty group in the name's place, so that the others keep their numbers.
            rest = re.compile("()" + expression.pattern.removeprefix(name), expression.flags)
            following.append((rest, group))
        else:
            preceding.append((expression, group))
    return re.compile(name, re.IGNORECASE), tuple(following), tuple(preceding)


@lru_cache(maxsize=1)
def _jwt_detector() -> type[JwtTokenDetector]:
    from detect_secrets.plugins.jwt import JwtTokenDetector  # noqa: PLC0415  # takes tenths of a second to load

    return JwtTokenDetector
