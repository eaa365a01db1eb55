from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from pydantic import BaseModel, SecretStr, ValidationError

from worker.settings import Content, Http, Kafka, Outcomes, Settings, Tracing, read_secret
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


def test_a_secret_never_shows_in_errors_or_in_print() -> None:
    with pytest.raises(ValidationError) as caught:
        Outcomes(redis_password=SecretStr("hunter2"))
    assert "hunter2" not in str(caught.value)
    assert "hunter2" not in repr(
        Kafka(security_protocol="SASL_SSL", sasl_username="u", sasl_password=SecretStr("hunter2"))
    )


def test_a_secret_is_read_from_its_file_without_the_line_break(tmp_path: Path) -> None:
    path = tmp_path / "secret"
    path.write_text("hunter2\n")
    assert read_secret(None, path) == "hunter2"
    assert read_secret(SecretStr("a"), None) == "a"
    assert read_secret(None, None) is None


def test_a_secret_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="absent"):
        read_secret(None, tmp_path / "absent")


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
        ({"TRACING__RATIO": "0.5"}, "tracing.ratio"),
    ],
)
def test_an_option_without_effect_is_refused_by_name(
    monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], named: str
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(f"WORKER_{name}", value)
    with pytest.raises(ValueError, match=named):
        read_settings()


@pytest.mark.parametrize("name", ["WORKER_KAFAK__GROUP_ID", "WORKER_LOGLEVEL", "WORKER_GRAPH__STROE"])
def test_a_misspelt_name_is_refused_as_unknown(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setenv(name, "x")
    with pytest.raises(ValueError, match=f"{name}: unknown option"):
        read_settings()
