"""How one SQLite file is shared by the callers of an event loop."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections.abc import AsyncGenerator
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from worker.errors import StoreUnavailable
from worker.stores import sqlite_file
from worker.stores.sqlite_file import SqliteFile
from worker.stores.sqlite_log import LogKeeper


class Panic(BaseException):
    """As a Rust extension raises it: not an Exception."""


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


async def _insert_in_the_end(file: SqliteFile, number: int) -> None:
    """For a file of little patience: on a slow machine the thread may not get round to it at once."""
    while True:
        try:
            assert await _insert(file, number) == 1
        except StoreUnavailable:
            continue
        return


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
    await _insert_in_the_end(file, 7)
    await file.close()


@pytest.mark.parametrize("error", [RuntimeError("can't start new thread"), FileNotFoundError("the log")])
async def test_upkeep_that_fails_costs_nothing_but_a_line_of_the_log(
    file: SqliteFile, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def fail(keeper: LogKeeper, connection: sqlite3.Connection) -> None:
        raise error

    monkeypatch.setattr(LogKeeper, "committed", fail)
    with capture_logs() as lines:
        assert [await _insert(file, n) for n in range(2)] == [1, 1]
        # Done by the same thread, so after the upkeep.
        assert await _numbers(file) == [0, 1]
    assert {(line["event"], line["error"]) for line in lines} == {("sqlite.upkeep_failed", str(error))}


@pytest.mark.parametrize("defect", [Panic("in an extension"), MemoryError()])
async def test_a_defect_is_raised_where_the_caller_waits_and_ends_no_thread(
    file: SqliteFile, defect: BaseException
) -> None:
    def fail(*_: object) -> int:
        raise defect

    await _insert(file, 1)
    calls = (file.read(fail), file.write(lambda _, prepared: prepared, prepare=fail), _insert(file, 2))
    answers = await asyncio.gather(*calls, return_exceptions=True)
    assert answers == [defect, defect, 1]
    assert await _numbers(file) == [1, 2]


@pytest.mark.parametrize("defect", [Panic("in an extension"), MemoryError()])
async def test_a_defect_in_opening_the_file_ends_no_thread(
    file: SqliteFile, monkeypatch: pytest.MonkeyPatch, defect: BaseException
) -> None:
    def fail(*_: object, **__: object) -> sqlite3.Connection:
        raise defect

    with monkeypatch.context() as patch:
        patch.setattr(sqlite3, "connect", fail)
        with pytest.raises(type(defect)):
            await _insert(file, 1)
    assert await _insert(file, 1) == 1


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
async def test_a_thread_that_is_not_alive_is_started_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = _file(tmp_path, timeout_seconds=0.05)
    await _insert_in_the_end(file, 1)
    ended: list[threading.Thread] = []

    def end(_: object) -> None:
        ended.append(threading.current_thread())
        raise MemoryError

    with monkeypatch.context() as patch:
        patch.setattr(sqlite_file, "_deliver", end)
        with pytest.raises(StoreUnavailable, match="no answer within"):
            await _insert(file, 2)
        await asyncio.to_thread(lambda: [thread.join() for thread in ended])
    await _insert_in_the_end(file, 3)
    await file.close()


async def test_a_thread_that_cannot_be_started_is_an_outage_and_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = _file(tmp_path)

    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        with pytest.raises(StoreUnavailable, match=r"numbers.db: can't start new thread"):
            await _insert(file, 1)
    assert await _insert(file, 1) == 1
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
