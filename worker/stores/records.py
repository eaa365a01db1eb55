"""The one binary form of an outcome, and of what is left of it; every store keeps these bytes.

    byte 0     format, 2
    byte 1     kind: `R` record, `T` tombstone
    bytes 2-5  CRC-32 of the plain fields, big-endian
    the rest   the fields: compressed with Zstandard in a record, plain in a tombstone

Fields are length-prefixed, so every byte string comes back as it was. Equal records give equal bytes with
one version of the compressor; nobody may compare the compressed form across versions.

A version that writes a new format follows one that reads it: while a fleet changes from one version to the
next, each worker meets what any other has stored. What keeps the kinds and bears one of the next few numbers
is taken for newer, and waited for; any other beginning is damage, for which nobody could wait long enough.
"""

from __future__ import annotations

import struct
import zlib
from datetime import UTC, datetime, timedelta
from typing import Final

import cramjam

from schemas.wire import sha256_hex
from worker.errors import OutcomeDamaged, OutcomeTooNew
from worker.ports import OutcomeRecord, Tombstone

FORMAT: Final = 2
_WITHOUT_CAPTURE: Final = 1
"""The format before captures, which is read as well."""
_NEWEST_AWAITED: Final = FORMAT + 8
_RECORD: Final = b"R"
_TOMBSTONE: Final = b"T"

# Measured on 16 KB bundles: level 1 takes 84 us and leaves 36 %; zlib's level 1 takes 182 us for the same
# size, LZ4 31 us but leaves 51 %, which a store that keeps two hours of outcomes in memory would pay for.
_ZSTD_LEVEL: Final = 1

_HEAD: Final = struct.Struct(">BcI")
_MICROSECONDS: Final = struct.Struct(">q")
_LENGTH: Final = struct.Struct(">q")
_ABSENT: Final = -1
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)


def encode_record(record: OutcomeRecord) -> bytes:
    """The bytes to store; linear in the record's size.

    Raises ValueError where `as_of` has no zone: which instant it means would depend on the host.
    """
    if record.as_of.tzinfo is None:
        raise ValueError("as_of has no time zone")
    plain = _MICROSECONDS.pack((record.as_of - _EPOCH) // _MICROSECOND) + _pack(
        record.request_digest.encode(),
        record.reply,
        record.usage,
        record.bundle,
        record.receipt,
        record.lineage,
        record.capture,
    )
    return _HEAD.pack(FORMAT, _RECORD, zlib.crc32(plain)) + bytes(cramjam.zstd.compress(plain, _ZSTD_LEVEL))


def encode_tombstone(tombstone: Tombstone) -> bytes:
    """The bytes to store; some 140 of them."""
    plain = _pack(tombstone.request_digest.encode(), tombstone.reply_sha256.encode())
    return _HEAD.pack(FORMAT, _TOMBSTONE, zlib.crc32(plain)) + plain


def tombstone_of(record: OutcomeRecord) -> Tombstone:
    """What will be left of `record` when its bytes have expired."""
    return Tombstone(request_digest=record.request_digest, reply_sha256=sha256_hex(record.reply))


def decode(data: bytes, *, store: str) -> OutcomeRecord | Tombstone:
    """What `encode_record` or `encode_tombstone` was given.

    Raises OutcomeTooNew where the bytes are of a format that a newer version has written, and OutcomeDamaged
    where they are of none; both name `store`. Nothing is guessed, which could give one request two different
    outcomes.
    """
    if data and FORMAT < data[0] <= _NEWEST_AWAITED and data[1:2] in {_RECORD, _TOMBSTONE}:
        raise OutcomeTooNew(store, f"it holds a record of format {data[0]}; this version reads {FORMAT}")
    if not data or not _WITHOUT_CAPTURE <= data[0] <= FORMAT:
        raise OutcomeDamaged(store, f"it begins with {data[:2]!r}")
    try:
        _, kind, checksum = _HEAD.unpack_from(data)
        if kind == _RECORD:
            return _record(bytes(cramjam.zstd.decompress(data[_HEAD.size :])), checksum)
        if kind == _TOMBSTONE:
            return _tombstone(data[_HEAD.size :], checksum)
    except (ValueError, OverflowError, struct.error, cramjam.DecompressionError) as error:
        raise OutcomeDamaged(store, str(error)) from error
    raise OutcomeDamaged(store, f"its kind is {kind!r}")


def _record(plain: bytes, checksum: int) -> OutcomeRecord:
    _verify(plain, checksum)
    (microseconds,) = _MICROSECONDS.unpack_from(plain)
    request_digest, reply, usage, bundle, receipt, lineage, *more = _unpack(plain, _MICROSECONDS.size)
    (capture,) = more or (None,)
    return OutcomeRecord(
        request_digest=_present(request_digest).decode(),
        as_of=_EPOCH + timedelta(microseconds=microseconds),
        reply=_present(reply),
        usage=usage,
        bundle=bundle,
        receipt=receipt,
        lineage=lineage,
        capture=capture,
    )


def _tombstone(plain: bytes, checksum: int) -> Tombstone:
    _verify(plain, checksum)
    request_digest, reply_sha256 = _unpack(plain, 0)
    return Tombstone(
        request_digest=_present(request_digest).decode(), reply_sha256=_present(reply_sha256).decode()
    )


def _verify(plain: bytes, checksum: int) -> None:
    if zlib.crc32(plain) != checksum:
        raise ValueError("the checksum differs")


def _present(field: bytes | None) -> bytes:
    if field is None:
        raise ValueError("a required field is absent")
    return field


def _pack(*fields: bytes | None) -> bytes:
    parts: list[bytes] = []
    for field in fields:
        parts.append(_LENGTH.pack(_ABSENT if field is None else len(field)))
        parts.append(field or b"")
    return b"".join(parts)


def _unpack(plain: bytes, offset: int) -> list[bytes | None]:
    fields: list[bytes | None] = []
    while offset < len(plain):
        (length,) = _LENGTH.unpack_from(plain, offset)
        offset += _LENGTH.size
        if length == _ABSENT:
            fields.append(None)
            continue
        if not 0 <= length <= len(plain) - offset:
            raise ValueError("a field is cut off")
        fields.append(plain[offset : offset + length])
        offset += length
    return fields
