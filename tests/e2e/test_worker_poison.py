"""Bad input between good records, on both brokers: each gets its code, and the partition goes on."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from tests.support.cluster import PATIENCE_SECONDS, Mode, Topics, covers, request, workers
from tests.support.dispatching import batch_of, create_topics, send_batch, until_committed
from tests.support.poison import Headers, records
from worker.kafka.dead_letters import parse_dead_letter

pytestmark = [pytest.mark.timeout(500), pytest.mark.asyncio(loop_scope="session")]


async def test_every_bad_record_gets_its_code_and_its_neighbours_their_bundles(
    mode: Mode, topics: Topics, tmp_path: Path
) -> None:
    bad = records(mode.prefix)
    sent: dict[str, tuple[bytes, Headers, int]] = {}
    async with workers(mode, tmp_path) as start:
        worker = await start(WORKER_KAFKA__REPLY_TOPICS=json.dumps([f"{mode.prefix}absent"]))
        placed = await topics.send(request(0), partition=0)
        await topics.read_until("bundles", covers({"r0"}))
        for number, (name, item) in enumerate(bad.items(), start=1):
            body = item.body if isinstance(item.body, bytes) else json.dumps(item.body).encode()
            headers = (("correlation_id", name.encode()), *item.headers, ("x", b"\xff"), ("x", b""))
            placed = await topics.send(body, key=b"\xff" + name.encode(), partition=0, headers=headers)
            sent[name] = (body, headers, placed.offset)
            placed = await topics.send(request(number), partition=0)
        await send_batch(
            mode.bootstrap,
            f"{mode.prefix}requests",
            batch_of([(b"p", json.dumps(request(99)).encode(), [(b"\xff\xfe", b"no utf-8 in the name")])]),
        )
        good = {f"r{number}" for number in range(len(bad) + 1)} | {"r99"}
        await topics.read_until("bundles", covers(good))
        await until_committed(
            mode.bootstrap, mode.group, f"{mode.prefix}requests", placed.offset + 2, seconds=PATIENCE_SECONDS
        )
        replies = (await topics.read_all("bundles")).records
        letters = (await topics.read_all("dead-letters")).records
        log = worker.log.read_text()

    answers = {
        dict(r.headers)["correlation_id"].decode(): json.loads(r.value)
        for r in replies
        if "correlation_id" in dict(r.headers)
    }
    assert len(replies) == len(good) + len(bad)
    assert {name: answer.get("code") for name, answer in answers.items()} == {
        name: item.code for name, item in bad.items()
    }
    for name, item in bad.items():
        if item.details:
            found = answers[name]["details"]
            assert {key: found[key] for key in item.details} == item.details
    assert {name: answers[name]["kind"] for name, item in bad.items() if item.code is None} == {
        "special token": "bundle",
        "spaces": "bundle_ref",
        "one letter": "bundle",
        "bad trace": "bundle",
        "absent reply topic": "bundle",
    }
    assert answers["window too small"]["details"]["overage_tokens"] > 0

    found = {dict(letter.headers)["correlation_id"].decode(): letter for letter in letters}
    assert len(letters) == len(found)
    assert found.keys() == {name for name, item in bad.items() if item.is_kept}
    for name, letter in found.items():
        body, headers, offset = sent[name]
        assert (letter.key, letter.value) == (b"\xff" + name.encode(), body)
        read = parse_dead_letter(letter)
        assert (read.code, read.headers) == (bad[name].code, headers)
        assert (read.topic, read.partition, read.offset) == (f"{mode.prefix}requests", 0, offset)
        assert (read.is_cut, read.attempts) == (False, 1)

    assert "reply_topics.missing" in log
    assert "publication.altered" in log


@pytest.mark.parametrize("mode", ["services"], indirect=True)
async def test_what_its_topic_refuses_never_holds_a_partition_up(mode: Mode, tmp_path: Path) -> None:
    """The embedded broker knows no `max.message.bytes`."""
    for role, partitions, limit_bytes in (
        ("bundles", 12, 6_000),
        ("usage", 12, 3_000),
        ("dead-letters", 3, 20_000),
    ):
        await create_topics(
            mode.bootstrap,
            mode.prefix + role,
            partitions=partitions,
            configs={"max.message.bytes": str(limit_bytes)},
        )
    async with Topics(mode) as topics, workers(mode, tmp_path) as start:
        await start()
        await topics.send(request(0), partition=0)
        # Noise, since what can be compressed would fit.
        noise = os.urandom(30_000)
        await topics.send(request(1, user_message=noise.hex()), partition=0)
        await topics.send(request(2), key=noise, partition=0)
        await topics.send(b"{" + noise, key=noise, partition=0, headers=[("correlation_id", noise)])
        await topics.send(request(3, thread_id="t" * 256, volk="v" * 256), partition=0)
        last = await topics.send(request(4), partition=0)
        await until_committed(
            mode.bootstrap, mode.group, f"{mode.prefix}requests", last.offset + 1, seconds=PATIENCE_SECONDS
        )
        replies = (await topics.read_all("bundles")).records
        codes = {
            (body := json.loads(reply.value))["request_id"]: (body["kind"], body.get("code"))
            for reply in replies
        }
        assert codes == {
            "r0": ("bundle", None),
            "r1": ("rejection", "too_large"),
            "r2": ("bundle", None),
            None: ("rejection", "invalid_encoding"),
            "r3": ("bundle", None),
            "r4": ("bundle", None),
        }
        assert {reply.key for reply in replies} == {b"p", None}
        letters = [parse_dead_letter(record) for record in (await topics.read_all("dead-letters")).records]
        assert {(letter.code, letter.is_cut, letter.offset) for letter in letters} == {
            ("too_large", True, 1),
            ("invalid_encoding", True, 3),
        }
        assert covers({"r0", "r1", "r2", "r3", "r4"})(await topics.read_all("usage"))
