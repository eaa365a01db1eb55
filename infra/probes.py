"""Is it really there? One question in each service's own protocol; a listening port proves nothing.

Each function asks once and tells whether the right answer came. They raise OSError while nothing
listens, and never wait longer than `TIMEOUT_SECONDS` for one read.
"""

from __future__ import annotations

import socket
import struct
from typing import Final

TIMEOUT_SECONDS: Final = 5.0
_KAFKA_METADATA: Final = 3
_BOLT_SUCCESS: Final = 0x70


def kafka_answers(port: int) -> bool:
    """Whether the broker names itself in its cluster's metadata (Metadata request, version 7)."""
    correlation_id, no_topics, create_topics = 7, 0, False
    body = struct.pack(">hhih", _KAFKA_METADATA, 7, correlation_id, -1)
    body += struct.pack(">i?", no_topics, create_topics)
    with _connect(port) as connection:
        connection.sendall(struct.pack(">i", len(body)) + body)
        (size_bytes,) = struct.unpack(">i", _read(connection, 4))
        answer = _read(connection, size_bytes)
    seen_id, _throttle_ms, brokers = struct.unpack_from(">iii", answer)
    return seen_id == correlation_id and brokers == 1


def redis_answers(port: int) -> bool:
    """Whether PING gets PONG: while a data set is being loaded it gets an error."""
    with _connect(port) as connection:
        connection.sendall(b"PING\r\n")
        return _read(connection, 5) == b"+PONG"


def neo4j_answers(port: int, *, password: str) -> bool:
    """Whether a query succeeds for the user neo4j (Bolt 4.4: handshake, HELLO, RUN)."""
    login = {"user_agent": "runner/1", "scheme": "basic", "principal": "neo4j", "credentials": password}
    hello = b"\xb1\x01" + bytes([0xA0 + len(login)])
    hello += b"".join(_packed(text) for item in login.items() for text in item)
    query = b"\xb3\x10" + _packed("RETURN 1") + b"\xa0\xa0"
    with _connect(port) as connection:
        connection.sendall(b"\x60\x60\xb0\x17" + struct.pack(">4I", 0x00000404, 0, 0, 0))
        if _read(connection, 4) != b"\x00\x00\x04\x04":
            return False
        return all(_bolt_succeeds(connection, message) for message in (hello, query))


def _bolt_succeeds(connection: socket.socket, message: bytes) -> bool:
    connection.sendall(struct.pack(">H", len(message)) + message + b"\x00\x00")
    (size_bytes,) = struct.unpack(">H", _read(connection, 2))
    answer = _read(connection, size_bytes + 2)
    return answer[1] == _BOLT_SUCCESS


def _packed(text: str) -> bytes:
    """A PackStream string of less than 256 bytes."""
    encoded = text.encode()
    return b"\xd0" + bytes([len(encoded)]) + encoded


def _connect(port: int) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), timeout=TIMEOUT_SECONDS)


def _read(connection: socket.socket, size_bytes: int) -> bytes:
    data = b""
    while len(data) < size_bytes:
        part = connection.recv(size_bytes - len(data))
        if not part:
            raise ConnectionResetError("closed before the answer was complete")
        data += part
    return data
