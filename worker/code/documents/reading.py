"""One file's text to what it says: which format it is, and the parser for that."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Final

from worker.code.documents import sections
from worker.code.documents.decision_lists import find_decisions, may_hold_decisions
from worker.code.documents.decisions import is_index, read_record
from worker.code.documents.doorstop import read_doorstop, read_doorstop_markdown
from worker.code.documents.ids import ID
from worker.code.documents.kiro import is_kiro, read_kiro
from worker.code.documents.markdown import Markdown, clean, parse_markdown
from worker.code.documents.markdown_ids import find_requirements
from worker.code.documents.openspec import is_openspec, read_openspec
from worker.code.documents.results import DocumentFacts, Note
from worker.code.documents.spec_kit import is_spec_kit, read_spec_kit
from worker.code.documents.sphinx_needs import may_hold_needs, myst_needs, read_sphinx_needs
from worker.code.documents.strictdoc import read_strictdoc
from worker.code.documents.suffixes import takes
from worker.code.documents.text_yaml import load_front_matter

MAX_DOCUMENT_CHARS: Final = 4_000_000
"""A larger file gives an empty result with a note."""

RULES: Final = "documents-1"
"""Which rules read a file. Belongs into the key under which facts are kept; raised when they change."""

_ANY_ID: Final = re.compile(rf"(?<![A-Za-z0-9.-]){ID}")
_FRONT_HINTS: Final = ("\nactive:", "\nlevel:")
_NO_DEFINITIONS: Final = re.compile(
    r"(?:^|/)(?:changelog|changes|history|release[-_ ]?notes?|licen[cs]e|contributing|agents|claude)[^/]*$"
    r"|(?:^|/)(?:\.kiro|openspec|\.specify)/"
    r"|(?:^|/)specs/\d{1,14}-[^/]+/(?:checklists/|contracts/|(?:plan|research|data-model|quickstart)\.md$)"
    r"|(?:^|/)(?:tasks?|todo|plan|roadmap|hand-?off|backlog)\.\w+$",
    re.IGNORECASE,
)


def read_document(path: str, text: str) -> DocumentFacts | None:
    """What the file says; None where it is no requirement or decision document. Never raises.

    `path` is relative to the project's root, with `/`. A pure function of both, so its result may be kept
    under their digest (with `RULES`). O(n): about a second a megabyte.
    """
    if not takes(path):
        return None
    suffix = path.lower().rsplit(".", 1)[-1]
    if len(text) > MAX_DOCUMENT_CHARS:
        return _too_large(path, text)
    text = clean(text)
    if suffix == "sdoc":
        return read_strictdoc(path, text)
    if suffix == "rst":
        return read_sphinx_needs(path, text)
    if suffix in {"yml", "yaml"}:
        return read_doorstop(path, text)
    return _read_markdown(path, text)


def _too_large(path: str, text: str) -> DocumentFacts | None:
    if not (is_kiro(path) or is_openspec(path) or path.endswith(("/spec.md", ".sdoc"))):
        return None
    note = Note(code="unknown_format", line=1, detail=f"{len(text)} characters are too many")
    spec_id = path if path.endswith(".sdoc") else path.rpartition("/")[0]
    return DocumentFacts(
        path=path,
        format="strictdoc" if path.endswith(".sdoc") else "markdown",
        spec_id=spec_id or path,
        notes=(note,),
    )


def _read_markdown(path: str, text: str) -> DocumentFacts | None:
    markdown = _Lazy(text)
    if is_kiro(path):
        return read_kiro(path, markdown.parsed)
    if is_openspec(path):
        return read_openspec(path, markdown.parsed)
    if is_spec_kit(path, text):
        return read_spec_kit(path, markdown.parsed)
    if is_index(path):
        return None
    if text.startswith("---") and any(hint in text for hint in _FRONT_HINTS):
        front = load_front_matter(markdown.parsed.front_matter)
        item = read_doorstop_markdown(path, front, markdown.parsed.body(), len(markdown.parsed.lines))
        if item is not None:
            return item
    if may_hold_decisions(text) or "adr" in path.lower() or "tatus" in text:
        record = read_record(path, markdown.parsed)
        if record is not None:
            return record
    return _read_any(path, text, markdown)


class _Lazy:
    """Parses a text when its blocks are first asked for: most Markdown files hold nothing of interest."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._parsed: Markdown | None = None

    @property
    def parsed(self) -> Markdown:
        if self._parsed is None:
            self._parsed = parse_markdown(self._text)
        return self._parsed


def _read_any(path: str, text: str, markdown: _Lazy) -> DocumentFacts | None:
    """Ids, needs and decision lists of a Markdown file that follows no known form."""
    facts = DocumentFacts(path=path, format="markdown")
    notes: list[Note] = []
    if _ANY_ID.search(text) and not _NO_DEFINITIONS.search(path):
        requirements, found = find_requirements(markdown.parsed)
        facts, notes = replace(facts, requirements=tuple(requirements)), [*notes, *found]
    if may_hold_needs(text):
        requirements, found = myst_needs(markdown.parsed.blocks)
        if requirements:
            facts = replace(facts, format="sphinx_needs", requirements=(*facts.requirements, *requirements))
            notes += found
    if may_hold_decisions(text):
        decisions, found = find_decisions(path, markdown.parsed)
        facts, notes = replace(facts, decisions=tuple(decisions)), [*notes, *found]
    if not facts.requirements and not facts.decisions:
        return None
    return replace(
        facts,
        format=facts.format if facts.requirements else "decision_list",
        spec_id=path if facts.requirements else "",
        title=sections.title(markdown.parsed),
        summary=sections.summary(markdown.parsed) if facts.requirements else "",
        status=sections.status(markdown.parsed) if facts.requirements else "",
        line_count=len(markdown.parsed.lines),
        notes=(*markdown.parsed.notes, *notes),
    )
