"""Another worker process: puts outcomes when told to, and says what the store held then.

Arguments: the store's address, this process's name, how many requests. One line on standard input starts
it; it writes one JSON list of the replies, and waits for the end of its input, or for SIGKILL.
"""

from __future__ import annotations

import asyncio
import json
import sys
from datetime import UTC, datetime

from tests.contract.backends import open_store
from worker.ports import OutcomeKey, OutcomeRecord


async def main(address: str, name: str, count: int) -> None:
    store = open_store(address)
    await store.check()
    _say("ready")
    sys.stdin.readline()

    async def put(number: int) -> str:
        held = await store.put_if_absent(
            OutcomeKey(project_id="p", request_id=f"r{number}"),
            OutcomeRecord(
                request_digest="d" * 64,
                as_of=datetime(2024, 1, 1, tzinfo=UTC),
                reply=f"{name} {number}".encode(),
                usage=None,
            ),
        )
        assert isinstance(held, OutcomeRecord)
        return held.reply.decode()

    replies = await asyncio.gather(*(put(number) for number in range(count)))
    _say(json.dumps(replies))
    sys.stdin.readline()
    await store.close()


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3])))
