"""What settings of Kafka mean to the dispatchers, and what a start says of settings."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import NoReturn

import pytest
from pydantic import SecretStr
from structlog.testing import capture_logs

from worker import wiring_worker
from worker.settings import Graph, Http, Kafka, Outcomes, Settings
from worker.wiring_worker import dispatch_limits, run_service


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


class _NotStartedError(Exception):
    """Instead of everything that a worker is made of."""


def _not_started(settings: Settings) -> NoReturn:
    raise _NotStartedError


async def test_what_is_seldom_meant_is_said_at_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wiring_worker, "build_service", _not_started)
    settings = Settings(
        outcomes=Outcomes(store="redis", redis_url="redis://127.0.0.1:1"),
        http=Http(host="0.0.0.0", token=SecretStr("t")),  # noqa: S104  # what is doubted
    )
    with capture_logs() as lines, pytest.raises(_NotStartedError):
        await run_service(settings, embedded=False, embedded_port=None)
    assert [(line["log_level"], line["event"], line["option"]) for line in lines] == [
        ("warning", "settings.doubtful", "graph.store"),
        ("warning", "settings.doubtful", "http.public_url"),
    ]


async def test_no_embedded_broker_is_started_in_place_of_one_that_was_named() -> None:
    settings = Settings(kafka=Kafka(bootstrap_servers=("127.0.0.1:1",)))
    with pytest.raises(ValueError, match=r"kafka\.bootstrap_servers has no effect"):
        await run_service(settings, embedded=True, embedded_port=None)


class _Told:
    """A service that ends as soon as it was announced."""

    http_url = "http://127.0.0.1:1"

    async def run(self) -> int:
        return 0

    @property
    def worker(self) -> _Told:
        return self


@asynccontextmanager
async def _nothing(settings: Settings) -> AsyncGenerator[_Told]:
    del settings
    yield _Told()


async def test_the_start_names_where_graph_and_state_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wiring_worker, "build_service", _nothing)
    monkeypatch.setattr(wiring_worker, "settle_heap", lambda: None)
    with capture_logs() as lines:
        await run_service(
            Settings(graph=Graph(store="neo4j", neo4j_url="bolt://n")), embedded=False, embedded_port=None
        )
    [line] = lines
    assert (line["event"], line["outcomes"], line["graph_and_state"]) == (
        "worker.starting",
        "sqlite",
        "neo4j",
    )
