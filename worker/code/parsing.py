"""Bytes of a Python file to its statements: decoded as PEP 263 says, parsed without harm to the process.

`ast.parse` is C code that holds the interpreter's lock until it returns, so a long file is parsed in pieces,
between which other threads get their turn. What is quadratic in the parser of Python 3.11 (an f-string with
very many fields, a dotted name with very many parts, a name with very many accents on one letter) is refused
beforehand; nesting that would exhaust a stack is refused by the parser itself, which then raises
RecursionError or MemoryError.
"""

from __future__ import annotations

import ast
import codecs
import io
import re
import tokenize
import warnings
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Final

import regex

from worker.code.facts import ParseProblem

PIECE_CHARS: Final = 16_000
"""A source twice as long is parsed in pieces of at least this size, about 10 ms each."""

MAX_PIECES: Final = 64

MAX_FSTRING_WORK: Final = 200_000_000
"""Fields times characters of one f-string: the parser takes about a second for ten times as much."""

MAX_DOTTED_PARTS: Final = 10_000

MAX_MARKS: Final = 500
"""Accents and the like on one letter. Names are put in a normal form, which sorts these one by one: 8,000 of
them take half a second."""

STRING_OR_COMMENT: Final = re.compile(
    r"""\#[^\n]*+
    |\"{3}(?:[^"\\]++|\\.|"(?!""))*+(?:\"{3}|\Z)
    |'{3}(?:[^'\\]++|\\.|'(?!''))*+(?:'{3}|\Z)
    |"(?:[^"\\\n]++|\\.)*+"?
    |'(?:[^'\\\n]++|\\.)*+'?""",
    re.DOTALL | re.VERBOSE,
)
"""Every string and comment of valid source, in order, without prefixes. Linear in any source: a string that
is not closed is taken as far as it goes, else each of its quotes would search the rest again."""

_DOTTED: Final = re.compile(r"(?<!\w)(?:[^\W\d]\w*+[ \t\f\\\n]*+\.[ \t\f\\\n]*+)++")
# The two half-width letters become marks in the normal form.
_MANY_MARKS: Final = regex.compile(rf"[\p{{M}}\uFF9E\uFF9F]{{{MAX_MARKS + 1}}}")
_STATEMENT_START: Final = re.compile(r"^(?!(?:else|elif|except|finally)\b)(?:[^\W\d]|@)", re.MULTILINE)
_ANALYSED: Final = "<analysed source>"
# The parser of 3.11 has a name of its own for what stands between an f-string's braces.
_OUR_MODULES: Final = r"<(?:analysed source|fstring)>\Z"
_OUR_FILTER: Final = ("ignore", None, Warning, re.compile(_OUR_MODULES), 0)
# These spell characters by other characters, as `\x41` does; some take quadratic time to decode. In the last
# two no line that declares an encoding can be written.
_NOT_SOURCE_ENCODINGS: Final = (
    *("idna", "punycode", "undefined", "unicode_escape", "raw_unicode_escape", "utf_7"),
    *("utf_16", "utf_32"),
)


@dataclass(frozen=True)
class Source:
    """A module's text, its line ends made newlines, and its top-level statements."""

    text: str
    body: tuple[ast.stmt, ...]

    @cached_property
    def lines(self) -> list[str]:
        """The lines as the parser counts them: only a newline ends one."""
        return self.text.split("\n")


def parse(content: bytes) -> Source | ParseProblem:
    """The statements of a module. O(n), about 16 ms for a thousand lines.

    How deep an expression may nest depends on the depth of the calling stack: about 3,000 levels less three
    for each frame, so call it from the same depth (a thread's start) where results must agree.
    """
    text = decode(content)
    if isinstance(text, ParseProblem):
        return text
    if _takes_too_long(text):
        return ParseProblem("too_complex", 0)
    _silence_warnings()
    try:
        return Source(text, _parse_pieces(text))
    except SyntaxError as error:
        return ParseProblem("syntax", error.lineno or 0)
    except ValueError:
        # An integer over the interpreter's digit limit, or characters that are none.
        return ParseProblem("syntax", 0)
    except (RecursionError, MemoryError):
        return ParseProblem("too_complex", 0)


def decode(content: bytes) -> str | ParseProblem:
    """The text of a Python file by its byte order mark, its coding line (PEP 263), or else UTF-8."""
    try:
        encoding, _ = tokenize.detect_encoding(io.BytesIO(content).readline)
        if codecs.lookup(encoding).name.replace("-", "_").startswith(_NOT_SOURCE_ENCODINGS):
            return ParseProblem("encoding", 0)
        text = content.decode(encoding)
    except (SyntaxError, UnicodeError, LookupError):
        return ParseProblem("encoding", 0)
    if "\0" in text:
        return ParseProblem("nul_byte", text.count("\n", 0, text.index("\0")) + 1)
    return text.replace("\r\n", "\n").replace("\r", "\n")


def _parse_pieces(text: str) -> tuple[ast.stmt, ...]:
    """The statements of a module, parsed piece by piece. Raises what the parser raises.

    A piece ends where a line begins in the first column, which is the end of a statement unless a string or
    a bracket is still open there, or a decorator waits for its definition. The piece then does not parse;
    it grows to twice its size until it does, or until it is all the rest, whose error is the module's. So no
    text is read more than about three times.
    """
    if len(text) < 2 * PIECE_CHARS:
        return tuple(_compile(text).body)
    statements: list[ast.stmt] = []
    start, lines_above, shortest = 0, 0, max(PIECE_CHARS, len(text) // MAX_PIECES)
    size = shortest
    while start < len(text):
        boundary = _STATEMENT_START.search(text, start + size)
        end = boundary.start() if boundary else len(text)
        try:
            # Blank lines cost next to nothing, and leave every position as it is in the file.
            statements += _compile("\n" * lines_above + text[start:end]).body
        except SyntaxError:
            if boundary is None:
                raise
            size = 2 * (end - start)
            continue
        lines_above += text.count("\n", start, end)
        start, size = end, shortest
    return tuple(statements)


# Not called by its name: once such a call has run a few times, the interpreter takes a shorter way to a
# built-in function, with one step less on the stack, and what nests three levels deeper parses from then on.
_PARSER: Final = partial(compile, filename=_ANALYSED, mode="exec", flags=ast.PyCF_ONLY_AST, dont_inherit=True)


def _compile(text: str) -> ast.Module:
    tree = _PARSER(text)
    assert isinstance(tree, ast.Module)  # noqa: S101 - what "exec" gives; the stub says AST
    return tree


def _takes_too_long(text: str) -> bool:
    if text.count("{") * len(text) > MAX_FSTRING_WORK and any(
        match[0].count("{") * len(match[0]) > MAX_FSTRING_WORK
        for match in STRING_OR_COMMENT.finditer(text)
        if "f" in text[max(0, match.start() - 2) : match.start()].lower()
    ):
        return True
    if not text.isascii() and _MANY_MARKS.search(text):
        return True
    return text.count(".") > MAX_DOTTED_PARTS and any(
        match[0].count(".") > MAX_DOTTED_PARTS for match in _DOTTED.finditer(text)
    )


def _silence_warnings() -> None:
    """Let the parser's warnings about odd source (such as `1if x`) go nowhere, whatever the process does.

    `warnings.catch_warnings` swaps the filters of the whole process and puts old ones back, which two threads
    must not do at once. A filter that matches nothing but our own parses can simply stay; it is put first
    again where somebody replaced the list meanwhile.
    """
    if not warnings.filters or warnings.filters[0] != _OUR_FILTER:
        warnings.filterwarnings("ignore", module=_OUR_MODULES)
