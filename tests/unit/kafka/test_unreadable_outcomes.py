"""What the store holds for one request cannot be read: that request ends or waits, and nobody else does."""

from __future__ import annotations

import asyncio
import json
import sqlite3
from collections.abc import AsyncGenerator
from contextlib import closing
from pathlib import Path

import pytest

from tests.support.dispatching import MemoryLedger
from tests.support.handling import FIELDS, NOW_MS, Bench, open_store, record
from worker.errors import OutcomeTooNew
from worker.kafka.attempts import Attempts
from worker.kafka.health import FailureWindow
from worker.kafka.outage import StoreGate
from worker.kafka.quarantine import Quarantine
from worker.kafka.records import InboundRecord
from worker.ports import RecordRef

BUNDLES, USAGE, DEAD = "context.bundles", "context.usage", "context.dead-letters"
REF = RecordRef(scope="cluster", topic="context.requests", partition=3, offset=17)
AGED, YOUNG = record(), record(timestamp_ms=NOW_MS)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "outcomes.db"


@pytest.fixture
async def bench(path: Path) -> AsyncGenerator[Bench]:
    """After the first answer to the request, of which a second delivery is met."""
    store = open_store(path)
    made = Bench(store=store)
    await made.handler().handle(AGED)
    made.published.clear()
    yield made
    await store.close()


def _spoil(path: Path, *, first_bytes: bytes) -> bytes:
    """Give the stored record another beginning; what is stored then."""
    with closing(sqlite3.connect(path)) as connection, connection:
        (held,) = connection.execute("SELECT record FROM outcomes").fetchone()
        spoilt = first_bytes + held[len(first_bytes) :]
        connection.execute("UPDATE outcomes SET record = ?", (spoilt,))
    return spoilt


def _stored(path: Path) -> list[bytes]:
    with closing(sqlite3.connect(path)) as connection:
        return [held for (held,) in connection.execute("SELECT record FROM outcomes")]


def _attempts(bench: Bench, gate: StoreGate) -> Attempts:
    return Attempts(
        bench.handler(),
        gate=gate,
        quarantine=Quarantine(MemoryLedger(), span=1_000, on_change=lambda: None),
        window=FailureWindow(),
        on_bad_deploy=lambda: None,
        on_given_up=lambda: pytest.fail("it was given up"),
        sleep=lambda _: asyncio.sleep(0),
    )


@pytest.mark.parametrize("first_bytes", [b"\x02R\0\0\0\0", b"\x82"], ids=["checksum", "first byte"])
@pytest.mark.parametrize("delivered", [AGED, YOUNG], ids=["met by the get", "met by the put"])
async def test_a_damaged_outcome_ends_in_a_dead_letter_and_in_no_other_outcome(
    bench: Bench, path: Path, delivered: InboundRecord, first_bytes: bytes
) -> None:
    spoilt = _spoil(path, first_bytes=first_bytes)
    closings: list[None] = []
    gate = StoreGate(bench.check)
    gate.subscribe(lambda: closings.append(None))
    async with asyncio.timeout(15):  # else one that is waited for is waited for without end
        await _attempts(bench, gate).finish(delivered, lambda: REF)
    assert closings == []
    assert [item.topic for item in bench.published] == [DEAD, BUNDLES]
    letter, reply = bench.published
    assert letter.value == json.dumps(FIELDS).encode()
    assert dict(letter.headers)["context-dead-code"] == b"internal_error"
    assert b"sqlite holds a damaged record" in dict(letter.headers)["context-dead-traceback"]
    said = json.loads(reply.value)
    # Without its ids a reply is nobody's outcome.
    assert (said["code"], said["request_id"], said["project_id"]) == ("internal_error", None, None)
    assert _stored(path) == [spoilt]


async def test_an_outcome_of_a_newer_worker_is_left_to_it(bench: Bench, path: Path) -> None:
    spoilt = _spoil(path, first_bytes=b"\x03")
    for work in (bench.handler().handle(AGED), bench.handler().bury(AGED, attempts=3)):
        with pytest.raises(OutcomeTooNew):
            await work
    assert bench.published == []
    assert _stored(path) == [spoilt]
