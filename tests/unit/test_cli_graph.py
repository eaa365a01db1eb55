"""The commands about a project's graph, run as a person runs them."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest
from typer.testing import CliRunner

from worker.cli import app
from worker.graph.pack_file import parse_pack

runner = CliRunner()

NET = '''\
"""Sending, with patience."""


def retry(deadline):
    """Send until the deadline. @traces REQ-1"""
    while not deadline.passed():
        if send():
            return True
    return False


def send():
    return False
'''


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A small project, and a graph store of its own."""
    monkeypatch.setenv("WORKER_GRAPH__SQLITE_PATH", str(tmp_path / "graph.db"))
    root = tmp_path / "shop"
    (root / "pkg").mkdir(parents=True)
    (root / "pkg" / "net.py").write_text(NET)
    (root / "pkg" / "broken.py").write_text("def f(:\n")
    (root / "docs.md").write_text("# Requirements\n\n- **REQ-1**: Deadlines hold.\n")
    return root


def index(root: Path, *options: str) -> str:
    result = runner.invoke(app, ["index", str(root), "--project", "shop", *options])
    assert result.exit_code == 0, result.output
    return result.stdout


@pytest.mark.parametrize(
    "command", ["index", "pack", "evaluate", "purge", "schema check", "schema apply", "schema migrate"]
)
def test_every_command_teaches_with_an_example(command: str) -> None:
    result = runner.invoke(app, [*command.split(), "--help"])
    assert result.exit_code == 0
    assert "Example" in result.output


def test_index_sums_up_what_it_found_and_what_it_could_not_read(tree: Path) -> None:
    output = index(tree)
    assert "Function 3" in output
    assert "CALLS 1" in output
    assert "pkg/broken.py: syntax" in output
    assert "this time" in output
    assert "0 files read" in index(tree)


def test_index_names_what_it_left_out_where_it_is_asked_to(tree: Path) -> None:
    (tree / "pkg" / "link.py").symlink_to("net.py")
    assert "link.py" not in index(tree)
    assert "skipped: pkg/link.py: symbolic_link\n" in index(tree, "--verbose")
    assert json.loads(index(tree, "--json"))["skipped_paths"] == [["pkg/link.py", "symbolic_link"]]


def test_index_tells_programs_in_json(tree: Path) -> None:
    told = json.loads(index(tree, "--json"))
    assert told["graph_version"] == 1
    assert told["nodes"]["Function"] == 3
    assert told["not_whole"][0][0] == "pkg/broken.py"


def test_pack_prints_a_pack_that_a_request_may_carry(tree: Path) -> None:
    index(tree)
    result = runner.invoke(app, ["pack", "debug", "the retry ignores its deadline", "--project", "shop"])
    assert result.exit_code == 0
    nodes = [section.node for section in parse_pack(result.stdout, project_id="shop").sections]
    assert "pkg/net.py::retry" in {node.node_id for node in nodes if node}
    assert "REQ-1" in result.stdout
    again = runner.invoke(app, ["pack", "DEBUG", "the retry ignores its deadline", "--project", "shop"])
    assert again.stdout == result.stdout


@pytest.mark.parametrize("ranking", ["graph", "hop"])
def test_both_rankings_find_what_the_request_names(tree: Path, ranking: str) -> None:
    index(tree)
    result = runner.invoke(
        app, ["pack", "DEBUG", "`retry` hangs", "--project", "shop", "--ranking", ranking, "--budget", "900"]
    )
    assert result.exit_code == 0
    assert "node: pkg/net.py::retry |" in result.stdout
    assert f"ranking: {ranking}" in result.stdout


def test_a_project_without_a_graph_gets_an_empty_pack_that_says_so(tree: Path) -> None:
    del tree
    result = runner.invoke(app, ["pack", "DEBUG", "retry", "--project", "shop"])
    assert result.exit_code == 1
    assert "reason: not_indexed" in result.stdout
    assert "context-worker index PATH --project shop" in result.stderr


def test_a_store_that_is_away_gives_an_empty_pack_that_says_so(
    tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WORKER_GRAPH__SQLITE_PATH", str(tree))  # a folder is no database
    result = runner.invoke(app, ["pack", "DEBUG", "retry", "--project", "shop"])
    assert result.exit_code == 1
    assert "reason: graph_unavailable" in result.stdout
    assert "does not answer" in result.stderr


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["pack", "FIX", "x", "--project", "shop"], "known: BUILD, REFACTOR"),
        (["pack", "DEBUG", "x", "--project", "a b"], "no project id"),
        (["index", "nowhere", "--project", "shop"], "is not a folder"),
        (["index", ".", "--project", "../x"], "no project id"),
        (["schema", "apply"], "WORKER_GRAPH__NEO4J_URL"),
    ],
)
def test_what_cannot_work_is_one_clear_line(tree: Path, arguments: list[str], said: str) -> None:
    del tree
    result = runner.invoke(app, arguments)
    assert result.exit_code == 1
    assert said in result.output or said in str(result.exception)


def test_a_tree_without_symbols_is_an_error(tree: Path, tmp_path: Path) -> None:
    del tree
    (tmp_path / "empty").mkdir()
    result = runner.invoke(app, ["index", str(tmp_path / "empty"), "--project", "shop"])
    assert result.exit_code == 1


def test_schema_check_names_planted_strays_and_passes_without(tmp_path: Path) -> None:
    writer = tmp_path / "writer.py"
    writer.write_text('Q = "MERGE (m:Method {id: $id})-[:HAS_METHOD]->(c:Class {id: $id})"\n')
    result = runner.invoke(app, ["schema", "check", str(tmp_path)])
    assert result.exit_code == 1
    assert "writer.py:1: label Method" in result.stdout
    assert "writer.py:1: relation HAS_METHOD" in result.stdout
    rows = json.loads(runner.invoke(app, ["schema", "check", str(tmp_path), "--json"]).stdout)
    assert {row["kind"] for row in rows} >= {"label", "relation"}
    writer.write_text('Q = "MATCH (f:Function)-[:CALLS]->(g:Function) RETURN g"\n')
    assert runner.invoke(app, ["schema", "check", str(tmp_path)]).exit_code == 0


def test_this_code_base_keeps_to_the_canon() -> None:
    root = Path(__file__).parents[2]
    result = runner.invoke(app, ["schema", "check", str(root)])
    assert result.stdout == ""
    assert result.exit_code == 0


def test_purge_asks_first_and_then_erases_what_there_is(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for store in ("outcomes", "state"):
        monkeypatch.setenv(f"WORKER_{store.upper()}__SQLITE_PATH", str(tree.parent / f"{store}.db"))
    monkeypatch.setenv("ORCHESTRATA_CONTEXT_USAGE_LOG", str(tree.parent / "usage.jsonl"))
    index(tree)
    refused = runner.invoke(app, ["purge", "--project", "shop"], input="n\n")
    assert refused.exit_code == 1
    assert _pack_state() == "there"
    erased = runner.invoke(app, ["purge", "--project", "shop", "--yes"])
    assert erased.exit_code == 0
    assert "graph_nodes" in erased.stdout
    # An index makes no other store, and neither does its end.
    assert [line.partition(":")[0] for line in erased.stderr.splitlines() if "(not there)" in line] == [
        "state",
        "outcomes",
    ]
    assert sorted(path.name for path in tree.parent.glob("*.db")) == ["graph.db"]
    assert _pack_state() == "gone"
    again = runner.invoke(app, ["purge", "--project", "shop", "--yes"])
    assert "nothing: there was nothing" in again.stdout


def _pack_state() -> str:
    result = runner.invoke(app, ["pack", "DEBUG", "retry", "--project", "shop"])
    return "gone" if "reason: not_indexed" in result.stdout else "there"


def repository(root: Path) -> Path:
    """A repository whose second commit edits one function, and says why."""
    environment = {
        "GIT_AUTHOR_NAME": "a",
        "GIT_AUTHOR_EMAIL": "a@example.org",
        "GIT_COMMITTER_NAME": "a",
        "GIT_COMMITTER_EMAIL": "a@example.org",
        "GIT_CONFIG_GLOBAL": "/dev/null",
        "PATH": os.environ["PATH"],
    }

    def git(*arguments: str) -> None:
        subprocess.run(["git", *arguments], cwd=root, env=environment, check=True, capture_output=True)

    git("init", "-q")
    git("add", ".")
    git("commit", "-qm", "Begin")
    net = root / "pkg" / "net.py"
    net.write_text(net.read_text().replace("return True", "return not False"))
    git("add", ".")
    git("commit", "-qm", "Keep retrying until the deadline has passed for good")
    return root


def test_evaluate_measures_a_repository_by_its_own_commits(tree: Path) -> None:
    result = runner.invoke(app, ["evaluate", str(repository(tree)), "--budget", "900", "--json"])
    assert result.exit_code == 0, result.output
    [told] = json.loads(result.stdout)
    assert (told["tasks"], told["budget_tokens"], told["over_budget"]) == (1, 900, 0)
    assert told["bodies"]["mean"] == 1.0
    table = runner.invoke(app, ["evaluate", str(tree), "--budget", "900"])
    assert "or by name" in table.stdout
    assert "1.000 [1.00, 1.00]" in table.stdout


@pytest.mark.parametrize(
    ("tasks", "said"),
    [
        ("not json\n", "line 1"),
        (
            '{"task_id": "t", "base": "' + "0" * 40 + '", "request": "x", "gold_symbols": ["a"]}\n',
            "none of the tasks",
        ),
    ],
)
def test_evaluate_says_what_is_wrong_with_tasks(tree: Path, tasks: str, said: str) -> None:
    (tree / "tasks.jsonl").write_text(tasks)
    arguments = ["evaluate", str(repository(tree)), "--tasks", str(tree / "tasks.jsonl")]
    result = runner.invoke(app, arguments)
    assert result.exit_code == 1
    assert said in result.output or said in str(result.exception)


def test_a_budget_that_holds_no_front_matter_is_refused_with_what_it_takes(tree: Path) -> None:
    index(tree)
    result = runner.invoke(app, ["pack", "DEBUG", "retry", "--project", "shop", "--budget", "10"])
    assert isinstance(result.exception, ValueError)
    assert "the front matter alone takes" in str(result.exception)
    assert result.stdout == ""


def test_an_empty_target_and_a_folder_that_is_none_are_wrong_calls(tmp_path: Path) -> None:
    empty = runner.invoke(app, ["pack", "DEBUG", " ", "--project", "shop"])
    assert (empty.exit_code, "empty target" in empty.stderr) == (1, True)
    nowhere = runner.invoke(app, ["schema", "check", str(tmp_path / "nowhere")])
    assert (nowhere.exit_code, "is not a folder" in nowhere.stderr) == (1, True)
    fine = runner.invoke(app, ["schema", "check", str(tmp_path)])
    assert (fine.exit_code, fine.stderr.startswith("0 strays")) == (0, True)
