"""Lines into the usage log and out of it again, whatever else happens to the file."""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import resource
import subprocess
import sys
import threading
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import pytest
import structlog.testing
from blockbuster import blockbuster_ctx
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from schemas.usage import UsageEvent
from worker.usage.log import (
    Rotation,
    UsageLog,
    read_usage_records,
    tell_of_losses,
    usage_log_path,
    write_usage_record,
)

ROOT = Path(__file__).parents[3]
EVENT = UsageEvent.model_validate(
    {
        "event_id": "e1",
        "timestamp": "2024-05-01T12:00:00Z",
        "project_id": "p",
        "request_id": "r",
        "generation": 0,
        "volk_alias": "smith",
        "subject": "implement",
        "thread_id": None,
        "model": "gpt-4o",
        "outcome": "complete",
        "usage": {
            "total": 100,
            "spent": 7,
            "remaining": 93,
            "layers": {"user": {"budget": 20, "spent": 7}},
        },
        "requested_total": 128,
        "overhead": {"client": 1, "framing": 2, "preamble": 0},
        "reserved": {"user": 20},
        "statuses": {"user": {"status": "ok"}},
        "timings_ms": {"total": 1.5},
        "exact": True,
        "counts": {},
    }
)

texts = st.text(st.characters(exclude_categories=["Cs"]))
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=8,
)
objects = st.dictionaries(texts, values, max_size=4)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "logs" / "usage.jsonl"


def _numbers(path: Path, *, include_rotated: bool = False) -> list[object]:
    return [record["n"] for record in read_usage_records(path, include_rotated=include_rotated)]


# --- Where -------------------------------------------------------------------------------------------


def test_an_explicit_path_wins_over_the_environment_and_that_over_the_default() -> None:
    env = {"ORCHESTRATA_CONTEXT_USAGE_LOG": "/from/env.jsonl"}
    assert usage_log_path("explicit.jsonl", env=env) == Path("explicit.jsonl")
    assert usage_log_path(env=env) == Path("/from/env.jsonl")
    assert usage_log_path(env={"ORCHESTRATA_CONTEXT_USAGE_LOG": ""}) == Path("logs/context_usage.jsonl")
    assert usage_log_path(env={}) == Path("logs/context_usage.jsonl")


def test_the_environment_is_read_at_each_call(tmp_path: Path) -> None:
    env: dict[str, str] = {}
    for name in ("one", "two"):
        env["ORCHESTRATA_CONTEXT_USAGE_LOG"] = str(tmp_path / name)
        write_usage_record(b'{"n":1}', env=env)
    assert _numbers(tmp_path / "one") == _numbers(tmp_path / "two") == [1]


def test_without_any_path_the_log_lies_in_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write_usage_record(b'{"n":1}', env={})
    assert _numbers(tmp_path / "logs" / "context_usage.jsonl") == [1]


# --- Writing and reading -----------------------------------------------------------------------------


def test_an_event_is_one_compact_line_in_a_directory_made_for_it(path: Path) -> None:
    write_usage_record(EVENT, path)
    (line,) = path.read_bytes().splitlines()
    assert line.startswith(b'{"schema_version":"1.0","kind":"usage","event_id":"e1","timestamp":"2024-05-01T')
    (record,) = read_usage_records(path)
    assert UsageEvent.model_validate(record) == EVENT


def test_the_bytes_of_an_event_are_appended_as_they_are(path: Path) -> None:
    line = b'{"b":1.0,"a":"\xc3\xa9","c":1e5}'
    write_usage_record(line, path)
    assert path.read_bytes() == line + b"\n"


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(records=st.lists(objects, max_size=5), indent=st.sampled_from([None, 2]))
def test_what_was_written_is_what_is_read(
    path: Path, records: list[dict[str, object]], indent: int | None
) -> None:
    path.unlink(missing_ok=True)
    for record in records:
        write_usage_record(json.dumps(record, indent=indent, ensure_ascii=False).encode(), path)
    assert list(read_usage_records(path)) == records


@settings(max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(garbage=st.lists(st.binary(max_size=40), max_size=4))
def test_garbage_between_records_hides_none_of_them(path: Path, garbage: list[bytes]) -> None:
    path.parent.mkdir(exist_ok=True)
    parts = [b'{"n":0}', *(b"#" + line.replace(b"\n", b"") for line in garbage), b'{"n":1}']
    path.write_bytes(b"\n".join(parts) + b"\n")
    assert _numbers(path) == [0, 1]


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"   \t",
        b"not json",
        b"[1, 2]",
        b'"text"',
        b"17",
        b"null",
        b'{"n": NaN}',
        b'{"n": Infinity}',
        b'{"n": "\xff\xfe"}',
        b'{"n": "\\ud800"}',
        b'{"n": 1',
        b'{"n": 1} {"n": 2}',
        b'{"n":' * 5_000,
        b"[" * 100_000,
        '{"n":1}'.encode("utf-16"),
        b"\x00" * 50,
    ],
)
def test_a_line_that_is_no_json_object_is_skipped(path: Path, line: bytes) -> None:
    path.parent.mkdir()
    path.write_bytes(b'{"n":0}\n' + line + b'\n{"n":9}\r\n\n')
    assert _numbers(path) == [0, 9]


def test_a_last_line_that_is_cut_off_is_skipped_and_does_not_swallow_the_next(path: Path) -> None:
    path.parent.mkdir()
    path.write_bytes(b'{"n":0}\n{"n":1,"cut')
    assert _numbers(path) == [0]
    write_usage_record(b'{"n":2}', path)
    assert _numbers(path) == [0, 2]


def test_a_last_line_without_its_line_break_is_read(path: Path) -> None:
    path.parent.mkdir()
    path.write_bytes(b'\xef\xbb\xbf{"n":0}\n{"n":1}')
    assert _numbers(path) == [0, 1]


def test_a_line_of_twenty_megabytes_is_skipped(path: Path) -> None:
    path.parent.mkdir()
    path.write_bytes(b'{"n":0}\n{"n":"' + b"x" * 20_000_000 + b'"}\n{"n":2}\n')
    assert _numbers(path) == [0, 2]


def test_a_log_that_does_not_exist_holds_nothing(path: Path) -> None:
    assert list(read_usage_records(path, include_rotated=True)) == []


def test_a_device_may_stand_for_the_log() -> None:
    write_usage_record(b'{"n":1}', "/dev/null")
    assert list(read_usage_records("/dev/null")) == []


def test_what_cannot_be_written_is_an_os_error_and_leaves_no_part_of_a_line(path: Path) -> None:
    write_usage_record(b'{"n":0}', path)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, hard))
    try:
        with pytest.raises(OSError, match="File too large"):
            write_usage_record(b'{"n":"' + b"x" * 200_000 + b'"}', path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert path.read_bytes() == b'{"n":0}\n'


def test_a_directory_that_cannot_be_made_is_an_os_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match="file"):
        write_usage_record(b"{}", tmp_path / "file" / "usage.jsonl")


# --- Rotation and several writers --------------------------------------------------------------------


def test_a_log_that_is_full_is_rotated_and_only_so_many_old_ones_are_kept(path: Path) -> None:
    rotation = Rotation(max_bytes=20, max_old_files=2)
    for number in range(9):
        write_usage_record(b'{"n":%d}' % number, path, rotation=rotation)
    assert {file.name: file.read_bytes() for file in path.parent.iterdir()} == {
        "usage.jsonl": b'{"n":8}\n',
        "usage.jsonl.1": b'{"n":6}\n{"n":7}\n',
        "usage.jsonl.2": b'{"n":4}\n{"n":5}\n',
    }
    assert _numbers(path) == [8]
    assert _numbers(path, include_rotated=True) == [4, 5, 6, 7, 8]


def test_a_line_longer_than_a_file_may_be_is_still_written(path: Path) -> None:
    rotation = Rotation(max_bytes=10, max_old_files=3)
    for number in range(3):
        write_usage_record(b'{"n":%d,"long":"long"}' % number, path, rotation=rotation)
    assert _numbers(path, include_rotated=True) == [0, 1, 2]


def test_old_files_beyond_a_lowered_limit_go_at_the_next_rotation(path: Path) -> None:
    for number in range(8):
        write_usage_record(b'{"n":%d}' % number, path, rotation=Rotation(max_bytes=8, max_old_files=12))
    write_usage_record(b'{"n":8}', path, rotation=Rotation(max_bytes=8, max_old_files=2))
    assert sorted(file.name for file in path.parent.iterdir()) == [
        "usage.jsonl",
        "usage.jsonl.1",
        "usage.jsonl.2",
    ]


def test_files_that_only_look_like_old_logs_are_left_alone(path: Path) -> None:
    path.parent.mkdir()
    strangers = ["usage.jsonl.bak", "usage.jsonl.0", "usage.jsonl.01", "usage.jsonl.1.gz", "usageXjsonl.1"]
    for name in strangers:
        (path.parent / name).write_text("{}")
    for number in range(4):
        write_usage_record(b'{"n":%d}' % number, path, rotation=Rotation(max_bytes=8, max_old_files=1))
    assert {file.name for file in path.parent.iterdir()} == {*strangers, "usage.jsonl", "usage.jsonl.1"}
    assert _numbers(path, include_rotated=True) == [2, 3]


def test_a_rotation_in_the_middle_of_reading_loses_and_repeats_nothing(path: Path) -> None:
    rotation = Rotation(max_bytes=16, max_old_files=9)
    for number in range(6):
        write_usage_record(b'{"n":%d}' % number, path, rotation=rotation)
    records = read_usage_records(path, include_rotated=True)
    seen = [next(records)["n"]]
    for number in range(6, 12):
        write_usage_record(b'{"n":%d}' % number, path, rotation=rotation)
    seen += [record["n"] for record in records]
    assert seen == [0, 1, 2, 3, 4, 5]


@pytest.mark.parametrize(("max_bytes", "max_old_files"), [(0, 1), (1, 0)])
def test_a_rotation_that_keeps_nothing_is_refused(max_bytes: int, max_old_files: int) -> None:
    with pytest.raises(ValueError, match="positive"):
        Rotation(max_bytes=max_bytes, max_old_files=max_old_files)


@pytest.mark.parametrize("max_bytes", [10**9, 100_000], ids=["one file", "rotating"])
def test_two_processes_that_append_a_thousand_lines_each_lose_and_mix_none(
    path: Path, max_bytes: int
) -> None:
    children = [
        subprocess.Popen(
            [sys.executable, "-m", "tests.unit.usage.usage_child", path, name, "1000", str(max_bytes)],
            cwd=ROOT,
        )
        for name in ("left", "right")
    ]
    assert [child.wait() for child in children] == [0, 0]
    numbers: dict[object, list[object]] = {"left": [], "right": []}
    for record in read_usage_records(path, include_rotated=True):
        numbers[record["writer"]].append(record["number"])
        assert record["padding"] == "x" * (json.loads(str(record["number"])) * 37 % 9_000)
    assert numbers == {"left": list(range(1_000)), "right": list(range(1_000))}
    sizes = [file.stat().st_size for file in path.parent.iterdir()]
    assert max(sizes) <= max_bytes
    assert len(sizes) == 1 if max_bytes == 10**9 else len(sizes) > 80


# --- The log of a worker -----------------------------------------------------------------------------


@contextmanager
def _locked(path: Path) -> Generator[None]:
    """As a process that was stopped inside its write holds the file."""
    path.parent.mkdir(exist_ok=True)
    with path.open("ab") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


async def test_lines_are_written_in_order_and_all_of_them(path: Path) -> None:
    log = UsageLog(path)
    for number in range(3_000):
        log.append(b'{"n":%d}' % number)
    await log.flush()
    assert _numbers(path) == list(range(3_000))
    log.append(b'{"n":3000}')
    await log.close()
    assert _numbers(path) == list(range(3_001))


async def test_appending_and_closing_block_nobody(path: Path) -> None:
    with blockbuster_ctx():
        log = UsageLog(path)
        log.append(b'{"n":0}')
        await log.flush()
        log.append(b'{"n":1}')
        await log.close()
    assert _numbers(path) == [0, 1]


async def test_the_environment_may_name_another_file_while_the_worker_runs(tmp_path: Path) -> None:
    env = {"ORCHESTRATA_CONTEXT_USAGE_LOG": str(tmp_path / "a")}
    log = UsageLog(env=env)
    log.append(b'{"n":1}')
    await log.flush()
    env["ORCHESTRATA_CONTEXT_USAGE_LOG"] = str(tmp_path / "b")
    log.append(b'{"n":2}')
    await log.close()
    assert (_numbers(tmp_path / "a"), _numbers(tmp_path / "b")) == ([1], [2])


async def test_lines_that_cannot_be_written_are_counted_and_later_ones_are_written(tmp_path: Path) -> None:
    failures: list[tuple[int, str]] = []
    obstacle = tmp_path / "logs"
    obstacle.write_text("")
    log = UsageLog(
        obstacle / "usage.jsonl",
        on_failure=lambda lines, error: failures.append((lines, type(error).__name__)),
    )
    log.append(b'{"n":0}')
    await log.flush()
    os.remove(obstacle)  # noqa: PTH107  # the rule for coroutines refuses the other spelling
    log.append(b'{"n":1}')
    await log.close()
    assert failures == [(1, "FileExistsError")]
    assert _numbers(obstacle / "usage.jsonl") == [1]


async def test_lines_beyond_the_limit_are_lost_and_counted_while_the_file_is_stuck(path: Path) -> None:
    failures: list[int] = []
    log = UsageLog(path, max_waiting_lines=10, on_failure=lambda lines, _: failures.append(lines))
    with _locked(path):
        for number in range(100):
            log.append(b'{"n":%d}' % number)
        lost = sum(failures)
    await log.close()
    assert 80 <= lost <= 90
    assert len(_numbers(path)) == 100 - lost


async def test_a_file_that_stays_locked_costs_its_lines_and_ends_the_waiting(path: Path) -> None:
    failures: list[tuple[int, str]] = []
    log = UsageLog(path, on_failure=lambda lines, error: failures.append((lines, error.strerror or "")))
    with _locked(path):
        log.append(b'{"n":0}')
        async with asyncio.timeout(4):
            await log.flush()
    assert failures == [(1, "locked by another process")]
    await log.close()


async def test_closing_waits_only_so_long_and_counts_what_is_left(path: Path) -> None:
    failures: list[int] = []
    is_first_taken = threading.Event()
    env = _Telling(is_first_taken, {"ORCHESTRATA_CONTEXT_USAGE_LOG": str(path)})
    log = UsageLog(env=env, on_failure=lambda lines, _: failures.append(lines))
    with _locked(path):
        log.append(b'{"n":0}')
        await asyncio.to_thread(is_first_taken.wait)
        for number in range(1, 5):
            log.append(b'{"n":%d}' % number)
        await log.close(timeout_seconds=0.05)
        assert failures == [4]
    # The line that the thread had in hand is written once the lock is free.
    await asyncio.to_thread(log._executor.shutdown)  # pyright: ignore[reportPrivateUsage]  # to see its end
    assert _numbers(path) == [0]


async def test_a_closed_log_counts_what_comes_late_and_may_be_closed_again(path: Path) -> None:
    failures: list[int] = []
    threads = set(threading.enumerate())
    log = UsageLog(path, on_failure=lambda lines, _: failures.append(lines))
    log.append(b'{"n":0}')
    await log.close()
    await log.close()
    await log.flush()
    log.append(b'{"n":1}')
    assert failures == [1]
    assert _numbers(path) == [0]
    assert not [t for t in set(threading.enumerate()) - threads if t.name.startswith("usage log")]


async def test_a_log_that_was_never_used_makes_no_file(path: Path) -> None:
    await UsageLog(path).close()
    assert not path.parent.exists()


class _Telling(dict[str, str]):
    """An environment that says when it was asked."""

    def __init__(self, asked: threading.Event, values: dict[str, str]) -> None:
        super().__init__(values)
        self._asked = asked

    def get(self, key: str, default: str | None = None) -> str | None:  # pyright: ignore[reportIncompatibleMethodOverride]  # the one overload that is used
        self._asked.set()
        return super().get(key, default)


async def test_each_lost_line_is_counted_and_why_is_said_once_a_minute(tmp_path: Path) -> None:
    """As the worker has it: the log's name is that of a folder."""
    lost: list[int] = []
    now = 1_000.0
    log = UsageLog(tmp_path, on_failure=tell_of_losses(lost.append, clock=lambda: now))
    with structlog.testing.capture_logs() as told:
        for seconds in (0, 59, 1, 59):
            now += seconds
            log.append(b"{}")
            await log.flush()
    await log.close()
    assert sum(lost) == 4
    assert [entry["event"] for entry in told] == ["usage_log.failed"] * 2
    assert "Is a directory" in told[0]["error"]
