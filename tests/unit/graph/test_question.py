"""What a request asks the graph, and what tells two questions apart."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from schemas.request import AssemblyRequest
from worker.graph.model import NodeRef
from worker.graph.question import GraphPolicy, Question, ask
from worker.ports import RequestFrame, Scope, Subject

POLICY = GraphPolicy(ranking="graph", relevance="off", settings_digest="s", code_version="1")


def question(policy: GraphPolicy = POLICY, *, budget_tokens: int = 4_000, **fields: Any) -> Question:
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
        task_type="DEBUG",
        as_of=datetime(2026, 1, 2, tzinfo=UTC),
    )
    scope = Scope(project_id=request.project_id, thread_id=request.thread_id)
    return ask(frame, scope, budget_tokens=budget_tokens, encoding="o200k_base", policy=policy)


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
