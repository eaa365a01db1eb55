# aiokafka leaves its senders and records without types.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

import asyncio
import json
import os
import runpy
import select
import shlex
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import LiteralString, cast
from unittest import mock
from urllib.parse import urlsplit

import pytest
import yaml
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from aiokafka.errors import KafkaError
from neo4j import AsyncGraphDatabase
from neo4j.exceptions import AuthError
from redis.asyncio import Redis

from worker.settings import Settings
from worker.wiring_settings import read_settings

INFRA = Path(__file__).parents[2] / "infra"
PING = "import os, redis; print(redis.Redis.from_url(os.environ['CONTEXT_TEST_REDIS']).ping())"


class Runner:
    """The runner on a state folder of its own; `redis_url` says that Redis is installed."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def command(self, *arguments: str) -> list[str]:
        return [sys.executable, str(INFRA / "services.py"), "--dir", str(self.folder), *arguments]

    def __call__(self, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            self.command(*arguments),
            capture_output=True,
            text=True,
            env={**os.environ, **environment},
            stdin=subprocess.DEVNULL,
            check=False,
        )

    def up(self, *names: str) -> None:
        result = self("up", *names)
        assert result.returncode == 0, result.stderr

    def variables(self, *arguments: str) -> dict[str, str]:
        lines = self("env", *arguments).stdout.splitlines()
        return dict(shlex.split(line.removeprefix("export "))[0].split("=", 1) for line in lines)

    def worker_settings(self) -> Settings:
        """Those that a worker reads which was told where the services are."""
        with mock.patch.dict(os.environ, self.variables("--worker")):
            return read_settings()

    def redis(self) -> Redis:
        return Redis.from_url(self.variables()["CONTEXT_TEST_REDIS"], socket_timeout=5, decode_responses=True)

    def state(self) -> dict[str, dict[str, object]]:
        return json.loads((self.folder / "state.json").read_text())

    def pid(self, name: str) -> int:
        process = self.state()[name]["process"]
        assert isinstance(process, dict)
        return int(process["pid"])


@pytest.fixture
def runner(tmp_path: Path, redis_url: str):
    runner = Runner(tmp_path / "services")
    yield runner
    assert runner("down").returncode == 0


# The shared services


async def test_kafka_gives_back_what_was_produced_to_a_created_topic(
    kafka_bootstrap: str, topic_prefix: str
) -> None:
    topic = f"{topic_prefix}round-trip"
    admin = AIOKafkaAdminClient(bootstrap_servers=kafka_bootstrap)
    await admin.start()
    await admin.create_topics([NewTopic(topic, 3, 1, topic_configs={"retention.ms": "86400000"})])
    await admin.close()
    producer = AIOKafkaProducer(
        bootstrap_servers=kafka_bootstrap, acks="all", enable_idempotence=True, compression_type="lz4"
    )
    async with producer:
        await producer.send_and_wait(topic, b"value", key=b"key", headers=[("h", b"\xff")])
    consumer = AIOKafkaConsumer(
        topic, bootstrap_servers=kafka_bootstrap, group_id=topic, auto_offset_reset="earliest"
    )
    async with consumer:
        record = await asyncio.wait_for(consumer.getone(), 20)
    assert (record.key, record.value, record.headers) == (b"key", b"value", (("h", b"\xff"),))


async def test_kafka_does_not_create_a_topic_because_somebody_names_it(
    kafka_bootstrap: str, topic_prefix: str
) -> None:
    producer = AIOKafkaProducer(bootstrap_servers=kafka_bootstrap, request_timeout_ms=1_000)
    async with producer:
        with pytest.raises(KafkaError):
            await producer.send_and_wait(f"{topic_prefix}misspelt", b"value")
    admin = AIOKafkaAdminClient(bootstrap_servers=kafka_bootstrap)
    await admin.start()
    topics = await admin.list_topics()
    await admin.close()
    assert f"{topic_prefix}misspelt" not in topics


async def test_neo4j_is_the_community_server_of_the_pinned_version(
    neo4j_url: str, neo4j_auth: tuple[str, str]
) -> None:
    async with AsyncGraphDatabase.driver(neo4j_url, auth=neo4j_auth) as driver:
        one = await driver.execute_query("RETURN 1 AS one")
        component = await driver.execute_query("CALL dbms.components() YIELD versions, edition RETURN *")
    assert one.records[0]["one"] == 1
    assert component.records[0]["edition"] == "community"
    assert component.records[0]["versions"] == [runpy.run_path(str(INFRA / "versions.py"))["NEO4J"]]


async def test_neo4j_has_constraints_and_full_text_and_vector_indexes(
    neo4j_url: str, neo4j_auth: tuple[str, str], namespace: str
) -> None:
    node, vector = f"(n:{namespace})", "{`vector.dimensions`: 4, `vector.similarity_function`: 'cosine'}"
    async with AsyncGraphDatabase.driver(neo4j_url, auth=neo4j_auth) as driver:

        async def run(statement: str) -> None:
            # The driver's types want literals; only the test's own name goes into this text.
            await driver.execute_query(cast("LiteralString", statement))

        await run(f"CREATE CONSTRAINT {namespace}_u FOR {node} REQUIRE n.id IS UNIQUE")
        await run(f"CREATE FULLTEXT INDEX {namespace}_f FOR {node} ON EACH [n.text]")
        await run(
            f"CREATE VECTOR INDEX {namespace}_v FOR {node} ON n.vector OPTIONS {{indexConfig: {vector}}}"
        )
        await run("CALL db.awaitIndexes(30)")
        found = await driver.execute_query(
            "SHOW INDEXES YIELD name, type, state WHERE name STARTS WITH $name RETURN type, state",
            name=namespace,
        )
        for kind, suffix in (("CONSTRAINT", "u"), ("INDEX", "f"), ("INDEX", "v")):
            await run(f"DROP {kind} {namespace}_{suffix}")
    assert sorted((row["type"], row["state"]) for row in found.records) == [
        ("FULLTEXT", "ONLINE"),
        ("RANGE", "ONLINE"),
        ("VECTOR", "ONLINE"),
    ]


async def test_neo4j_refuses_a_wrong_password(neo4j_url: str) -> None:
    async with AsyncGraphDatabase.driver(neo4j_url, auth=("neo4j", "not-this-one")) as driver:
        with pytest.raises(AuthError):
            await driver.verify_connectivity()


async def test_redis_keeps_what_it_is_given_and_evicts_nothing(redis_url: str, redis_namespace: str) -> None:
    async with Redis.from_url(redis_url) as redis:
        await redis.set(f"{redis_namespace}key", b"\x00\xff", ex=60)
        assert await redis.get(f"{redis_namespace}key") == b"\x00\xff"
        assert await redis.config_get("maxmemory-policy") == {"maxmemory-policy": "noeviction"}
        assert await redis.config_get("appendonly") == {"appendonly": "yes"}
        assert await redis.config_get("bind") == {"bind": "127.0.0.1"}


def test_swi_prolog_runs_a_goal_and_can_serve_python(swipl: Path) -> None:
    goal = "use_module(library(mqi)), X is 6 * 7, print(X), halt"
    result = subprocess.run([swipl, "-g", goal], capture_output=True, text=True, check=False)
    assert (result.returncode, result.stdout) == (0, "42"), result.stderr


# The runner


def test_compose_runs_the_versions_of_the_native_runner_on_loopback_with_health_checks() -> None:
    versions = runpy.run_path(str(INFRA / "versions.py"))
    composed = yaml.safe_load((INFRA / "compose.yaml").read_text())["services"]
    services = {name: service for name, service in composed.items() if "build" not in service}
    assert {name: service["image"] for name, service in services.items()} == {
        "kafka": f"apache/kafka:{versions['KAFKA']}",
        "neo4j": f"neo4j:{versions['NEO4J']}-community",
        "redis": f"redis:{versions['REDIS']}",
    }
    for service in services.values():
        assert all(port.startswith("127.0.0.1:") for port in service["ports"])
        assert service["healthcheck"]["test"]


def test_a_worker_is_told_how_to_run_on_what_is_up(runner: Runner) -> None:
    runner.up("redis")
    settings = runner.worker_settings()
    assert (settings.outcomes.store, settings.graph.store) == ("redis", "sqlite")
    assert settings.outcomes.redis_url == runner.variables()["CONTEXT_TEST_REDIS"]


def test_up_again_changes_nothing(runner: Runner) -> None:
    runner.up("redis")
    before = runner.state()
    runner.up("redis")
    assert runner.state() == before


async def test_a_stopped_service_comes_back_on_its_port_with_its_data(runner: Runner) -> None:
    runner.up("redis")
    before = runner.variables()
    async with runner.redis() as redis:
        await redis.set("key", "value")
    runner("stop", "redis")
    assert "CONTEXT_TEST_REDIS" not in runner.variables()
    runner.up("redis")
    assert runner.variables() == before
    async with runner.redis() as redis:
        assert await redis.get("key") == "value"


async def test_a_paused_service_answers_nothing_until_it_continues(runner: Runner) -> None:
    runner.up("redis")
    async with runner.redis() as redis:
        assert await redis.ping()
        runner("pause", "redis")
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.3):
                await redis.ping()
        assert "paused" in runner("status").stdout
        runner("continue", "redis")
    async with runner.redis() as redis:
        assert await redis.ping()


def test_down_ends_even_a_paused_service_and_removes_its_data(runner: Runner) -> None:
    runner.up("redis")
    data = runner.folder / "redis" / "data"
    assert data.is_dir()
    pidfd = os.pidfd_open(runner.pid("redis"))
    runner("pause", "redis")
    assert runner("down").returncode == 0
    assert select.select([pidfd], [], [], 5)[0]
    os.close(pidfd)
    assert not data.exists()
    assert runner.state() == {}


def test_down_leaves_a_process_that_only_has_the_same_number(runner: Runner) -> None:
    runner.up("redis")
    runner("stop", "redis")
    bystander = subprocess.Popen(["sleep", "60"])
    state = runner.state()
    state["redis"]["process"] = {"pid": bystander.pid, "started_ticks": 1, "boot_id": "another"}
    (runner.folder / "state.json").write_text(json.dumps(state))
    assert "ended" in runner("status").stdout
    assert runner("down").returncode == 0
    assert bystander.poll() is None
    bystander.kill()
    bystander.wait()


def test_a_fixed_port_is_used_and_a_taken_one_is_named(runner: Runner) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        refused = runner("up", "redis", CONTEXT_REDIS_PORT=port)
    assert refused.returncode == 1
    assert f"port {port} is taken" in refused.stderr
    assert runner("up", "redis", CONTEXT_REDIS_PORT=port).returncode == 0
    assert urlsplit(runner.variables()["CONTEXT_TEST_REDIS"]).port == int(port)


def test_a_service_that_ends_at_its_start_shows_the_end_of_its_log(runner: Runner) -> None:
    runner.up("redis")
    runner("stop", "redis")
    manifest = next((runner.folder / "redis" / "data").rglob("*.manifest"))
    manifest.write_text("nonsense\n")
    result = runner("up", "redis")
    assert result.returncode == 1
    assert "redis ended at its start" in result.stderr
    assert "manifest file" in result.stderr


def test_an_unknown_service_is_refused_by_name(runner: Runner) -> None:
    result = runner("up", "mysql")
    assert result.returncode == 2
    assert "'mysql' is none of redis, neo4j, kafka, swipl, chromium, promtool" in result.stderr


def test_run_gives_the_command_its_services_and_leaves_nothing(runner: Runner) -> None:
    result = runner("run", "redis", "--", sys.executable, "-c", f"{PING}; raise SystemExit(7)")
    assert (result.returncode, result.stdout) == (7, "True\n")
    assert runner.state() == {}


def test_run_prints_nothing_after_the_command(runner: Runner) -> None:
    script = "import sys; print('the last line', file=sys.stderr)"
    assert runner("run", "redis", "--", sys.executable, "-c", script).stderr.endswith("the last line\n")


def test_run_leaves_services_that_were_up(runner: Runner) -> None:
    runner.up("redis")
    before = runner.state()
    assert runner("run", "redis", "--", sys.executable, "-c", PING).returncode == 0
    assert runner.state() == before


def test_of_two_runs_at_once_the_last_takes_the_services_down(runner: Runner) -> None:
    wait = [sys.executable, "-c", f"{PING}; import sys; sys.stdout.flush(); input()"]
    command = runner.command("run", "redis", "--", *wait)

    def start() -> subprocess.Popen[str]:
        return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    with start() as one, start() as other:
        for run in (one, other):
            assert run.stdout is not None
            assert run.stdout.readline() == "True\n"
        one.communicate("\n")
        assert "running" in runner("status").stdout
        other.communicate("\n")
    assert runner.state() == {}


def test_a_run_that_is_asked_to_end_passes_that_on_and_takes_its_services_down(runner: Runner) -> None:
    script = f"{PING}; import sys, signal; sys.stdout.flush(); signal.pause()"
    command = runner.command("run", "redis", "--", sys.executable, "-c", script)
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as run:
        assert run.stdout is not None
        assert run.stdout.readline() == "True\n"
        run.send_signal(signal.SIGTERM)
    assert run.returncode == 128 + signal.SIGTERM
    assert runner.state() == {}


@pytest.mark.timeout(300)
async def test_kafka_and_neo4j_keep_their_data_when_they_are_stopped_and_started(
    runner: Runner, kafka_bootstrap: str, neo4j_url: str
) -> None:
    runner.up("kafka", "neo4j")
    before = runner.variables()
    servers = before["CONTEXT_TEST_KAFKA"]
    url, auth = before["CONTEXT_TEST_NEO4J"], ("neo4j", before["CONTEXT_TEST_NEO4J_PASSWORD"])
    told = runner.worker_settings()
    assert (told.kafka.bootstrap_servers, told.graph.store, told.graph.neo4j_url) == (
        (servers,),
        "neo4j",
        url,
    )
    assert told.graph.neo4j_password is not None
    assert told.graph.neo4j_password.get_secret_value() == auth[1]
    admin = AIOKafkaAdminClient(bootstrap_servers=servers)
    await admin.start()
    await admin.create_topics([NewTopic("kept", 1, 1)])
    await admin.close()
    async with AsyncGraphDatabase.driver(url, auth=auth) as driver:
        await driver.execute_query("CREATE (:Kept)")
    runner("stop", "kafka", "neo4j")
    runner.up("kafka", "neo4j")
    assert runner.variables() == before
    admin = AIOKafkaAdminClient(bootstrap_servers=servers)
    await admin.start()
    assert "kept" in await admin.list_topics()
    await admin.close()
    async with AsyncGraphDatabase.driver(url, auth=auth) as driver:
        found = await driver.execute_query("MATCH (n:Kept) RETURN count(n) AS n")
    assert found.records[0]["n"] == 1
