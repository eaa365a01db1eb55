"""Dead letters taken apart, whoever wrote them; what brokers do with them is in `tests/e2e`."""

from __future__ import annotations

import pytest
from aiokafka.structs import ConsumerRecord

from worker.kafka.dead_letters import DeadLetter, parse_dead_letter


def parsed(body: bytes, **says: str) -> DeadLetter:
    """The dead letter with that body, whose own headers say that."""
    return parse_dead_letter(
        ConsumerRecord(
            topic="context.dead-letters",
            partition=0,
            offset=0,
            timestamp=0,
            timestamp_type=0,
            key=b"shop",
            value=body,
            checksum=None,
            serialized_key_size=-1,
            serialized_value_size=-1,
            headers=tuple((f"context-dead-{name}", text.encode()) for name, text in says.items()),
        )
    )


@pytest.mark.parametrize(
    ("topic", "own_id"),
    [
        ("context.requests", "of-request"),
        ("context.responses", "of-answer"),
        ("context.state", "of-event"),
        ("a-prefix.sync", "of-sync"),
        ("tools", "of-call"),
        ("payments", "of-request"),
        ("", "of-request"),
    ],
)
def test_the_id_is_that_of_the_record_itself(topic: str, own_id: str) -> None:
    body = b'{"call_id": "of-call", "sync_id": "of-sync", "event_id": "of-event", "answer_id": "of-answer", '
    assert parsed(body + b'"request_id": "of-request", broken', topic=topic).request_id == own_id


@pytest.mark.parametrize(
    ("timestamp", "said"),
    [
        ("0", "1970-01-01T00:00:00+00:00"),
        ("1767225600123", "2026-01-01T00:00:00.123000+00:00"),
        ("-62135596800001", "1970-01-01T00:00:00+00:00"),
        ("253402300800000", "9999-12-31T00:00:00+00:00"),
        (str(2**63 - 1), "9999-12-31T00:00:00+00:00"),
        ("9" * 5_000, "1970-01-01T00:00:00+00:00"),
        ("soon", "1970-01-01T00:00:00+00:00"),
    ],
)
def test_a_time_that_no_calendar_has_is_moved_to_its_ends(timestamp: str, said: str) -> None:
    assert parsed(b"", timestamp=timestamp).timestamp.isoformat() == said
