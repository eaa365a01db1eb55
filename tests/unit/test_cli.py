from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command
from typer.testing import CliRunner

from schemas.bundle import to_wire
from schemas.request import AssemblyRequest
from schemas.times import parse_time
from tests.support.assembling import AS_OF, assembler
from worker.cli import app, main

BODY = {
    "request_id": "r1",
    "project_id": "p",
    "volk": "smith",
    "subject": "implement",
    "user_message": "Do it.",
    "session": {"goal": {"statement": "Ship"}},
}
runner = CliRunner()


@pytest.fixture
def request_file(tmp_path: Path) -> Path:
    path = tmp_path / "request.json"
    path.write_text(json.dumps(BODY))
    return path


def commands() -> list[str]:
    """Every command and every group below the program itself."""
    found: list[str] = []

    def walk(command: Any, name: str) -> None:
        for below, each in getattr(command, "commands", {}).items():
            found.append(f"{name} {below}".strip())
            walk(each, found[-1])

    walk(get_command(app), "")
    return found


@pytest.mark.parametrize("command", commands())
def test_every_command_teaches_with_an_example(command: str) -> None:
    result = runner.invoke(app, [*command.split(), "--help"])
    assert result.exit_code == 0
    assert len(result.output) > 200
    _, _, example = result.output.partition("Example: ")
    assert f"context-worker {command}" in " ".join(example.split())


def test_assemble_gives_the_bundle_that_the_worker_would_publish(request_file: Path) -> None:
    result = runner.invoke(app, ["assemble", str(request_file), "--as-of", AS_OF])
    instant, _ = parse_time(AS_OF)
    expected = asyncio.run(assembler().assemble(AssemblyRequest.model_validate(BODY), as_of=instant))
    assert result.exit_code == 0
    assert result.stdout_bytes == to_wire(expected.bundle) + b"\n"
    assert result.stderr == ""


def test_assemble_without_an_instant_says_which_one_it_took(request_file: Path) -> None:
    result = runner.invoke(app, ["assemble", str(request_file)])
    assert result.exit_code == 0
    assert "as of 20" in result.stderr


def test_assemble_text_prints_the_prompt() -> None:
    result = runner.invoke(app, ["assemble", "-", "--text", "--as-of", AS_OF], input=json.dumps(BODY))
    assert result.exit_code == 0
    assert result.stdout.startswith("--- user ---\n")
    assert result.stdout.rstrip().endswith("Do it.")


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("{", "invalid_json"),
        ("{}", "invalid_request"),
        (json.dumps(BODY | {"subject": "x"}), "unknown_subject"),
        (json.dumps(BODY | {"parent": {"request_id": "r0"}}), "not_supported"),
    ],
)
def test_a_request_that_is_refused_is_one_line_and_an_exit_code_of_its_own(body: str, said: str) -> None:
    result = runner.invoke(app, ["assemble", "-"], input=body)
    assert result.exit_code == 4
    assert result.stdout == ""
    assert result.stderr.startswith(f"context-worker: {said}: ")
    assert result.stderr.count("\n") == 1


def test_a_bad_instant_says_what_a_good_one_looks_like(request_file: Path) -> None:
    result = runner.invoke(app, ["assemble", str(request_file), "--as-of", "yesterday"])
    assert result.exit_code == 1
    assert "2026-01-02T03:04:05Z" in result.stderr


def test_a_wrong_setting_is_named_as_its_variable(
    monkeypatch: pytest.MonkeyPatch, request_file: Path
) -> None:
    monkeypatch.setenv("WORKER_LIMITS__MAX_DEPTH", "-1")
    result = runner.invoke(app, ["assemble", str(request_file)])
    assert result.exit_code == 1
    assert "WORKER_LIMITS__MAX_DEPTH" in result.stderr


def test_an_expected_error_is_one_line_without_a_traceback(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["context-worker", "assemble", "/nowhere/request.json"])
    with pytest.raises(SystemExit) as caught:
        main()
    captured = capsys.readouterr()
    assert caught.value.code == 1
    assert captured.err.count("\n") == 1
    assert "/nowhere/request.json" in captured.err


def test_usage_report_reads_a_log(tmp_path: Path) -> None:
    log = tmp_path / "usage.jsonl"
    old_shape = {
        "timestamp": "2026-01-01T00:00:00Z",
        "volk": "smith",
        "subject": "chat",
        "usage": {"spent": 7},
    }
    log.write_text(json.dumps(old_shape) + "\n{broken\n\n")
    result = runner.invoke(app, ["usage", "report", "--path", str(log), "--json"])
    assert result.exit_code == 0
    assert json.loads(result.stdout)["total_calls"] == 1


def test_usage_report_counts_what_was_rotated_away(tmp_path: Path) -> None:
    log, line = tmp_path / "usage.jsonl", '{"volk": "smith", "subject": "chat", "usage": {"spent": 7}}\n'
    log.write_text(line)
    log.with_name("usage.jsonl.1").write_text(2 * line)
    told = runner.invoke(app, ["usage", "report", "--path", str(log), "--json"])
    assert json.loads(told.stdout)["total_calls"] == 3
    assert "3 calls" in runner.invoke(app, ["usage", "report", "--path", str(log)]).stdout


def test_usage_report_writes_a_page_and_not_json_beside_it(tmp_path: Path) -> None:
    log, page = tmp_path / "usage.jsonl", tmp_path / "usage.html"
    log.write_text('{"volk_alias": "smith", "subject": "chat", "outcome": "complete"}\n')
    command = ["usage", "report", "--path", str(log), "--html", str(page)]
    refused = runner.invoke(app, [*command, "--json"])
    assert (refused.exit_code, page.exists()) == (1, False)
    assert runner.invoke(app, command).exit_code == 0
    assert "<bdi>smith</bdi>" in page.read_text()


def test_usage_report_without_a_log_says_where_it_looked(tmp_path: Path) -> None:
    result = runner.invoke(app, ["usage", "report", "--path", str(tmp_path / "none.jsonl")])
    assert result.exit_code == 1
    assert "none.jsonl" in result.stderr


def test_doctor_reports_each_dependency_and_how_to_mend_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("WORKER_KAFKA__BOOTSTRAP_SERVERS", '["127.0.0.1:1"]')
    monkeypatch.setenv("WORKER_OUTCOMES__SQLITE_PATH", str(tmp_path / "outcomes.db"))
    monkeypatch.setenv("WORKER_CONTENT__ROOTS", json.dumps({"p": [str(tmp_path / "gone")]}))
    result = runner.invoke(app, ["doctor", "--json"])
    findings = {finding["name"]: finding for finding in json.loads(result.stdout)}
    assert result.exit_code == 1
    assert findings["outcome store"]["is_ok"]
    assert not findings["broker"]["is_ok"]
    assert "WORKER_KAFKA__BOOTSTRAP_SERVERS" in findings["broker"]["mend"]
    assert not findings["source roots p"]["is_ok"]
    assert findings["tokenizer o200k_base"]["is_ok"]


def test_the_exported_schemas_do_not_differ() -> None:
    result = runner.invoke(app, ["schema", "export", "--check"])
    assert (result.exit_code, result.stderr) == (0, "the exported schemas are those of the models\n")
