"""What settings of Kafka mean to the dispatchers."""

from __future__ import annotations

import pytest

from worker.settings import Kafka
from worker.wiring_worker import dispatch_limits


@pytest.mark.parametrize(
    ("session_timeout_ms", "revoke_seconds", "revoke_wait_seconds", "commit_timeout_seconds"),
    [
        (30_000, 3.0, 3.0, 2.0),
        (10_000, 3.0, 3.0, 2.0),
        (6_000, 3.0, 1.8, 1.8),
        (2_000, 3.0, 0.6, 0.6),
        (1_000, 3.0, 0.3, 0.3),
        (1_000, 0.1, 0.1, 0.3),
        (30_000, 60.0, 23.0, 2.0),
    ],
)
def test_a_revoked_partition_is_handed_over_within_nine_tenths_of_a_session(
    session_timeout_ms: int, revoke_seconds: float, revoke_wait_seconds: float, commit_timeout_seconds: float
) -> None:
    kafka = Kafka(session_timeout_ms=session_timeout_ms, revoke_seconds=revoke_seconds)
    limits = dispatch_limits(kafka)
    assert limits.revoke_wait_seconds == pytest.approx(revoke_wait_seconds)
    assert limits.commit_timeout_seconds == pytest.approx(commit_timeout_seconds)
