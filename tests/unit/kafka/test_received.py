"""Reading a record: what takes time is done off the event loop, and once."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from schemas.wire import sha256_hex
from tests.support.handling import FIELDS, record
from worker.errors import WorkerDied
from worker.kafka import received as module
from worker.kafka.headers import read_headers
from worker.kafka.received import BodyLimits, Received, receive

HEADERS = read_headers((), allowed_reply_topics=frozenset())
LIMITS = BodyLimits(max_bytes=4_000_000, max_depth=32)
MEGABYTE = 1_048_576

HEAVY = {
    "text without end": b'{"request_id": "r-1", "project_id": "shop", "a": "' + b"x" * MEGABYTE,
    "escapes": b'{"request_id": "r-1", "project_id": "shop", "a": "' + b'\\"' * MEGABYTE,
    "openers": b'{"request_id": "r-1", "project_id": "shop", "a": ' + b"[" * MEGABYTE,
    "colons": b'{"request_id": "r-1", "project_id": "shop", "a"' + b":" * 60_000,
    "not utf-8": b'{"request_id": "r-1", "project_id": "shop", "a": "' + b"\xff" * MEGABYTE + b'"}',
    "over the limit": b'{"request_id": "r-1", "project_id": "shop", "a": "' + b"x" * 4 * MEGABYTE + b'"}',
    "a missing field": b'{"request_id": "r-1", "project_id": "shop", "a": "' + b"x" * MEGABYTE + b'"}',
}


class Calls:
    """Which threads call a function, and how often."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
        self.threads: list[int] = []
        real: Callable[..., Any] = getattr(module, name)

        def noted(*arguments: Any, **more: Any) -> Any:
            self.threads.append(threading.get_ident())
            return real(*arguments, **more)

        monkeypatch.setattr(module, name, noted)

    @property
    def were_off_the_loop(self) -> bool:
        return threading.get_ident() not in self.threads


async def received(body: bytes) -> Received:
    return await receive(record(body), HEADERS, LIMITS)


@pytest.mark.parametrize("body", HEAVY.values(), ids=HEAVY.keys())
async def test_a_heavy_body_that_cannot_be_decoded_is_searched_and_hashed_off_the_loop(
    monkeypatch: pytest.MonkeyPatch, body: bytes
) -> None:
    searches, hashes = Calls(monkeypatch, "read_ids"), Calls(monkeypatch, "sha256_hex")
    found = await received(body)
    assert (found.request_id, found.project_id) == ("r-1", "shop")
    assert searches.were_off_the_loop
    assert len(searches.threads) == 1
    if len(body) >= MEGABYTE:
        assert [found.digest, found.body_digest, found.digest] == [sha256_hex(body)] * 3
        assert hashes.were_off_the_loop
        assert len(hashes.threads) == 1


async def test_a_buried_heavy_body_is_searched_and_hashed_off_the_loop(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    searches, hashes = Calls(monkeypatch, "read_ids"), Calls(monkeypatch, "sha256_hex")
    body = HEAVY["text without end"]
    found = await Received.undecoded(record(body), HEADERS, WorkerDied("died", attempts=3))
    assert (found.request_id, found.digest) == ("r-1", sha256_hex(body))
    assert searches.were_off_the_loop
    assert hashes.were_off_the_loop


async def test_a_heavy_body_that_is_decoded_is_hashed_off_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    hashes = Calls(monkeypatch, "sha256_hex")
    body = record({**FIELDS, "user_message": "word " * 300_000}).value or b""
    found = await received(body)
    assert found.decoded is not None
    assert found.body_digest == sha256_hex(body)
    assert hashes.were_off_the_loop


async def test_a_small_decoded_body_is_not_hashed_before_somebody_asks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    hashes = Calls(monkeypatch, "sha256_hex")
    found = await receive(record(), HEADERS, LIMITS)
    assert hashes.threads == []
    assert found.body_digest == found.body_digest == sha256_hex(record().value or b"")
    assert len(hashes.threads) == 1
