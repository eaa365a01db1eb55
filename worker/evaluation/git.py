"""A git repository read through its object database: trees, blobs and history of any commit, no work tree."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import IO, Final, Self, cast

from worker.children import without_settings
from worker.errors import WorkerError

_RECORD: Final = "\x1e"
_FIELD: Final = "\x1f"
_HUNK: Final = re.compile(r"^@@ -(\d+)(?:,(\d+))? \+", re.MULTILINE)


class GitFailed(WorkerError):
    """Git could not read what was asked of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TreeFile:
    """A regular file in a commit's tree."""

    path: str
    blob: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitRecord:
    """A commit as history tells it. `committed_at` is RFC 3339 in UTC."""

    id: str
    parents: tuple[str, ...]
    committed_at: str
    message: str
    files: tuple[str, ...]


class Repository:
    """One repository. Use as a context manager: it keeps one git process open for blobs."""

    def __init__(self, path: Path) -> None:
        """`path` is a work tree or a git directory; git itself finds which."""
        self.path = path
        self._reader: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the process; idempotent."""
        reader, self._reader = self._reader, None
        if reader is not None:
            reader.communicate()

    def check(self) -> None:
        """Raises GitFailed where that is no repository, naming it."""
        try:
            self._run("rev-parse", "--git-dir")
        except GitFailed as error:
            raise GitFailed(f"{self.path} is no git repository: {error}") from error

    def resolve(self, revision: str) -> str:
        """The full hash of a commit. Raises GitFailed where there is none."""
        found = self._run("rev-parse", "--verify", "--quiet", "--end-of-options", f"{revision}^{{commit}}")
        return found.decode().strip()

    def files(self, commit: str) -> list[TreeFile]:
        """Regular files of the commit's tree, by path; links and submodules are left out."""
        listed = self._run("ls-tree", "-r", "-z", "--full-tree", commit).decode("utf-8", "replace")
        files: list[TreeFile] = []
        for entry in listed.split("\0"):
            head, _, path = entry.partition("\t")
            mode, _, rest = head.partition(" ")
            if path and mode.startswith("100"):
                files.append(TreeFile(path=path, blob=rest.split(" ")[1]))
        return files

    def read(self, blob: str) -> bytes:
        """The content of a blob. Raises GitFailed where the repository lacks it."""
        if self._reader is None:
            self._reader = subprocess.Popen(  # noqa: S603 - git itself, arguments of our own
                [*self._command(), "cat-file", "--batch"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                env=without_settings(os.environ),
            )
        requests = cast("IO[bytes]", self._reader.stdin)
        answers = cast("IO[bytes]", self._reader.stdout)
        requests.write(blob.encode() + b"\n")
        requests.flush()
        header = answers.readline().split()
        if len(header) != 3:  # noqa: PLR2004 - hash, type, size; else it says what is wrong
            raise GitFailed(f"no blob {blob}")
        content = answers.read(int(header[2]))
        answers.read(1)
        return content

    def history(self, commit: str, *, max_commits: int) -> Iterator[CommitRecord]:
        """The commit and its ancestors, in git's order of time, with the files that each changed.

        A merge has no files. Renamed files are listed under both names.
        """
        form = f"{_RECORD}%H{_FIELD}%P{_FIELD}%cI{_FIELD}%B{_FIELD}"
        output = self._run(
            *("log", "--no-renames", "--name-only", "-z", f"--format={form}", f"--max-count={max_commits}"),
            *("--no-color", "--no-show-signature", "--end-of-options", commit),
        )
        for record in output.decode("utf-8", "replace").split(_RECORD)[1:]:
            fields = record.split(_FIELD)
            files = fields[-1].replace("\n", "").split("\0")
            yield CommitRecord(
                id=fields[0],
                parents=tuple(fields[1].split()),
                committed_at=_utc(fields[2]),
                message=_FIELD.join(fields[3:-1]).strip(),
                files=tuple(path for path in files if path),
            )

    def edited_lines(self, base: str, commit: str, paths: Sequence[str]) -> dict[str, list[tuple[int, int]]]:
        """By path, the line ranges of `base` that `commit` replaced or wrote after; of files in both."""
        found: dict[str, list[tuple[int, int]]] = {}
        for path in paths:
            output = self._run(
                *("diff", "--unified=0", "--no-color", "--no-ext-diff", "--no-textconv", "--no-renames"),
                *("--diff-filter=M", base, commit, "--", f":(literal){path}"),
            )
            ranges = [
                (int(hunk[1]), int(hunk[1]) + max(1, int(hunk[2] or 1)) - 1)
                for hunk in _HUNK.finditer(output.decode("utf-8", "replace"))
            ]
            if ranges:
                found[path] = ranges
        return found

    def _run(self, *arguments: str) -> bytes:
        done = subprocess.run(  # noqa: S603 - git itself, without a shell
            [*self._command(), *arguments], capture_output=True, env=without_settings(os.environ), check=False
        )
        if done.returncode:
            detail = done.stderr.decode("utf-8", "replace").strip().splitlines()
            raise GitFailed(f"git {arguments[0]}: {detail[-1] if detail else 'nothing found'}")
        return done.stdout

    def _command(self) -> Sequence[str]:
        return ("git", "-c", "core.quotePath=false", "-c", "core.commitGraph=true", "-C", str(self.path))


def _utc(time: str) -> str:
    return datetime.fromisoformat(time).astimezone(UTC).isoformat().replace("+00:00", "Z")
