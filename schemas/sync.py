"""Messages that bring a project's graph up to date, and what came of it."""

from __future__ import annotations

from typing import Annotated, Final, Literal

from pydantic import Field

from schemas.wire import SCHEMA_VERSION, Count, OpaqueId, ProjectId, RequestModel, WireModel, sha256_hex

MAX_SYNC_FILES: Final = 5_000
MAX_PATH_CHARS: Final = 4_096
MAX_FAILED_FILES: Final = 100


class SyncFile(RequestModel):
    """One file as it is now."""

    path: Annotated[str, Field(min_length=1, max_length=MAX_PATH_CHARS)]
    """Relative to the project's root, with `/`, and spelled without `.`, `..` and empty parts."""
    content: str | None
    """The whole text; null where the file is gone."""


class SyncRequest(RequestModel):
    """Asks for a project to be indexed: from a root that the worker sees, or from contents sent along."""

    schema_version: str = SCHEMA_VERSION
    kind: Literal["sync"] = "sync"
    sync_id: OpaqueId
    project_id: ProjectId
    root: Annotated[str, Field(max_length=MAX_PATH_CHARS)] | None = None
    """Inside one of the project's configured roots; the first of them where absent."""
    files: Annotated[tuple[SyncFile, ...], Field(max_length=MAX_SYNC_FILES)] | None = None
    """What changed, by content, each path once. Then no disk is read; files not named stay as they were."""


class FailedFile(WireModel):
    """A file that could not be read as what it is, and why."""

    path: str
    reason: str


class SyncResult(WireModel):
    """The graph that a sync led to."""

    schema_version: str = SCHEMA_VERSION
    kind: Literal["sync_result"] = "sync_result"
    sync_id: OpaqueId
    project_id: ProjectId
    graph_version: Count
    """What a request may name in `after` to be sure to see this."""
    snapshot_id: str
    counts: dict[str, Count]
    """Of the whole graph: `files.<status>`, `nodes.<label>`, `edges.<relation>`; and `skipped.<rule>`, what
    this sync left out."""
    failed: tuple[FailedFile, ...] = ()
    """In order of path; at most the first hundred, `counts` has the number of them all."""


def sync_digest(request: SyncRequest) -> str:
    """SHA-256 of what the sync means, its id aside: the same id with another digest is another sync.

    Neither unknown fields nor the order of the body's fields make a difference; the order of the files does.
    """
    return sha256_hex(request.model_dump_json(exclude={"sync_id", "schema_version"}).encode())
