"""The graph of a past commit, from git's objects: what an index of that tree and its past would give."""

from __future__ import annotations

import re
from pathlib import PurePosixPath
from typing import Final

from worker.code.assembling import IndexedFile, assemble, digest_inputs
from worker.code.history import MAX_COMMITS, Commit, History
from worker.code.linking import Linker
from worker.code.reading import FileReaders, FileReading, read_file
from worker.evaluation.git import Repository, TreeFile
from worker.graph.model import GraphContents, GraphHead

MAX_SOURCE_BYTES: Final = 1_000_000
PROJECT: Final = "evaluation"
RULES: Final = "evaluation"
_TEST_FOLDERS: Final = frozenset({"test", "tests", "testing"})
_TEST_FILE: Final = re.compile(r"(?:test_.*|.*_test|conftest)\.py")


def is_source(path: str) -> bool:
    """Whether a file is Python that holds no tests, by where it lies and what it is called."""
    *folders, name = PurePosixPath(path).parts
    is_test = bool(_TEST_FOLDERS.intersection(folders)) or _TEST_FILE.fullmatch(name) is not None
    return name.endswith(".py") and not is_test


class TreeIndexer:
    """Builds graphs of commits of one repository, and keeps what a blob gave for the next commit."""

    def __init__(self, repository: Repository) -> None:
        """Read from `repository`; nothing is read yet."""
        self._repository = repository
        self._readings: dict[tuple[str, str], tuple[FileReading, int]] = {}

    def reading(self, file: TreeFile) -> tuple[FileReading, int]:
        """What the file says, and its size in bytes."""
        key = (file.blob, file.path)
        if key not in self._readings:
            content = self._repository.read(file.blob)
            is_read = len(content) <= MAX_SOURCE_BYTES
            reading = read_file(file.path, content, FileReaders()) if is_read else FileReading(path=file.path)
            self._readings[key] = (reading, len(content))
        return self._readings[key]

    def graph(self, commit: str) -> tuple[GraphHead, GraphContents]:
        """The graph of the commit's source files, and of up to 1,500 commits that lead to it."""
        files: dict[str, IndexedFile] = {}
        for file in self._repository.files(commit):
            if is_source(file.path):
                reading, size_bytes = self.reading(file)
                files[file.path] = IndexedFile(
                    reading=reading, sha256=file.blob, size_bytes=size_bytes, kept=b""
                )
        linker = Linker({path: file.reading for path, file in files.items()})
        links = {path: linker.link(path) for path in files}
        history = self._history(commit)
        contents = assemble(PROJECT, files, links, history=history, rules=RULES)
        read = {path: (file.sha256, file.reading.status) for path, file in files.items()}
        snapshot_id = digest_inputs(read, history, rules=RULES)
        return GraphHead(graph_version=1, snapshot_id=snapshot_id), contents

    def _history(self, commit: str) -> History:
        records = self._repository.history(commit, max_commits=MAX_COMMITS)
        return History(
            head=commit,
            commits=tuple(
                Commit(
                    hash=record.id,
                    committed_at=record.committed_at,
                    message=record.message[:2_000],
                    paths=tuple(sorted(set(record.files))),
                )
                for record in records
                if record.files
            ),
        )
