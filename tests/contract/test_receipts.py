"""A bundle, its receipt and its replay agree byte for byte, through the real handler, on every store."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from tests.contract.backends import KEEP_SECONDS, Backend
from tests.support.assembling import AS_OF, assembler
from tests.support.explaining import CROWDED, policy
from tests.support.handling import LIMITS, NOW, ROUTES, record
from worker.explaining.replay import verify
from worker.explaining.stored import WasRejected, stored_of
from worker.failpoints import Failpoints
from worker.kafka.handlers import RequestHandler
from worker.kafka.records import OutboundRecord
from worker.outcomes import thread_of
from worker.ports import OutcomeKey, OutcomeRecord, OutcomeStore, Tombstone
from worker.receipts.capture import CaptureUnreadable
from worker.telemetry import Telemetry

TOKEN = "ghp_" + "a1B2c3D4e5" * 3 + "f6G7h8"
BODY = {
    "project_id": "p",
    "volk": "smith",
    "subject": "implement",
    **CROWDED,
    "as_of": AS_OF,
    "payload": {"task_context": f"The token is {TOKEN}."},
}
KEY = OutcomeKey(project_id="p", request_id="r-17")


@dataclass
class Published:
    records: list[OutboundRecord] = field(default_factory=list[OutboundRecord])

    async def publish(self, record: OutboundRecord) -> None:
        self.records.append(record)

    def append(self, line: bytes) -> None:
        """The usage log's part; the topic has the event."""


@pytest.fixture
async def store(backend: Backend) -> AsyncGenerator[OutcomeStore]:
    opened = backend.outcomes()
    yield opened
    await opened.close()


async def serve(store: OutcomeStore, **more: Any) -> list[OutboundRecord]:
    published = Published()
    telemetry = Telemetry()
    handler = RequestHandler(
        assemble=assembler().assemble,
        store=store,
        publisher=published,
        usage_log=published,
        routes=ROUTES,
        limits=LIMITS,
        telemetry=telemetry,
        failpoints=Failpoints(),
        now=lambda: NOW,
    )
    await handler.handle(record({**BODY, **more}))
    return published.records


async def held(store: OutcomeStore, key: OutcomeKey = KEY) -> OutcomeRecord:
    outcome = await store.get(key)
    assert isinstance(outcome, OutcomeRecord)
    return outcome


@pytest.mark.parametrize(
    "more",
    [
        {},
        {"include": ["messages", "receipt", "payload", "payload_content"]},
        {"strategy": "recency+relevance"},
        {
            "user_message": "word " * 5_000,
            "budget": {"total": 20_000},
        },  # too large for a record: by reference
    ],
    ids=["plain", "record", "strategies", "reference"],
)
async def test_bundle_receipt_and_replay_agree(store: OutcomeStore, more: dict[str, Any]) -> None:
    published = await serve(store, **more)
    outcome = await held(store)
    assert published[0].value == outcome.reply
    assert published[1].value == outcome.usage
    one = stored_of(outcome)
    assert verify(one, policy()).outcome == "same"
    assert (outcome.bundle is not None) == (json.loads(outcome.reply)["kind"] == "bundle_ref")


async def test_no_credential_is_kept_anywhere(store: OutcomeStore) -> None:
    published = await serve(store, user_message="No token here.")
    outcome = await held(store)
    kept = (
        outcome.reply,
        outcome.usage,
        outcome.receipt,
        outcome.capture,
        *[item.value for item in published],
    )
    assert not any(TOKEN.encode() in (part or b"") for part in kept)
    usage = json.loads(outcome.usage or b"{}")
    assert usage["masked_secrets"] == 1


async def test_receipt_and_capture_expire_with_the_bundle(backend: Backend, store: OutcomeStore) -> None:
    await serve(store)
    await backend.age(KEEP_SECONDS + 1)
    assert isinstance(await store.get(KEY), Tombstone)


async def test_a_purge_of_the_thread_takes_receipt_and_capture_along(store: OutcomeStore) -> None:
    await serve(store)
    await serve(store, request_id="other", thread_id="t2")
    assert await store.purge("p", only=lambda outcome: thread_of(outcome) == "t1") == 1
    assert await store.get(KEY) is None
    assert stored_of(await held(store, OutcomeKey(project_id="p", request_id="other"))).capture_bytes
    assert await store.purge("p") == 1


async def test_a_rejection_is_explained_by_its_code(store: OutcomeStore) -> None:
    await serve(store, subject="nonsense")
    with pytest.raises(WasRejected, match="unknown_subject"):
        stored_of(await held(store))


async def test_a_capture_that_is_not_kept_says_so(
    store: OutcomeStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tests.contract.test_receipts.LIMITS", replace(LIMITS, max_capture_bytes=500))
    await serve(store)
    with pytest.raises(CaptureUnreadable) as met:
        stored_of(await held(store)).capture()
    assert met.value.code == "capture_too_large"
