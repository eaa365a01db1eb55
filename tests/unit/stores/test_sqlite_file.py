"""How one SQLite file is shared by the callers of an event loop."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections.abc import AsyncGenerator
from pathlib import Path

import pytest

from worker.errors import StoreUnavailable
from worker.stores.sqlite_file import SqliteFile


def _file(tmp_path: Path, *, timeout_seconds: float = 5.0) -> SqliteFile:
    return SqliteFile(
        tmp_path / "numbers.db",
        schema=("CREATE TABLE numbers (n INTEGER)",),
        schema_version=1,
        timeout_seconds=timeout_seconds,
    )


@pytest.fixture
async def file(tmp_path: Path) -> AsyncGenerator[SqliteFile]:
    opened = _file(tmp_path)
    yield opened
    await opened.close()


async def _insert(file: SqliteFile, number: int) -> int:
    return await file.write(
        lambda connection, _: connection.execute("INSERT INTO numbers VALUES (?)", (number,)).rowcount
    )


async def _numbers(file: SqliteFile) -> list[int]:
    rows = await file.read(lambda connection: connection.execute("SELECT n FROM numbers").fetchall())
    return [number for (number,) in rows]


async def test_what_is_asked_in_one_turn_of_the_loop_is_one_transaction(file: SqliteFile) -> None:
    statements: list[str] = []
    await file.read(lambda connection: connection.set_trace_callback(statements.append))
    await asyncio.gather(*(_insert(file, n) for n in range(50)))
    assert statements.count("COMMIT") == 1 + 1  # the first is that of the read that began to listen
    assert await _numbers(file) == list(range(50))


async def test_a_caller_that_is_cancelled_before_the_hand_over_takes_nobody_along(file: SqliteFile) -> None:
    asking = [asyncio.create_task(_insert(file, n)) for n in range(3)]
    await asyncio.sleep(0)
    asking[1].cancel()
    answers = await asyncio.gather(*asking, return_exceptions=True)
    assert [answers[0], answers[2]] == [1, 1]
    assert isinstance(answers[1], asyncio.CancelledError)


async def test_a_disk_that_hangs_is_given_up_in_time_and_used_when_it_answers(tmp_path: Path) -> None:
    file = _file(tmp_path, timeout_seconds=0.05)
    is_released = threading.Event()

    def hang(connection: sqlite3.Connection) -> int:
        is_released.wait(30)
        return connection.total_changes

    stuck = await asyncio.gather(*(file.read(hang) for _ in range(2)), return_exceptions=True)
    assert [type(answer) for answer in stuck] == [StoreUnavailable] * 2
    is_released.set()
    while True:
        try:
            assert await _insert(file, 7) == 1
            break
        except StoreUnavailable:  # the thread has not got round to it on a slow machine
            continue
    await file.close()


async def test_what_is_asked_in_the_turn_of_the_closing_is_still_done(tmp_path: Path) -> None:
    file = _file(tmp_path)
    await _insert(file, 1)
    asking = asyncio.create_task(_insert(file, 2))
    await asyncio.sleep(0)
    await file.close()
    assert await asking == 1


def test_an_event_loop_that_ended_before_the_hand_over_holds_up_no_other(tmp_path: Path) -> None:
    file = _file(tmp_path)

    async def ask_and_leave() -> None:
        task = asyncio.ensure_future(_insert(file, 1))
        task.add_done_callback(lambda _: None)
        asyncio.get_running_loop().stop()
        await asyncio.sleep(0)

    loop = asyncio.new_event_loop()
    left = loop.create_task(ask_and_leave())
    loop.run_forever()
    for task in asyncio.all_tasks(loop):
        task.cancel()
    loop.run_until_complete(asyncio.gather(left, return_exceptions=True))
    loop.close()

    async def use() -> list[int]:
        await _insert(file, 2)
        found = await _numbers(file)
        await file.close()
        return found

    assert asyncio.run(use())[-1] == 2
