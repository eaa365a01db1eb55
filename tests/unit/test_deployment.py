"""The image, compose and the manifests for Kubernetes say what the settings and the topic table say."""

from __future__ import annotations

import re
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from schemas.topics import TOPICS
from worker.kafka.health import Health
from worker.kafka.http import build_app
from worker.settings import Graph, Http, Outcomes, Settings, State
from worker.telemetry import Telemetry
from worker.wiring_settings import read_settings
from worker.wiring_worker import build_service

ROOT = Path(__file__).parents[2]
INFRA = ROOT / "infra"
DOCKERFILE = (INFRA / "Dockerfile").read_text()
COMPOSE: dict[str, Any] = yaml.safe_load((INFRA / "compose.yaml").read_text())["services"]
WORKERS = sorted(name for name, service in COMPOSE.items() if "build" in service)
DEPLOYMENT: dict[str, Any] = yaml.safe_load((INFRA / "autoscaling/deployment.yaml").read_text())
POD: dict[str, Any] = DEPLOYMENT["spec"]["template"]["spec"]
SERVICE: dict[str, Any] = yaml.safe_load((INFRA / "autoscaling/service.yaml").read_text())
SCALED: dict[str, Any] = yaml.safe_load((INFRA / "autoscaling/scaled-object.yaml").read_text())


def environments() -> dict[str, dict[str, str]]:
    (container,) = POD["containers"]
    return {
        **{name: COMPOSE[name]["environment"] for name in WORKERS},
        "pod": {one["name"]: one["value"] for one in container["env"]},
    }


def settings_of(environment: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> Settings:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    return read_settings()


class NoBundles:
    async def get_bundle(self, *, project_id: str, digest: str) -> bytes | None:
        return None


def served_paths() -> set[str]:
    app = build_app(health=Health(), store=NoBundles(), telemetry=Telemetry(), token=None)
    return {getattr(route, "path", "") for route in app.routes}


@pytest.mark.parametrize("name", environments())
def test_what_a_container_is_told_are_settings_that_hold_together(name: str, monkeypatch: pytest.MonkeyPatch):
    settings = settings_of(environments()[name], monkeypatch)
    # Several workers share outcomes and graphs, or they would answer twice and differently.
    assert (settings.outcomes.store, settings.graph.store) == ("redis", "neo4j")
    assert settings.http.host == "0.0.0.0"  # noqa: S104 - in a container of its own
    grace = {"pod": POD["terminationGracePeriodSeconds"]}.get(name) or int(
        COMPOSE[name]["stop_grace_period"].rstrip("s")
    )
    assert grace > settings.kafka.drain_seconds + 5


def test_compose_runs_two_workers_that_share_everything_but_their_door(monkeypatch: pytest.MonkeyPatch):
    first, second = (dict(COMPOSE[name]) for name in WORKERS)
    doors = [(one.pop("ports"), one.pop("environment")) for one in (first, second)]
    assert first == second
    assert first["read_only"]
    assert first["profiles"] == ["workers"]
    for (port,), environment in doors:
        address, outside, inside = port.split(":")
        settings = settings_of(environment, monkeypatch)
        assert (address, int(inside)) == ("127.0.0.1", settings.http.port)
        assert settings.http.public_url == f"http://127.0.0.1:{outside}"
    apart = [
        {key: value for key, value in environment.items() if key != "WORKER_HTTP__PUBLIC_URL"}
        for _, environment in doors
    ]
    assert apart[0] == apart[1]


def test_compose_workers_look_for_services_where_they_are():
    listeners = COMPOSE["kafka"]["environment"]["KAFKA_ADVERTISED_LISTENERS"]
    password = COMPOSE["neo4j"]["environment"]["NEO4J_AUTH"]
    for name in WORKERS:
        environment = COMPOSE[name]["environment"]
        (server,) = yaml.safe_load(environment["WORKER_KAFKA__BOOTSTRAP_SERVERS"])
        assert f"INSIDE://{server}" in listeners.split(",")
        assert environment["WORKER_OUTCOMES__REDIS_URL"].startswith("redis://redis:6379/")
        assert environment["WORKER_GRAPH__NEO4J_URL"] == "bolt://neo4j:7687"
        assert f"neo4j/{environment['WORKER_GRAPH__NEO4J_PASSWORD']}" == password
        assert set(COMPOSE[name]["depends_on"]) == set(COMPOSE) - set(WORKERS)


def test_every_probe_asks_for_a_path_that_is_served_at_the_port_that_is_set(monkeypatch: pytest.MonkeyPatch):
    (container,) = POD["containers"]
    port = settings_of(environments()["pod"], monkeypatch).http.port
    assert container["ports"] == [{"name": "http", "containerPort": port}]
    probes = {
        name: container[name]["httpGet"] for name in ("startupProbe", "livenessProbe", "readinessProbe")
    }
    assert {name: probe["path"] for name, probe in probes.items()} == {
        "startupProbe": "/livez",
        "livenessProbe": "/livez",
        "readinessProbe": "/readyz",
    }
    asked = re.findall(r"http://127\.0\.0\.1:(\d+)(/\w+)", DOCKERFILE)
    asked += [
        found
        for name in WORKERS
        for found in re.findall(r"http://127\.0\.0\.1:(\d+)(/\w+)", str(COMPOSE[name]["healthcheck"]))
    ]
    assert asked == [("8080", "/livez"), ("8080", "/readyz"), ("8080", "/readyz")]
    assert Http().port == port == 8_080
    assert {probe["path"] for probe in probes.values()} | {path for _, path in asked} <= served_paths()


def test_large_bundles_of_a_pod_are_fetched_through_the_service(monkeypatch: pytest.MonkeyPatch):
    settings = settings_of(environments()["pod"], monkeypatch)
    (port,) = SERVICE["spec"]["ports"]
    assert settings.http.public_url == f"http://{SERVICE['metadata']['name']}:{port['port']}"
    (container,) = POD["containers"]
    assert port["targetPort"] in {one["name"] for one in container["ports"]}
    labels = DEPLOYMENT["spec"]["template"]["metadata"]["labels"]
    assert SERVICE["spec"]["selector"].items() <= labels.items()
    assert POD["enableServiceLinks"] is False


def test_what_a_pod_may_hold_of_graphs_and_state_fits_its_memory(monkeypatch: pytest.MonkeyPatch):
    settings = settings_of(environments()["pod"], monkeypatch)
    (container,) = POD["containers"]
    limit, unit = re.fullmatch(r"(\d+)(Mi|Gi)", container["resources"]["limits"]["memory"]).groups()  # pyright: ignore[reportOptionalMemberAccess]  else this fails
    limit_bytes = int(limit) << {"Mi": 20, "Gi": 30}[unit]
    held_bytes = (
        settings.graph.max_snapshot_bytes + settings.state.max_bytes + settings.graph.pack_cache_bytes
    )
    assert 2 * held_bytes + (400 << 20) < limit_bytes


async def test_the_autoscaler_watches_the_groups_and_topics_that_a_worker_joins(tmp_path: Path):
    settings = Settings(
        outcomes=Outcomes(sqlite_path=tmp_path / "o.db"),
        graph=Graph(sqlite_path=tmp_path / "g.db"),
        state=State(sqlite_path=tmp_path / "s.db"),
        http=Http(port=0),
    )
    async with build_service(settings, usage_log=tmp_path / "u.jsonl") as service:
        joined = {
            (reader.assignment._group, reader.topic)  # pyright: ignore[reportPrivateUsage]  as it is joined
            for _, reader in service.worker._readers  # pyright: ignore[reportPrivateUsage]  as above
        }
    watched = [trigger["metadata"] for trigger in SCALED["spec"]["triggers"]]
    assert {(one["consumerGroup"], one["topic"]) for one in watched} == joined
    assert len(watched) == len(joined)


def test_the_autoscaler_says_what_its_resource_knows_and_nothing_else():
    assert (SCALED["apiVersion"], SCALED["kind"]) == ("keda.sh/v1alpha1", "ScaledObject")
    spec = SCALED["spec"]
    assert spec["scaleTargetRef"] == {"name": DEPLOYMENT["metadata"]["name"]}
    assert set(spec) <= {
        "scaleTargetRef",
        "pollingInterval",
        "cooldownPeriod",
        "initialCooldownPeriod",
        "idleReplicaCount",
        "minReplicaCount",
        "maxReplicaCount",
        "fallback",
        "advanced",
        "triggers",
    }
    (partitions,) = (topic.partitions for topic in TOPICS if topic.role == "requests")
    assert (
        1 <= spec["minReplicaCount"] <= spec["fallback"]["replicas"] <= spec["maxReplicaCount"] == partitions
    )
    assert "replicas" not in DEPLOYMENT["spec"]
    servers = dict(environments()["pod"])["WORKER_KAFKA__BOOTSTRAP_SERVERS"]
    for trigger in spec["triggers"]:
        assert trigger["type"] == "kafka"
        metadata = trigger["metadata"]
        assert set(metadata) == {
            "bootstrapServers",
            "consumerGroup",
            "topic",
            "lagThreshold",
            "offsetResetPolicy",
        }
        assert all(isinstance(value, str) for value in metadata.values()), "KEDA takes strings alone"
        assert int(metadata["lagThreshold"]) > 0
        # As the worker begins where a group has committed nothing.
        assert metadata["offsetResetPolicy"] == "earliest"
        assert metadata["bootstrapServers"].split(",") == yaml.safe_load(servers)


def test_a_replica_may_have_no_more_requests_waiting_than_it_works_off_in_two_or_three_seconds():
    row = r"(?m)^\| bundles a second and core .+? \| (\d+)–\d+ with all that Kafka takes"
    (bundles_a_second,) = re.findall(row, (ROOT / "README.md").read_text())
    (threshold,) = [
        int(trigger["metadata"]["lagThreshold"])
        for trigger in SCALED["spec"]["triggers"]
        if trigger["metadata"]["topic"] == "context.requests"
    ]
    assert int(bundles_a_second) < threshold <= 3 * int(bundles_a_second)


def test_a_pod_has_no_rights_and_writes_only_where_a_volume_is():
    (container,) = POD["containers"]
    assert POD["securityContext"]["runAsNonRoot"]
    assert f"USER {POD['securityContext']['runAsUser']}\n" in DOCKERFILE
    assert container["securityContext"]["readOnlyRootFilesystem"]
    mounts = {mount["mountPath"]: mount["name"] for mount in container["volumeMounts"]}
    assert set(mounts.values()) == {volume["name"] for volume in POD["volumes"]}
    (folder,) = re.findall(r"(?m)^WORKDIR (/var\S+)$", DOCKERFILE)
    assert f"VOLUME {folder}\n" in DOCKERFILE
    assert {folder, "/tmp"} < set(mounts)  # noqa: S108 - in a container of its own
    secrets = [value for name, value in environments()["pod"].items() if name.endswith("_FILE")]
    assert {str(Path(secret).parent) for secret in secrets} <= set(mounts)
    assert not [name for name in environments()["pod"] if name.endswith(("_PASSWORD", "_TOKEN"))]


def test_the_image_takes_every_dependency_by_its_hash_and_copies_only_what_it_needs():
    commands = re.findall(r"pip (?:install|wheel)[^&\n]*", DOCKERFILE)
    assert len(commands) == 4
    for command in commands:
        by_hash = "--require-hashes --only-binary :all:" in command
        assert by_hash or "--no-deps --no-build-isolation" in command or "--no-deps --no-index" in command
    copied = [
        source
        for line in re.findall(r"(?m)^COPY (?!--from)(.+)$", DOCKERFILE)
        for source in line.split()[:-1]
    ]
    allowed = (ROOT / ".dockerignore").read_text().splitlines()
    assert allowed[0] == "*"
    assert {line[1:] for line in allowed if line.startswith("!")} == set(copied)
    assert all((ROOT / source).exists() for source in copied)
    stages = re.findall(r"(?m)^FROM python:(\d+\.\d+)\.\d+-slim", DOCKERFILE)
    required = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["requires-python"]
    assert len(stages) == 2
    assert {f">={version}" for version in stages} == {required}


def test_the_builder_of_the_image_finds_its_tools_in_the_lock():
    (script,) = re.findall(r"awk '([^']+)'", DOCKERFILE)
    done = subprocess.run(
        ["awk", script, ROOT / "requirements-dev.lock"], capture_output=True, text=True, check=True
    )
    pinned = re.findall(r"(?m)^([a-z-]+)==\S+ \\\n    --hash=sha256:", done.stdout)
    assert pinned == ["hatchling", "packaging", "pathspec", "pluggy", "tomlkit", "trove-classifiers"]
