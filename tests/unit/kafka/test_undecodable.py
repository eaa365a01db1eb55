from __future__ import annotations

import pytest
from aiokafka import TopicPartition
from aiokafka.errors import CorruptRecordException
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.dispatching import batch_of
from worker.kafka.undecodable import first_undecodable

TP = TopicPartition("requests", 3)
BAD = (b"\xff\xfe", b"v")
GOOD = (b"name", b"v")


@pytest.mark.parametrize("codec", range(5), ids=["none", "gzip", "snappy", "lz4", "zstd"])
def test_the_record_comes_out_as_it_was_sent_whatever_the_codec(codec: int):
    batches = batch_of([(b"key", b"value", [GOOD, BAD, (b"n", None)])], codec=codec, base_offset=40)
    record = first_undecodable(TP, batches, from_offset=40)
    assert record is not None
    assert (record.topic, record.partition, record.offset) == ("requests", 3, 40)
    assert (record.key, record.value) == (b"key", b"value")
    assert record.headers == (("name", b"v"), ("\\xff\\xfe", b"v"), ("n", None))


def test_null_keys_and_values_stay_null():
    record = first_undecodable(TP, batch_of([(None, None, [BAD])]), from_offset=0)
    assert record is not None
    assert (record.key, record.value) == (None, None)


def test_a_readable_record_is_left_to_the_consumer():
    assert first_undecodable(TP, batch_of([(None, b"v", [GOOD])]), from_offset=0) is None


def test_a_readable_record_before_it_is_never_skipped():
    batches = batch_of([(None, b"first", []), (None, b"second", [BAD])])
    assert first_undecodable(TP, batches, from_offset=0) is None
    record = first_undecodable(TP, batches, from_offset=1)
    assert record is not None
    assert record.offset == 1


def test_it_is_found_in_a_later_batch_and_behind_a_gap():
    batches = batch_of([(None, b"old", [])], base_offset=5) + batch_of([(None, b"v", [BAD])], base_offset=9)
    record = first_undecodable(TP, batches, from_offset=7)
    assert record is not None
    assert record.offset == 9


@pytest.mark.parametrize("cut", [1, 30, 61, 70])
def test_a_batch_that_was_not_fetched_whole_is_left_out(cut: int):
    whole = batch_of([(None, b"value", [GOOD])])
    assert first_undecodable(TP, whole + batch_of([(None, b"v" * 50, [BAD])])[:cut], from_offset=1) is None
    assert first_undecodable(TP, b"", from_offset=0) is None


@pytest.mark.parametrize("missing", [1, 5, 9])
def test_a_batch_that_is_shorter_than_its_records_is_said_to_be_corrupt(missing: int):
    batch = bytearray(batch_of([(None, b"value", [BAD])]))
    del batch[-missing:]
    batch[8:12] = (len(batch) - 12).to_bytes(4, "big")
    with pytest.raises(CorruptRecordException):
        first_undecodable(TP, bytes(batch), from_offset=0)


_bytes = st.binary(max_size=20)
_headers = st.lists(st.tuples(_bytes, st.none() | _bytes), max_size=4)


@settings(max_examples=100)
@given(
    records=st.lists(st.tuples(st.none() | _bytes, st.none() | _bytes, _headers), min_size=1, max_size=5),
    start=st.integers(0, 6),
)
def test_it_agrees_with_the_records_that_were_sent(
    records: list[tuple[bytes | None, bytes | None, list[tuple[bytes, bytes | None]]]], start: int
):
    found = first_undecodable(TP, batch_of(records), from_offset=start)
    if start >= len(records):
        assert found is None
        return
    key, value, headers = records[start]
    if all(name == name.decode(errors="ignore").encode() for name, _ in headers):
        assert found is None
    else:
        assert found is not None
        assert (found.offset, found.key, found.value) == (start, key, value)
        assert [value for _, value in found.headers] == [value for _, value in headers]
