"""sphinx-needs: requirements as directives with an `:id:`, in reStructuredText and in MyST fences.

The names of directives are a project's own, so any with an id counts, but for those that hold tests, code or
pictures. What is indented below a literal block, a code block or a comment is sample text.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from worker.code.documents.ids import read_ids
from worker.code.documents.markdown import Block
from worker.code.documents.naming import open_questions, with_unique_ids
from worker.code.documents.results import DocumentFacts, Note, Requirement, RequirementKind
from worker.code.documents.text_yaml import load_front_matter, text_of, texts_of
from worker.code.documents.wording import fold_status, modality, one_line

_DIRECTIVE: Final = re.compile(
    r"(?P<indent>[ \t]*)\.\.\s+(?P<name>[A-Za-z][\w.+-]*)::(?:[ \t]+(?P<title>.*))?\Z"
)
_COMMENT: Final = re.compile(r"(?P<indent>[ \t]*)\.\.(?:\s+(?!\S+::)(?![_\[|]).*)?\Z")
_OPTION: Final = re.compile(r"\s*:(?P<name>[A-Za-z][\w-]*):(?:\s+(?P<value>.*))?\Z")
_MYST: Final = re.compile(r"\{(?P<name>[A-Za-z][\w.+-]*)\}\s*(?P<title>.*)\Z", re.DOTALL)
_TITLE_MARK: Final = re.compile(r"([=\-~^\"'`#*+.:_])\1{2,}\s*\Z")
_NOT_REQUIREMENTS: Final = frozenset(
    [
        "test",
        "test-case",
        "testcase",
        "test_case",
        "impl",
        "implementation",
        "code-block",
        "code",
        "sourcecode",
        "literalinclude",
        "parsed-literal",
        "raw",
        "figure",
        "image",
        "needtable",
        "needlist",
        "needflow",
        "needpie",
        "needimport",
        "needextend",
        "needservice",
        "decision",
        "dec",
        "person",
        "release",
        "team",
        "math",
        "graphviz",
        "uml",
    ]
)
_SAMPLES: Final = frozenset(
    ["code-block", "code", "sourcecode", "parsed-literal", "literalinclude", "raw", "highlight", "math"]
)
_KINDS: Final[dict[str, RequirementKind]] = {"story": "story", "userstory": "story", "user_story": "story"}
_SEPARATORS: Final = re.compile(r"\s*[,;]\s*")


@dataclass(slots=True)
class _Need:
    name: str
    title: str
    indent: int
    start: int
    end: int
    options: dict[str, str]
    body: list[str]
    parent: str = ""
    options_open: bool = True


def may_hold_needs(text: str) -> bool:
    """False where a text surely holds no need."""
    return ":id:" in text


def read_sphinx_needs(path: str, text: str) -> DocumentFacts | None:
    """Everything that an `.rst` file says in needs; None where there is none. O(n)."""
    if not may_hold_needs(text):
        return None
    lines = text.split("\n")
    requirements, notes = _read(_needs(lines))
    if not requirements:
        return None
    return DocumentFacts(
        path=path,
        format="sphinx_needs",
        spec_id=path,
        title=_title(lines),
        line_count=len(lines),
        requirements=tuple(requirements),
        notes=tuple(notes),
    )


def myst_needs(blocks: Iterable[Block]) -> tuple[list[Requirement], list[Note]]:
    """The needs in a Markdown file's fences, and the notes on them."""
    return _read(need for block in blocks if block.kind == "fence" if (need := _myst(block)))


def _read(needs: Iterable[_Need]) -> tuple[list[Requirement], list[Note]]:
    notes: list[Note] = []
    wanted = (need for need in needs if need.options.get("id") and need.name.lower() not in _NOT_REQUIREMENTS)
    requirements = with_unique_ids([_requirement(need, notes) for need in wanted], notes)
    for requirement in requirements:
        notes += open_questions(requirement)
    return requirements, notes


def _requirement(need: _Need, notes: list[Note]) -> Requirement:
    links: dict[str, None] = {}
    for link in _SEPARATORS.split(need.options.get("links", "")):
        ids, unexpanded = read_ids(link)
        notes += (Note(code="range_unexpanded", line=need.start, detail=text) for text in unexpanded)
        # Ids need not have the common form; only what is a range is read as one.
        links |= dict.fromkeys(ids if len(ids) > 1 or unexpanded else (link,)) if link else {}
    text = _dedent(need.body)
    level, negated = modality(text or need.title)
    raw = need.options.get("status", "")
    parent = need.parent or next(iter(links), "")
    extra = {"directive": need.name, "links": ", ".join(links), "tags": need.options.get("tags", "")}
    return Requirement(
        id=need.options["id"],
        kind=_KINDS.get(need.name.lower(), "requirement"),
        title=one_line(need.title) or one_line(text),
        text=text or need.title,
        parent=parent,
        status=fold_status(raw) if raw else "",
        modality=level,
        negated=negated,
        start_line=need.start,
        end_line=need.end,
        properties=tuple(sorted((key, value) for key, value in extra.items() if value)),
    )


def _needs(lines: Sequence[str]) -> Iterator[_Need]:
    """Directives in order of their beginning, nested ones after the one around them."""
    found: list[_Need] = []
    around: list[_Need] = []
    sample_indent = -1
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            for need in around[-1:]:
                need.options_open = need.options_open and not need.options
                need.body.append("")
            continue
        indent = len(line.expandtabs()) - len(line.expandtabs().lstrip())
        while around and indent <= around[-1].indent:
            around.pop()
        if sample_indent >= 0 and indent <= sample_indent:
            sample_indent = -1
        for need in around:
            need.end = number
        directive = _DIRECTIVE.match(line) if sample_indent < 0 else None
        if directive and directive["name"].lower() not in _SAMPLES:
            parent = next((need.options["id"] for need in reversed(around[-4:]) if "id" in need.options), "")
            title = (directive["title"] or "").strip()
            need = _Need(directive["name"], title, indent, number, number, {}, [], parent)
            found.append(need)
            around.append(need)
            continue
        if sample_indent < 0 and (directive or _COMMENT.match(line) or line.rstrip().endswith("::")):
            sample_indent = indent
        if around:
            _add(around[-1], line)
    yield from found


def _add(need: _Need, line: str) -> None:
    option = _OPTION.match(line) if need.options_open else None
    if option:
        need.options.setdefault(option["name"], (option["value"] or "").strip())
    elif need.options_open and not need.options and not need.body:
        # The title goes on until the options begin.
        need.title = f"{need.title} {line.strip()}".strip()
    else:
        need.options_open = False
        need.body.append(line)


def _myst(block: Block) -> _Need | None:
    match = _MYST.match(block.marker)
    if match is None:
        return None
    lines = block.text.rstrip("\n").split("\n")
    need = _Need(match["name"], match["title"].strip(), 0, block.start, block.end, {}, [])
    if lines and lines[0].strip() == "---" and "---" in (line.strip() for line in lines[1:]):
        end = next(n for n, line in enumerate(lines[1:], start=1) if line.strip() == "---")
        for key, value in load_front_matter("\n".join(lines[1:end])).items():
            need.options[key] = text_of(value) or ", ".join(texts_of(value))
        need.body = lines[end + 1 :]
        return need
    for number, line in enumerate(lines):
        option = _OPTION.match(line)
        if option is None:
            need.body = lines[number:]
            break
        need.options.setdefault(option["name"], (option["value"] or "").strip())
    return need


def _dedent(lines: Sequence[str]) -> str:
    indents = (len(line) - len(line.lstrip()) for line in lines if line.strip())
    cut = min(indents, default=0)
    return "\n".join(line[cut:].rstrip() for line in lines).strip("\n")


def _title(lines: Sequence[str]) -> str:
    """The first line that is underlined."""
    for text, mark in itertools.pairwise(lines):
        if text.strip() and not _TITLE_MARK.match(text) and _TITLE_MARK.match(mark):
            return one_line(text)
    return ""
