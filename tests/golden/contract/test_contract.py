"""Version 1 of the wire, by example: what these files say is what crosses Kafka."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, get_args

import jsonschema
import pytest

from schemas.answers import (
    AgentAnswer,
    Escalation,
    EscalationReason,
    RefusalCode,
    Verdict,
    VerdictKind,
    escalation_id,
)
from schemas.bundle import BundleRef, ContextBundle, Rejection, context_hash, to_wire
from schemas.citations import Step, VerdictCode
from schemas.codes import RETRYABLE_CODES, RejectionCode
from schemas.export import json_schema
from schemas.request import AssemblyRequest
from schemas.sync import SyncRequest, SyncResult
from schemas.tools import ToolRequest, ToolResult
from schemas.usage import UsageEvent, usage_event_id
from schemas.wire import WireModel, sha256_hex
from worker.decoding import decode_request
from worker.kafka.answer_received import decode_answer
from worker.kafka.received import BodyLimits
from worker.kafka.sync_received import decode_sync
from worker.kafka.tool_received import decode_call

HERE = Path(__file__).parent
MODELS: dict[str, type[WireModel]] = {
    "request": AssemblyRequest,
    "bundle": ContextBundle,
    "bundle_ref": BundleRef,
    "rejection": Rejection,
    "usage": UsageEvent,
    "sync": SyncRequest,
    "sync_result": SyncResult,
    "tool": ToolRequest,
    "tool_result": ToolResult,
    "answer": AgentAnswer,
    "verdict": Verdict,
    "escalation": Escalation,
}
FIXTURES = sorted(path.stem for path in HERE.glob("*.json"))
REQUESTS = [name for name in FIXTURES if name.startswith("request_")]
BUNDLES = [name for name in FIXTURES if name.startswith("bundle_") and name != "bundle_ref"]
SYNCS = ["sync_full", "sync_minimal"]
CALLS = ["tool_full", "tool_minimal"]
AGENTS = ["answer_full", "answer_minimal"]
VERDICTS = [name for name in FIXTURES if name.startswith("verdict_")]
ANSWERS = [name for name in FIXTURES if name not in {*REQUESTS, *SYNCS, *CALLS, *AGENTS}]
DIGESTS = {
    "request_minimal": "68d649d4e80bf2493a9ccff0f434c450412d3858b3dd94e8dfd022f993ac729a",
    "request_full": "9e957382f6b2f9142f388e6315ff0fd11c043795ec3c1ac329c6811668e47f3f",
    "request_foreign": "7032e4aa0d86c8ac1c1613685be969527651e3c0d35e8db1b4f02e01d84e85cb",
}
SYNC_DIGESTS = {
    "sync_minimal": "91d01653d6028d36ef0701ca5679a331c718dbb7dea1451793fb4af86e0d7ca2",
    "sync_full": "72d3bc13f52d293a23305d9a4cb94380289ab734fe04a13f542c1ad58324e2dc",
}
"""A digest that changes makes every stored outcome a stranger to its own request."""


def read(name: str) -> bytes:
    return (HERE / f"{name}.json").read_bytes()


def compact(name: str) -> bytes:
    """The fixture without the white space that people need."""
    return json.dumps(json.loads(read(name)), separators=(",", ":"), ensure_ascii=False).encode()


def model_of(name: str) -> type[WireModel]:
    if name.startswith("tool_result"):
        return ToolResult
    kind = name if name in {"bundle_ref", "sync_result"} else name.split("_", maxsplit=1)[0]
    return MODELS[kind]


@pytest.mark.parametrize("name", ANSWERS)
def test_an_answer_decodes_and_is_encoded_to_the_same_bytes(name: str) -> None:
    assert to_wire(model_of(name).model_validate_json(read(name))) == compact(name)


@pytest.mark.parametrize("name", ["request_minimal", "request_full"])
def test_a_request_decodes_and_is_encoded_to_the_same_bytes(name: str) -> None:
    request = AssemblyRequest.model_validate_json(read(name))
    assert request.model_dump_json(exclude_unset=True).encode() == compact(name)


@pytest.mark.parametrize("name", REQUESTS)
def test_a_request_decodes_without_anything_to_forgive(name: str) -> None:
    decoded = decode_request(read(name), max_bytes=1_000_000, max_depth=64)
    assert (decoded.notes.unknown_fields, decoded.notes.naive_times) == (0, 0)


@pytest.mark.parametrize("name", REQUESTS)
def test_the_digest_of_a_request_never_changes(name: str) -> None:
    assert decode_request(read(name), max_bytes=1_000_000, max_depth=64).digest == DIGESTS[name]


def test_the_digest_is_that_of_the_canonical_json_with_the_defaults_filled_in() -> None:
    canonical = (
        '{"artifacts":[],"include":["messages","layers","usage","citations"],"kind":"request",'
        '"must_cite":[],"payload":{"files_created":[]},"project_id":"shop","requester":"volk",'
        '"required_tools":[],"schema_version":"1.0","subject":"implement","system_prompt":"",'
        '"user_message":"Add a retry with backoff to the payment client.","volk":"smith"}'
    )
    assert sha256_hex(canonical.encode()) == DIGESTS["request_minimal"]


@pytest.mark.parametrize("name", SYNCS)
def test_a_sync_decodes_and_is_encoded_to_the_same_bytes(name: str) -> None:
    decoded = decode_sync(read(name), BodyLimits(max_bytes=1_000_000, max_depth=64))
    assert decoded.notes.unknown_fields == 0
    assert decoded.digest == SYNC_DIGESTS[name]
    assert decoded.request.model_dump_json(exclude_unset=True).encode() == compact(name)


def test_the_full_sync_has_every_field_of_the_contract() -> None:
    assert set(json.loads(read("sync_full"))) == set(SyncRequest.model_fields)


@pytest.mark.parametrize("name", CALLS)
def test_a_call_decodes_and_is_encoded_to_the_same_bytes(name: str) -> None:
    decoded = decode_call(read(name), BodyLimits(max_bytes=1_000_000, max_depth=64))
    assert decoded.notes.unknown_fields == 0
    assert decoded.request.model_dump_json(exclude_unset=True).encode() == compact(name)


@pytest.mark.parametrize("name", AGENTS)
def test_an_agents_answer_decodes_and_is_encoded_to_the_same_bytes(name: str) -> None:
    decoded = decode_answer(read(name), BodyLimits(max_bytes=1_000_000, max_depth=64))
    assert decoded.notes.unknown_fields == 0
    assert decoded.answer.model_dump_json(exclude_unset=True).encode() == compact(name)


def test_the_full_answer_has_every_field_of_the_contract() -> None:
    assert set(json.loads(read("answer_full"))) == set(AgentAnswer.model_fields)


def test_every_verdict_code_step_and_reason_has_its_fixture() -> None:
    verdicts = [Verdict.model_validate_json(read(name)) for name in VERDICTS]
    assert [f"verdict_{one.code}" for one in verdicts] == VERDICTS
    assert {one.code for one in verdicts} == {*get_args(VerdictCode), *get_args(RefusalCode)}
    assert {one.verdict for one in verdicts} == set(get_args(VerdictKind))
    assert {one.step for one in verdicts} == {*get_args(Step), None}
    reasons = {name.removeprefix("escalation_") for name in FIXTURES if name.startswith("escalation_")}
    assert reasons == set(get_args(EscalationReason))
    assert {one.why for one in verdicts} == {*reasons, None}


@pytest.mark.parametrize("name", [name for name in FIXTURES if name.startswith("escalation_")])
def test_an_escalations_id_is_that_of_the_answer_that_it_follows(name: str) -> None:
    one = Escalation.model_validate_json(read(name))
    assert one.escalation_id == escalation_id(one.project_id, one.request_id, 0, one.answer_id)
    assert one.attempts[-1].answer_id == one.answer_id


@pytest.mark.parametrize("name", VERDICTS)
def test_a_verdict_is_consistent_with_itself(name: str) -> None:
    one = Verdict.model_validate_json(read(name))
    is_retry = one.verdict == "retry"
    assert (one.bundle is not None) == (one.instructions is not None) == is_retry
    assert (one.why is not None) == (one.verdict == "escalated")
    assert (one.attempt == 0) == (one.step is None) == (one.code in get_args(RefusalCode))
    assert (one.code == "complied") == (one.verdict == "accepted")
    if isinstance(one.bundle, ContextBundle):
        assert (one.bundle.parent_request_id, one.bundle.project_id) == (one.request_id, one.project_id)


def test_the_full_call_has_every_field_of_the_contract() -> None:
    assert set(json.loads(read("tool_full"))) == set(ToolRequest.model_fields)


def test_the_full_request_has_every_field_of_the_contract() -> None:
    assert set(json.loads(read("request_full"))) == set(AssemblyRequest.model_fields)


def test_foreign_shapes_become_ours() -> None:
    request = AssemblyRequest.model_validate_json(read("request_foreign"))
    (artifact,) = request.artifacts
    assert (artifact.stage, artifact.type, artifact.path) == ("design", "note", "docs/retry.md")
    assert artifact.content == '{"rule": "retry on timeout alone"}'
    assert request.session is not None
    assert request.session.goal is not None
    assert [step.status for step in request.session.goal.tasks] == ["active", "pending"]
    assert [blocker.text for blocker in request.session.goal.blockers] == ["No logs from Sunday."]


@pytest.mark.parametrize("name", FIXTURES)
def test_every_fixture_is_valid_by_the_exported_schema(name: str) -> None:
    validator: Any = jsonschema.Draft202012Validator(
        json_schema(model_of(name)), format_checker=jsonschema.FormatChecker()
    )
    validator.validate(json.loads(read(name)))


@pytest.mark.parametrize("name", FIXTURES)
def test_a_fixture_of_another_kind_is_not_valid(name: str) -> None:
    other = Rejection if model_of(name) is not Rejection else UsageEvent
    validator: Any = jsonschema.Draft202012Validator(json_schema(other))
    assert not validator.is_valid(json.loads(read(name)))


def test_every_rejection_code_has_its_fixture() -> None:
    found = {json.loads(read(name))["code"] for name in FIXTURES if name.startswith("rejection_")}
    assert found == set(get_args(RejectionCode))


@pytest.mark.parametrize("name", [name for name in FIXTURES if name.startswith("rejection_")])
def test_a_rejection_is_named_after_its_code_and_says_whether_to_try_again(name: str) -> None:
    rejection = Rejection.model_validate_json(read(name))
    assert name == f"rejection_{rejection.code}"
    assert rejection.retryable == (rejection.code in RETRYABLE_CODES)


@pytest.mark.parametrize("name", BUNDLES)
def test_a_bundle_is_consistent_with_itself(name: str) -> None:
    bundle = ContextBundle.model_validate_json(read(name))
    assert bundle.messages is not None
    assert bundle.layers is not None
    assert bundle.usage is not None
    assert bundle.context_hash == context_hash(bundle.messages)
    is_degraded = any(layer.status in {"failed", "partial"} for layer in bundle.layers.values())
    assert bundle.status == ("degraded" if is_degraded else "complete")
    assert sum(layer.tokens for layer in bundle.layers.values()) == bundle.usage.spent


@pytest.mark.parametrize("name", [name for name in FIXTURES if name.startswith("usage_")])
def test_a_usage_event_is_consistent_with_itself(name: str) -> None:
    event = UsageEvent.model_validate_json(read(name))
    assert event.event_id == usage_event_id(event.project_id, event.request_id, event.generation)
    assert (event.code is not None) == (event.outcome == "rejected") == (event.usage is None)
    if event.usage is not None:
        assert sum(layer.spent for layer in event.usage.layers.values()) == event.usage.spent
        assert event.usage.spent + event.usage.remaining == event.usage.total


def test_each_kind_and_each_outcome_has_an_example() -> None:
    def values(field: str) -> set[Any]:
        return {json.loads(read(name)).get(field) for name in FIXTURES}

    assert values("kind") >= {"bundle", "bundle_ref", "rejection", "usage"}
    assert values("outcome") >= {"complete", "degraded", "rejected"}
