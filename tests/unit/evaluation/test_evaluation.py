from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from worker.budget.tokens import counter_for
from worker.evaluation.git import GitFailed, Repository
from worker.evaluation.runner import EvaluationOptions, evaluate
from worker.evaluation.scoring import Outcome, estimate, recall, score
from worker.evaluation.tasks import TasksUnreadable, clean_request, derive_tasks, read_tasks
from worker.evaluation.tree import TreeIndexer, is_source
from worker.graph.model import NodeRef
from worker.graph.snapshot import build_snapshot
from worker.graph.static_map import static_map_tokens

CART = """\
class Cart:
    limit = 3

    def add(self, item):
        return item


def total(cart):
    return 0
"""
MAIL = "def send_mail(to):\n    return to\n"
ENVIRONMENT = {
    **{key: value for key, value in os.environ.items() if not key.startswith("GIT_")},
    **dict.fromkeys(("GIT_AUTHOR_NAME", "GIT_COMMITTER_NAME"), "A"),
    **dict.fromkeys(("GIT_AUTHOR_EMAIL", "GIT_COMMITTER_EMAIL"), "a@example.org"),
    **dict.fromkeys(("GIT_AUTHOR_DATE", "GIT_COMMITTER_DATE"), "2026-01-01T10:00:00+02:00"),
    "GIT_CONFIG_GLOBAL": os.devnull,
}


def git(root: Path, *arguments: str) -> None:
    subprocess.run(["git", "-C", str(root), *arguments], check=True, capture_output=True, env=ENVIRONMENT)


def commit(root: Path, message: str, files: dict[str, str]) -> None:
    for path, text in files.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text)
    git(root, "add", "-A")
    git(root, "commit", "-qm", message)


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("repository")
    git(root, "init", "-q")
    commit(root, "Start a shop\n\nAll of it.", {"shop/cart.py": CART, "shop/mail.py": MAIL})
    commit(
        root,
        "Let add refuse a full cart in shop/cart.py (#12)\n\nSigned-off-by: A <a@example.org>",
        {"shop/cart.py": CART.replace("return item", "return item if self.limit else None")},
    )
    commit(root, "Bump version to 2", {"shop/mail.py": MAIL.replace("return to", "return to, 2")})
    commit(root, "Test that the mail is sent", {"tests/test_mail.py": "def test_it():\n    pass\n"})
    return root


@pytest.fixture
def repository(root: Path) -> Iterator[Repository]:
    with Repository(root) as repository:
        yield repository


def test_a_commit_that_says_why_and_edits_functions_is_a_task(repository: Repository) -> None:
    [task] = derive_tasks(repository, TreeIndexer(repository), name="shop")
    assert task.request == "Let add refuse a full cart in"
    assert task.gold_symbols == ("shop/cart.py::Cart.add",)
    assert task.base == repository.resolve("HEAD~3")


def test_a_repository_without_such_commits_says_so(repository: Repository) -> None:
    with pytest.raises(TasksUnreadable):
        derive_tasks(repository, TreeIndexer(repository), name="shop", revision="HEAD~3")


def test_the_tree_is_that_of_the_base_and_knows_no_later_commit(repository: Repository) -> None:
    _, contents = TreeIndexer(repository).graph(repository.resolve("HEAD~3"))
    texts = {node.ref: node.text for node in contents.nodes}
    assert "return item\n" in texts[NodeRef("Function", "shop/cart.py::Cart.add")]
    assert [node.text for node in contents.nodes if node.label == "Commit"] == ["Start a shop\n\nAll of it."]


def test_a_blob_that_was_read_for_one_commit_gives_the_same_for_another(repository: Repository) -> None:
    shared = TreeIndexer(repository)
    shared.graph(repository.resolve("HEAD"))
    base = repository.resolve("HEAD~2")
    assert shared.graph(base) == TreeIndexer(repository).graph(base)


def test_the_edited_function_is_found_and_every_pack_keeps_its_budget(repository: Repository) -> None:
    indexer = TreeIndexer(repository)
    tasks = derive_tasks(repository, indexer, name="shop")
    seen: list[tuple[int, int]] = []
    outcomes = list(
        evaluate(
            repository,
            indexer,
            tasks,
            EvaluationOptions(counter=counter_for("o200k_base"), budgets_tokens=(900, 20)),
            on_progress=lambda done, total: seen.append((done, total)),
        )
    )
    large, small = score(outcomes)
    assert (large.bodies.mean, large.visible.mean, large.over_budget) == (1.0, 1.0, 0)
    assert small.bodies.mean == 0.0
    counter = counter_for("o200k_base")
    snapshot = build_snapshot(*indexer.graph(tasks[0].base))
    assert large.mean_map_tokens == small.mean_map_tokens == static_map_tokens(snapshot, counter)
    assert seen == [(1, 1)]


def test_what_git_lacks_is_an_error_that_says_so(repository: Repository) -> None:
    with pytest.raises(GitFailed):
        repository.resolve("no-such-branch")
    with pytest.raises(GitFailed):
        repository.read("0" * 40)
    with pytest.raises(GitFailed):
        Repository(Path("/nonexistent")).files("HEAD")


def test_a_revision_cannot_be_read_as_an_option(repository: Repository) -> None:
    with pytest.raises(GitFailed):
        repository.resolve("--all")


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("shop/cart.py", True),
        ("shop/testing.py", True),
        ("shop/utils/test.py", True),
        ("tests/cart.py", False),
        ("shop/test_cart.py", False),
        ("shop/cart_test.py", False),
        ("conftest.py", False),
        ("README.md", False),
    ],
)
def test_sources_are_python_files_that_hold_no_tests(path: str, *, expected: bool) -> None:
    assert is_source(path) is expected


@pytest.mark.parametrize(
    ("message", "request_text"),
    [
        ("Merge branch x into y please", ""),
        ("Fix it", ""),
        ("Retry when the peer resets\n\nFixes #12\nCo-authored-by: B", "Retry when the peer resets"),
        ("Retry in a/b.py when it resets, see b.py", "Retry in  when it resets, see"),
        ("Undo 0123456789abcdef in the retry loop", "Undo  in the retry loop"),
    ],
)
def test_what_gives_the_answer_away_is_taken_out(message: str, request_text: str) -> None:
    assert clean_request(message, ["a/b.py"]) == request_text


def test_tasks_are_read_from_lines_and_a_bad_line_is_named(tmp_path: Path) -> None:
    path = tmp_path / "tasks.jsonl"
    path.write_text('{"task_id": "t", "base": "b", "request": "r", "gold_symbols": ["a.py::f"]}\n\n')
    assert [task.gold_symbols for task in read_tasks(path)] == [("a.py::f",)]
    path.write_text('\n{"task_id": "t"}\n')
    with pytest.raises(TasksUnreadable, match="line 2"):
        read_tasks(path)


def outcome(task_id: str, repository: str, bodies: float, *, spent: int = 10) -> Outcome:
    return Outcome(
        task_id=task_id,
        repository=repository,
        budget_tokens=100,
        spent_tokens=spent,
        bodies=bodies,
        visible=1.0,
        map_tokens=len(task_id),
        select_seconds=0.0,
    )


def test_the_order_of_outcomes_changes_no_score() -> None:
    outcomes = [outcome(str(n), "ab"[n % 2], n / 10) for n in range(10)]
    assert score(outcomes) == score(outcomes[::-1])
    [found] = score(outcomes)
    assert found.bodies.mean == pytest.approx(0.45)
    assert found.bodies.low < 0.45 < found.bodies.high


def test_a_pack_over_its_budget_is_counted() -> None:
    [found] = score([outcome("a", "r", 1.0, spent=101), outcome("b", "r", 1.0, spent=100)])
    assert found.over_budget == 1
    assert found.mean_map_tokens == 1.0


def test_the_interval_of_a_constant_is_a_point() -> None:
    found = estimate(np.ones(5), ["a", "a", "b", "b", "b"])
    assert (found.mean, found.low, found.high) == (1.0, 1.0, 1.0)


def test_recall_needs_something_to_find() -> None:
    assert recall(["a", "b"], ["b", "c"]) == 0.5
    with pytest.raises(ValueError, match="cannot be scored"):
        recall([], ["a"])
