"""What a wrong call is told: one line that names what was meant, where it was looked for, and why not."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from worker.cli import main
from worker.stores.sqlite import SqliteOutcomeStore

Captured = pytest.CaptureFixture[str]


@pytest.fixture
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("WORKER_KAFKA__BOOTSTRAP_SERVERS", '["127.0.0.1:1"]')


def told(monkeypatch: pytest.MonkeyPatch, capsys: Captured, *command: str) -> tuple[object, str]:
    """Exit code, and what stands on standard error."""
    monkeypatch.setattr("sys.argv", ["context-worker", *command])
    with pytest.raises(SystemExit) as ended:
        main()
    return ended.value.code, capsys.readouterr().err


@pytest.mark.usefixtures("_elsewhere")
def test_an_unknown_id_says_where_it_was_looked_for_and_how_long_ids_live(
    monkeypatch: pytest.MonkeyPatch, capsys: Captured
) -> None:
    code, said = told(monkeypatch, capsys, "explain", "nope", "--project", "p")
    assert (code, f"seen from {Path.cwd()}" in said, "no outcome store at" in said) == (1, True, True)
    monkeypatch.setenv("WORKER_OUTCOMES__SQLITE_PATH", "here.db")
    monkeypatch.setenv("WORKER_OUTCOMES__KEEP_SECONDS", "7200")
    monkeypatch.setenv("WORKER_OUTCOMES__FORGET_SECONDS", "172800")
    store = SqliteOutcomeStore(Path("here.db"), keep_seconds=7_200, forget_seconds=172_800)

    async def make() -> None:
        await store.check()
        await store.close()

    asyncio.run(make())
    code, said = told(monkeypatch, capsys, "explain", "nope", "--project", "p")
    assert (code, said.count("\n")) == (1, 1)
    assert f"here.db (outcomes.sqlite_path, seen from {Path.cwd()})" in said
    assert "receipts are kept 2 h, outcomes forgotten after 48 h" in said


@pytest.mark.usefixtures("_elsewhere")
@pytest.mark.parametrize(
    ("command", "said"),
    [
        (["explain", "--receipt", "nope.json"], "cannot read nope.json: No such file or directory"),
        (["diff", "nope.json", "other.json"], "cannot read nope.json: No such file or directory"),
        (["explain", "--receipt", "."], "cannot read .: Is a directory"),
        (["replay", "nope.rec"], "cannot read nope.rec: No such file or directory"),
        (["send", "nope.json"], "cannot read nope.json: No such file or directory"),
        (["evaluate", "bare"], "bare is no git repository"),
        (["dead-letters", "list"], "no broker answers at 127.0.0.1:1"),
        (["dead-letters", "show", "0:0"], "no broker answers at 127.0.0.1:1"),
        (["dead-letters", "redrive", "--yes"], "no broker answers at 127.0.0.1:1"),
        (
            ["dead-letters", "list", "--topic", "tools"],
            "--topic 'tools': unknown; dead letters come from",
        ),
        (["dead-letters", "redrive", "--topic", "context.bundles"], "context.sync, context.tools"),
    ],
)
def test_what_is_not_there_is_named_in_one_line(
    command: list[str], said: str, monkeypatch: pytest.MonkeyPatch, capsys: Captured
) -> None:
    Path("bare").mkdir()
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(Path.cwd()))
    code, line = told(monkeypatch, capsys, *command)
    assert (code, line.count("\n")) == (1, 1)
    assert said in line
