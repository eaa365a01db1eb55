from __future__ import annotations

import gzip
import json
from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from worker.load.recording import (
    RecordedRecord,
    Recording,
    RecordingError,
    RecordingHeader,
    RecordingWriter,
)

HEADER = RecordingHeader(origin="recorded", created_at=datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC))
records = st.builds(
    RecordedRecord,
    partition=st.integers(0, 11),
    timestamp_ms=st.integers(0, 2**41),
    key=st.none() | st.binary(max_size=20) | st.text(max_size=20).map(str.encode),
    value=st.none() | st.binary(max_size=200) | st.text(max_size=200).map(str.encode),
    headers=st.lists(st.tuples(st.text(max_size=10), st.binary(max_size=20)), max_size=3).map(tuple),
)


def write(path: Path, items: list[RecordedRecord]) -> Path:
    with RecordingWriter(path, HEADER, force=True) as writer:
        for item in items:
            writer.add(item)
            writer.flush()
    return path


@settings(max_examples=40)
@given(items=st.lists(records, max_size=6))
def test_what_was_written_is_read(tmp_path_factory: pytest.TempPathFactory, items: list[RecordedRecord]):
    path = write(tmp_path_factory.getbasetemp() / "a.rec", items)
    recording = Recording(path)
    assert list(recording) == items
    assert recording.is_complete
    assert recording.header() == HEADER
    assert not path.with_name("a.rec.partial").exists()


@settings(max_examples=40)
@given(items=st.lists(records, min_size=1, max_size=6), share=st.floats(0, 1))
def test_a_file_that_was_cut_anywhere_gives_its_first_whole_records(
    tmp_path_factory: pytest.TempPathFactory, items: list[RecordedRecord], share: float
):
    path = write(tmp_path_factory.getbasetemp() / "b.rec", items)
    data = path.read_bytes()
    path.write_bytes(data[: int(len(data) * share)])
    recording = Recording(path)
    try:
        found = list(recording)
    except RecordingError:  # not even the header is whole
        found = []
    assert found == items[: len(found)]
    assert not recording.is_complete or found == items


def test_what_was_flushed_is_read_while_the_writer_goes_on(tmp_path: Path):
    writer = RecordingWriter(tmp_path / "a.rec", HEADER)
    item = RecordedRecord(partition=1, timestamp_ms=2, key=b"k", value=b"\xff" * 300_000)
    writer.add(item)
    writer.flush()
    writer.add(item)  # still within the compressor, as after a SIGKILL
    partial = Recording(tmp_path / "a.rec.partial")
    assert list(partial) == [item]
    assert not partial.is_complete
    assert not (tmp_path / "a.rec").exists()
    writer.finish()
    assert list(Recording(tmp_path / "a.rec")) == [item, item]


def test_a_failure_leaves_the_partial_file_and_no_other(tmp_path: Path):
    item = RecordedRecord(partition=1, timestamp_ms=2, key=None, value=None)
    writer = RecordingWriter(tmp_path / "a.rec", HEADER)
    writer.add(item)
    writer.__exit__(ZeroDivisionError, ZeroDivisionError(), None)
    assert [path.name for path in tmp_path.iterdir()] == ["a.rec.partial"]
    assert list(Recording(tmp_path / "a.rec.partial")) == [item]


def test_nothing_is_overwritten_unless_forced(tmp_path: Path):
    path = write(tmp_path / "a.rec", [])
    with pytest.raises(FileExistsError, match=r"a\.rec is there"):
        RecordingWriter(path, HEADER)
    path.rename(tmp_path / "a.rec.partial")
    with pytest.raises(FileExistsError, match="interrupted"):
        RecordingWriter(path, HEADER)
    RecordingWriter(path, HEADER, force=True).finish()
    assert list(Recording(path)) == []


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        (["[]"], "no recording"),
        (['{"format": "other"}'], "no recording"),
        (['{"format": "context-recording", "version": 2}'], "version 2"),
        (["HEADER", "{"], "line 2"),
        (["HEADER", "[" * 100_000], "line 2"),
        (["HEADER", '{"partition": -1}'], "record 1"),
        (["HEADER", "RECORD", '{"end": true, "records": 2}'], "2 records and has 1"),
        (["HEADER", '{"partition":0,"timestamp_ms":0,"key":{"base64":"!"},"value":null,"headers":[]}'], "1"),
    ],
)
def test_a_file_that_is_none_or_damaged_is_said_to_be(tmp_path: Path, lines: list[str], said: str):
    known = {
        "HEADER": json.dumps(
            {
                "format": "context-recording",
                "version": 1,
                "origin": "recorded",
                "created_at": "2026-01-02T00:00:00Z",
            }
        ),
        "RECORD": json.dumps({"partition": 0, "timestamp_ms": 0, "key": None, "value": None, "headers": []}),
    }
    path = tmp_path / "a.rec"
    path.write_bytes(gzip.compress("".join(known.get(line, line) + "\n" for line in lines).encode()))
    with pytest.raises(RecordingError, match=said):
        list(Recording(path))


def test_bytes_that_are_not_compressed_or_flipped_are_said_to_be_damaged(tmp_path: Path):
    path = write(
        tmp_path / "a.rec", [RecordedRecord(partition=0, timestamp_ms=0, key=None, value=b"x" * 999)]
    )
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 0xFF
    path.write_bytes(data)
    with pytest.raises(RecordingError):
        list(Recording(path))
    path.write_text("no gzip at all")
    with pytest.raises(RecordingError, match="no recording"):
        Recording(path).header()
