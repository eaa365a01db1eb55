"""What of a node is searched by words, and how its text reads with its docstring and without."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from schemas.graph import NodeLabel
from worker.graph.lexical import Field
from worker.graph.model import NO_SPAN, Node

CODE_LABELS: Final[tuple[NodeLabel, ...]] = ("Function", "Class", "Module", "Chunk")
SPECIFIED_LABELS: Final[tuple[NodeLabel, ...]] = ("Spec", "Requirement", "RequirementItem", "Decision")

FIELDS: Final[Mapping[str, Field]] = {
    "name": Field(weight=4.0),
    "path": Field(weight=2.0),
    "signature": Field(weight=1.5),
    "docstring": Field(weight=1.0),
    "comments": Field(weight=0.7),
    "body": Field(weight=1.0),
}
ALONE: Final[Mapping[str, Field]] = {
    "name": Field(weight=1.0, length_penalty=0.5),
    "path": Field(weight=1.0, length_penalty=0.5),
}

PLAIN: Final = 0
CLASS: Final = 1
SPECIAL: Final = 2
PRIVATE: Final = 3
"""What a name says of its node, in `naming_of`."""

_HASH_COMMENT: Final = re.compile(r"(?:^|(?<=\s))#[^\n]*", re.MULTILINE)
_SLASH_COMMENT: Final = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)
_COMMENT_LINE: Final = re.compile(r"(?<!\\\n)^[ \t]*#[^\n]*\n", re.MULTILINE)
"""Not below a line that a backslash continues: there it is the rest of a string."""
_STRINGS_OF_LINES: Final = ('"""', "'''")
_HASH_LANGUAGES: Final = frozenset({"python", "yaml", "toml", "ini", "bash", "sh", "make", "makefile", "r"})
_SLASH_LANGUAGES: Final = frozenset({"typescript", "tsx", "javascript", "jsx", "go", "java", "rust"})


def is_searched(node: Node) -> bool:
    """Whether the node is a document of its own. What is local to a function is found with the function."""
    if node.label in CODE_LABELS:
        return node.property("is_local") != "true"
    return node.label in SPECIFIED_LABELS


def fields_of(node: Node) -> dict[str, str]:
    """The node's text by field.

    A comment is told by its mark alone, so one within a string counts as one: it only changes a weight.
    """
    start, end = node.docstring_span
    code = node.text[:start] + node.text[end:]
    comments = ""
    pattern = _comment_pattern(node.language)
    if pattern is not None and (found := pattern.findall(code)):
        comments = "\n".join(found)
        code = pattern.sub("", code)
    outer = node.property("qualname").rpartition(".")[0].replace("<locals>", "")
    return {
        "name": node.name if node.label != "Module" else "",
        "path": f"{_without_suffix(node.path)} {outer}",
        "signature": node.signature,
        "docstring": node.text[start:end],
        "comments": comments,
        "body": code,
    }


def naming_of(node: Node) -> int:
    """`CLASS`, `SPECIAL` (`__eq__`, but not `__init__`), `PRIVATE` (`_name`), else `PLAIN`."""
    if node.label == "Class":
        return CLASS
    if node.label != "Function" or not node.name.startswith("_") or node.name == "__init__":
        return PLAIN
    return SPECIAL if node.name.startswith("__") else PRIVATE


def text_without_docstring(node: Node) -> str:
    """The node's text without its docstring; whole where the docstring is all that follows the header."""
    if node.docstring_span == NO_SPAN:
        return node.text
    start, end = node.docstring_span
    rest = (node.text[:start] + node.text[end:]).rstrip()
    return node.text if not rest or rest.endswith(":") else rest + "\n"


def without_comment_lines(text: str, language: str) -> str:
    """The code without the lines that are all comment; whole where lines alone do not tell which these are.

    That is so where a string may span lines, in languages other than Python, and where nothing but a header
    would be left. Ends as `text` does, with a newline or without. O(length).
    """
    if language != "python" or "#" not in text or any(quotes in text for quotes in _STRINGS_OF_LINES):
        return text
    rest = _COMMENT_LINE.sub("", f"{text}\n").rstrip()
    if not rest or rest.endswith(":"):
        return text
    return f"{rest}\n" if text.endswith("\n") else rest


def _comment_pattern(language: str) -> re.Pattern[str] | None:
    if language in _HASH_LANGUAGES:
        return _HASH_COMMENT
    return _SLASH_COMMENT if language in _SLASH_LANGUAGES else None


def _without_suffix(path: str) -> str:
    stem, dot, suffix = path.rpartition(".")
    return stem if dot and "/" not in suffix else path
