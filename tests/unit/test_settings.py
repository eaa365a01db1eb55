from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel, SecretStr, ValidationError

from worker.settings import Content, Graph, Http, Kafka, Outcomes, Settings, Tracing, read_secret
from worker.wiring_kafka import refuse_replaced
from worker.wiring_settings import read_settings


def groups() -> Iterator[type[BaseModel]]:
    yield Settings
    for field in Settings.model_fields.values():
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            yield field.annotation


@pytest.mark.parametrize("group", list(groups()), ids=lambda group: group.__name__)
def test_every_option_is_described(group: type[BaseModel]) -> None:
    undescribed = [
        name
        for name, field in group.model_fields.items()
        if not field.description
        and not (isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel))
    ]
    assert undescribed == []


def test_options_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORKER_KAFKA__BOOTSTRAP_SERVERS", '["10.0.0.1:9092", "10.0.0.2:9092"]')
    monkeypatch.setenv("WORKER_LIMITS__MAX_DEPTH", "12")
    settings = Settings()
    assert settings.kafka.bootstrap_servers == ("10.0.0.1:9092", "10.0.0.2:9092")
    assert settings.limits.max_depth == 12


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda: Kafka(sasl_username="u"), "no effect"),
        (lambda: Kafka(ssl_ca_file=Path("ca")), "no effect"),
        (lambda: Kafka(security_protocol="SASL_SSL"), "needs"),
        (lambda: Outcomes(redis_url="redis://127.0.0.1"), "no effect"),
        (lambda: Outcomes(store="redis"), "needs"),
        (lambda: Outcomes(keep_seconds=10, forget_seconds=5), "must not be below"),
        (lambda: Http(host="0.0.0.0"), "token"),  # noqa: S104  # refused, which is the point
        (lambda: Content(default_model="none"), "is not in content.models"),
        (lambda: Kafka(bootstrap_servers=()), "at least 1"),
        (lambda: Tracing(ratio=0.5), "no effect"),
        (lambda: Tracing(exporter="console", file=Path("spans")), "no effect"),
        (lambda: Tracing(exporter="file", ratio=1.5), "less than or equal to 1"),
    ],
)
def test_a_contradiction_or_an_option_without_effect_is_refused_with_its_reason(
    make: type[object], reason: str
) -> None:
    with pytest.raises(ValidationError, match=reason):
        make()


def test_a_misspelled_option_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORKER_KAFKA__GROUPID", "x")
    with pytest.raises(ValidationError, match="groupid"):
        Settings()


def secrets() -> list[tuple[str, str]]:
    """Group and name of every setting that holds a secret."""
    return [
        (name, field)
        for name, group in Settings.model_fields.items()
        if isinstance(group.annotation, type) and issubclass(group.annotation, BaseModel)
        for field, info in group.annotation.model_fields.items()
        if SecretStr.__name__ in str(info.annotation)
    ]


def test_every_setting_that_sounds_like_a_secret_is_one() -> None:
    telling = ("password", "token", "secret", "credential")
    sounding = [
        (name, field)
        for name, group in Settings.model_fields.items()
        if isinstance(group.annotation, type) and issubclass(group.annotation, BaseModel)
        for field in group.annotation.model_fields
        if field.split("_")[-1] in telling
    ]
    assert sorted(sounding) == sorted(secrets())
    assert len(sounding) >= 5


COMPANIONS: dict[str, dict[str, Any]] = {
    "kafka": {"security_protocol": "SASL_SSL", "sasl_username": "u"},
    "outcomes": {"store": "redis", "redis_url": "redis://r"},
    "graph": {"store": "neo4j", "neo4j_url": "bolt://n"},
}
BESIDE: dict[str, dict[str, Any]] = {"otlp": {"tracing": {"exporter": "otlp"}}}


@pytest.mark.parametrize(("group", "name"), secrets())
def test_a_secret_is_never_shown_comes_from_one_place_and_is_never_empty(
    group: str, name: str, tmp_path: Path
) -> None:
    kind: Any = Settings.model_fields[group].annotation
    others = COMPANIONS.get(group, {})
    made = kind(**{**others, name: "hunter2"})
    settings = Settings(**{group: made, **BESIDE.get(group, {})})
    shown = (repr(settings), str(settings), settings.model_dump_json(), str(settings.model_dump()))
    assert not [text for text in shown if "hunter2" in text]
    path = tmp_path / "secret"
    path.write_text("hunter2\n")
    assert getattr(kind(**{**others, f"{name}_file": path}), f"{name}_file") == path
    for wrong in (
        {name: "hunter2", f"{name}_file": path},
        {name: "hunter2", "unheard_of": 1},
        {name: ""},
        {name: ["hunter2"]},
    ):
        with pytest.raises(ValidationError) as caught:
            kind(**{**others, **wrong})
        assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize(
    "url",
    [
        "redis://u:hunter2@r",
        "redis://:hunter2@r/0",
        "redis://r?password=hunter2",
        "redis://r/0?a=b&password=x",
    ],
)
def test_an_address_with_a_password_is_refused_without_showing_it(url: str) -> None:
    with pytest.raises(ValidationError, match="password apart") as caught:
        Outcomes(store="redis", redis_url=url)
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize(
    "url",
    ["redis://r", "rediss://worker@r.example:6380/2", "unix:///run/redis.sock?db=1", "redis://[::1]:6379/0"],
)
def test_an_address_without_one_is_taken(url: str) -> None:
    assert Outcomes(store="redis", redis_url=url).redis_address == url


def test_the_authorities_of_redis_stand_in_its_address() -> None:
    outcomes = Outcomes(store="redis", redis_url="rediss://r/0", redis_ca_file=Path("/a b/ca.pem"))
    assert outcomes.redis_address == "rediss://r/0?ssl_ca_certs=/a%20b/ca.pem"


@pytest.mark.parametrize("scheme", ["bolt", "bolt+s", "bolt+ssc", "neo4j", "neo4j+s", "neo4j+ssc"])
def test_every_scheme_of_neo4j_is_taken(scheme: str) -> None:
    assert Graph(store="neo4j", neo4j_url=f"{scheme}://n:7687").neo4j_url == f"{scheme}://n:7687"


def test_a_secret_is_read_from_its_file_without_the_line_break(tmp_path: Path) -> None:
    path = tmp_path / "secret"
    path.write_text("hunter2\n")
    assert read_secret(None, path) == "hunter2"
    assert read_secret(SecretStr("a"), None) == "a"
    assert read_secret(None, None) is None


@pytest.mark.parametrize("content", [b"", b"\nhunter2\n", b"hunter2\xff\n", None])
def test_a_secret_file_that_holds_none_is_named_and_not_shown(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "absent"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ValueError, match="absent") as caught:
        read_secret(None, path)
    assert "hunter2" not in str(caught.value)


def test_the_environment_of_the_tests_is_not_the_workers() -> None:
    assert not [name for name in os.environ if name.startswith("WORKER_")]


@pytest.mark.parametrize(
    ("variables", "named"),
    [
        (
            {"OUTCOMES__STORE": "redis", "OUTCOMES__REDIS_URL": "redis://r", "OUTCOMES__SQLITE_PATH": "a"},
            "sqlite",
        ),
        ({"OUTCOMES__KEY_PREFIX": "a"}, "key_prefix"),
        ({"GRAPH__STORE": "neo4j", "GRAPH__NEO4J_URL": "bolt://n", "GRAPH__SQLITE_PATH": "a"}, "sqlite_path"),
        ({"GRAPH__NEO4J_USER": "a"}, "neo4j_user"),
        ({"GRAPH__NEO4J_URL": "bolt://n"}, "set graph.store=neo4j"),
        ({"GRAPH__STORE": "neo4j"}, "needs graph.neo4j_url"),
        ({"GRAPH__STORE": "neo4j", "GRAPH__NEO4J_URL": "bolt://neo4j:s3cret@n"}, "password apart"),
        ({"GRAPH__STORE": "neo4j", "GRAPH__NEO4J_URL": "http://n:7474"}, "must be bolt"),
        ({"GRAPH__PACK_KEEP_SECONDS": "5"}, "pack_keep_seconds"),
        ({"GRAPH__PACK_CACHE": "redis"}, "outcomes.redis_url"),
        (
            {"GRAPH__STORE": "neo4j", "GRAPH__NEO4J_URL": "bolt://n", "STATE__SQLITE_PATH": "a"},
            "state.sqlite_path",
        ),
        ({"STATE__HOT_KEEP_SECONDS": "5"}, "hot_keep_seconds"),
        ({"KAFKA__SASL_MECHANISM": "PLAIN"}, "sasl_mechanism"),
        ({"KAFKA__SECURITY_PROTOCOL": "SSL", "KAFKA__SSL_KEY_FILE": "a"}, "ssl_key_file"),
        ({"KAFKA__SSL_CERTIFICATE_FILE": "a"}, "ssl_certificate_file"),
        (
            {"OUTCOMES__STORE": "redis", "OUTCOMES__REDIS_URL": "redis://r", "OUTCOMES__REDIS_CA_FILE": "a"},
            "redis_ca_file",
        ),
        (
            {"GRAPH__STORE": "neo4j", "GRAPH__NEO4J_URL": "bolt://n", "GRAPH__NEO4J_CA_FILE": "a"},
            "neo4j_ca_file",
        ),
        ({"HTTP__PUBLIC_URL": "http://u:p@h"}, "HTTP__PUBLIC_URL"),
        ({"TRACING__RATIO": "0.5"}, "tracing.ratio"),
        ({"LIMITS__STRATEGY_SECONDS": "2"}, "limits.strategy_seconds"),
    ],
)
def test_an_option_without_effect_is_refused_by_name(
    monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], named: str
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(f"WORKER_{name}", value)
    with pytest.raises(ValueError, match=named):
        read_settings()


@pytest.mark.parametrize(
    ("layers", "complaint"),
    [
        ({"output": 700, "graph": 301}, "layers reserve 1001 tokens of a window of 1000"),
        ({"graf": 1}, "GRAF.*should be 'system'"),
    ],
)
def test_a_split_that_no_window_can_have_is_refused(
    monkeypatch: pytest.MonkeyPatch, layers: dict[str, int], complaint: str
) -> None:
    row = {"window": 1_000, "encoding": "bytes", "layers": layers}
    monkeypatch.setenv("WORKER_CONTENT__MODELS", json.dumps({"own": row}))
    with pytest.raises(ValueError, match=complaint):
        read_settings()


@pytest.mark.parametrize("name", ["WORKER_KAFAK__GROUP_ID", "WORKER_LOGLEVEL", "WORKER_GRAPH__STROE"])
def test_a_misspelt_name_is_refused_as_unknown(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setenv(name, "x")
    with pytest.raises(ValueError, match=f"{name}: unknown option"):
        read_settings()


SHARED = {"store": "redis", "redis_url": "redis://r"}
GRAPHS = {"store": "neo4j", "neo4j_url": "bolt://n"}
ANY_HOST = {"host": "0.0.0.0", "token": "t"}  # noqa: S104  # what is doubted


@pytest.mark.parametrize(
    ("groups", "doubtful"),
    [
        ({}, []),
        ({"outcomes": SHARED}, ["graph.store"]),
        ({"outcomes": SHARED, "graph": GRAPHS}, []),
        ({"http": ANY_HOST}, ["http.public_url"]),
        ({"http": {**ANY_HOST, "host": "::"}}, ["http.public_url"]),
        ({"http": {**ANY_HOST, "public_url": "http://worker:8080"}}, []),
        ({"http": {**ANY_HOST, "host": "10.0.0.7"}}, []),
        ({"outcomes": SHARED, "http": ANY_HOST}, ["graph.store", "http.public_url"]),
    ],
)
def test_what_is_seldom_meant_is_known_by_the_option_that_mends_it(
    groups: dict[str, Any], doubtful: list[str]
) -> None:
    assert list(Settings(**groups).doubts()) == doubtful


@pytest.mark.parametrize(
    ("name", "value"),
    [("bootstrap_servers", ("127.0.0.1:9092",)), ("idempotent_producer", True), ("fetch_max_wait_ms", 5)],
)
def test_an_option_that_the_embedded_broker_replaces_is_refused_by_name(name: str, value: object) -> None:
    settings = Settings(kafka=Kafka.model_validate({name: value}))
    with pytest.raises(ValueError, match=f"kafka.{name} has no effect"):
        refuse_replaced(settings)
    refuse_replaced(Settings(kafka=Kafka(group_id="mine")))
