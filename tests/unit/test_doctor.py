"""What `doctor` says of a dependency that neither answers nor refuses, and of a machine that is busy."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import ModuleType

import pytest
from pydantic import SecretStr

from worker import doctor
from worker.settings import Http, Kafka, Outcomes, Settings
from worker.stores.sqlite import SqliteOutcomeStore


def settings_of(tmp_path: Path, broker: str) -> Settings:
    return Settings(
        kafka=Kafka(bootstrap_servers=(broker,)), outcomes=Outcomes(sqlite_path=tmp_path / "outcomes.db")
    )


async def test_what_does_not_answer_is_named_with_its_address_and_how_to_mend_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def hangs(self: SqliteOutcomeStore) -> None:
        del self
        await asyncio.Event().wait()

    monkeypatch.setattr(SqliteOutcomeStore, "check", hangs)
    monkeypatch.setattr(doctor, "PATIENCE_SECONDS", 0.3)
    ended = asyncio.Event()

    async def says_nothing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        del reader
        await ended.wait()
        writer.close()

    server = await asyncio.start_server(says_nothing, "127.0.0.1", 0)
    async with server:
        host, port = server.sockets[0].getsockname()
        findings = {
            found.name: found for found in await doctor.diagnose(settings_of(tmp_path, f"{host}:{port}"))
        }
        ended.set()
    broker, store = findings["broker"], findings["outcome store"]
    assert (broker.is_ok, broker.found) == (False, f"{host}:{port}: no answer within 0.3 s")
    assert f"start Kafka at {host}:{port}" in broker.mend
    assert (store.is_ok, "outcomes.db: no answer within" in store.found) == (False, True)
    assert "WORKER_OUTCOMES__SQLITE_PATH" in store.mend


async def test_loading_the_clients_is_no_waiting_for_an_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    load = doctor.import_module
    loaded: list[str] = []

    def alone(name: str) -> ModuleType:
        assert asyncio.all_tasks() == {asyncio.current_task()}, "a check is waiting meanwhile"
        loaded.append(name)
        return load(name)

    monkeypatch.setattr(doctor, "import_module", alone)
    await doctor.diagnose(settings_of(tmp_path, "127.0.0.1:1"))
    assert loaded == ["worker.wiring_kafka", "worker.wiring_graph", "worker.wiring_state"]


async def test_what_is_seldom_meant_is_said_with_its_variable_and_is_not_wrong() -> None:
    settings = Settings(
        kafka=Kafka(bootstrap_servers=("127.0.0.1:1",)),
        outcomes=Outcomes(store="redis", redis_url="redis://127.0.0.1:1"),
        http=Http(host="0.0.0.0", token=SecretStr("t")),  # noqa: S104  # what is doubted
    )
    findings = {found.name: found for found in await doctor.diagnose(settings)}
    graph, url = findings["graph.store"], findings["http.public_url"]
    assert (graph.is_ok, graph.mend) == (True, "set WORKER_GRAPH__STORE")
    assert (url.is_ok, url.mend) == (True, "set WORKER_HTTP__PUBLIC_URL")
    assert settings.http.host in url.found
