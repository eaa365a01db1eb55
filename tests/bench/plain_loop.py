"""The peer that the worker is measured against: the same contractual work, written straight down.

`full` validates the request, counts the joined text once, puts the outcome if absent and produces twice;
`bare` only consumes and produces. Both commit every half second.
"""

from __future__ import annotations

import asyncio
import json
import sqlite3
import sys
import time
from typing import Any

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer

from schemas.request import AssemblyRequest
from worker.budget.tokens import counter_for


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
        bootstrap_servers=bootstrap, acks="all", compression_type="lz4", linger_ms=1
    )
    connection = sqlite3.connect(database, isolation_level=None)
    connection.execute("PRAGMA journal_mode=WAL")
    connection.execute("PRAGMA synchronous=NORMAL")
    connection.execute("CREATE TABLE IF NOT EXISTS outcomes (id TEXT PRIMARY KEY, body BLOB)")
    counter = counter_for("o200k_base")
    await consumer.start()
    await producer.start()
    pending: set[asyncio.Task[None]] = set()
    last_commit = time.monotonic()

    async def work(body: bytes, key: bytes | None) -> None:
        if kind == "bare":
            await (await producer.send(prefix + "bundles", body, key=key))
            return
        request = AssemblyRequest.model_validate_json(body)
        text = request.system_prompt + request.user_message
        reply = json.dumps(
            {"kind": "bundle", "request_id": request.request_id, "tokens": counter.count(text), "text": text}
        ).encode()
        usage = json.dumps({"kind": "usage", "request_id": request.request_id}).encode()
        connection.execute("INSERT OR IGNORE INTO outcomes VALUES (?, ?)", (request.request_id, reply))
        await (await producer.send(prefix + "bundles", reply, key=key))
        await (await producer.send(prefix + "usage", usage, key=key))

    while True:
        batches = await consumer.getmany(timeout_ms=200)
        for records in batches.values():
            for record in records:
                task = asyncio.create_task(work(record.value or b"", record.key))
                pending.add(task)
                task.add_done_callback(pending.discard)
        if pending:
            await asyncio.wait(pending)
        if time.monotonic() - last_commit > 0.5:
            await consumer.commit()
            last_commit = time.monotonic()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
