from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from worker.code.history import MAX_COMMITS, MAX_MESSAGE_CHARS, read_head, read_history, updates

IDENTITY = {
    "GIT_AUTHOR_NAME": "a",
    "GIT_AUTHOR_EMAIL": "a@b.c",
    "GIT_COMMITTER_NAME": "a",
    "GIT_COMMITTER_EMAIL": "a@b.c",
    "GIT_CONFIG_GLOBAL": os.devnull,
    "GIT_CONFIG_NOSYSTEM": "1",
}


class Repository:
    def __init__(self, root: Path) -> None:
        self.root = root
        self._seconds = 1_700_000_000
        root.mkdir(parents=True, exist_ok=True)
        self.git("init", "-q", "-b", "main")

    def git(self, *arguments: str) -> None:
        date = f"{self._seconds} +0200"
        environment = os.environ | IDENTITY | {"GIT_AUTHOR_DATE": date, "GIT_COMMITTER_DATE": date}
        subprocess.run(["git", "-C", str(self.root), *arguments], check=True, env=environment)

    def commit(self, message: str, *paths: str) -> None:
        self._seconds += 60
        for path in paths:
            target = self.root / path
            target.parent.mkdir(parents=True, exist_ok=True)
            with target.open("a") as file:
                file.write(f"{self._seconds}\n")
        self.git("add", "-A")
        self.git("commit", "-q", "--allow-empty", "-m", message)


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    return Repository(tmp_path / "repository")


def test_commits_come_with_message_time_and_paths_the_latest_first(repository: Repository) -> None:
    repository.commit("first: add a\n\nBody with ünicode.", "a.py", 'b é/c "q".py')
    repository.commit("second", "a.py")
    history = read_history(repository.root)
    assert [commit.paths for commit in history.commits] == [("a.py",), ("a.py", 'b é/c "q".py')]
    assert history.commits[1].message == "first: add a\n\nBody with ünicode."
    assert history.commits[1].committed_at == "2023-11-14T22:14:20Z"
    assert updates(history)["a.py"] == ("2023-11-14T22:15:20Z", 2)


def test_a_folder_of_a_repository_has_the_history_of_what_is_below_it(repository: Repository) -> None:
    repository.commit("both", "a.py", "sub/b.py")
    repository.commit("outside", "a.py")
    history = read_history(repository.root / "sub")
    assert [(commit.message, commit.paths) for commit in history.commits] == [("both", ("b.py",))]
    assert read_head(repository.root) != read_head(repository.root / "sub")


def test_a_renamed_file_is_one_that_went_and_one_that_came(repository: Repository) -> None:
    repository.commit("add", "a.py")
    repository.git("mv", "a.py", "b.py")
    repository.commit("rename")
    assert read_history(repository.root).commits[0].paths == ("a.py", "b.py")


def test_a_folder_without_git_has_no_history_and_says_so(tmp_path: Path) -> None:
    history = read_history(tmp_path)
    assert (history.commits, history.reason) == ((), "no git history")


def test_without_the_git_program_there_is_no_history(
    repository: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    repository.commit("add", "a.py")
    monkeypatch.setenv("PATH", "")
    assert read_history(repository.root).reason == "no git history"


def test_an_empty_repository_has_no_history(repository: Repository) -> None:
    assert read_history(repository.root).reason == "no git history"


def test_a_message_cannot_make_up_commits(repository: Repository) -> None:
    repository.commit("x\x01deadbeef\x021\x02fake\x03evil.py", "a.py")
    repository.commit("long " + "y" * 9_000, "b.py")
    history = read_history(repository.root)
    assert all(len(commit.hash) == 40 for commit in history.commits)
    assert "evil.py" not in updates(history)
    assert len(history.commits[0].message) == MAX_MESSAGE_CHARS


def test_nothing_that_a_repository_configures_is_run(repository: Repository) -> None:
    repository.commit("add", "a.py")
    trap = repository.root / "trap.sh"
    trap.write_text('#!/bin/sh\ntouch "$(dirname "$0")/sprung"\ncat\n')
    trap.chmod(0o755)
    for key in ("core.fsmonitor", "core.pager", "diff.external", "diff.x.textconv", "gpg.program"):
        repository.git("config", key, str(trap))
    repository.git("config", "log.showSignature", "true")
    (repository.root / ".gitattributes").write_text("*.py diff=x\n")
    assert len(read_history(repository.root).commits) == 1
    assert not (repository.root / "sprung").exists()


def test_only_the_latest_commits_are_asked_for(repository: Repository) -> None:
    lines: list[str] = []
    for number in range(MAX_COMMITS + 5):
        lines += [
            f"commit refs/heads/main\nmark :{number + 1}\ncommitter a <a@b.c> {1_700_000_000 + number} +0000",
            f"data 1\nx\nM 644 inline f{number}.py\ndata 1\nx",
        ]
    repository.commit("seed", "seed.py")
    environment = os.environ | IDENTITY
    subprocess.run(
        ["git", "-C", str(repository.root), "fast-import", "--quiet", "--force"],
        input="\n".join([*lines, ""]).encode(),
        check=True,
        env=environment,
    )
    assert len(read_history(repository.root).commits) == MAX_COMMITS
