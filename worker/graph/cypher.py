"""Which labels, relation types and keys a Cypher text uses, without running it.

Not a parser of the whole language: brackets and the places where a name can be a label, a type or a key. A
hole, where a program puts text in, is a name between two NULs; what the name means is the caller's.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final, Literal

UseKind = Literal["label", "relation", "key"]

_TOKEN: Final = re.compile(
    r"""
      (?P<space>\s+|//[^\n]*|/\*.*?\*/)
    | (?P<string>'(?:\\.|[^'\\])*'|"(?:\\.|[^"\\])*")
    | (?P<quoted>`(?:``|[^`])*`)
    | (?P<parameter>\$(?:\w+|`[^`]*`|(?=\()))
    | (?P<name>(?:[^\W\d]|\0\w*\0)(?:\w|\0\w*\0)*)
    | (?P<number>\d[\w.]*)
    | (?P<mark>::|<-|->|.)
    """,
    re.VERBOSE | re.DOTALL,
)
_STATEMENT: Final = re.compile(
    r"\b(?:MATCH|MERGE|CREATE)\s*(?:[\w\0]+\s*=\s*)?(?:\w*[sS]hortestPaths?\s*)?\("
    r"|\b(?:FOR|ON)\s*\(\s*\w*\s*:"
    r"|-\s*\[\s*[\w`]*\s*:[^\]]*\]\s*-"
    r"|\(\s*\)\s*-\s*\["
)
# Keywords may be spelled in any case; then a label alone, or its map, must follow: prose matches things, too.
_OTHERWISE_SPELLED: Final = re.compile(
    r"\b(?:match|merge|create)\s*\(\s*\w*\s*:\s*(?:\$|(?:[\w`\0]+\s*)?(?:[){:&|]|\Z))"
    r"|\bapoc\.(?:merge|create)\.\w",
    re.IGNORECASE,
)
_CLAUSES: Final = frozenset(
    {"MATCH", "MERGE", "CREATE", "WHERE", "SET", "REMOVE", "RETURN", "WITH", "UNWIND", "DELETE", "CALL"}
    | {"FOR", "ON", "REQUIRE", "ASSERT", "FOREACH", "YIELD"}
)
_ABOUT_NODES: Final = frozenset({"WHERE", "SET", "ON"})
"""Clauses in which a property of a node says which one it is, or what it is to be."""
_BLOCKS: Final = frozenset({"EXISTS", "COUNT", "COLLECT", "CALL"})
_BEFORE_PATTERN: Final = frozenset({",", "-", "->", "<-", "=", "("})
_OPEN: Final = {"(": ")", "[": "]", "{": "}"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Use:
    """One name that stands where the canon has a say."""

    kind: UseKind
    name: str
    """Without backticks; `$` where a parameter decides."""
    offset: int
    clause: str = ""
    """Of a key: the clause that it stands in, REQUIRE for a constraint."""
    labels: tuple[str, ...] = ()
    """Of a key: the labels of its pattern, or of the variable that it is a property of."""
    keys: tuple[str, ...] = ()
    """Of a key: all keys of its pattern; of a property itself."""
    is_property: bool = False
    """Of a key: whether it is a variable's property, and stands in no map."""


@dataclass(slots=True)
class _Token:
    kind: str
    text: str
    offset: int

    @property
    def name(self) -> str:
        return self.text[1:-1].replace("``", "`") if self.kind == "quoted" else self.text

    @property
    def is_name(self) -> bool:
        return self.kind in {"name", "quoted"}


def is_cypher(text: str) -> bool:
    """Whether a text reads as a statement, or as a pattern that becomes part of one."""
    return _STATEMENT.search(text) is not None or _OTHERWISE_SPELLED.search(text) is not None


def uses(text: str) -> Iterator[Use]:
    """Every use, in the order of the text. Linear in its length."""
    yield from _Scan(text).uses()


@dataclass(slots=True)
class _Scan:
    text: str
    tokens: list[_Token] = field(default_factory=list[_Token])
    at: int = 0
    clause: str = ""
    open: list[str] = field(default_factory=list[str])
    """What is open: `(`, `[` of a list, `{` of a map, `-[` of a relationship, `block` of a subquery."""
    labels_of: dict[str, tuple[str, ...]] = field(default_factory=dict[str, tuple[str, ...]])

    def uses(self) -> Iterator[Use]:
        self.tokens = [
            _Token(match.lastgroup or "", match.group(), match.start())
            for match in _TOKEN.finditer(self.text)
            if match.lastgroup != "space"
        ]
        while self.at < len(self.tokens):
            token = self.tokens[self.at]
            if token.kind == "name" and token.text.upper() in _CLAUSES and not self._is_property():
                self.clause = token.text.upper()
                if self.clause in {"REQUIRE", "ASSERT"}:
                    yield from self._constraint()
            elif token.text in _OPEN and token.kind == "mark":
                yield from self._opened(token)
            elif token.text in {")", "]", "}"} and self.open:
                self.open.pop()
            elif token.text == ";" and not self.open:
                self.clause = ""
                self.labels_of.clear()
            elif token.text == ":" and self._is_type_place():
                yield from self._types()
                continue
            elif token.kind == "name":
                yield from self._compared(token)
                yield from self._procedure(token)
                yield from self._property(token)
            self.at += 1

    def _peek(self, steps: int) -> _Token:
        at = self.at + steps
        return self.tokens[at] if 0 <= at < len(self.tokens) else _Token("end", "", len(self.text))

    def _is_property(self) -> bool:
        return self._peek(-1).text == "." or (self._peek(1).text == ":" and self.open[-1:] == ["{"])

    def _opened(self, token: _Token) -> Iterator[Use]:
        before = self._peek(-1)
        kind = token.text
        if kind == "[" and before.text in {"-", "<-"}:
            kind = "-["
        elif kind == "{" and (before.text.upper() in _BLOCKS or before.text == ")"):
            kind = "block"
        self.open.append(kind)
        after_clause = before.kind == "name" and before.text.upper() in _CLAUSES
        if kind == "(" and (after_clause or before.text in _BEFORE_PATTERN):
            # A pattern without a label: only its map says what it is about.
            skip = 2 if self._peek(1).is_name else 1
            if self._peek(skip).text == "{":
                known = self.labels_of.get(self._peek(1).name, ()) if skip == 2 else ()  # noqa: PLR2004  # a name and a brace
                yield from self._keys(self.at + skip, known)

    def _is_type_place(self) -> bool:
        before = self._peek(-1)
        if self.open[-1:] == ["{"] or before.kind in {"end", "string"} or before.text == ";":
            return False
        return before.is_name or before.text in {"(", "-["} or self.open[-1:] in (["("], ["-["])

    def _types(self) -> Iterator[Use]:
        """The names after a colon; leaves `at` behind them."""
        inside = self.open[-1] if self.open else ""
        kind: UseKind = "relation" if inside == "-[" else "label"
        variable = self._peek(-1).name if self._peek(-1).is_name else ""
        is_pattern = self._peek(-2).text == "(" and self.clause != "WHERE"
        names: list[str] = []
        are_all_borne = True
        depth = 0
        expects_name = True
        self.at += 1
        while True:
            token = self._peek(0)
            if token.is_name and expects_name:
                names.append(token.name)
                yield Use(kind=kind, name=token.name, offset=token.offset)
                expects_name = False
            elif token.kind == "parameter" and expects_name:
                yield Use(kind=kind, name="$", offset=token.offset)
                return
            elif token.text in {":", "&", "!"} or (token.text == "|" and inside != "["):
                expects_name = True
                are_all_borne = are_all_borne and token.text not in {"!", "|"}
            elif token.text == "(" and expects_name:
                depth += 1
            elif token.text == ")" and depth:
                depth -= 1
            else:
                if token.kind == "end" and not names:
                    # What follows is put in elsewhere.
                    yield Use(kind=kind, name="$", offset=len(self.text))
                break
            self.at += 1
        if kind == "label":
            # Elsewhere it is a question, or what a node becomes beside what it is.
            if is_pattern and variable and are_all_borne:
                self.labels_of[variable] = tuple(names)
            if self._peek(0).text == "{" and inside == "(":
                yield from self._keys(self.at, tuple(names))

    def _keys(self, at: int, labels: tuple[str, ...]) -> Iterator[Use]:
        """The names of the map that opens at `at`, which is not passed."""
        found: list[_Token] = []
        depth = 0
        for index in range(at, len(self.tokens)):
            token = self.tokens[index]
            if token.text in _OPEN and token.kind == "mark":
                depth += 1
            elif token.text in {")", "]", "}"}:
                depth -= 1
                if not depth:
                    break
            elif depth == 1 and token.text == ":" and self.tokens[index - 1].is_name:
                found.append(self.tokens[index - 1])
        keys = tuple(token.name for token in found)
        for token in found:
            yield Use(
                kind="key",
                name=token.name,
                offset=token.offset,
                clause=self.clause,
                labels=labels,
                keys=keys,
            )

    def _constraint(self) -> Iterator[Use]:
        """The properties that a constraint makes unique."""
        found: list[tuple[str, _Token]] = []
        steps = 1
        while self._peek(steps).kind != "end" and self._peek(steps).text.upper() != "IS":
            if self._peek(steps).text == "." and self._peek(steps + 1).is_name:
                found.append((self._peek(steps - 1).name, self._peek(steps + 1)))
            steps += 1
        words = (self._peek(steps + 1).text.upper(), self._peek(steps + 2).text.upper())
        if words[0] == "UNIQUE" or words == ("NODE", "KEY"):
            keys = tuple(token.name for _, token in found)
            for variable, token in found:
                yield Use(
                    kind="key",
                    name=token.name,
                    offset=token.offset,
                    clause="REQUIRE",
                    labels=self.labels_of.get(variable, ()),
                    keys=keys,
                )

    def _compared(self, token: _Token) -> Iterator[Use]:
        """`type(r) = 'X'`, `type(r) IN ['X']`, `'X' IN labels(n)`: names as texts."""
        word = token.text.lower()
        if word == "type" and self._peek(1).text == "(" and self._peek(3).text == ")":
            if self._peek(4).text in {"=", "<"} or self._peek(4).text.upper() == "IN":
                yield from self._texts("relation", 5)
        elif word == "labels" and self._peek(1).text == "(" and self._peek(-1).text.upper() == "IN":
            before = self._peek(-2)
            if before.kind == "string":
                yield Use(kind="label", name=before.text[1:-1], offset=before.offset)

    def _property(self, token: _Token) -> Iterator[Use]:
        """`n.id` where it chooses or changes a node whose labels are known."""
        labels = self.labels_of.get(token.name)
        dot, name = self._peek(1), self._peek(2)
        is_own = self._peek(-1).text != "." and dot.text == "." and name.is_name
        if labels and is_own and self.clause in _ABOUT_NODES:
            yield Use(
                kind="key",
                name=name.name,
                offset=name.offset,
                clause=self.clause,
                labels=labels,
                keys=(name.name,),
                is_property=True,
            )

    def _procedure(self, token: _Token) -> Iterator[Use]:
        """`apoc.merge.node(['X'], …)`, `apoc.create.addLabels(n, $labels)`: labels and types as values."""
        path = "".join([self._peek(steps).text.lower() for steps in range(6)])
        if not path.startswith(("apoc.merge.", "apoc.create.")) or not path.endswith("("):
            return
        if path.endswith(".node(") and self._peek(6).text == "[" and self._peek(7).kind == "string":
            yield from self._texts("label", 6)
        else:
            kind: UseKind = "relation" if "relationship" in path else "label"
            yield Use(kind=kind, name="$", offset=token.offset)

    def _texts(self, kind: UseKind, steps: int) -> Iterator[Use]:
        while self._peek(steps).text in {"[", ",", ">"} or self._peek(steps).kind == "string":
            token = self._peek(steps)
            if token.kind == "string":
                yield Use(kind=kind, name=token.text[1:-1], offset=token.offset)
                if self._peek(steps + 1).text != ",":
                    return
            steps += 1
