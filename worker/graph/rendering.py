"""A node as text at several depths, for packs and prompts alike."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final, Literal

from worker.graph.documents import text_without_docstring, without_comment_lines
from worker.graph.model import NO_SPAN, Node

FULL_DEPTH: Final = 9
CODE_DEPTH: Final = 7
"""The whole code without its docstring."""
SIGNATURE_DEPTH: Final = 3
NAME_DEPTH: Final = 0

Depth = Literal[0, 3, 7, 9]

_LANGUAGE: Final = re.compile(r"[A-Za-z0-9_+-]{0,40}")
_BACKTICKS: Final = re.compile(r"`{3,}")


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeText:
    """What is shown of a node at one depth: code that wants a fence, or a line that does not."""

    depth: Depth
    text: str
    language: str
    is_fenced: bool


def texts_of(node: Node, *, keeps_docstring: bool) -> tuple[NodeText, ...]:
    """The node from its deepest rendering to its bare name; equal ones once. Never empty.

    With `keeps_docstring` the deepest is the full text; without, the code alone.
    """
    found: list[NodeText] = []
    code = text_without_docstring(node).strip("\n")
    if keeps_docstring and node.docstring_span != NO_SPAN:
        found.append(_fenced(node, FULL_DEPTH, node.text.strip("\n")))
    if code and (not found or found[-1].text != code):
        found.append(_fenced(node, CODE_DEPTH, code))
    if node.signature and node.signature != code:
        found.append(_fenced(node, SIGNATURE_DEPTH, node.signature))
    return (*found, NodeText(depth=NAME_DEPTH, text=label_of(node), language="", is_fenced=False))


def deepest_text(node: Node, *, keeps_docstring: bool, keeps_comments: bool = True) -> NodeText | None:
    """The rendering that a body is packed as; None where the node has no text."""
    if keeps_docstring and node.docstring_span != NO_SPAN:
        return _fenced(node, FULL_DEPTH, node.text.strip("\n"))
    code = text_without_docstring(node).strip("\n")
    if not keeps_comments:
        code = without_comment_lines(code, node.language)
    return _fenced(node, CODE_DEPTH, code) if code else None


def fenced(item: NodeText) -> str:
    """The text in a fence that nothing in it closes, without a newline at the end; a line as it is."""
    if not item.is_fenced:
        return item.text
    longest = 2
    if "```" in item.text:
        longest = max(len(run) for run in _BACKTICKS.findall(item.text))
    fence = "`" * (longest + 1)
    return f"{fence}{item.language}\n{item.text}\n{fence}"


def label_of(node: Node) -> str:
    """One line that names the node to a reader: path and qualified name, or kind and name."""
    if node.path and node.label in {"Function", "Class"}:
        return one_line(node.id)
    return one_line(f"{node.label} {short_name(node)}")


def short_name(node: Node) -> str:
    """The name within its file: the qualified one of code, else the name or id."""
    return one_line(node.property("qualname") or node.name or node.id) or "-"


def one_line(text: str) -> str:
    """The text on one line, each run of white space one blank."""
    return " ".join(text.split())


def _fenced(node: Node, depth: Depth, text: str) -> NodeText:
    language = node.language if _LANGUAGE.fullmatch(node.language) else ""
    return NodeText(depth=depth, text=text, language=language, is_fenced=True)
