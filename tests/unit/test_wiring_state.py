"""Where state is kept, by the settings; and what `doctor` says of it."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from worker.cli import app
from worker.settings import Graph, Outcomes, Settings, State
from worker.state.store import StateStore
from worker.stores.neo4j_state import Neo4jStateStore
from worker.stores.redis_state import HotStateStore
from worker.stores.sqlite_state import SqliteStateStore
from worker.telemetry import Telemetry
from worker.wiring_state import build_state, build_state_store

REDIS = Outcomes(store="redis", redis_url="redis://127.0.0.1:1/0")
NEO4J = Graph(store="neo4j", neo4j_url="bolt://127.0.0.1:1")


def products(settings: Settings) -> list[type[StateStore]]:
    """Of the store, and of the one behind it."""
    store = build_state_store(settings)
    behind = vars(store).get("_cold")
    asyncio.run(store.close())
    return [type(one) for one in (store, behind) if one is not None]


@pytest.mark.parametrize(
    ("settings", "wanted"),
    [
        (Settings(), [SqliteStateStore]),
        (Settings(graph=NEO4J), [Neo4jStateStore]),
        (Settings(outcomes=REDIS), [HotStateStore, SqliteStateStore]),
        (Settings(outcomes=REDIS, graph=NEO4J), [HotStateStore, Neo4jStateStore]),
    ],
)
def test_state_is_where_graphs_are_with_redis_in_front_where_outcomes_have_one(
    settings: Settings, wanted: list[type[StateStore]]
) -> None:
    assert products(settings) == wanted


async def test_a_worker_counts_what_redis_said_and_starts_without_it(tmp_path: Path) -> None:
    telemetry = Telemetry()
    settings = Settings(outcomes=REDIS, state=State(sqlite_path=tmp_path / "state.db"))
    state = build_state(settings, telemetry)
    await state.warm()
    await state.aclose()
    counted = telemetry.registry.get_sample_value("context_state_cache_total", {"result": "unavailable"})
    assert counted == 1


async def test_a_worker_starts_while_neo4j_is_away() -> None:
    state = build_state(Settings(graph=NEO4J), Telemetry())
    await state.warm()
    await state.aclose()


@pytest.mark.parametrize("url", ["bolt://127.0.0.1:1", "neo4j://127.0.0.1:1", "bolt://[x"])
def test_doctor_says_where_state_lies_and_how_to_mend_it(monkeypatch: pytest.MonkeyPatch, url: str) -> None:
    for name, value in {
        "GRAPH__STORE": "neo4j",
        "GRAPH__NEO4J_URL": url,
        "GRAPH__NEO4J_PASSWORD": "s3cret-word",
        "KAFKA__BOOTSTRAP_SERVERS": '["127.0.0.1:1"]',
        "OUTCOMES__STORE": "redis",
        "OUTCOMES__REDIS_URL": "redis://127.0.0.1:1/0",
    }.items():
        monkeypatch.setenv(f"WORKER_{name}", value)
    result = CliRunner().invoke(app, ["doctor", "--json"])
    (found,) = [one for one in json.loads(result.stdout) if one["name"] == "state store"]
    assert not found["is_ok"]
    assert "neo4j is unavailable" in found["found"]
    assert "WORKER_GRAPH__NEO4J_URL" in found["mend"]
    assert "s3cret-word" not in result.output + result.stderr
