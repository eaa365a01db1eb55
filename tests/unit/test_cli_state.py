from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from typer.testing import CliRunner

from schemas.wire import derived_id
from tests.support.state_events import record
from tests.unit.providers.test_states import STORY
from worker.cli import app
from worker.stores.sqlite_state import SqliteStateStore

runner = CliRunner()


@pytest.fixture(autouse=True)
def told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "state.db"
    monkeypatch.setenv("WORKER_STATE__SQLITE_PATH", str(path))

    async def tell() -> None:
        store = SqliteStateStore(path)
        events = [record(f"e{n}", kind, body, at=n) for n, (kind, body) in enumerate(STORY)]
        await store.apply("shop", events)
        await store.close()

    asyncio.run(tell())


def test_all_that_is_known_of_a_thread_is_one_document() -> None:
    result = runner.invoke(
        app, ["session", "--project", "shop", "--thread", "t1", "--as-of", "2026-03-01T13:00:00Z"]
    )
    assert result.exit_code == 0, result.stderr
    assert (
        result.stdout
        == f"""# Thread t1 of project shop

- branch: main
- test_state: 2 failing
- active_session: Design

## Goal g

Requests end in time

## Blockers

- {derived_id("b_", "no staging")}: no staging

## Decisions

- {derived_id("d_", "Deadlines are absolute")}: Deadlines are absolute

## Work items

- [P2] Tidy the client

## Handed over: key files

- client.py

## Plan plan

- [x] 1 Storage layer
- [ ] 2 Retry with a deadline (current)
- [ ] 3 Docs

## Failing tests

- test_deadline: assert 3 < 2

## Remembered

- retries: Retries are capped at five.

## Artifacts

- design · doc: The deadline travels along.

## What was said

- user: We decided to keep the first error of all retries.
"""
    )


@pytest.mark.parametrize(
    ("named", "said"),
    [
        (["--project", "shop", "--thread", "nobody"], "thread 'nobody' of project 'shop'"),
        (["--project", "none"], "project 'none'"),
    ],
)
def test_what_nothing_is_known_of_is_named_and_ends_with_1(named: list[str], said: str) -> None:
    result = runner.invoke(app, ["session", *named])
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr == f"context-worker: nothing is known of {said}\n"


def test_a_template_of_ones_own_gets_the_same_values(tmp_path: Path) -> None:
    template = tmp_path / "own.j2"
    template.write_text("{{ goal.statement }} / {{ memories | length }}")
    command = ["session", "--project", "shop", "--thread", "t1", "--template", str(template)]
    assert runner.invoke(app, command).stdout == "Requests end in time / 1\n"


@pytest.mark.parametrize(
    "text", ["{{ nothing_of_that_name }}", "{% if %}", "{{ goal.__class__.__mro__ }}", "{{ 1 / 0 }}"]
)
def test_a_wrong_template_is_one_line(tmp_path: Path, text: str) -> None:
    template = tmp_path / "own.j2"
    template.write_text(text)
    command = ["session", "--project", "shop", "--thread", "t1", "--template", str(template)]
    result = runner.invoke(app, command)
    assert result.exit_code == 1
    assert result.stderr.startswith("context-worker: the template")
    assert result.stderr.count("\n") == 1


def test_the_built_in_template_can_be_had() -> None:
    result = runner.invoke(app, ["session", "--project", "shop", "--show-template"])
    assert "{% macro listed" in result.stdout


def test_what_is_no_project_id_is_one_line() -> None:
    result = runner.invoke(app, ["session", "--project", "a b"])
    assert result.exit_code == 1
    assert "no project id" in result.stderr
