"""What every kind of Markdown document has: a title, an opening paragraph, a status."""

from __future__ import annotations

import re
from typing import Final

from worker.code.documents.markdown import Markdown
from worker.code.documents.wording import one_line, plain

MAX_SUMMARY_CHARS: Final = 2_000

_STATUS: Final = re.compile(
    r"\s*[*_]*(?:Status|Estado|Статус|状态|狀態|状態)[*_]*\s*[:：]"
    r"[*_]*\s*(?P<status>.{1,300})"
)
_FIELD: Final = re.compile(r"\s*[*_]{2}[^*_\n]{1,60}(?:[:：][*_]{2}|[*_]{2}\s*[:：])")
_TITLE_PREFIX: Final = re.compile(
    r"(?:Feature Specification|Requirements Document|Requirements|Bugfix Requirements Document|Specification)"
    r"\s*[:：—–-]\s*"
)
_FORM_ALONE: Final = re.compile(
    r"(?:Bugfix )?Requirements(?: Document| Specification)?|(?:Feature )?Specification|Spec"
    r"|需求文档|要件定義書?",
    re.IGNORECASE,
)


def title(markdown: Markdown) -> str:
    """The first heading of the highest level that the document begins with, without a form's own words.

    Empty where it is nothing but those ("Requirements Document"), which name no specification.
    """
    for block in markdown.blocks:
        if block.kind == "heading":
            text = one_line(_TITLE_PREFIX.sub("", block.text, count=1))
            return "" if _FORM_ALONE.fullmatch(text) else text
    return ""


def summary(markdown: Markdown) -> str:
    """The first paragraph that is no field (`**Status**: Draft`), at most `MAX_SUMMARY_CHARS`."""
    for block in markdown.blocks:
        if block.kind == "paragraph" and not block.is_quoted and not _FIELD.match(block.text):
            return plain(block.text[:MAX_SUMMARY_CHARS])
        if block.kind in {"item", "row"}:
            return ""
    return ""


def status(markdown: Markdown) -> str:
    """What a `Status:` line above the second heading says, as written."""
    headings = 0
    for block in markdown.blocks:
        headings += block.kind == "heading"
        if headings > 1:
            break
        for line in block.text.split("\n"):
            match = _STATUS.match(line)
            if match:
                return one_line(match["status"])
    return ""
