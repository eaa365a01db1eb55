"""Request analysis: what kind of work a request is. A pure function of the request and the tables."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import datetime
from typing import Final

from schemas.codes import TaskType
from schemas.request import AssemblyRequest
from worker.errors import UnknownSubject
from worker.ports import RequestFrame, Subject

TASK_WORDS: Final[Mapping[TaskType, tuple[str, ...]]] = {
    "DEBUG": ("fix", "bug", "crash", "fails", "failing", "failure", "error", "traceback", "regression"),
    "REFACTOR": ("refactor", "rename", "extract", "simplify", "restructure", "deduplicate", "untangle"),
    "TEST": ("test", "tests", "coverage", "unittest", "pytest"),
    "DOCUMENT": ("document", "docs", "docstring", "readme", "changelog"),
    "REVIEW": ("review", "audit", "assess", "critique"),
    "BUILD": ("build", "implement", "add", "create", "introduce", "support"),
}
"""Words that speak for a task type, in the order in which types win a tie: the narrower word first."""

_TASK_OF_WORD: Final = {word: task for task, words in TASK_WORDS.items() for word in words}
_WORD = re.compile(r"[a-z]+")
_SCANNED_CHARS: Final = 500


def analyze_request(
    request: AssemblyRequest, *, subjects: Mapping[str, Subject], as_of: datetime
) -> RequestFrame:
    """The frame that everything after works from.

    The task type is the one the request names, else the one that most words of the message's first line
    speak for (ties in table order), else the subject's own. Raises UnknownSubject naming the known ones.
    """
    subject = subjects.get(request.subject)
    if subject is None:
        raise UnknownSubject(request.subject, known=subjects)
    task_type = request.task_type or classify_task(request.user_message) or subject.task_type
    return RequestFrame(request=request, subject=subject, task_type=task_type, as_of=as_of)


def classify_task(text: str) -> TaskType | None:
    """The task type that the text's first line asks for, or None where no table word stands in it.

    The first line is where people say what they want; what follows is often a quotation.
    """
    first_line = text.lstrip()[:_SCANNED_CHARS].split("\n", 1)[0]
    words = _WORD.findall(first_line.casefold())
    votes = [_TASK_OF_WORD[word] for word in words if word in _TASK_OF_WORD]
    # The first of the table's types that has the most: a tie goes to the narrower word.
    return max(TASK_WORDS, key=votes.count) if votes else None
