from __future__ import annotations

from datetime import UTC, datetime

import pytest

from schemas.request import AssemblyRequest
from worker.errors import UnknownSubject
from worker.graph.request import analyze_request, classify_task
from worker.ports import Subject

SUBJECTS = {"implement": Subject(name="implement", inject=True, semantic=True, task_type="BUILD")}
AS_OF = datetime(2026, 1, 1, tzinfo=UTC)


def request(**more: object) -> AssemblyRequest:
    body = {
        "request_id": "r",
        "project_id": "p",
        "volk": "v",
        "subject": "implement",
        "user_message": "Go on.",
    }
    return AssemblyRequest.model_validate(body | more)


@pytest.mark.parametrize(
    ("text", "task"),
    [
        ("Fix the crash in the parser", "DEBUG"),
        ("Refactor and rename the parser", "REFACTOR"),
        ("Write tests for coverage", "TEST"),
        ("Review the design", "REVIEW"),
        ("Add support for YAML", "BUILD"),
        ("Update the README", "DOCUMENT"),
        ("FIX IT", "DEBUG"),
        ("prefix the name", None),
        ("Go on.\nfix the crash", None),
        ("", None),
        ("fix a test", "DEBUG"),
    ],
)
def test_the_first_line_says_what_kind_of_work_it_is(text: str, task: str | None) -> None:
    assert classify_task(text) == task


def test_what_the_request_names_wins_over_its_words_and_its_subject() -> None:
    named = analyze_request(
        request(task_type="REVIEW", user_message="Fix it"), subjects=SUBJECTS, as_of=AS_OF
    )
    worded = analyze_request(request(user_message="Fix it"), subjects=SUBJECTS, as_of=AS_OF)
    neither = analyze_request(request(), subjects=SUBJECTS, as_of=AS_OF)
    assert [named.task_type, worded.task_type, neither.task_type] == ["REVIEW", "DEBUG", "BUILD"]


def test_an_unknown_subject_is_refused_naming_the_known() -> None:
    with pytest.raises(UnknownSubject, match="known: implement"):
        analyze_request(request(subject="x"), subjects=SUBJECTS, as_of=AS_OF)


def test_a_megabyte_on_one_line_is_classified_from_its_beginning() -> None:
    assert classify_task("fix " + "x" * 1_000_000) == "DEBUG"
