from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from schemas.codes import PARTS, PartName
from schemas.session import Goal, SessionContext
from worker import library
from worker.budget.layers import ContextBudget, requested_budget
from worker.budget.tokens import counter_for
from worker.errors import BudgetTooSmall, UnknownSubject
from worker.library import UnifiedContextAssembler, raw_assembly
from worker.ports import LayerBudget, LayerContribution, Provider, RequestFrame, Scope
from worker.settings import Settings
from worker.usage.log import read_usage_records
from worker.wiring import build_library, content_policy

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


class Broken:
    """A source that makes every assembly fail, as nothing should."""

    layer: PartName = "mission"

    async def provide(self, frame: RequestFrame, scope: Scope, budget: LayerBudget) -> LayerContribution:
        nonsense: Any = ("no fragment",)
        return LayerContribution(layer="mission", status="ok", fragments=nonsense)


def broken(tmp_path: Path, **options: Any) -> UnifiedContextAssembler:
    return UnifiedContextAssembler(
        providers_for=lambda _store: [Broken()],
        policy=content_policy(Settings()),
        usage_log=tmp_path / "usage.jsonl",
        **options,
    )


def test_where_assembling_fails_the_injector_s_text_is_taken_as_it_is(tmp_path: Path) -> None:
    payload = {"task_context": "the task"}
    assembly = broken(tmp_path, injector=Injector()).assemble(
        payload, "implement", "Go", system_prompt="Be brief."
    )
    assert assembly.is_raw
    assert tuple(assembly.parts) == PARTS
    assert assembly.effective_message == "def found_for_implement(): ...\n\nthe task\n\nGo"
    assert assembly.parts["system"] == "Be brief."
    assert payload == {"task_context": "the task"}
    assert assembly.usage.to_dict()["layers"]["graph"]["spent"] > 0


def test_where_assembling_fails_subjects_without_context_get_none_and_a_broken_injector_costs_nothing(
    tmp_path: Path,
) -> None:
    class Failing(Injector):
        def inject(self, payload: dict[str, Any], subject: str) -> dict[str, Any]:
            raise OSError(subject)

    assert broken(tmp_path, injector=Injector()).assemble({}, "chat", "Go").effective_message == "Go"
    assert broken(tmp_path, injector=Failing()).assemble({}, "implement", "Go").effective_message == "Go"
    assert broken(tmp_path).assemble({}, "implement", "Go").effective_message == "Go"
    structured = {"task_context": {"goal": "café"}}
    assert broken(tmp_path).assemble(structured, "chat", "Go").effective_message == '{"goal": "café"}\n\nGo'


def test_what_is_refused_is_no_failure_to_fall_back_from(tmp_path: Path) -> None:
    assembler = broken(tmp_path, budget=ContextBudget(total=300, user=100))
    with pytest.raises(BudgetTooSmall):
        assembler.assemble({}, "chat", "word " * 1_000)
    with pytest.raises(UnknownSubject):
        broken(tmp_path).assemble({}, "no such subject", "Go")


@settings(max_examples=80)
@given(
    st.text(max_size=80),
    st.text(max_size=80),
    st.dictionaries(st.sampled_from(["graph", "task", "memory"]), st.text(max_size=200), max_size=3),
    st.integers(0, 60),
    st.integers(20, 300),
)
def test_a_raw_assembly_is_within_its_budget_or_refused(
    system: str, user: str, texts: dict[PartName, str], layer_tokens: int, total: int
) -> None:
    counter = counter_for("o200k_base")
    budget = ContextBudget(total=total, graph=min(layer_tokens, total // 2), task=total // 4)
    try:
        assembly = raw_assembly(texts, system=system, user=user, budget=budget, counter=counter)
    except BudgetTooSmall:
        assert counter.count(system) + counter.count(user) > total
        return
    assert assembly.parts["user"] == user
    assert assembly.parts["memory"] == ""
    assert counter.count(assembly.parts["graph"]) <= budget.graph
    assert assembly.usage.total_spent == sum(map(counter.count, assembly.parts.values())) <= total


def test_any_failure_to_write_the_usage_record_only_warns(tmp_path: Path) -> None:
    assembler = build_library(usage_log=tmp_path / "usage.jsonl")
    with patch.object(library, "write_usage_record", side_effect=ValueError("no record")):
        assert assembler.assemble({}, "chat", "Hi").parts["user"] == "Hi"


class OwnCounter:
    """Counts bytes, under a name that no model table knows."""

    name = "own"
    exact = False

    def is_exact(self, text: str) -> bool:
        return not text

    def count(self, text: str) -> int:
        return len(text.encode())

    def count_up_to(self, text: str, limit_tokens: int) -> int:
        return self.count(text)

    def fits(self, text: str, budget_tokens: int) -> bool:
        return self.count(text) <= budget_tokens

    def token_ends(self, text: str) -> NDArray[np.int64]:
        return np.arange(1, len(text.encode()) + 1, dtype=np.int64)

    def scale(self, raw_tokens: int) -> int:
        return raw_tokens

    def raw_budget(self, budget_tokens: int) -> int:
        return budget_tokens


def test_a_token_counter_of_ones_own_counts_everything(tmp_path: Path) -> None:
    assembler = UnifiedContextAssembler(
        providers_for=lambda _store: [],
        policy=content_policy(Settings()),
        token_counter=OwnCounter(),
        usage_log=tmp_path / "usage.jsonl",
    )
    assembly = assembler.assemble({}, "chat", "Twelve bytes")
    assert assembly.usage.to_dict()["layers"]["user"]["spent"] == 12


def test_an_assembly_collapses_into_the_payload_and_keeps_the_rest(tmp_path: Path) -> None:
    payload = {"task_context": "the task", "graph_context": "old", "stage": 3}
    assembly = build_library(usage_log=tmp_path / "usage.jsonl").assemble(
        payload, "implement", "Go", session_context=CONTEXT
    )
    collapsed = assembly.collapsed_into(payload)
    assert collapsed.keys() == payload.keys()
    assert (collapsed["task_context"], collapsed["stage"]) == ("the task", 3)
    assert "Ship it" in collapsed["graph_context"]
    assert collapsed["graph_context"] + "Go" == assembly.effective_message
    assert payload["graph_context"] == "old"


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


def test_sources_are_built_once_for_each_artifact_store(tmp_path: Path) -> None:
    built: list[object | None] = []

    def providers_for(store: object | None) -> list[Provider]:
        built.append(store)
        return []

    assembler = UnifiedContextAssembler(
        providers_for=providers_for, policy=content_policy(Settings()), usage_log=tmp_path / "u.jsonl"
    )
    store = SimpleNamespace()
    for named in (None, None, store, store):
        assembler.assemble({}, "chat", "Hi", artifact_store=named)
    assert built == [None, store]


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
