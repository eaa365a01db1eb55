from __future__ import annotations

import fcntl
import json
import os
import queue
import threading
from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from worker.usage.log import Rotation, read_usage_records, write_usage_record
from worker.usage.purge import purge_usage_records


def line(project_id: str, thread_id: str | None = None, **more: Any) -> bytes:
    return json.dumps({"project_id": project_id, "thread_id": thread_id, **more}).encode() + b"\n"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "logs" / "usage.jsonl"


def fill(path: Path, *lines: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"".join(lines))


def test_the_lines_of_a_project_go_and_all_others_stay_as_they_are(path: Path) -> None:
    kept = [line("shop2"), line("bank", model="shop"), b"{broken\n", b"\n", b"\xff\xfe\n", line("Shop")]
    fill(path, kept[0], line("shop"), *kept[1:3], line("shop", "t-1", text="\n"), *kept[3:])
    assert purge_usage_records("shop", path) == 2
    assert path.read_bytes() == b"".join(kept)
    assert purge_usage_records("shop", path) == 0


def test_of_a_thread_only_its_own_lines_go(path: Path) -> None:
    fill(path, line("shop", "t-1"), line("shop", "t-2"), line("shop"), line("bank", "t-1"))
    assert purge_usage_records("shop", path, thread_id="t-1") == 1
    assert path.read_bytes() == line("shop", "t-2") + line("shop") + line("bank", "t-1")


def test_a_line_that_a_writer_died_in_goes_where_it_names_the_project(path: Path) -> None:
    fill(path, line("bank"), b'{"event_id":"e","project_id":"shop","usage":{"to')
    assert purge_usage_records("shop", path) == 1
    assert path.read_bytes() == line("bank")


def test_rotated_files_are_purged_and_others_left_alone(path: Path) -> None:
    fill(path, line("shop"), line("bank"))
    old, odd = path.with_name("usage.jsonl.1"), path.with_name("usage.jsonl.bak")
    fill(old, line("bank", n=1), line("shop"))
    fill(odd, line("shop"))
    assert purge_usage_records("shop", path) == 2
    assert old.read_bytes() == line("bank", n=1)
    assert odd.read_bytes() == line("shop")
    path.unlink()
    fill(old, line("shop"))
    assert purge_usage_records("shop", path) == 1
    assert not path.exists()


def test_a_log_that_is_not_there_holds_nothing(path: Path) -> None:
    assert purge_usage_records("shop", path) == 0
    assert not path.parent.exists()


def test_a_link_stays_a_link_and_the_mode_stays(path: Path, tmp_path: Path) -> None:
    target = tmp_path / "elsewhere.jsonl"
    fill(target, line("shop"), line("bank"))
    target.chmod(0o640)
    path.parent.mkdir()
    path.symlink_to(target)
    assert purge_usage_records("shop", path) == 1
    assert path.is_symlink()
    assert target.read_bytes() == line("bank")
    assert target.stat().st_mode & 0o777 == 0o640


def test_a_device_is_left_alone() -> None:
    assert purge_usage_records("shop", "/dev/null") == 0


def test_a_locked_log_is_waited_for(path: Path) -> None:
    fill(path, line("shop"))
    descriptor = os.open(path, os.O_RDWR)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    removed: list[int] = []
    thread = threading.Thread(target=lambda: removed.append(purge_usage_records("shop", path)))
    thread.start()
    os.write(descriptor, line("bank") + line("shop"))
    os.ftruncate(descriptor, len(line("bank") + line("shop")))
    os.close(descriptor)
    thread.join()
    assert removed == [1]
    assert path.read_bytes() == line("bank")


def test_nothing_that_is_written_meanwhile_is_lost(path: Path) -> None:
    rotation = Rotation(max_bytes=4_000, max_old_files=100)
    fill(path, *(line("shop", n=n) for n in range(50)))

    # One purge for some writes each: writers wait for the lock, but not for ever.
    written: queue.SimpleQueue[bool] = queue.SimpleQueue()

    def write() -> None:
        for n in range(200):
            write_usage_record(line("bank", n=n), path, rotation=rotation)
            write_usage_record(line("shop", n=n), path, rotation=rotation)
            if n % 10 == 0:
                written.put(n == 190)

    thread = threading.Thread(target=write)
    thread.start()
    while not written.get():
        purge_usage_records("shop", path)
    thread.join()
    purge_usage_records("shop", path)
    records = list(read_usage_records(path, include_rotated=True))
    assert [record["n"] for record in records] == list(range(200))
    assert {record["project_id"] for record in records} == {"bank"}
    assert not list(path.parent.glob(".*"))


def _line_of(project_id: str, thread_id: str | None, text: str) -> bytes:
    return line(project_id, thread_id, text=text)[:-1]


lines = st.lists(
    st.binary(max_size=30).map(lambda data: data.replace(b"\n", b""))
    | st.builds(
        _line_of,
        st.sampled_from(["shop", "bank", "sho", "shop."]),
        st.sampled_from([None, "t-1", "shop"]),
        st.text(max_size=10) | st.just('"project_id":"shop"'),
    ),
    max_size=12,
)


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(found=lines, thread_id=st.sampled_from([None, "t-1"]), is_ended=st.booleans())
def test_what_stays_stays_byte_for_byte_in_its_order(
    path: Path, found: list[bytes], thread_id: str | None, *, is_ended: bool
) -> None:
    def is_meant(text: bytes) -> bool:
        try:
            record: Any = json.loads(text)
        except ValueError:
            return b'"project_id":"shop"' in text
        if not isinstance(record, dict) or cast("dict[str, Any]", record).get("project_id") != "shop":
            return False
        return thread_id in {None, cast("dict[str, Any]", record).get("thread_id")}

    pieces = [text + b"\n" for text in found]
    if pieces and not is_ended:
        pieces[-1] = pieces[-1][:-1]
    fill(path, *pieces)
    kept = [piece for piece in pieces if not is_meant(piece)]
    assert purge_usage_records("shop", path, thread_id=thread_id) == len(pieces) - len(kept)
    assert path.read_bytes() == b"".join(kept)
