"""What every OutcomeStore promises, on every product."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import threading
from collections.abc import AsyncGenerator
from dataclasses import replace
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path

import pytest
from blockbuster import blockbuster_ctx
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from schemas.answers import AttemptMade
from schemas.wire import sha256_hex
from tests.contract.backends import FORGET_SECONDS, KEEP_SECONDS, Backend
from worker.answering.attempts import Attempt, attempt_key
from worker.errors import StoreUnavailable
from worker.outcomes import thread_of
from worker.ports import OutcomeKey, OutcomeRecord, OutcomeStore, Tombstone

ROOT = Path(__file__).parents[2]
KEY = OutcomeKey(project_id="p", request_id="r")
RECORD = OutcomeRecord(
    request_digest="a" * 64,
    as_of=datetime(2024, 5, 1, 12, 30, 0, 123456, tzinfo=UTC),
    reply=b'{"kind":"bundle"}',
    usage=b'{"kind":"usage"}',
)
OTHER = replace(RECORD, request_digest="b" * 64, reply=b'{"kind":"rejection"}')
REFERRED = replace(RECORD, reply=b'{"kind":"bundle_ref"}', bundle=b'{"kind":"bundle","n":1}')
TOMBSTONE = Tombstone(request_digest="a" * 64, reply_sha256=sha256_hex(RECORD.reply))

blobs = st.binary(max_size=2_000) | st.text(max_size=500).map(lambda text: text.encode())
records = st.builds(
    OutcomeRecord,
    request_digest=st.text("0123456789abcdef", min_size=64, max_size=64),
    as_of=st.datetimes(timezones=st.just(UTC)),
    reply=blobs,
    usage=st.none() | blobs,
    bundle=st.none() | blobs,
    receipt=st.none() | blobs,
    capture=st.none() | blobs,
    lineage=st.none() | blobs,
)
hostile_ids = st.text(max_size=12) | st.text("a:{}*?[]%/\\.|, \"'\x00\ud800é", max_size=6)
keys = st.builds(OutcomeKey, project_id=hostile_ids, request_id=hostile_ids, generation=st.integers(0, 11))

# One store serves all examples of a test: they keep apart by a project of their own.
shared_store = settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])


@pytest.fixture
async def store(backend: Backend) -> AsyncGenerator[OutcomeStore]:
    opened = backend.outcomes()
    yield opened
    await opened.close()


async def test_a_request_that_was_never_seen_has_no_outcome(store: OutcomeStore) -> None:
    assert await store.get(KEY) is None


async def test_what_was_put_is_what_is_held(store: OutcomeStore) -> None:
    assert await store.put_if_absent(KEY, RECORD) == RECORD
    assert await store.get(KEY) == RECORD


async def test_the_second_writer_is_given_what_the_first_stored(store: OutcomeStore) -> None:
    await store.put_if_absent(KEY, RECORD)
    assert await store.put_if_absent(KEY, OTHER) == RECORD
    assert await store.get(KEY) == RECORD


async def test_a_generation_has_an_outcome_of_its_own(store: OutcomeStore) -> None:
    await store.put_if_absent(KEY, RECORD)
    redriven = replace(KEY, generation=1)
    assert await store.get(redriven) is None
    assert await store.put_if_absent(redriven, OTHER) == OTHER
    assert await store.get(KEY) == RECORD


async def test_another_project_with_the_same_id_has_an_outcome_of_its_own(store: OutcomeStore) -> None:
    await store.put_if_absent(KEY, RECORD)
    foreign = replace(KEY, project_id="q")
    assert await store.get(foreign) is None
    assert await store.put_if_absent(foreign, OTHER) == OTHER
    assert await store.get(KEY) == RECORD


async def test_of_fifty_writers_at_once_in_two_workers_exactly_one_wins(
    backend: Backend, store: OutcomeStore
) -> None:
    other_worker = backend.outcomes()
    writers = [replace(RECORD, reply=str(number).encode()) for number in range(50)]
    held = await asyncio.gather(
        *((store, other_worker)[n % 2].put_if_absent(KEY, writer) for n, writer in enumerate(writers))
    )
    await other_worker.close()
    assert len({outcome.reply for outcome in held if isinstance(outcome, OutcomeRecord)}) == 1
    assert held[0] in writers
    assert await store.get(KEY) == held[0]


@pytest.mark.timeout(60)
async def test_two_processes_that_race_for_every_request_agree_on_all_of_them(backend: Backend) -> None:
    children = [_child(backend, name, count=200) for name in ("left", "right")]
    for child in children:
        assert await asyncio.to_thread(_line, child) == "ready\n"
    for child in children:
        _say_go(child)
    replies = [json.loads(await asyncio.to_thread(_line, child)) for child in children]
    for child in children:
        assert await asyncio.to_thread(_end, child) == 0
    assert replies[0] == replies[1]
    assert [reply.split()[1] for reply in replies[0]] == [str(number) for number in range(200)]


async def test_what_a_process_put_outlives_its_sigkill(backend: Backend, store: OutcomeStore) -> None:
    child = _child(backend, "victim", count=20)
    assert await asyncio.to_thread(_line, child) == "ready\n"
    _say_go(child)
    await asyncio.to_thread(_line, child)
    child.kill()
    assert await asyncio.to_thread(_end, child) == -9
    held = [await store.get(OutcomeKey(project_id="p", request_id=f"r{number}")) for number in range(20)]
    assert [outcome.reply for outcome in held if isinstance(outcome, OutcomeRecord)] == [
        f"victim {number}".encode() for number in range(20)
    ]


@shared_store
@given(record=records)
async def test_every_record_comes_back_byte_for_byte(
    backend: Backend, store: OutcomeStore, record: OutcomeRecord
) -> None:
    key = OutcomeKey(project_id="round trip", request_id=sha256_hex(repr(record).encode()))
    assert await store.put_if_absent(key, record) == record
    assert await store.get(key) == record


@shared_store
@given(left=keys, right=keys)
async def test_no_two_keys_meet_whatever_is_in_the_ids(
    store: OutcomeStore, left: OutcomeKey, right: OutcomeKey
) -> None:
    for key in (left, right):
        reply = repr((key.project_id, key.request_id, key.generation)).encode()
        held = await store.put_if_absent(key, replace(RECORD, reply=reply))
        assert isinstance(held, OutcomeRecord)
        assert held.reply == reply
        assert await store.get(key) == held


@pytest.mark.parametrize(
    "project_ids", [("a:b", "a"), ("a*", "ab"), ("a%3Ab", "a:b"), ("A", "a"), ("é", "e\u0301")]
)
async def test_ids_that_look_alike_to_a_store_stay_apart(
    store: OutcomeStore, project_ids: tuple[str, str]
) -> None:
    first, second = (OutcomeKey(project_id=project_id, request_id="b:c") for project_id in project_ids)
    await store.put_if_absent(first, REFERRED)
    assert await store.get(second) is None
    assert await store.get_bundle(project_id=second.project_id, digest=_digest(REFERRED)) is None


async def test_megabytes_come_back_byte_for_byte(store: OutcomeStore) -> None:
    reply = "".join(chr(0x4E00 + n % 20_000) for n in range(1_000_000)).encode()
    record = replace(REFERRED, reply=reply, bundle=reply[::-1], receipt=bytes(1_000_000))
    await store.put_if_absent(KEY, record)
    assert await store.get(KEY) == record
    assert await store.get_bundle(project_id="p", digest=_digest(record)) == record.bundle


async def test_an_instant_given_in_another_zone_comes_back_as_the_same_instant(store: OutcomeStore) -> None:
    as_of = datetime(2024, 5, 1, 14, 30, tzinfo=timezone(timedelta(hours=2)))
    await store.put_if_absent(KEY, replace(RECORD, as_of=as_of))
    assert await store.get(KEY) == replace(RECORD, as_of=datetime(2024, 5, 1, 12, 30, tzinfo=UTC))


async def test_bytes_are_there_until_their_time_is_over(backend: Backend, store: OutcomeStore) -> None:
    await store.put_if_absent(KEY, RECORD)
    await backend.age(KEEP_SECONDS - 60)
    assert await store.get(KEY) == RECORD


async def test_expired_bytes_leave_a_tombstone_that_nobody_overwrites(
    backend: Backend, store: OutcomeStore
) -> None:
    await store.put_if_absent(KEY, RECORD)
    await backend.age(KEEP_SECONDS + 1)
    assert await store.get(KEY) == TOMBSTONE
    assert await store.put_if_absent(KEY, OTHER) == TOMBSTONE
    await backend.age(FORGET_SECONDS - KEEP_SECONDS - 60)
    assert await store.get(KEY) == TOMBSTONE


async def test_a_forgotten_request_is_as_one_that_was_never_seen(
    backend: Backend, store: OutcomeStore
) -> None:
    await store.put_if_absent(KEY, RECORD)
    await backend.age(FORGET_SECONDS + 1)
    assert await store.get(KEY) is None
    assert await store.put_if_absent(KEY, OTHER) == OTHER
    await backend.age(KEEP_SECONDS - 60)
    assert await store.get(KEY) == OTHER


async def test_a_bundle_is_found_by_its_digest_within_its_project_only(store: OutcomeStore) -> None:
    await store.put_if_absent(KEY, REFERRED)
    digest = _digest(REFERRED)
    assert await store.get_bundle(project_id="p", digest=digest) == REFERRED.bundle
    assert await store.get_bundle(project_id="q", digest=digest) is None
    assert await store.get_bundle(project_id="p", digest="0" * 64) is None
    assert await store.get_bundle(project_id="p", digest="*") is None


async def test_a_bundle_that_lost_to_another_writer_cannot_be_fetched(store: OutcomeStore) -> None:
    await store.put_if_absent(KEY, RECORD)
    await store.put_if_absent(KEY, REFERRED)
    assert await store.get_bundle(project_id="p", digest=_digest(REFERRED)) is None


async def test_a_bundle_lives_as_long_as_the_last_outcome_that_refers_to_it(
    backend: Backend, store: OutcomeStore
) -> None:
    await store.put_if_absent(KEY, REFERRED)
    await backend.age(KEEP_SECONDS - 60)
    await store.put_if_absent(replace(KEY, request_id="later"), REFERRED)
    await backend.age(120)
    assert await store.get_bundle(project_id="p", digest=_digest(REFERRED)) == REFERRED.bundle
    await backend.age(KEEP_SECONDS)
    assert await store.get_bundle(project_id="p", digest=_digest(REFERRED)) is None


async def test_a_purge_forgets_all_of_one_project_and_nothing_of_another(
    backend: Backend, store: OutcomeStore
) -> None:
    keys = [OutcomeKey(project_id="p", request_id=f"r{n}", generation=n % 2) for n in range(150)]
    foreign = [OutcomeKey(project_id=project_id, request_id="r") for project_id in ("p2", "P", "*", "p:p")]
    await store.put_if_absent(KEY, REFERRED)
    await backend.age(KEEP_SECONDS + 1)  # the first is a tombstone by now
    for key in (*keys, *foreign):
        await store.put_if_absent(key, REFERRED)
    assert await store.purge("p") == 151
    assert [await store.get(key) for key in (KEY, *keys)] == [None] * 151
    assert await store.get_bundle(project_id="p", digest=_digest(REFERRED)) is None
    assert [await store.get(key) for key in foreign] == [REFERRED] * 4
    assert await store.get_bundle(project_id="p2", digest=_digest(REFERRED)) == REFERRED.bundle
    assert await store.purge("p") == 0
    assert await store.put_if_absent(KEY, OTHER) == OTHER


async def test_a_purge_of_some_outcomes_asks_for_each_and_leaves_the_others(
    backend: Backend, store: OutcomeStore
) -> None:
    await store.put_if_absent(replace(KEY, request_id="expired"), RECORD)
    await backend.age(KEEP_SECONDS + 1)
    for n in range(200):
        record = replace(RECORD, reply=f"{n}".encode(), bundle=f"bundle {n}".encode())
        await store.put_if_absent(replace(KEY, request_id=f"r{n}"), record)
    asked: list[bytes] = []

    def is_odd(record: OutcomeRecord) -> bool:
        asked.append(record.reply)
        return int(record.reply) % 2 == 1

    assert await store.purge("p", only=is_odd) == 100
    assert set(asked) >= {f"{n}".encode() for n in range(200)}
    left = [await store.get(replace(KEY, request_id=f"r{n}")) for n in range(200)]
    assert [isinstance(held, OutcomeRecord) for held in left] == [True, False] * 100
    assert left[1::2] == [None] * 100
    assert await store.get_bundle(project_id="p", digest=sha256_hex(b"bundle 0")) == b"bundle 0"
    assert await store.get_bundle(project_id="p", digest=sha256_hex(b"bundle 1")) is None
    assert isinstance(await store.get(replace(KEY, request_id="expired")), Tombstone)
    assert await store.purge("q", only=lambda _: True) == 0


@shared_store
@given(key=keys, other=keys)
async def test_a_purge_keeps_to_its_project_whatever_is_in_the_ids(
    store: OutcomeStore, key: OutcomeKey, other: OutcomeKey
) -> None:
    for one in (key, other):
        await store.put_if_absent(one, RECORD)
    await store.purge(key.project_id)
    assert await store.get(key) is None
    assert (await store.get(other) is None) == (other.project_id == key.project_id)


async def test_a_caller_that_gives_up_leaves_the_store_in_order(store: OutcomeStore) -> None:
    puts = [
        asyncio.create_task(store.put_if_absent(replace(KEY, request_id=str(number)), RECORD))
        for number in range(40)
    ]
    await asyncio.sleep(0)
    for put in puts[::2]:
        put.cancel()
    results = await asyncio.gather(*puts, return_exceptions=True)
    assert results[1::2] == [RECORD] * 20
    assert all(isinstance(result, asyncio.CancelledError) for result in results[::2])
    assert await store.put_if_absent(KEY, OTHER) == OTHER


async def test_no_operation_blocks_the_event_loop(backend: Backend) -> None:
    with blockbuster_ctx():
        store = backend.outcomes()
        await store.check()
        await store.put_if_absent(KEY, REFERRED)
        await store.get(KEY)
        await store.get_bundle(project_id="p", digest=_digest(REFERRED))
        await store.purge("p", only=lambda record: record.reply == b"")
        await store.purge("p")
        await store.close()


async def test_closing_twice_is_closing_once_and_leaves_nothing_running(backend: Backend) -> None:
    threads = {thread for thread in threading.enumerate() if not thread.name.startswith("asyncio")}
    tasks = asyncio.all_tasks()
    store = backend.outcomes()
    await store.put_if_absent(KEY, RECORD)
    await store.close()
    await store.close()
    # Those of other tests may end meanwhile.
    assert {t for t in threading.enumerate() if not t.name.startswith("asyncio")} <= threads
    assert asyncio.all_tasks() == tasks


async def test_closing_lets_what_waits_finish(backend: Backend) -> None:
    store = backend.outcomes()
    puts = [
        asyncio.create_task(store.put_if_absent(replace(KEY, request_id=str(number)), RECORD))
        for number in range(300)
    ]
    await asyncio.sleep(0)
    await store.close()
    assert await asyncio.gather(*puts) == [RECORD] * 300


async def test_a_closed_store_is_unavailable(backend: Backend) -> None:
    store = backend.outcomes()
    await store.close()
    with pytest.raises(StoreUnavailable, match="closed"):
        await store.get(KEY)


async def test_a_store_that_was_never_used_needs_no_server_to_be_closed(backend: Backend) -> None:
    await backend.outcomes().close()


def _digest(record: OutcomeRecord) -> str:
    assert record.bundle is not None
    return sha256_hex(record.bundle)


def _child(backend: Backend, name: str, *, count: int) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "tests.contract.outcome_child", backend.address, name, str(count)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
    )


def _line(child: subprocess.Popen[str]) -> str:
    assert child.stdout is not None
    return child.stdout.readline()


def _say_go(child: subprocess.Popen[str]) -> None:
    assert child.stdin is not None
    child.stdin.write("go\n")
    child.stdin.flush()


def _end(child: subprocess.Popen[str]) -> int:
    child.communicate()
    return child.returncode


# --- Answers ---------------------------------------------------------------------------------------------

MADE = AttemptMade(request_id="r", answer_id="a", code="complied", score=0.333333, step="accept")
ATTEMPT = Attempt(
    made=MADE,
    kind="accepted",
    answer_digest="c" * 64,
    thread_id="t",
    answered_at=RECORD.as_of,
    verdict='{"kind":"verdict","é":"\\u00e9"}'.encode(),
    usage=b'{"kind":"usage","thread_id":"t"}',
    escalation='{"kind":"escalation","é":1}'.encode(),
)


async def test_a_bundle_takes_one_answer_which_lies_beside_it_and_comes_back_as_it_was(
    store: OutcomeStore,
) -> None:
    await store.put_if_absent(KEY, RECORD)
    first, second = ATTEMPT.to_record(), replace(ATTEMPT, answer_digest="d" * 64, escalation=None).to_record()
    taken = await asyncio.gather(
        store.put_if_absent(attempt_key(KEY), first), store.put_if_absent(attempt_key(KEY), second)
    )
    assert len({one.request_digest for one in taken}) == 1
    held = await store.get(attempt_key(KEY))
    assert held in {first, second}
    assert [Attempt.from_record(one) for one in (first,)] == [ATTEMPT]
    assert await store.get(KEY) == RECORD
    assert await store.get(attempt_key(replace(KEY, generation=1))) is None
    assert await store.get(attempt_key(replace(KEY, project_id="q"))) is None


async def test_an_answer_expires_as_outcomes_do_and_goes_with_its_thread(
    backend: Backend, store: OutcomeStore
) -> None:
    await store.put_if_absent(attempt_key(KEY), ATTEMPT.to_record())
    quiet = replace(ATTEMPT, usage=None, thread_id="u").to_record()
    await store.put_if_absent(attempt_key(replace(KEY, request_id="s")), quiet)
    assert await store.purge("p", only=lambda one: thread_of(one) == "t") == 1
    assert await store.get(attempt_key(KEY)) is None
    await backend.age(KEEP_SECONDS + 1)
    assert isinstance(await store.get(attempt_key(replace(KEY, request_id="s"))), Tombstone)
    assert await store.purge("p") == 1
