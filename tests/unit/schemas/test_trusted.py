"""What is made without validation is what validation would have made."""

from __future__ import annotations

import hashlib
from datetime import UTC, datetime

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from schemas.bundle import ContextBundle, Message, context_hash, to_wire
from schemas.receipt import Receipt, ReceiptCounts, receipt_id
from schemas.trusted import trusted
from schemas.usage import UsageCounts, UsageEvent, usage_event_id
from schemas.wire import WireModel, canonical_json

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)


def event_fields(model: str | None, counts: UsageCounts | None) -> dict[str, object]:
    """The required fields of a usage event, its own `model` among them, not in the order of the model."""
    return {
        "counts": counts,
        "model": model,
        "event_id": "e",
        "timestamp": datetime(2026, 3, 1, tzinfo=UTC),
        "project_id": "p",
        "request_id": "r",
        "generation": 0,
        "outcome": "rejected",
        **dict.fromkeys(
            ("volk_alias", "subject", "thread_id", "usage", "requested_total", "overhead", "reserved")
        ),
        **dict.fromkeys(("statuses", "timings_ms", "exact")),
    }


@pytest.mark.parametrize("model", [None, "gpt-4o"])
@pytest.mark.parametrize("counts", [None, trusted(UsageCounts, naive_times=2)])
def test_a_trusted_model_is_the_validated_one_to_the_byte(
    model: str | None, counts: UsageCounts | None
) -> None:
    fields = event_fields(model, counts)
    made, validated = trusted(UsageEvent, **fields), UsageEvent(**fields)  # pyright: ignore[reportArgumentType]  # of mixed types
    assert made == validated
    assert to_wire(made) == to_wire(validated)
    assert made.model_copy(update={"generation": 3}) == validated.model_copy(update={"generation": 3})
    assert UsageEvent.model_validate_json(to_wire(made)) == validated


@pytest.mark.parametrize(
    ("model", "fields"),
    [
        (Message, {"role": "user"}),
        (Message, {"role": "user", "content": "a", "more": 1}),
        (ReceiptCounts, {"considered": 1, "kept": 1}),
        (Receipt, {}),
        (ContextBundle, {"request_id": "r"}),
    ],
)
def test_a_missing_or_an_unknown_field_is_a_defect(model: type[WireModel], fields: dict[str, object]) -> None:
    with pytest.raises(TypeError):
        trusted(model, **fields)


def test_a_trusted_model_is_frozen() -> None:
    message = trusted(Message, role="user", content="a")
    with pytest.raises(ValueError, match="frozen"):
        message.content = "b"  # pyright: ignore[reportAttributeAccessIssue]  # which is the claim


@settings(max_examples=40)
@given(system=TEXT, user=TEXT, project=TEXT, record=TEXT)
def test_what_is_spelled_out_is_canonical(system: str, user: str, project: str, record: str) -> None:
    messages = (Message(role="system", content=system), Message(role="user", content=user))
    spelled = canonical_json([{"role": m.role, "content": m.content} for m in messages])
    assert context_hash(messages) == hashlib.sha256(spelled).hexdigest()
    ids = canonical_json([project, user, 7])
    assert usage_event_id(project, user, 7) == hashlib.sha256(ids).hexdigest()[:26]
    body = canonical_json({"a": record})
    whole = canonical_json([project, "0" * 64, {"a": record}])
    assert receipt_id(project, "0" * 64, body) == hashlib.sha256(whole).hexdigest()[:26]
