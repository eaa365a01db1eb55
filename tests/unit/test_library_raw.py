"""What a library user gets where assembling itself fails: the texts at hand, within the same budget."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from schemas.codes import PartName
from schemas.usage import UsageEvent
from tests.support.libraries import Broken, Injector, of_sources
from worker.budget.layers import ContextBudget
from worker.budget.tokens import counter_for
from worker.context_assembly import raw_assembly
from worker.errors import BudgetTooSmall, UnknownSubject
from worker.library import UnifiedContextAssembler
from worker.usage.log import read_usage_records

LAYERS: tuple[PartName, ...] = ("memory", "graph", "task")


def broken(folder: Path, **options: Any) -> UnifiedContextAssembler:
    return of_sources(folder, Broken(), **options)


def test_where_assembling_fails_the_injector_s_text_is_taken_as_it_is(tmp_path: Path) -> None:
    payload = {"task_context": "the task"}
    with broken(tmp_path, injector=Injector()) as assembler:
        assembly = assembler.assemble(payload, "implement", "Go", system_prompt="Be brief.")
    assert assembly.is_raw
    assert tuple(assembly.parts) == (
        *("system", "mission", "plan", "memory", "artifacts"),
        *("graph", "ast", "semantic", "task", "user"),
    )
    assert assembly.effective_message == "def found_for_implement(): ...\n\nthe task\n\nGo"
    assert assembly.parts["system"] == "Be brief."
    assert payload == {"task_context": "the task"}
    assert assembly.usage.to_dict()["layers"]["graph"]["spent"] > 0


def test_where_assembling_fails_credentials_are_masked_all_the_same(tmp_path: Path) -> None:
    credential = "AKIA" + "Q3ELIBRARYISRAW0"
    with broken(tmp_path) as assembler:
        assembly = assembler.assemble({"task_context": f"key = '{credential}'"}, "implement", "Go")
    assert assembly.is_raw
    assert assembly.effective_message == "key = '[masked:aws_key]'\n\nGo"


def test_where_assembling_fails_subjects_without_context_get_none_and_a_broken_injector_costs_nothing(
    tmp_path: Path,
) -> None:
    class Failing(Injector):
        def inject(self, payload: dict[str, Any], subject: str) -> dict[str, Any]:
            raise OSError(subject)

    structured = {"task_context": {"goal": "café"}}
    for injector, payload, subject, message in (
        (Injector(), {}, "chat", "Go"),
        (Failing(), {}, "implement", "Go"),
        (None, {}, "implement", "Go"),
        (None, structured, "chat", '{"goal": "café"}\n\nGo'),
    ):
        with broken(tmp_path, injector=injector) as assembler:
            assert assembler.assemble(payload, subject, "Go").effective_message == message


def test_whatever_stands_in_the_payload_there_is_a_prompt(tmp_path: Path) -> None:
    circle: list[object] = []
    circle.append(circle)
    with broken(tmp_path) as assembler:
        for context in ("\ud800", {"a": object()}, circle, float("nan"), 7, [], {1, 2}, b"x"):
            assembly = assembler.assemble({"task_context": context}, "implement", "Go")
            assert assembly.is_raw
            assert assembly.effective_message.encode().endswith(b"Go")


def test_what_is_refused_is_no_failure_to_fall_back_from(tmp_path: Path) -> None:
    with (
        broken(tmp_path, budget=ContextBudget(total=300, user=100)) as narrow,
        broken(tmp_path) as assembler,
    ):
        with pytest.raises(BudgetTooSmall):
            narrow.assemble({}, "chat", "word " * 1_000)
        with pytest.raises(UnknownSubject):
            assembler.assemble({}, "no such subject", "Go")


def test_the_usage_record_of_a_raw_assembly_says_what_it_spent_and_what_failed(tmp_path: Path) -> None:
    with broken(tmp_path, injector=Injector()) as assembler:
        assembly = assembler.assemble(
            {"task_context": "the task"}, "implement", "Go", volk_alias="smith", thread_id="t1"
        )
    (record,) = read_usage_records(tmp_path / "usage.jsonl")
    event = UsageEvent.model_validate_json(json.dumps(record))
    assert (event.outcome, event.code, event.volk_alias, event.thread_id) == ("degraded", None, "smith", "t1")
    assert event.usage is not None
    assert event.usage.model_dump() == assembly.usage.to_dict()
    assert event.statuses is not None
    told = {layer: (one.status, one.reason) for layer, one in event.statuses.items()}
    failed = ("failed", "error")
    assert told == {
        "system": ("empty", "no_data"),
        **dict.fromkeys(("mission", "plan", "memory", "artifacts", "ast", "semantic"), failed),
        **dict.fromkeys(("graph", "task"), ("partial", "section_error")),
        "user": ("ok", None),
    }


# Encodings join punctuation, line ends and a slash behind them, so that such a seam costs a token more.
_seams = st.lists(
    st.sampled_from(["#", "|", "`", "//", "/usr", "/*", "-->", " ", "\n", "\r\n", "word", "漢", "12", "🇩🇪"]),
    max_size=6,
).map("".join)


@settings(max_examples=60)
@given(
    system=_seams,
    user=_seams | st.text(max_size=20),
    texts=st.dictionaries(st.sampled_from(LAYERS), _seams | st.text(max_size=40), max_size=3),
    layer_tokens=st.integers(0, 30),
    spare_tokens=st.integers(-2, 12),
    output=st.integers(0, 5),
    encoding=st.sampled_from(["o200k_base", "cl100k_base", "bytes"]),
    factor=st.sampled_from(["1", "1.35"]),
)
@example(
    system="",
    user="/usr",
    texts={"graph": "#"},
    layer_tokens=9,
    spare_tokens=1,
    output=0,
    encoding="o200k_base",
    factor="1",
)
@example(
    system="/*",
    user="/usr",
    texts={"graph": "#", "task": "/*"},
    layer_tokens=9,
    spare_tokens=3,
    output=2,
    encoding="cl100k_base",
    factor="1.35",
)
def test_a_raw_assembly_is_within_its_budget_as_it_is_sent(
    *,
    system: str,
    user: str,
    texts: dict[PartName, str],
    layer_tokens: int,
    spare_tokens: int,
    output: int,
    encoding: str,
    factor: str,
) -> None:
    counter = counter_for(encoding, safety_factor=factor)
    own_tokens = counter.count(system) + counter.count(user)
    total = max(output, own_tokens + output + spare_tokens)
    reserved = min(layer_tokens, (total - output) // max(1, len(texts)))
    budget = ContextBudget(total=total, output=output, **dict.fromkeys(texts, reserved))
    try:
        assembly = raw_assembly(texts, system=system, user=user, budget=budget, counter=counter)
    except BudgetTooSmall:
        assert own_tokens + output > total
        return
    sent = counter.count(assembly.effective_message) + counter.count(system)
    assert sent + output <= total
    assert assembly.usage.total_spent == sent
    assert (assembly.parts["user"], assembly.parts["system"]) == (user, system)
    for layer in LAYERS:
        assert counter.count(assembly.parts[layer]) <= budget.layer_budget(layer)
    assert assembly.is_exact == (encoding != "bytes" and factor == "1")


def test_a_seam_that_costs_a_token_makes_the_first_lender_give_way_and_no_other() -> None:
    counter = counter_for("o200k_base")
    texts: dict[PartName, str] = {"memory": "Remember the harbour.", "task": "Mind the gap #"}
    parts = [f"{text}\n\n" for text in texts.values()]
    total = sum(map(counter.count, [*parts, "/usr"]))
    assert counter.count("".join(parts) + "/usr") == total + 1
    budget = ContextBudget(total=total, memory=counter.count(parts[0]), task=counter.count(parts[1]))
    assembly = raw_assembly(texts, system="", user="/usr", budget=budget, counter=counter)
    assert assembly.parts["task"] == "Mind the gap #\n\n"
    assert assembly.parts["memory"] == "Remember the\n\n"
