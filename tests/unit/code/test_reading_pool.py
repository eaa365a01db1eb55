from __future__ import annotations

import os
import signal
import sys
import time

import pytest

from worker.code.facts_codec import decode_reading
from worker.code.reading import FileReaders, FileReading, read_python
from worker.code.reading_pool import IN_PROCESS_BYTES, read_files
from worker.code.reading_process import find_readers, name_readers
from worker.errors import StoreUnavailable

READERS = FileReaders()


def hostile(path: str, content: bytes) -> FileReading | None:
    """Does to its process what a parser with a fault would do."""
    if content.startswith(b"die"):
        os.kill(os.getpid(), signal.SIGKILL)
    if content.startswith(b"hang"):
        time.sleep(600)
    if content.startswith(b"print"):
        sys.stdout.write("this must not get into the answers\n")
    return FileReading(path=path, language="text")


HOSTILE = FileReaders(first=(hostile,))
# The children import this module by name.
pytestmark = pytest.mark.usefixtures("importable")


@pytest.fixture
def importable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hostile, "__module__", "tests.unit.code.test_reading_pool")


def test_processes_give_what_this_process_gives() -> None:
    deep = b"x = " + b"-" * 900 + b"1\n"
    jobs = [(f"m{n}.py", b"def f(): pass\n" * n) for n in range(40)] + [
        ("deep.py", deep),
        ("bad.py", b"def ("),
    ]
    alone = read_files(jobs, READERS)
    assert read_files(jobs, READERS, processes=1) == alone
    assert read_files(jobs, READERS, processes=3) == alone
    assert alone.keys() == dict(jobs).keys()
    assert all(decode_reading(encoded) == reading for reading, encoded in alone.values())


def test_how_deep_source_may_nest_is_the_same_in_every_process() -> None:
    jobs = [(f"d{depth}.py", b"x = " + b"+".join([b"1"] * depth) + b"\n") for depth in range(2_600, 3_100, 3)]
    statuses = {path: reading.status for path, (reading, _) in read_files(jobs, READERS).items()}
    assert set(statuses.values()) == {"parsed", "failed"}
    inside = read_files(jobs, READERS, processes=2)
    assert {path: reading.status for path, (reading, _) in inside.items()} == statuses


def test_many_bytes_are_read_by_processes_and_progress_is_told() -> None:
    jobs = [(f"m{n}.py", b"x = 1\n" * 20_000) for n in range(IN_PROCESS_BYTES // 120_000 + 2)]
    counts: list[int] = []
    assert read_files(jobs, READERS, on_read=counts.append).keys() == dict(jobs).keys()
    assert counts == list(range(1, len(jobs) + 1))


@pytest.mark.parametrize("processes", [1, 3])
def test_a_file_that_ends_its_process_costs_no_other_file(processes: int) -> None:
    jobs = [(f"f{n}.txt", b"die" if n % 7 == 0 else b"print") for n in range(30)]
    found = read_files(jobs, HOSTILE, processes=processes)
    for path, content in jobs:
        reading = found[path][0]
        if content == b"die":
            assert (reading.status, reading.reason) == ("failed", "ended the process that read it")
        else:
            assert reading.status == "parsed"


def test_a_file_that_takes_too_long_costs_no_other_file() -> None:
    jobs = [("a.txt", b"fine"), ("b.txt", b"hang"), ("c.txt", b"fine")]
    found = read_files(jobs, HOSTILE, processes=1, max_file_seconds=2.0)
    assert {path: reading.reason for path, (reading, _) in found.items()} == {
        "a.txt": "",
        "b.txt": "took too long to read",
        "c.txt": "",
    }


def test_a_process_that_is_not_ready_in_time_is_unavailable() -> None:
    with pytest.raises(StoreUnavailable, match="not ready in time"):
        read_files([("a.txt", b"fine")], HOSTILE, processes=1, max_start_seconds=0.0)


def test_no_files_give_no_readings() -> None:
    assert read_files([], READERS) == {}
    assert read_files([], READERS, processes=2) == {}


def test_readers_are_found_by_their_names() -> None:
    readers = FileReaders(first=(read_python,), also=(hostile,))
    found = find_readers(name_readers(readers))
    assert found.first == (read_python,)
    assert [reader.__qualname__ for reader in found.also] == ["hostile"]
