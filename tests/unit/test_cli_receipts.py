from __future__ import annotations

import asyncio
import json
import time
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from schemas.bundle import to_wire
from tests.support.assembling import AS_OF, assemble
from tests.support.explaining import crowded
from worker.assembly import Assembled
from worker.cli import app, main
from worker.errors import UnknownSubject
from worker.outcomes import bundle_outcome, rejection_outcome
from worker.ports import OutcomeKey
from worker.stores.sqlite import SqliteOutcomeStore

runner = CliRunner()


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two bundles, one without its capture, one rejection, and one that has expired."""
    path = tmp_path_factory.mktemp("store") / "outcomes.db"
    asyncio.run(_fill(path))
    return path


@pytest.fixture
def store(filled: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The settings name it."""
    monkeypatch.setenv("WORKER_OUTCOMES__SQLITE_PATH", str(filled))


async def _fill(path: Path) -> None:
    held = SqliteOutcomeStore(path, keep_seconds=7_200, forget_seconds=172_800)
    for request_id, total, most in (("r1", 1_000, 1_000_000), ("r2", 800, 1_000_000), ("bare", 1_000, 0)):
        request = crowded(request_id=request_id, memory=None, budget={"total": total})
        made: Assembled = await assemble(request)
        outcome = bundle_outcome(
            made.bundle,
            made.usage,
            made.trail,
            request_digest=request.digest(),
            as_of=made.bundle.assembled_at,
            max_record_bytes=900_000,
            max_capture_bytes=most,
            public_url="http://here",
        )
        await held.put_if_absent(OutcomeKey(project_id="p", request_id=request_id), outcome)
    key = OutcomeKey(project_id="p", request_id="refused")
    refused = rejection_outcome(
        UnknownSubject("nonsense", known=["chat"]),
        key=key,
        request_digest="0" * 64,
        as_of=made.bundle.assembled_at,
        timestamp=made.bundle.assembled_at,
    )
    await held.put_if_absent(key, refused)
    await held.close()
    long_ago = SqliteOutcomeStore(
        path, keep_seconds=7_200, forget_seconds=172_800, clock=lambda: time.time() - 10_000
    )
    await long_ago.put_if_absent(OutcomeKey(project_id="p", request_id="old"), refused)
    await long_ago.close()


def run(*arguments: str) -> Result:
    return runner.invoke(app, [*arguments], env={"COLUMNS": "200"})


def fails(*arguments: str) -> tuple[int, str]:
    result = run(*arguments)
    return result.exit_code, result.stderr


@pytest.mark.usefixtures("store")
def test_a_stored_prompt_is_explained_verified_compared_and_supposed() -> None:
    explained = run("explain", "r1", "--project", "p")
    assert (explained.exit_code, explained.stderr) == (0, "")
    assert "r1 of p: complete, for smith to implement" in explained.stdout
    verified = run("explain", "r1", "--project", "p", "--verify")
    assert (verified.exit_code, "byte for byte the same" in verified.stdout) == (0, True)
    compared = run("diff", "r1", "r2", "--project", "p")
    assert (compared.exit_code, "budget.total" in compared.stdout) == (0, True)
    supposed = run("what-if", "r2", "--project", "p", "--total", "1000", "--layer", "mission=300")
    assert (supposed.exit_code, "total" in supposed.stdout) == (0, True)


@pytest.mark.usefixtures("store")
@pytest.mark.parametrize(
    ("command", "field"),
    [
        (["explain", "r1"], "layers"),
        (["explain", "r1", "--verify"], "outcome"),
        (["diff", "r1", "r2"], "first_byte"),
        (["what-if", "r1", "--total", "1200"], "worth"),
    ],
)
def test_each_answer_is_there_for_programs(command: list[str], field: str) -> None:
    result = run(*command, "--project", "p", "--json")
    assert result.exit_code == 0
    answer: dict[str, Any] = json.loads(result.stdout)
    assert field in answer


@pytest.mark.usefixtures("store")
@pytest.mark.parametrize(
    ("command", "code", "said"),
    [
        (["explain", "nope", "--project", "p"], 1, "has no outcome of request 'nope'"),
        (["explain", "r1", "--project", "q"], 1, "project 'q' has no outcome of request 'r1'"),
        (["explain", "r1", "--project", "p", "--generation", "1"], 1, "generation 1"),
        (["explain", "r1"], 1, "give --project"),
        (["explain"], 1, "give the id of a request"),
        (["explain", "r1", "--project", "a b"], 1, "is no project id"),
        (["explain", "refused", "--project", "p"], 4, "unknown_subject"),
        (["explain", "bare", "--project", "p", "--verify"], 6, "capture_not_kept"),
        (["what-if", "bare", "--project", "p", "--total", "9000"], 6, "capture_not_kept"),
        (["explain", "old", "--project", "p", "--verify"], 6, "capture_expired"),
        (["what-if", "r1", "--project", "p", "--total", "9"], 4, "budget_too_small"),
        (["what-if", "r1", "--project", "p", "--strategy", "none"], 4, "unknown_strategy"),
        (["what-if", "r1", "--project", "p", "--layer", "mission"], 1, "write it as graph=4000"),
        (
            ["what-if", "r1", "--project", "p", "--layer", "graph=" + "9" * 5_000],
            1,
            "write it as graph=4000",
        ),
    ],
)
def test_what_cannot_be_answered_is_said_in_one_line(
    command: list[str],
    code: int,
    said: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("sys.argv", ["context-worker", *command])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == code
    assert said in capsys.readouterr().err.replace("\n", " ")


def test_asking_makes_no_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "none.db"
    monkeypatch.setenv("WORKER_OUTCOMES__SQLITE_PATH", str(path))
    monkeypatch.setattr("sys.argv", ["context-worker", "explain", "r", "--project", "p"])
    with pytest.raises(SystemExit):
        main()
    assert not path.exists()


def test_without_a_broker_a_file_explains(tmp_path: Path) -> None:
    body = tmp_path / "request.json"
    body.write_bytes(crowded().model_dump_json(exclude_none=True, exclude_defaults=True).encode())
    out = tmp_path / "receipt.json"
    made = run("assemble", str(body), "--as-of", AS_OF, "--receipt-out", str(out))
    assert made.exit_code == 0
    assert made.stdout_bytes == to_wire(asyncio.run(assemble(crowded())).bundle) + b"\n"
    assert run("explain", "--receipt", str(out), "--verify").exit_code == 0
    assert run("diff", str(out), str(out)).stdout == "the prompts are the same, byte for byte\n"
    assert run("what-if", "--receipt", str(out), "--total", "2000").exit_code == 0


def test_a_changed_file_is_found_out(tmp_path: Path) -> None:
    body = tmp_path / "request.json"
    body.write_bytes(crowded().model_dump_json(exclude_none=True, exclude_defaults=True).encode())
    out = tmp_path / "receipt.json"
    run("assemble", str(body), "--as-of", AS_OF, "--receipt-out", str(out))
    out.write_bytes(out.read_bytes().replace(b"deadline", b"headline"))
    assert run("explain", "--receipt", str(out), "--verify").exit_code == 5
