"""What comes back of one run: matched with what was sent, measured, and noted for the judging.

An answer belongs to a request by its ids; to a record whose ids cannot be read, by the correlation id; and to
one that has none either, by its place, which its dead letter names.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from aiokafka.structs import RecordMetadata

from schemas.wire import sha256_hex
from worker.kafka_clients import Record
from worker.load.answers import fields_of
from worker.load.headers import (
    CORRELATION_ID,
    DEAD_CODE,
    DEAD_OFFSET,
    DEAD_PARTITION,
    DEAD_TOPIC,
    KIND,
    first_header,
    generation_of,
)
from worker.load.measures import Measures
from worker.load.observations import Letter, Sent
from worker.load.pending import Pending
from worker.load.rewriting import Outgoing, RequestKey
from worker.load.spool import LetterNote, SeenNote, SentNote, Spool, Where, key_digest


@dataclass(slots=True, kw_only=True)
class Due:
    """One record, ready, and when it is due; None: now."""

    outgoing: Outgoing
    digest: bytes
    """Of what its answer will be known by."""
    seconds: float | None

    @property
    def is_known_by_place(self) -> bool:
        """Whether nothing but its place says what answers it."""
        return self.outgoing.identity is None and self.outgoing.correlation_id is None


class Followed:
    """The requests of one run and their answers. For one event loop."""

    def __init__(self, *, requests_topic: str, id_prefix: str, measures: Measures, spool: Spool) -> None:
        """Of the answers on a topic those are taken whose ids begin with `id_prefix`."""
        self._requests_topic = requests_topic
        self._id_prefix = id_prefix
        self._measures = measures
        self._spool = spool
        self._pending = Pending()
        self._early: dict[bytes, str] = {}
        """Codes of dead letters whose records were not acknowledged yet; few, and only while some are not."""
        self.sent_ends: dict[int, int] = {}
        """By partition, the offset behind the last record of the run."""
        self.began = 0.0
        """When the first record was due, by the monotonic clock."""

    @property
    def is_answered(self) -> bool:
        """Whether the broker has taken or refused every record, and nothing waits for an answer."""
        return not self._pending and self._is_acknowledged

    def count_waiting(self) -> None:
        """Bring the number of requests in flight up to date."""
        self._measures.in_flight = len(self._pending)

    def give_up(self) -> None:
        """Count what was not answered at all as having waited until now: left out, it would flatter."""
        now = time.monotonic()
        for due in self._pending:
            self._measures.latencies.add(now - due)
        self.count_waiting()

    # --- What is sent ----------------------------------------------------------------------------

    def sending(self, item: Due, *, due: float) -> None:
        """It is about to be handed to the producer."""
        if not item.is_known_by_place:
            self._pending.sent(item.digest, due=due)

    def failed(self, item: Due, error: BaseException) -> None:
        """The broker did not take it."""
        self._pending.answered(item.digest)
        self._measures.failed[type(error).__name__] += 1

    def acknowledged(self, done: asyncio.Future[RecordMetadata], item: Due, *, due: float) -> None:
        """The broker has said what became of it."""
        if done.cancelled():
            return
        error = done.exception()
        if error is not None:
            self.failed(item, error)
            return
        stored, outgoing = done.result(), item.outgoing
        self._measures.acknowledged += 1
        end = max(self.sent_ends.get(stored.partition, 0), stored.offset + 1)
        self.sent_ends[stored.partition] = end
        digest = item.digest
        if item.is_known_by_place:
            digest = _place_digest(stored.partition, stored.offset)
            self._pending.sent(digest, due=due)
            if digest in self._early:
                self._answered_by_letter(digest, self._early.pop(digest))
        message = outgoing.user_message
        self._spool.note(
            SentNote(
                digest=digest,
                key=outgoing.identity,
                sent=Sent(
                    partition=stored.partition,
                    offset=stored.offset,
                    asked=outgoing.asked,
                    message_chars=None if message is None else len(message),
                    message_sha256=None
                    if message is None
                    else sha256_hex(message.encode("utf-8", "surrogatepass")),
                ),
            )
        )

    @property
    def _is_acknowledged(self) -> bool:
        """Whether the broker has said of every record what became of it."""
        return self._measures.acknowledged + sum(self._measures.failed.values()) >= self._measures.sent

    # --- What comes back -------------------------------------------------------------------------

    def take_reply(self, record: Record, *, is_earlier: bool = False) -> None:
        """One record of a reply topic; `is_earlier` where it stood there before the run."""
        now = time.monotonic()
        correlation = first_header(record.headers, CORRELATION_ID) or b""
        fields = fields_of(record.value)
        key = _key_of(fields, record)
        if not self._is_ours(key, correlation):
            return
        digest = key_digest(key, otherwise=correlation.decode("latin-1"))
        kind = first_header(record.headers, KIND) or b""
        self._note(digest, key, "earlier" if is_earlier else "reply", kind, record)
        if is_earlier:
            return
        due = self._pending.answered(digest)
        if due is None:
            self._measures.repeated += 1
            return
        self._measures.latencies.add(now - due)
        self._measures.answering_seconds = now - self.began
        self._count(fields)

    def _count(self, fields: Mapping[str, Any]) -> None:
        measures = self._measures
        measures.answered += 1
        if fields.get("kind") == "rejection":
            self._count_rejection(str(fields.get("code")))
            return
        measures.outcomes[str(fields.get("status"))] += 1

    def _count_rejection(self, code: str) -> None:
        self._measures.outcomes["rejected"] += 1
        self._measures.codes[code] += 1

    def take_usage(self, record: Record) -> None:
        """One record of the usage topic."""
        key = _key_of(fields_of(record.value), record)
        if key is not None and self._is_ours(key, b""):
            self._note(key_digest(key, otherwise=""), key, "usage", b"usage", record)

    def take_letter(self, record: Record) -> None:
        """One dead letter."""
        place = _place_of(record, self._requests_topic)
        if place is None:
            return
        code = (first_header(record.headers, DEAD_CODE) or b"-").decode("utf-8", "replace")
        self._spool.note(
            LetterNote(
                letter=Letter(partition=place[0], offset=place[1], code=code),
                content=repr((record.key, record.value, tuple(record.headers))).encode(),
            )
        )
        digest = _place_digest(*place)
        if not self._answered_by_letter(digest, code) and not self._is_acknowledged:
            # It may come before the acknowledgement of what it is about.
            self._early[digest] = code

    def _answered_by_letter(self, digest: bytes, code: str) -> bool:
        due = self._pending.answered(digest)
        if due is not None:
            self._measures.latencies.add(time.monotonic() - due)
            self._measures.answered += 1
            self._count_rejection(code)
        return due is not None

    def _is_ours(self, key: RequestKey | None, correlation: bytes) -> bool:
        prefix = self._id_prefix
        return (key is not None and key.request_id.startswith(prefix)) or correlation.startswith(
            prefix.encode()
        )

    def _note(self, digest: bytes, key: RequestKey | None, place: Where, kind: bytes, record: Record) -> None:
        self._spool.note(
            SeenNote(
                digest=digest,
                key=key,
                place=place,
                kind=kind.decode("utf-8", "replace"),
                body=record.value or b"",
            )
        )


def _key_of(fields: Mapping[str, Any], record: Record) -> RequestKey | None:
    request_id, project_id = fields.get("request_id"), fields.get("project_id")
    if not (isinstance(request_id, str) and isinstance(project_id, str)):
        return None
    return RequestKey(project_id=project_id, request_id=request_id, generation=generation_of(record.headers))


def _place_of(record: Record, topic: str) -> tuple[int, int] | None:
    """Partition and offset of the request that a dead letter is about; None for one of another topic."""
    headers = tuple(record.headers)
    if first_header(headers, DEAD_TOPIC) != topic.encode():
        return None
    partition, offset = first_header(headers, DEAD_PARTITION), first_header(headers, DEAD_OFFSET)
    if not (partition and offset and partition.isdigit() and offset.isdigit()):
        return None
    return int(partition), int(offset)


def _place_digest(partition: int, offset: int) -> bytes:
    return hashlib.blake2b(f"at {partition}:{offset}".encode(), digest_size=16).digest()
