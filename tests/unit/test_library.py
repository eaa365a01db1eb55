from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from schemas.codes import PARTS
from schemas.session import Goal, SessionContext
from worker.budget.layers import ContextBudget, requested_budget
from worker.errors import BudgetTooSmall
from worker.usage.log import read_usage_records
from worker.wiring import build_library

CONTEXT = SessionContext(goal=Goal(statement="Ship it", blockers=()))


class Injector:
    """What older runners wire: it writes into the payload that it is given."""

    def __init__(self) -> None:
        self.seen: list[dict[str, Any]] = []

    def should_inject(self, subject: str) -> bool:
        return subject == "implement"

    def inject(self, payload: dict[str, Any], subject: str) -> dict[str, Any]:
        payload["graph_context"] = f"def found_for_{subject}(): ..."
        self.seen.append(payload)
        return payload


def test_an_assembly_has_the_ten_parts_and_a_ledger_that_agrees(tmp_path: Path) -> None:
    assembler = build_library(usage_log=tmp_path / "usage.jsonl")
    assembly = assembler.assemble({}, "implement", "Add a retry", session_context=CONTEXT)
    assert tuple(assembly.parts) == PARTS
    assert "Ship it" in assembly.parts["mission"]
    assert assembly.effective_message.endswith("Add a retry")
    assert assembly.usage.to_dict()["layers"]["mission"]["spent"] > 0
    assert assembly.usage.remaining == assembly.usage.budget.total - assembly.usage.total_spent


def test_one_usage_record_is_written_a_call(tmp_path: Path) -> None:
    path = tmp_path / "usage.jsonl"
    assembler = build_library(usage_log=path)
    assembler.assemble({}, "chat", "Hi", volk_alias="guide")
    assembler.assemble({}, "chat", "Hi again", volk_alias="guide")
    assert [record["volk_alias"] for record in read_usage_records(path)] == ["guide", "guide"]


def test_a_usage_log_that_cannot_be_written_only_warns(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")
    assembly = build_library(usage_log=blocked / "usage.jsonl").assemble({}, "chat", "Hi")
    assert assembly.parts["user"] == "Hi"


def test_an_injector_gets_a_copy_and_fills_the_graph_layer(tmp_path: Path) -> None:
    injector = Injector()
    payload: dict[str, Any] = {"task_context": "kept"}
    assembler = build_library(injector=injector, usage_log=tmp_path / "usage.jsonl")
    assembly = assembler.assemble(payload, "implement", "Go")
    assert payload == {"task_context": "kept"}
    assert injector.seen[0]["task_context"] == "kept"
    assert "found_for_implement" in assembly.parts["graph"]
    assert "kept" in assembly.parts["task"]


def test_an_injector_is_not_asked_for_subjects_it_does_not_serve(tmp_path: Path) -> None:
    injector = Injector()
    assembler = build_library(injector=injector, usage_log=tmp_path / "usage.jsonl")
    assert assembler.assemble({}, "chat", "Go").parts["graph"] == ""
    assert injector.seen == []


def test_an_artifact_store_of_a_foreign_shape_is_digested(tmp_path: Path) -> None:
    store = SimpleNamespace(
        all=lambda: [SimpleNamespace(stage_alias="design", artifact_type="note", content="a decision")]
    )
    assembly = build_library(usage_log=tmp_path / "usage.jsonl").assemble(
        {}, "implement", "Go", artifact_store=store
    )
    assert "a decision" in assembly.parts["artifacts"]


def test_it_works_from_within_a_running_event_loop(tmp_path: Path) -> None:
    assembler = build_library(usage_log=tmp_path / "usage.jsonl")

    async def run() -> str:
        return assembler.assemble({}, "chat", "Hi").parts["user"]

    assert asyncio.run(run()) == "Hi"


def test_a_budget_of_ones_own_is_enforced(tmp_path: Path) -> None:
    assembler = build_library(budget=ContextBudget(total=300, user=100), usage_log=tmp_path / "u.jsonl")
    with pytest.raises(BudgetTooSmall):
        assembler.assemble({}, "chat", "word " * 1_000)


def test_the_default_budget_is_the_128k_split(tmp_path: Path) -> None:
    assembly = build_library(usage_log=tmp_path / "usage.jsonl").assemble({}, "chat", "Hi")
    assert assembly.usage.budget == requested_budget(total=128_000, layers={})
