"""What a request asks the graph, and what tells two questions apart."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from schemas.codes import TaskType
from schemas.request import AssemblyRequest
from schemas.session import FailingTest
from worker.graph.model import NodeRef
from worker.graph.question import (
    MAX_ROOTS,
    MAX_TEXT_CHARS,
    MAX_TROUBLED_PATHS,
    GraphPolicy,
    Question,
    Trouble,
    ask,
)
from worker.graph.sections import Layout
from worker.ports import RequestFrame, Scope, Subject

POLICY = GraphPolicy(ranking="graph", relevance="off", settings_digest="s", code_version="1")


def question(
    policy: GraphPolicy = POLICY,
    *,
    budget_tokens: int = 4_000,
    task_type: TaskType = "DEBUG",
    trouble: Trouble = Trouble(),  # noqa: B008 - a frozen value
    million_tokens: int = 1_000_000,
    layout: Layout = "prompt",
    **fields: Any,
) -> Question:
    body: dict[str, Any] = {
        "request_id": "r1",
        "project_id": "shop",
        "volk": "smith",
        "subject": "fix_issues",
        "user_message": "Mend it.",
        **fields,
    }
    request = AssemblyRequest.model_validate(body)
    frame = RequestFrame(
        request=request,
        subject=Subject(name="fix_issues", inject=True, semantic=True, task_type="DEBUG"),
        task_type=task_type,
        as_of=datetime(2026, 1, 2, tzinfo=UTC),
    )
    scope = Scope(project_id=request.project_id, thread_id=request.thread_id)
    return ask(
        frame,
        scope,
        budget_tokens=budget_tokens,
        layout=layout,
        encoding="o200k_base",
        million_tokens=million_tokens,
        policy=policy,
        trouble=trouble,
    )


def test_what_fails_in_the_thread_counts_as_if_the_request_had_named_it() -> None:
    test = FailingTest(id="tests/test_a.py::test_b", message="boom")
    files = ("pkg/a.py", "../out.py", "/abs.py", "pkg/b.py")
    asked = question(
        trouble=Trouble(failing_tests=(test,), files=files), payload={"files_created": ["pkg/b.py"]}
    )
    assert asked.text == "Mend it.\ntests/test_a.py::test_b\nboom"
    assert asked.failing == ("tests/test_a.py::test_b",)
    assert asked.paths == ("pkg/b.py", "pkg/a.py")
    many = Trouble(files=tuple(f"pkg/{number}.py" for number in range(50)))
    assert len(question(trouble=many).paths) == MAX_TROUBLED_PATHS


def test_what_the_request_says_of_failing_tests_wins_and_files_count_for_defects_alone() -> None:
    trouble = Trouble(failing_tests=(FailingTest(id="old"),), files=("pkg/a.py",))
    said = question(trouble=trouble, working={"failing_tests": [{"id": "new"}]})
    assert said.failing == ("new",)
    assert question(trouble=trouble, task_type="BUILD").paths == ()
    assert question(trouble=trouble).key("v1") != question().key("v1")


def test_failing_tests_are_part_of_what_is_looked_for() -> None:
    working = {
        "failing_tests": [{"id": "tests/test_a.py::TestA::test_b[x]", "message": 'File "a.py", line 3'}]
    }
    asked = question(working=working)
    assert asked.text == 'Mend it.\ntests/test_a.py::TestA::test_b[x]\nFile "a.py", line 3'
    assert asked.failing_tests() == (NodeRef("Function", "tests/test_a.py::TestA.test_b"),)


def test_paths_of_the_payload_are_relative_to_the_project() -> None:
    payload = {"files_created": ["a.py", "./b.py", "../c.py", "../../d.py", "/etc/passwd", "a.py"]}
    assert question(payload={**payload, "project_dir": "src"}).paths == ("src/a.py", "src/b.py", "c.py")
    assert question(payload={**payload, "project_dir": "/srv/shop"}).paths == ("a.py", "b.py")


@pytest.mark.parametrize(
    "other",
    [
        {"user_message": "Mend that."},
        {"project_id": "shop2"},
        {"thread_id": "t"},
        {"volk": "judge"},
        {"subject": "implement"},
        {"requester": "human"},
        {"ranking": "hop"},
        {"relevance": "prolog"},
        {"payload": {"files_created": ["a.py"]}},
        {"working": {"failing_tests": [{"id": "t"}]}},
        {"budget_tokens": 4_001},
        {"policy": GraphPolicy(ranking="graph", relevance="off", settings_digest="s2", code_version="1")},
        {"policy": GraphPolicy(ranking="graph", relevance="off", settings_digest="s", code_version="2")},
    ],
    ids=lambda other: next(iter(other)),
)
def test_whatever_an_answer_depends_on_is_in_its_key(other: dict[str, Any]) -> None:
    assert question(**other).key("v1") != question().key("v1")


def test_another_snapshot_is_another_key_and_the_request_id_is_not() -> None:
    assert question().key("v1") != question().key("v2")
    assert question(request_id="r2").key("v1") == question().key("v1")


def test_under_the_plain_rule_named_files_are_all_that_is_asked_about() -> None:
    payload = {"files_created": ["a.py"]}
    one = question(ranking="hop", payload=payload, user_message="This.")
    other = question(ranking="hop", payload=payload, user_message="That.")
    assert one.key("v1") == other.key("v1")
    assert question(ranking="hop", user_message="This.").text == "This."


def test_nodes_that_a_request_names_by_id_are_its_roots() -> None:
    asked = question(
        user_message="See pkg/net.py::Client.retry and REQ-AUTH-7.", payload={"files_created": ["pkg/a.py"]}
    )
    assert set(asked.roots()) == {
        NodeRef("File", "pkg/a.py"),
        NodeRef("Module", "pkg/a.py::<module>"),
        NodeRef("File", "pkg/net.py"),
        NodeRef("Module", "pkg/net.py::<module>"),
        NodeRef("Class", "pkg/net.py::Client.retry"),
        NodeRef("Function", "pkg/net.py::Client.retry"),
        NodeRef("Requirement", "REQ-AUTH-7"),
        NodeRef("RequirementItem", "REQ-AUTH-7"),
    }


@pytest.mark.parametrize(
    "name", ["aN{0}.py::B.c{0} ", "REQ-{0} ", 'File "pkg/mod{0}.py", line 3, in f\n', "/" * 50 + "x.py "]
)
def test_megabytes_of_a_failing_test_name_a_bounded_number_of_roots(name: str) -> None:
    text = "".join(name.format(number) for number in range(200_000))
    asked = question(working={"failing_tests": [{"id": "t", "message": text}]})
    assert len(asked.roots()) <= MAX_ROOTS
    assert len(asked.text) <= MAX_TEXT_CHARS


def test_paths_that_the_payload_names_are_roots_before_all_others() -> None:
    text = "".join(f"aN{number}.py::B.c{number} " for number in range(2_000))
    asked = question(user_message=text, payload={"files_created": ["zzz/last.py"]})
    assert NodeRef("File", "zzz/last.py") in asked.roots()


def test_models_that_share_an_encoding_and_not_its_factor_have_answers_of_their_own() -> None:
    assert question(million_tokens=1_350_000).key("v1") != question().key("v1")
    assert question(layout="file").key("v1") != question().key("v1")
