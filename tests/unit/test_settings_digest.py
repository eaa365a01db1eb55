"""The digest in every receipt moves with each setting that shapes content, and with no other."""

from __future__ import annotations

from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from worker.settings import ModelRow, Settings, SubjectRow
from worker.wiring_graph import settings_digest

MODELS = {"gpt-4o": ModelRow(window=128_000, encoding="o200k_base")}
SHAPING: dict[tuple[str, str], Any] = {
    ("content", "default_model"): "claude",
    ("content", "models"): MODELS,
    ("content", "subjects"): {"chat": SubjectRow(inject=False, semantic=False, task_type="DOCUMENT")},
    ("content", "strategy"): "recency",
    ("content", "strategy_plugins"): ("mine",),
    ("content", "summary_tokens"): 499,
    ("content", "hot_hours"): 23,
    ("content", "warm_days"): 29,
    ("content", "unmasked_projects"): frozenset({"open"}),
    ("graph", "ranking"): "hop",
    ("graph", "relevance"): "prolog",
    ("graph", "max_snapshot_bytes"): 1_000,
    ("limits", "max_source_bytes"): 100,
    ("state", "failure_days"): 6,
}
"""Another value of each setting that decides what sources give or how it is fused."""
NEUTRAL_GROUPS = {"kafka", "outcomes", "http", "answers", "tools", "mcp", "tracing", "otlp"}
NEUTRAL = {
    ("content", "roots"),  # where things lie on this host
    # Stores, caches and programs: where and how long, not what.
    *{("graph", name) for name in ("store", "sqlite_path", "prolog", "prolog_timeout_seconds")},
    *{("graph", name) for name in ("pack_cache", "pack_cache_bytes", "pack_keep_seconds")},
    *{("graph", name) for name in ("neo4j_url", "neo4j_user", "neo4j_password", "neo4j_password_file")},
    *{("graph", name) for name in ("neo4j_ca_file", "neo4j_database")},
    *{("state", name) for name in ("sqlite_path", "max_bytes", "hot_keep_seconds", "compact_after_days")},
    # What is refused, or ends as a source's recorded failure.
    *{("limits", name) for name in ("max_request_bytes", "max_depth", "max_record_bytes")},
    *{("limits", name) for name in ("abandoned_cap", "strategy_seconds")},
}


def with_value(group: str, name: str, value: object) -> Settings:
    settings = Settings()
    return settings.model_copy(update={group: getattr(settings, group).model_copy(update={name: value})})


def every_setting() -> Iterator[tuple[str, str]]:
    for group, field in Settings.model_fields.items():
        if group in NEUTRAL_GROUPS or not (
            isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel)
        ):
            continue
        yield from ((group, name) for name in field.annotation.model_fields)


def test_each_setting_is_known_to_shape_content_or_not_to() -> None:
    assert sorted(every_setting()) == sorted([*SHAPING, *NEUTRAL])


@pytest.mark.parametrize(("group", "name"), SHAPING)
def test_a_setting_that_shapes_content_moves_the_digest(group: str, name: str) -> None:
    assert settings_digest(with_value(group, name, SHAPING[group, name])) != settings_digest(Settings())


@pytest.mark.parametrize(
    ("group", "name", "value"),
    [
        ("content", "roots", {"shop": (Path("/elsewhere"),)}),
        ("graph", "sqlite_path", Path("other.db")),
        ("state", "max_bytes", 1_000),
        ("limits", "abandoned_cap", 1),
    ],
)
def test_another_setting_leaves_it(group: str, name: str, value: object) -> None:
    assert settings_digest(with_value(group, name, value)) == settings_digest(Settings())


@pytest.mark.parametrize(
    "changed",
    [
        {"window": 127_000},
        {"encoding": "cl100k_base"},
        {"framing_tokens": 17},
        {"safety_factor": Decimal("1.01")},
        {"layers": {"output": 32_000}},
    ],
)
def test_each_column_of_the_model_table_moves_it(changed: dict[str, Any]) -> None:
    rows = {"gpt-4o": MODELS["gpt-4o"].model_copy(update=changed)}
    assert settings_digest(with_value("content", "models", rows)) != settings_digest(
        with_value("content", "models", MODELS)
    )


def test_a_tokenizer_file_counts_by_what_it_holds_and_not_by_where_it_lies(tmp_path: Path) -> None:
    def digest(name: str, text: str) -> str:
        (tmp_path / name).write_text(text)
        rows = {"own": ModelRow(window=8_000, encoding=f"file:{tmp_path / name}")}
        return settings_digest(with_value("content", "models", rows))

    assert digest("one.json", "{}") == digest("other.json", "{}")
    assert digest("one.json", "{ }") != digest("other.json", "{}")
