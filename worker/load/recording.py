"""The recording: request traffic as one compressed file that can be read as a stream.

Gzip over JSON lines, so that `zcat` shows it. The first line is the header, then one line a record; text that
is UTF-8 stands as it is, other bytes in base64. The last line says how many records there are: a file without
it was cut off, by a crash or by a full disk, and everything before the cut is still read. Who writes it
writes beside it, under `<name>.partial`, and renames at the end.
"""

from __future__ import annotations

import base64
import binascii
import json
import os
import zlib
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Final, Literal, Self, cast

from schemas.times import format_time, parse_time
from worker.errors import WorkerError
from worker.private_files import open_private

FORMAT: Final = "context-recording"
VERSION: Final = 1
PARTIAL_SUFFIX: Final = ".partial"

_GZIP: Final = 31
_LEVEL: Final = 6
_CHUNK_BYTES: Final = 262_144
_MAX_LINE_BYTES: Final = 96 * 1024 * 1024
"""A record of 10 MiB has 14 in base64, and up to 60 where each byte is an escape."""

Origin = Literal["recorded", "synthetic", "generated"]


class RecordingError(WorkerError):
    """The file is no recording, of another version, or damaged."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordingHeader:
    """What the whole file is."""

    origin: Origin
    """As it was, with its texts replaced, or made up."""
    created_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedRecord:
    """One request as it stood on its topic."""

    partition: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes], ...] = ()


# --- Writing -----------------------------------------------------------------------------------------


class RecordingWriter:
    """Writes one recording; a context manager that finishes it, unless it is left by an exception."""

    def __init__(self, path: Path, header: RecordingHeader, *, force: bool = False) -> None:
        """Open `<path>.partial`.

        Raises FileExistsError where that or `path` is there already and `force` is not given.
        """
        self._path = path
        self._partial = path.with_name(path.name + PARTIAL_SUFFIX)
        if path.exists() and not force:
            raise FileExistsError(f"{path} is there already")
        try:
            self._file: IO[bytes] = open_private(self._partial, "wb" if force else "xb")
        except FileExistsError:
            msg = f"{self._partial} is there already: what an interrupted recording left"
            raise FileExistsError(msg) from None
        self._compressor = zlib.compressobj(_LEVEL, zlib.DEFLATED, _GZIP)
        self.records = 0
        """Written so far."""
        self._write(_header_line(header))
        self.flush()

    @property
    def size_bytes(self) -> int:
        """Of the file as far as it was written."""
        return self._file.tell()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is None:
            self.finish()
        elif not self._file.closed:
            with suppress(OSError):
                self.flush()
            self._file.close()

    def add(self, record: RecordedRecord) -> None:
        """Append one record; it is safe from a crash of the process after the next `flush`."""
        self._write(_record_line(record))
        self.records += 1

    def flush(self) -> None:
        """Hand everything so far to the operating system, readable up to the last record."""
        self._file.write(self._compressor.flush(zlib.Z_SYNC_FLUSH))
        self._file.flush()

    def finish(self) -> None:
        """Write the last line, make it durable, and give the file its name."""
        self._write({"end": True, "records": self.records})
        self._file.write(self._compressor.flush(zlib.Z_FINISH))
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()
        self._partial.replace(self._path)
        folder = os.open(self._path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)

    def _write(self, line: Mapping[str, Any]) -> None:
        encoded = json.dumps(line, ensure_ascii=False, separators=(",", ":")).encode()
        self._file.write(self._compressor.compress(encoded + b"\n"))


def _header_line(header: RecordingHeader) -> dict[str, Any]:
    return {
        "format": FORMAT,
        "version": VERSION,
        "origin": header.origin,
        "created_at": format_time(header.created_at),
    }


def _record_line(record: RecordedRecord) -> dict[str, Any]:
    return {
        "partition": record.partition,
        "timestamp_ms": record.timestamp_ms,
        "key": _from_bytes(record.key),
        "value": _from_bytes(record.value),
        "headers": [[name, _from_bytes(value)] for name, value in record.headers],
    }


def _from_bytes(data: bytes | None) -> str | dict[str, str] | None:
    try:
        return None if data is None else data.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(data or b"").decode()}


# --- Reading -----------------------------------------------------------------------------------------


class Recording:
    """Reads one recording, once, as a stream: memory holds a line."""

    def __init__(self, path: Path) -> None:
        """Nothing is opened yet."""
        self._path = path
        self.is_complete = False
        """Whether the last line was there; known when all records were read."""

    def header(self) -> RecordingHeader:
        """What the first line says. Raises RecordingError or OSError."""
        with self._path.open("rb") as file:
            return self._read_header(_lines(file))

    def __iter__(self) -> Iterator[RecordedRecord]:
        """The records in their order; a cut file ends with the last whole one.

        Raises RecordingError for a file that is none, or whose bytes are damaged, and OSError.
        """
        self.is_complete = False
        with self._path.open("rb") as file:
            lines = _lines(file)
            self._read_header(lines)
            for count, line in enumerate(lines):
                fields = self._parse(line, count)
                if fields.get("end") is True:
                    if fields.get("records") != count:
                        raise self._damaged(f"it says {fields.get('records')} records and has {count}")
                    self.is_complete = True
                    return
                yield self._read_record(fields, count)

    def _read_header(self, lines: Iterator[bytes]) -> RecordingHeader:
        try:
            fields = self._parse(next(lines, b"{}"), -1)
        except RecordingError:
            raise RecordingError(f"{self._path} is no recording") from None
        if fields.get("format") != FORMAT:
            raise RecordingError(f"{self._path} is no recording")
        if fields.get("version") != VERSION:
            msg = f"{self._path} is a recording of version {fields.get('version')}; {VERSION} is read here"
            raise RecordingError(msg)
        origin = fields.get("origin")
        if origin not in {"recorded", "synthetic", "generated"}:
            raise self._damaged(f"the origin {origin!r} is not known")
        try:
            created_at, _ = parse_time(str(fields.get("created_at")))
        except ValueError as error:
            raise self._damaged(f"created_at: {error}") from None
        return RecordingHeader(origin=cast("Origin", origin), created_at=created_at)

    def _parse(self, line: bytes, number: int) -> dict[str, Any]:
        try:
            fields: object = json.loads(line)
        except (ValueError, RecursionError):
            raise self._damaged(f"line {number + 2} is no JSON") from None
        if not isinstance(fields, dict):
            raise self._damaged(f"line {number + 2} is no JSON object")
        return cast("dict[str, Any]", fields)

    def _read_record(self, fields: Mapping[str, Any], number: int) -> RecordedRecord:
        try:
            return RecordedRecord(
                partition=_natural(fields["partition"]),
                timestamp_ms=_natural(fields["timestamp_ms"]),
                key=_to_bytes(fields["key"]),
                value=_to_bytes(fields["value"]),
                headers=tuple((_name(name), _to_bytes(value) or b"") for name, value in fields["headers"]),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise self._damaged(f"record {number + 1} is not as it should be: {error}") from None

    def _damaged(self, why: str) -> RecordingError:
        return RecordingError(f"{self._path} is damaged: {why}")


def _lines(file: IO[bytes]) -> Iterator[bytes]:
    """The whole lines of a compressed file, as far as it goes. Raises RecordingError for damaged bytes."""
    decompressor = zlib.decompressobj(_GZIP)
    pending = b""
    while chunk := decompressor.unconsumed_tail or file.read(_CHUNK_BYTES):
        try:
            pending += decompressor.decompress(chunk, _CHUNK_BYTES)
        except zlib.error as error:
            raise RecordingError(f"{file.name} is damaged or no recording: {error}") from None
        *whole, pending = pending.split(b"\n")
        yield from whole
        if decompressor.eof:
            return
        if len(pending) > _MAX_LINE_BYTES:
            raise RecordingError(f"{file.name} is damaged: a line has more than {_MAX_LINE_BYTES} bytes")
    # Of a file that was cut, the last piece may still wait inside.
    yield from (pending + decompressor.flush()).split(b"\n")[:-1]


def _to_bytes(value: object) -> bytes | None:
    if value is None:
        return None
    if isinstance(value, str):
        return value.encode()
    encoded = cast("dict[str, object]", value).get("base64") if isinstance(value, dict) else None
    if not isinstance(encoded, str):
        raise TypeError("bytes are a text, or in base64")
    try:
        return base64.b64decode(encoded, validate=True)
    except binascii.Error as error:
        raise ValueError(str(error)) from None


def _natural(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        msg = f"{value!r} is no natural number"
        raise ValueError(msg)
    return value


def _name(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError("a header's name is a text")
    return value


def now_utc() -> datetime:
    """The wall clock, to the second: a header needs no more."""
    return datetime.now(UTC).replace(microsecond=0)
