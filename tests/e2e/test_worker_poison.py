"""Bad input between good records, on both brokers: each gets its code, and the partition goes on."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from schemas.codes import LAYERS
from tests.support.cluster import PATIENCE_SECONDS, Mode, Topics, covers, request, workers
from tests.support.dispatching import batch_of, create_topics, send_batch, until_committed
from worker.kafka.dead_letters import parse_dead_letter

pytestmark = [pytest.mark.timeout(500), pytest.mark.asyncio(loop_scope="session")]

TRACE = b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
Headers = tuple[tuple[str, bytes], ...]


@dataclass(frozen=True, kw_only=True)
class Bad:
    """A record, the code that answers it (None: a bundle does), and whether it is kept as a dead letter."""

    body: dict[str, Any] | bytes
    code: str | None
    is_kept: bool
    headers: Headers = ()
    details: dict[str, Any] = field(default_factory=dict[str, Any])
    """Some of what the rejection's details must say."""


def kept(body: dict[str, Any] | bytes, code: str, *headers: tuple[str, bytes]) -> Bad:
    return Bad(body=body, code=code, is_kept=True, headers=headers)


def refused(body: dict[str, Any], code: str, *headers: tuple[str, bytes], **details: Any) -> Bad:
    return Bad(body=body, code=code, is_kept=False, headers=headers, details=details)


def forgiven(body: dict[str, Any], *headers: tuple[str, bytes]) -> Bad:
    return Bad(body=body, code=None, is_kept=False, headers=headers)


def records(prefix: str) -> dict[str, Bad]:
    """Every kind of bad input that a topic can carry, by a name that serves as its correlation id."""
    return {
        "not json": kept(b"{not json", "invalid_json"),
        "an array": kept(b"[]", "invalid_json"),
        "null": kept(b"null", "invalid_json"),
        "nothing": kept(b"", "invalid_json"),
        "cut": kept(b'{"request_id": "cut", "project_id": "p", "user_mess', "invalid_json"),
        "nan": kept(b'{"request_id": "nan", "project_id": "p", "volk": NaN}', "invalid_json"),
        "not utf-8": kept(b'{"request_id": "\xff\xfe"}', "invalid_encoding"),
        "nul": kept(b'{"request_id": "nul", "project_id": "p", "volk": "\\u0000"}', "invalid_encoding"),
        "a nul byte": kept(b'{"request_id": "nul\x00"}', "invalid_encoding"),
        "lone surrogate": kept(
            b'{"request_id": "s", "project_id": "p", "user_message": "\\ud800"}', "invalid_encoding"
        ),
        "depth bomb": kept(b'{"a":' * 5_000 + b"1" + b"}" * 5_000, "too_large"),
        "over the limit": kept(
            b'{"request_id": "over", "project_id": "p", "user_message": "' + b"x" * 8_400_000 + b'"}',
            "too_large",
        ),
        "missing field": kept(b'{"request_id": "missing", "project_id": "p"}', "invalid_request"),
        "wrong type": kept(request(101, volk=1, subject=2, user_message=3), "invalid_request"),
        "too long a model": kept(request(102, model="m" * 257), "invalid_request"),
        "another version": kept(request(103, schema_version="2.0"), "unsupported_version"),
        "another kind": kept(request(104), "invalid_request", ("context-kind", b"bundle")),
        "bad generation": kept(request(105), "invalid_request", ("context-generation", b"one")),
        "unknown reply_to": refused(
            request(106),
            "reply_to_not_allowed",
            ("reply_to", b"elsewhere"),
            allowed=[f"{prefix}absent", f"{prefix}bundles"],
        ),
        "reply_to no utf-8": refused(request(107), "reply_to_not_allowed", ("reply_to", b"\xff")),
        "unknown layer": refused(
            request(108, budget={"layers": {"brain": 5}}), "unknown_layer", name="brain", known=sorted(LAYERS)
        ),
        "unknown model": refused(request(109, model="gpt-0"), "unknown_model", name="gpt-0"),
        "unknown subject": refused(request(110, subject="chess"), "unknown_subject", name="chess"),
        "unknown strategy": refused(
            request(111, strategy="luck"),
            "unknown_strategy",
            name="luck",
            known=["layered", "recency", "relevance", "tiered"],
        ),
        "not supported": refused(
            request(112, required_tools=["grep"]), "not_supported", field="required_tools"
        ),
        "window too small": refused(
            request(113, user_message="word " * 9_000, model="generic-8k"), "budget_too_small", layer="user"
        ),
        "expired": refused(request(114, expires_at="2020-01-01T00:00:00Z"), "expired"),
        "id reused": refused(request(0, user_message="Something else."), "request_id_reused"),
        "special token": forgiven(request(115, user_message="<|endoftext|> and on")),
        "spaces": forgiven(request(116, user_message=" " * 1_000_000, budget={"total": 120_000})),
        "one letter": forgiven(request(117, user_message="a" * 100_000)),
        "bad trace": forgiven(
            request(118), ("traceparent", b"\xff"), ("traceparent", TRACE), ("traceparent", TRACE)
        ),
        "absent reply topic": forgiven(request(119), ("reply_to", f"{prefix}absent".encode())),
    }


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
