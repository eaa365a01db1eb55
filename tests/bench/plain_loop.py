"""The peers that the worker is measured against: the same contractual work, written straight down.

`full` is the one whose ratio counts. It validates the request, digests what it means, counts the joined text
once, writes the bundle, the usage event (the very bytes of the worker for such a request, times and the
receipt's id apart), the receipt's record and the capture, puts all four if absent, compressed, and produces
twice with the contract's headers. What one fetch brought is put in one transaction, as the worker's store
does with what waits for it. Batches are large enough for what waits: aiokafka wakes every waiting sender for
each batch that leaves. Offsets are committed twice a second.

`plain` is what somebody writes who has not thought of batches: the same work one record at a time, each in a
transaction of its own and acknowledged before the next. It is no fair peer, since waiting for each
acknowledgement costs it most of its time. `bare` only consumes and produces.

What no source, no state and no graph can take away is in `full`: one exact count, the usage event, receipt,
citations, capture, compression. What it lacks is what makes them answer for more than such a request:
reading state, asking eight sources under timeouts, fusing, masking, metrics, dead letters, redelivery.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import sqlite3
import sys
import time
from collections.abc import Coroutine
from datetime import UTC, datetime
from typing import Any

import cramjam
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer

from schemas.request import AssemblyRequest
from worker.budget.layers import default_layers
from worker.budget.tokens import TokenCounter, counter_for

WINDOW, FRAMING = 128_000, 16
EMPTY = "0" * 64
RESERVED = default_layers(WINDOW)
OFF = {"graph", "semantic"}
NOTHING = {
    layer: {"status": "off", "reason": "subject_gated"}
    if layer in OFF
    else {"status": "empty", "reason": "no_data"}
    for layer in RESERVED
    if layer not in {"user", "output"}
}
COUNTS = dict.fromkeys(
    (
        "unknown_fields",
        "naive_times",
        "escaped_delimiters",
        "clamped_scores",
        "fragments_considered",
        "fragments_kept",
        "fragments_dropped",
    ),
    0,
)


def compact(value: object) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def instant(value: datetime) -> str:
    return value.isoformat().replace("+00:00", "Z")


def canonical(value: object) -> bytes:
    return json.dumps(value, ensure_ascii=False, sort_keys=True, separators=(",", ":")).encode()


def kept(request: AssemblyRequest, meaning: bytes, timestamp_ms: int) -> tuple[bytes, bytes]:
    """The receipt's record and the capture of such a request, whose sources have nothing."""
    sources = [
        {"layer": layer, **status, "digest": EMPTY, "fragments": 0, "capped": 0}
        for layer, status in NOTHING.items()
        if layer != "system"
    ]
    shared = {
        "as_of": instant(datetime.fromtimestamp(timestamp_ms / 1_000, UTC)),
        "settings_digest": EMPTY[:16],
        "code_version": EMPTY[:16],
        "model": "gpt-4o",
    }
    record = {
        **shared,
        "schema_version": "1.0",
        "kind": "receipt",
        "request_digest": sha256(meaning),
        "encoding": "o200k_base",
        "strategies": ["layered"],
        "failures": [],
        "sources": sources,
        "fragments": [],
        "omitted": [],
        "masked_secrets": 0,
    }
    capture = [compact({**shared, "subject": request.subject}), meaning, *map(compact, sources)]
    return canonical(record), b"\n".join(capture)


def answer(
    request: AssemblyRequest, counter: TokenCounter, record: bytes, timestamp_ms: int
) -> tuple[bytes, bytes]:
    """The bundle and the usage event of a request that holds a message and nothing else."""
    started = time.perf_counter()
    text = request.user_message
    tokens = counter.count(text)
    statuses = {**NOTHING, "user": {"status": "ok"}}
    spent = {**dict.fromkeys(RESERVED, 0), "user": tokens}
    usage = {
        "total": WINDOW - FRAMING,
        "spent": tokens,
        "remaining": WINDOW - FRAMING - tokens,
        "layers": {name: {"budget": budget, "spent": spent[name]} for name, budget in RESERVED.items()},
    }
    overhead = {"client": 0, "framing": FRAMING, "preamble": 0}
    bundle: dict[str, Any] = {
        "schema_version": "1.0",
        "kind": "bundle",
        "request_id": request.request_id,
        "project_id": request.project_id,
        "volk": request.volk,
        "subject": request.subject,
        "task_type": "DOCUMENT",
        "status": "complete",
        "messages": [{"role": "user", "content": text}],
        "layers": {
            layer: {
                **status,
                "tokens": spent[layer],
                "budget_tokens": RESERVED[layer],
                "reserved_tokens": RESERVED[layer],
                "fragments": 0,
            }
            for layer, status in statuses.items()
        },
        "usage": {**usage, "overhead": overhead, "exact": True},
        "citations": {"items": [], "must_cite": [], "unresolved": []},
        "receipt": {
            "receipt_id": sha256(compact([request.project_id, text]) + record)[:26],
            "counts": {"considered": 0, "kept": 0, "dropped": 0},
        },
        "context_hash": sha256(compact([{"content": text, "role": "user"}])),
        "assembled_at": instant(datetime.fromtimestamp(timestamp_ms / 1_000, UTC)),
    }
    event = {
        "schema_version": "1.0",
        "kind": "usage",
        "event_id": sha256(compact([request.project_id, request.request_id, 0]))[:26],
        "timestamp": instant(datetime.now(UTC)),
        "project_id": request.project_id,
        "request_id": request.request_id,
        "generation": 0,
        "volk_alias": request.volk,
        "subject": request.subject,
        "model": "gpt-4o",
        "outcome": "complete",
        "usage": usage,
        "requested_total": WINDOW,
        "overhead": overhead,
        "reserved": RESERVED,
        "statuses": statuses,
        "tokens_by_source": {},
        "timings_ms": {"total": round((time.perf_counter() - started) * 1_000, 3)},
        "exact": True,
        "counts": COUNTS,
        "masked_secrets": 0,
        "reusable_prefix_tokens": 0,
        "thread_id": None,
    }
    return compact(bundle), compact(event)


async def main(kind: str, bootstrap: str, prefix: str, database: str) -> None:
    # aiokafka leaves most of its types out.
    consumer: Any = AIOKafkaConsumer(
        prefix + "requests",
        bootstrap_servers=bootstrap,
        group_id=f"{kind}-{prefix}",
        auto_offset_reset="earliest",
        enable_auto_commit=False,
    )
    producer: Any = AIOKafkaProducer(
        bootstrap_servers=bootstrap, acks="all", compression_type="lz4", linger_ms=1, max_batch_size=1 << 20
    )
    connection = sqlite3.connect(database, isolation_level=None)
    connection.execute("PRAGMA journal_mode=WAL")
    connection.execute("PRAGMA synchronous=NORMAL")
    connection.execute(
        "CREATE TABLE outcomes (project TEXT, id TEXT, digest TEXT, record BLOB, PRIMARY KEY (project, id))"
    )
    counter = counter_for("o200k_base")
    await consumer.start()
    await producer.start()
    last_commit = time.monotonic()

    async def forward(body: bytes, key: bytes | None) -> None:
        await (await producer.send(prefix + "bundles", body, key=key))

    def answered(body: bytes, timestamp_ms: int) -> tuple[bytes, bytes, bytes]:
        request = AssemblyRequest.model_validate_json(body)
        meaning = request.meaning()
        record, capture = kept(request, meaning, timestamp_ms)
        reply, usage = answer(request, counter, record, timestamp_ms)
        connection.execute(
            "INSERT OR IGNORE INTO outcomes VALUES (?, ?, ?, ?)",
            (
                request.project_id,
                request.request_id,
                sha256(meaning),
                bytes(cramjam.zstd.compress(reply + usage + record + capture, 1)),
            ),
        )
        return request.project_id.encode(), reply, usage

    async def publish(key: bytes | None, project: bytes, reply: bytes, usage: bytes) -> None:
        headers = [("context-kind", b"bundle"), ("context-generation", b"0")]
        await (await producer.send(prefix + "bundles", reply, key=key, headers=headers))
        headers = [("context-kind", b"usage"), ("context-generation", b"0")]
        await (await producer.send(prefix + "usage", usage, key=project, headers=headers))

    def work(records: list[Any]) -> list[Coroutine[Any, Any, None]]:
        if kind == "bare":
            return [forward(record.value, record.key) for record in records]
        connection.execute("BEGIN")
        answers = [(record.key, *answered(record.value, record.timestamp)) for record in records]
        connection.execute("COMMIT")
        return [publish(*each) for each in answers]

    while True:
        batches = await consumer.getmany(timeout_ms=200)
        fetched = [record for records in batches.values() for record in records]
        for together in [[record] for record in fetched] if kind == "plain" else [fetched]:
            await asyncio.gather(*work(together))
        if time.monotonic() - last_commit > 0.5:
            await consumer.commit()
            last_commit = time.monotonic()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
