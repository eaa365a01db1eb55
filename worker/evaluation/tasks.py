"""Tasks: requests with a known answer. Read from a file, or derived from a repository's own commits.

A commit's message, without the lines and paths that would give the answer away, is the request; the functions
and classes that it edited, as far as they existed before, are what should have been found.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, cast

from worker.code.facts import Definition, ModuleFacts
from worker.errors import WorkerError
from worker.evaluation.git import CommitRecord, Repository
from worker.evaluation.tree import TreeIndexer, is_source

MAX_GOLD_FILES: Final = 8
MAX_GOLD_SYMBOLS: Final = 20
MIN_REQUEST_WORDS: Final = 4
SCANNED_COMMITS: Final = 4_000

_TRAILER: Final = re.compile(
    r"^\s*(?:[A-Z][A-Za-z-]*-by|change-id|git-svn-id|pr-url|reviewed-on|\(cherry picked from|"
    r"(?:close[sd]?|fix(?:e[sd])?|resolve[sd]?|refs?|see)\s*:?\s*(?:#|https?:|[\w.-]+/[\w.-]+#))",
    re.IGNORECASE,
)
_ISSUE: Final = re.compile(r"\s*\(?(?:[\w.-]+/[\w.-]+)?#\d+\)?|https?://\S+|\b[0-9a-f]{9,40}\b")
_NO_REQUEST: Final = re.compile(r"^\s*(?:merge|revert|bump|release|version|prepare)\b", re.IGNORECASE)


class TasksUnreadable(WorkerError):
    """The file does not hold tasks, or the repository gives none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """One request against the tree of `base`, and the ids of what the work turned out to edit."""

    task_id: str
    repository: str
    base: str
    request: str
    gold_symbols: tuple[str, ...]


def read_tasks(path: Path) -> list[Task]:
    """Tasks from JSON lines with `task_id, repo, base, request, gold_symbols`. Raises TasksUnreadable."""
    tasks: list[Task] = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        if not line.strip():
            continue
        try:
            row = cast("dict[str, Any]", json.loads(line))
            tasks.append(
                Task(
                    task_id=str(row["task_id"]),
                    repository=str(row.get("repo", "")),
                    base=str(row["base"]),
                    request=str(row["request"]),
                    gold_symbols=tuple(map(str, row["gold_symbols"])),
                )
            )
        except (ValueError, KeyError, TypeError) as error:
            raise TasksUnreadable(f"{path.name}, line {number}: {error}") from error
    return tasks


def derive_tasks(
    repository: Repository, indexer: TreeIndexer, *, name: str, revision: str = "HEAD", max_tasks: int = 50
) -> list[Task]:
    """The newest commits that make a task, newest first. Raises TasksUnreadable where there is none.

    A commit qualifies when it has one parent, a message that asks for something, and edited one to twenty
    functions or classes, in at most eight files, that hold no tests.
    """
    tasks: list[Task] = []
    for record in repository.history(repository.resolve(revision), max_commits=SCANNED_COMMITS):
        if len(tasks) == max_tasks:
            break
        task = _task(repository, indexer, record, name=name)
        if task is not None:
            tasks.append(task)
    if not tasks:
        raise TasksUnreadable("no commit of this repository edits functions and says why")
    return tasks


def clean_request(message: str, paths: Sequence[str]) -> str:
    """The message without trailers, issues, hashes and the changed paths; empty where it asks nothing."""
    if _NO_REQUEST.match(message):
        return ""
    lines = [line for line in message.splitlines() if not _TRAILER.match(line)]
    text = _ISSUE.sub("", "\n".join(lines))
    for path in sorted(paths, key=len, reverse=True):
        text = text.replace(path, "").replace(path.rsplit("/", 1)[-1], "")
    text = text.strip()
    return text if len(text.split()) >= MIN_REQUEST_WORDS else ""


def _task(repository: Repository, indexer: TreeIndexer, record: CommitRecord, *, name: str) -> Task | None:
    paths = [path for path in record.files if is_source(path)]
    if len(record.parents) != 1 or not 0 < len(paths) <= MAX_GOLD_FILES:
        return None
    request = clean_request(record.message, record.files)
    if not request:
        return None
    base = record.parents[0]
    blobs = {file.path: file for file in repository.files(base)}
    gold: list[str] = []
    for path, ranges in repository.edited_lines(base, record.id, paths).items():
        facts = indexer.reading(blobs[path])[0].facts if path in blobs else None
        if facts is not None:
            gold += _edited(facts, ranges)
    gold = sorted(set(gold))
    if not 0 < len(gold) <= MAX_GOLD_SYMBOLS:
        return None
    return Task(
        task_id=f"{name}-{record.id[:10]}",
        repository=name,
        base=base,
        request=request,
        gold_symbols=tuple(gold),
    )


def _edited(facts: ModuleFacts, ranges: Sequence[tuple[int, int]]) -> Iterator[str]:
    """The innermost function or class around each edited line; outside them a line is the module's own."""
    outer = [item for item in (*facts.functions, *facts.classes) if "<locals>" not in item.qualname]
    for first, last in ranges:
        for line in range(first, last + 1):
            around = [item for item in outer if item.start_line <= line <= item.end_line]
            if around:
                yield max(around, key=_depth).id


def _depth(item: Definition) -> tuple[int, int]:
    return item.start_line, -item.end_line
