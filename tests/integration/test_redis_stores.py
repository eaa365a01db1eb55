"""What only the Redis stores do, on a real server of the test's own that may be hurt."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from tests.contract.redis_server import RedisServer
from worker.errors import StoreUnavailable
from worker.ports import OutcomeKey, OutcomeRecord, Tombstone
from worker.stores.redis import RedisOutcomeStore

pytestmark = pytest.mark.services

KEY = OutcomeKey(project_id="p", request_id="r")
RECORD = OutcomeRecord(
    request_digest="a" * 64,
    as_of=datetime(2024, 5, 1, tzinfo=UTC),
    reply=b'{"kind":"bundle_ref"}',
    usage=b"{}",
    bundle=b'{"kind":"bundle"}',
)


@pytest.fixture
async def store(server: RedisServer, admin: Any) -> AsyncGenerator[RedisOutcomeStore]:
    opened = _open(server)
    yield opened
    await opened.close()


def _open(server: RedisServer, *, url: str | None = None, password: str | None = None) -> RedisOutcomeStore:
    return RedisOutcomeStore(
        url or server.url, keep_seconds=7_200, forget_seconds=172_800, password=password, key_prefix="t"
    )


async def test_keys_name_the_project_and_expire_by_themselves(store: RedisOutcomeStore, admin: Any) -> None:
    await store.put_if_absent(OutcomeKey(project_id="p", request_id="a:{b}*", generation=2), RECORD)
    ttls = {key.decode(): admin.ttl(key) for key in admin.keys("*")}
    digest = "3fb2a3ef43f7a1b3da4d1ad93d1ed6ec1c3f5d9d1b0e9d1e0c6b1f4f7f2d1f1e"
    bundle_key = next(key for key in ttls if ":bundle:" in key)
    assert bundle_key.startswith("t:{p}:bundle:")
    assert len(bundle_key) == len(f"t:{{p}}:bundle:{digest}")
    assert ttls == {
        "t:{p}:outcome:a%3A%7Bb%7D%2A:2": pytest.approx(7_200, abs=30),
        "t:{p}:tombstone:a%3A%7Bb%7D%2A:2": pytest.approx(172_800, abs=30),
        bundle_key: pytest.approx(7_200, abs=30),
    }


async def test_bytes_that_the_server_dropped_leave_the_tombstone(
    store: RedisOutcomeStore, admin: Any
) -> None:
    await store.put_if_absent(KEY, RECORD)
    admin.pexpire("t:{p}:outcome:r:0", 0)
    assert isinstance(await store.get(KEY), Tombstone)
    assert isinstance(await store.put_if_absent(KEY, RECORD), Tombstone)
    assert await store.get_bundle(project_id="p", digest="0" * 64) is None


async def test_two_hundred_callers_share_one_connection(store: RedisOutcomeStore, admin: Any) -> None:
    await asyncio.gather(
        *(store.put_if_absent(replace(KEY, request_id=str(number)), RECORD) for number in range(200))
    )
    # The other one is the test's own.
    assert len(admin.client_list()) == 2


async def test_a_server_that_forgot_its_scripts_is_taught_again(store: RedisOutcomeStore, admin: Any) -> None:
    await store.put_if_absent(KEY, RECORD)
    admin.script_flush()
    other = replace(KEY, request_id="other")
    held = await asyncio.gather(
        store.put_if_absent(KEY, replace(RECORD, usage=None)), store.put_if_absent(other, RECORD)
    )
    assert held == [RECORD, RECORD]


async def test_a_full_server_is_unavailable_and_stores_no_part_of_an_outcome(
    store: RedisOutcomeStore, admin: Any
) -> None:
    await store.put_if_absent(KEY, RECORD)
    admin.config_set("maxmemory", 1)
    with pytest.raises(StoreUnavailable, match=r"redis is unavailable: .*maxmemory"):
        await store.put_if_absent(replace(KEY, request_id="late"), RECORD)
    with pytest.raises(StoreUnavailable, match="maxmemory"):
        await store.check()
    assert await store.get(KEY) == RECORD
    admin.config_set("maxmemory", 0)
    assert len(admin.keys("t:{p}:*")) == 3
    await store.check()


async def test_a_read_only_server_is_unavailable(store: RedisOutcomeStore, admin: Any) -> None:
    admin.replicaof("127.0.0.1", "1")
    with pytest.raises(StoreUnavailable, match="read only replica"):
        await store.put_if_absent(KEY, RECORD)
    with pytest.raises(StoreUnavailable, match="read only replica"):
        await store.check()
    admin.replicaof("NO", "ONE")
    assert await store.put_if_absent(KEY, RECORD) == RECORD


async def test_a_wrong_password_is_said_and_not_shown(server: RedisServer, admin: Any) -> None:
    admin.config_set("requirepass", "right")
    for password, reason in (
        (None, "Authentication required"),
        ("wrong-secret", "invalid username-password"),
    ):
        store = _open(server, password=password)
        with pytest.raises(StoreUnavailable, match=reason) as caught:
            await store.check()
        assert "wrong-secret" not in str(caught.value)
        await store.close()
    for url, password in ((None, "right"), (f"redis://:right@127.0.0.1:{server.port}/0", None)):
        store = _open(server, url=url, password=password)
        await store.check()
        await store.close()


async def test_a_key_of_another_kind_is_an_error_and_not_an_outcome(
    store: RedisOutcomeStore, admin: Any
) -> None:
    admin.hset("t:{p}:outcome:r:0", "field", "value")
    with pytest.raises(StoreUnavailable, match="WRONGTYPE"):
        await store.put_if_absent(KEY, RECORD)


async def test_a_record_of_a_newer_version_is_named_and_not_overwritten(
    store: RedisOutcomeStore, admin: Any
) -> None:
    admin.set("t:{p}:outcome:r:0", b"\x07Rfuture")
    with pytest.raises(StoreUnavailable, match="format 7"):
        await store.get(KEY)
    with pytest.raises(StoreUnavailable, match="format 7"):
        await store.put_if_absent(KEY, RECORD)
    assert admin.get("t:{p}:outcome:r:0") == b"\x07Rfuture"


async def test_one_bad_reply_does_not_fail_the_calls_beside_it(store: RedisOutcomeStore, admin: Any) -> None:
    admin.hset("t:{p}:outcome:r:0", "field", "value")
    bad, good = await asyncio.gather(
        store.put_if_absent(KEY, RECORD),
        store.put_if_absent(replace(KEY, request_id="good"), RECORD),
        return_exceptions=True,
    )
    assert isinstance(bad, StoreUnavailable)
    assert good == RECORD


async def test_a_connection_that_the_server_closed_is_made_again_unnoticed(
    store: RedisOutcomeStore, admin: Any
) -> None:
    await store.put_if_absent(KEY, RECORD)
    admin.client_kill_filter(_type="normal", skipme=True)
    assert await store.get(KEY) == RECORD


async def test_outcomes_outlive_a_killed_server_with_an_append_only_file(tmp_path: Path) -> None:
    server = RedisServer(tmp_path)
    server.start()
    store = _open(server)
    await store.put_if_absent(KEY, RECORD)
    server.kill()
    attempts = 0

    async def hang_up(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal attempts
        attempts += 1
        writer.close()

    async with await asyncio.start_server(hang_up, "127.0.0.1", server.port):
        with pytest.raises(StoreUnavailable):
            await store.get(KEY)
    assert 1 <= attempts <= 2, "the call is sent again once, not over and over"
    server.start()
    try:
        assert await store.get(KEY) == RECORD
        assert await store.put_if_absent(KEY, replace(RECORD, usage=None)) == RECORD
    finally:
        await store.close()
        server.kill()
