from __future__ import annotations

import pytest
from aiokafka import TopicPartition
from aiokafka.errors import CorruptRecordException
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.dispatching import batch_of
from worker.undecodable import UndecodableBatch, UndecodableRecord, first_undecodable

TP = TopicPartition("requests", 3)
BAD = (b"\xff\xfe", b"v")
GOOD = (b"name", b"v")


def only(batch: UndecodableBatch | None) -> UndecodableRecord:
    assert batch is not None
    (record,) = batch.records
    return record


@pytest.mark.parametrize("codec", range(5), ids=["none", "gzip", "snappy", "lz4", "zstd"])
def test_the_record_comes_out_as_it_was_sent_whatever_the_codec(codec: int):
    batches = batch_of([(b"key", b"value", [GOOD, BAD, (b"n", None)])], codec=codec, base_offset=40)
    record = only(first_undecodable(TP, batches, from_offset=40))
    assert (record.topic, record.partition, record.offset) == ("requests", 3, 40)
    assert (record.key, record.value) == (b"key", b"value")
    assert record.headers == (("name", b"v"), ("\\xff\\xfe", b"v"), ("n", None))


def test_null_keys_and_values_stay_null():
    record = only(first_undecodable(TP, batch_of([(None, None, [BAD])]), from_offset=0))
    assert (record.key, record.value) == (None, None)


def test_a_readable_batch_is_left_to_the_consumer():
    assert first_undecodable(TP, batch_of([(None, b"v", [GOOD])]), from_offset=0) is None


def test_a_readable_batch_before_it_is_never_skipped():
    batches = batch_of([(None, b"first", [])]) + batch_of([(None, b"second", [BAD])], base_offset=1)
    assert first_undecodable(TP, batches, from_offset=0) is None
    assert only(first_undecodable(TP, batches, from_offset=1)).value == b"second"


@pytest.mark.parametrize("poison", [0, 1, 2])
@pytest.mark.parametrize("start", [0, 1, 2])
def test_the_whole_rest_of_the_batch_comes_with_it(poison: int, start: int):
    records = [(None, b"%d" % n, [BAD] if n == poison else [GOOD]) for n in range(3)]
    batch = first_undecodable(TP, batch_of(records, base_offset=10), from_offset=10 + start)
    assert batch is not None
    assert [record.value for record in batch.records] == [b"%d" % n for n in range(start, 3)]
    assert [record.offset for record in batch.records] == [10 + n for n in range(start, 3)]
    assert batch.next_offset == 13


def test_it_is_found_in_a_later_batch_and_behind_a_gap():
    batches = batch_of([(None, b"old", [])], base_offset=5) + batch_of([(None, b"v", [BAD])], base_offset=9)
    assert only(first_undecodable(TP, batches, from_offset=7)).offset == 9


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
    names = [name for *_, headers in records for name, _ in headers]
    if start >= len(records) or all(name == name.decode(errors="ignore").encode() for name in names):
        assert found is None
        return
    assert found is not None
    assert [(one.offset, one.key, one.value) for one in found.records] == [
        (start + index, key, value) for index, (key, value, _) in enumerate(records[start:])
    ]
    for one, (_, _, headers) in zip(found.records, records[start:], strict=True):
        assert [value for _, value in one.headers] == [value for _, value in headers]
    assert found.next_offset == len(records)
