"""The binary form of outcomes: what goes in comes out, and nothing else is believed."""

from __future__ import annotations

import struct
import zlib
from dataclasses import replace
from datetime import UTC, datetime

import cramjam
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from schemas.wire import sha256_hex
from worker.errors import OutcomeDamaged, OutcomeTooNew
from worker.ports import OutcomeRecord, Tombstone
from worker.stores.records import decode, encode_record, encode_tombstone, tombstone_of

RECORD = OutcomeRecord(
    request_digest="a" * 64,
    as_of=datetime(2024, 5, 1, 12, tzinfo=UTC),
    reply=b'{"kind":"bundle"}' * 40,
    usage=None,
    receipt=b"",
)

records = st.builds(
    OutcomeRecord,
    request_digest=st.text("0123456789abcdef", min_size=64, max_size=64),
    as_of=st.datetimes(timezones=st.timezones(), allow_imaginary=False),
    reply=st.binary(max_size=300),
    usage=st.none() | st.binary(max_size=300),
    bundle=st.none() | st.binary(max_size=300),
    receipt=st.none() | st.binary(max_size=300),
    lineage=st.none() | st.binary(max_size=300),
    capture=st.none() | st.binary(max_size=300),
)
tombstones = st.builds(Tombstone, request_digest=st.text("abc", max_size=9), reply_sha256=st.text("abc"))


@given(record=records)
def test_decoding_undoes_encoding(record: OutcomeRecord) -> None:
    assert decode(encode_record(record), store="s") == record


@given(tombstone=tombstones)
def test_decoding_undoes_encoding_of_tombstones(tombstone: Tombstone) -> None:
    assert decode(encode_tombstone(tombstone), store="s") == tombstone


@given(record=records)
def test_equal_records_give_equal_bytes(record: OutcomeRecord) -> None:
    assert encode_record(record) == encode_record(replace(record, as_of=record.as_of.astimezone(UTC)))


def test_a_record_from_before_captures_is_read() -> None:
    plain = cramjam.zstd.decompress(encode_record(RECORD)[6:])
    # The last field is the capture: its length, which says that it is absent.
    older = bytes(plain)[:-8]
    head = struct.pack(">BcI", 1, b"R", zlib.crc32(older))
    assert decode(head + bytes(cramjam.zstd.compress(older)), store="s") == RECORD


def test_an_absent_part_is_told_from_an_empty_one() -> None:
    held = decode(encode_record(RECORD), store="s")
    assert isinstance(held, OutcomeRecord)
    assert (held.usage, held.receipt, held.lineage) == (None, b"", None)


def test_a_tombstone_keeps_the_digests_of_request_and_reply() -> None:
    assert tombstone_of(RECORD) == Tombstone(request_digest="a" * 64, reply_sha256=sha256_hex(RECORD.reply))


def test_text_is_stored_in_less_space() -> None:
    assert len(encode_record(RECORD)) < len(RECORD.reply) / 3


def test_a_time_without_a_zone_is_refused() -> None:
    with pytest.raises(ValueError, match="time zone"):
        encode_record(replace(RECORD, as_of=datetime(2024, 5, 1)))  # noqa: DTZ001  # what is tested


def test_a_format_of_a_newer_version_is_named_and_not_read() -> None:
    with pytest.raises(OutcomeTooNew, match="redis is unavailable: it holds a record of format 3"):
        decode(b"\x03" + encode_record(RECORD)[1:], store="redis")


@pytest.mark.parametrize(
    "beginning", [b"\x0bR", b"\xffR", b"\x82R", b"\x03X", b"\x03\0", b"\x03", b"\0R", b""]
)
def test_a_beginning_that_no_version_writes_is_damage_and_not_waited_for(beginning: bytes) -> None:
    rest = encode_record(RECORD)[2:] if len(beginning) == 2 else b""
    with pytest.raises(OutcomeDamaged, match="s holds a damaged record: it begins with"):
        decode(beginning + rest, store="s")


def test_an_unknown_kind_is_named_and_not_read() -> None:
    data = encode_record(RECORD)
    with pytest.raises(OutcomeDamaged, match="s holds a damaged record: its kind is b'X'"):
        decode(data[:1] + b"X" + data[2:], store="s")


@given(data=st.data())
def test_damage_anywhere_is_noticed(data: st.DataObject) -> None:
    whole = data.draw(st.sampled_from([encode_record(RECORD), encode_tombstone(tombstone_of(RECORD))]))
    position = data.draw(st.integers(0, len(whole) - 1))
    flipped = data.draw(st.integers(1, 255))
    damaged = bytearray(whole)
    damaged[position] ^= flipped
    # The format before this one, which had the same fields but the last.
    assume(damaged[0] != 1)
    # A few numbers are kept for the formats to come.
    with pytest.raises(OutcomeTooNew if 2 < damaged[0] <= 10 else OutcomeDamaged):
        decode(bytes(damaged), store="s")


@given(length=st.integers(0, len(encode_record(RECORD)) - 1))
def test_a_record_that_was_cut_off_is_noticed(length: int) -> None:
    with pytest.raises(OutcomeDamaged):
        decode(encode_record(RECORD)[:length], store="s")


@given(garbage=st.binary(max_size=64))
def test_garbage_is_never_taken_for_an_outcome(garbage: bytes) -> None:
    is_newer = len(garbage) > 1 and 2 < garbage[0] <= 10 and garbage[1] in b"RT"
    with pytest.raises(OutcomeTooNew if is_newer else OutcomeDamaged):
        decode(garbage, store="s")
