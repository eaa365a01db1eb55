"""Syncs in a process of their own: what comes back, what it may not hold up, and how either side may die."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import select
import signal
import sys
from collections.abc import AsyncGenerator, Callable
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from schemas.sync import SyncFile, SyncRequest
from worker.code.indexing import IndexReport
from worker.code.syncing import Overtaken
from worker.code.syncing_answers import SyncDefect, decode_answer, encode_error, encode_report
from worker.code.syncing_child import SyncingChild
from worker.errors import (
    Expired,
    GraphConflict,
    InvalidRequest,
    NotSupported,
    StoreUnavailable,
    WorkerDied,
)
from worker.settings import Settings
from worker.stores.sqlite_graph import SqliteGraphStore
from worker.wiring_sync import build_syncs

ROOT = Path(__file__).parents[2]
SOON_SECONDS = 20.0
pytestmark = pytest.mark.timeout(90)


def request(content: str, *, path: str = "a.py", project_id: str = "p") -> SyncRequest:
    return SyncRequest(sync_id="s", project_id=project_id, files=(SyncFile(path=path, content=content),))


def settings_in(folder: Path) -> Settings:
    return Settings.model_validate({"graph": {"sqlite_path": folder / "graph.db"}})


async def no() -> bool:
    return False


async def yes() -> bool:
    return True


@pytest.fixture
async def syncs(tmp_path: Path) -> AsyncGenerator[SyncingChild]:
    made = build_syncs(settings_in(tmp_path))
    yield made
    await made.close()


@pytest.fixture
async def store(tmp_path: Path) -> AsyncGenerator[SqliteGraphStore]:
    made = SqliteGraphStore(tmp_path / "graph.db")
    yield made
    await made.close()


async def functions(store: SqliteGraphStore) -> set[str]:
    loaded = await store.load("p")
    return {node.name for node in loaded[1].nodes if node.label == "Function"} if loaded else set()


def ends_soon(process_id: int) -> bool:
    """Whether the process ends by itself; it may be nobody's child any more."""
    try:
        descriptor = os.pidfd_open(process_id)
    except ProcessLookupError:
        return True
    try:
        return bool(select.select([descriptor], [], [], SOON_SECONDS)[0])
    finally:
        os.close(descriptor)


async def test_one_process_carries_out_sync_after_sync_and_the_graph_is_in_the_store(
    syncs: SyncingChild, store: SqliteGraphStore
) -> None:
    report = await syncs.sync(request("def f(): ...\n"), is_settled=no)
    first = syncs.process_id
    assert (report.graph_version, report.files_read, report.nodes["Function"]) == (1, 1, 1)
    assert report.is_changed
    again = await syncs.sync(request("def f(): ...\n"), is_settled=no)
    assert (again.graph_version, again.is_changed) == (1, False)
    other = await syncs.sync(request("def g(:\n    ...\n", path="b.py"), is_settled=no)
    assert [file[:2] for file in other.not_whole] == [("b.py", "partly_parsed")]
    assert syncs.process_id == first
    assert "f" in await functions(store)
    head = await store.head("p")
    assert head is not None
    assert (other.graph_version, other.snapshot_id) == (head.graph_version, head.snapshot_id)


async def test_what_a_sync_raises_comes_through_and_the_process_goes_on(
    syncs: SyncingChild, store: SqliteGraphStore
) -> None:
    with pytest.raises(InvalidRequest, match="is not a relative path") as invalid:
        await syncs.sync(request("x", path="../a.py"), is_settled=no)
    assert invalid.value.details["errors"] == [
        {"field": "files.0.path", "message": "is not a relative path in its plain spelling"}
    ]
    with pytest.raises(NotSupported, match="root is not supported: the project has no root here"):
        await syncs.sync(SyncRequest(sync_id="s", project_id="p"), is_settled=no)
    first = syncs.process_id
    with pytest.raises(Overtaken, match="settled meanwhile"):
        await syncs.sync(request("def f(): ...\n"), is_settled=yes)
    assert await store.head("p") is None
    assert (await syncs.sync(request("def f(): ...\n"), is_settled=no)).graph_version == 1
    assert syncs.process_id == first


async def test_a_process_that_dies_over_a_sync_fails_it_and_leaves_the_graph_that_was(
    syncs: SyncingChild, store: SqliteGraphStore
) -> None:
    await syncs.sync(request("def old(): ...\n"), is_settled=no)

    async def killed_before_the_change() -> bool:
        assert syncs.process_id is not None
        os.kill(syncs.process_id, signal.SIGKILL)
        return False

    with pytest.raises(WorkerDied, match="ended with signal 9") as died:
        await syncs.sync(request("def new(): ...\n"), is_settled=killed_before_the_change)
    assert died.value.code == "worker_died"
    assert await functions(store) == {"old"}
    assert (await syncs.sync(request("def new(): ...\n"), is_settled=no)).graph_version == 2
    assert await functions(store) == {"new"}


async def test_a_cancelled_sync_ends_its_process_and_changes_nothing(
    syncs: SyncingChild, store: SqliteGraphStore
) -> None:
    asked = asyncio.Event()

    async def never_answered() -> bool:
        asked.set()
        await asyncio.Event().wait()
        return False

    task = asyncio.create_task(syncs.sync(request("def f(): ...\n"), is_settled=never_answered))
    await asked.wait()
    process_id = syncs.process_id
    assert process_id is not None
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert syncs.process_id is None
    assert ends_soon(process_id)
    assert await store.head("p") is None
    assert (await syncs.sync(request("def g(): ...\n"), is_settled=no)).graph_version == 1


async def test_an_outcome_store_that_is_away_is_what_the_sync_raises(
    syncs: SyncingChild, store: SqliteGraphStore
) -> None:
    async def away() -> bool:
        raise StoreUnavailable("redis")

    with pytest.raises(StoreUnavailable, match="redis is unavailable"):
        await syncs.sync(request("def f(): ...\n"), is_settled=away)
    assert await store.head("p") is None


@pytest.mark.parametrize("phase", ["idle", "in a sync"])
async def test_the_process_ends_with_the_worker_however_that_ends(tmp_path: Path, phase: str) -> None:
    program = """
import asyncio, sys
from pathlib import Path
from tests.unit.test_syncing_child import no, request, settings_in
from worker.wiring_sync import build_syncs

async def main():
    syncs = build_syncs(settings_in(Path(sys.argv[1])))

    async def held():
        print(syncs.process_id, flush=True)
        await asyncio.Event().wait()

    await syncs.sync(request("def f(): ..."), is_settled=no if sys.argv[2] == "idle" else held)
    await held()

asyncio.run(main())
"""
    worker = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", program, str(tmp_path), phase), stdout=asyncio.subprocess.PIPE, cwd=ROOT
    )
    assert worker.stdout is not None
    process_id = int(await worker.stdout.readline())
    worker.kill()
    await worker.wait()
    assert await asyncio.to_thread(ends_soon, process_id)


async def test_a_process_that_does_not_start_is_said_to_and_waits_for_nobody(tmp_path: Path) -> None:
    broken = SyncingChild([sys.executable, "-c", "raise SystemExit(3)"], setup=b"")
    with pytest.raises(RuntimeError, match="does not start"):
        await broken.sync(request("def f(): ...\n"), is_settled=no)
    talking = SyncingChild([sys.executable, "-c", "print('hello, world, and all that')"], setup=b"")
    with pytest.raises(RuntimeError, match="does not start"):
        await talking.sync(request("def f(): ...\n"), is_settled=no)
    await broken.close()
    await talking.close()


async def test_a_process_that_is_not_ready_in_time_is_unavailable_and_ended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    spawn, made = asyncio.create_subprocess_exec, list[asyncio.subprocess.Process]()

    async def noting(*command: str, **options: Any) -> asyncio.subprocess.Process:
        made.append(await spawn(*command, **options))
        return made[-1]

    monkeypatch.setattr("asyncio.create_subprocess_exec", noting)
    program = "import time; time.sleep(3_600)"
    slow = SyncingChild([sys.executable, "-S", "-c", program], setup=b"", start_timeout_seconds=0.01)
    for _ in range(2):
        with pytest.raises(StoreUnavailable, match="not ready in time"):
            await slow.sync(request("def f(): ...\n"), is_settled=no)
    assert [process.returncode for process in made] == [-signal.SIGKILL] * 2


@pytest.mark.parametrize(
    ("number", "raised"),
    [
        (errno.EAGAIN, StoreUnavailable),
        (errno.ENOMEM, StoreUnavailable),
        (errno.EMFILE, StoreUnavailable),
        (errno.ENFILE, StoreUnavailable),
        (errno.ENOENT, OSError),
        (errno.EACCES, OSError),
    ],
)
async def test_a_machine_that_is_short_of_something_is_unavailable_and_a_wrong_command_is_a_defect(
    number: int, raised: type[Exception]
) -> None:
    child = SyncingChild(["never"], setup=b"")
    with (
        mock.patch("asyncio.create_subprocess_exec", side_effect=OSError(number, os.strerror(number))),
        pytest.raises(raised),
    ):
        await child.sync(request("def f(): ...\n"), is_settled=no)


texts = st.text()
counts = st.dictionaries(st.sampled_from(["Function", "parsed", "CALLS"]), st.integers(0, 10**9))


@settings(max_examples=50)
@given(
    report=st.builds(
        IndexReport,
        project_id=texts,
        graph_version=st.integers(1),
        snapshot_id=texts,
        is_changed=st.booleans(),
        **dict.fromkeys(("files", "nodes", "edges", "guessed_edges", "skipped"), counts),
        **dict.fromkeys(
            ("exact_calls", "guessed_calls", "unresolved_calls", "files_read", "files_linked"), st.integers(0)
        ),
        not_whole=st.lists(st.tuples(texts, texts, texts)).map(tuple),
        history_reason=texts,
        seconds=st.dictionaries(st.just("link"), st.floats(0, 1e9)),
    )
)
def test_a_report_comes_back_as_it_was_whatever_stands_in_it(report: IndexReport) -> None:
    assert decode_answer(encode_report(report)) == report


Made = Callable[[str], Exception]
KINDS: list[tuple[Made, type[Exception]]] = [
    (lambda text: InvalidRequest(text, errors=[{"field": text}], error_count=1), InvalidRequest),
    (lambda text: NotSupported("root", reason=text), NotSupported),
    (StoreUnavailable, StoreUnavailable),
    (lambda text: StoreUnavailable("neo4j", text), StoreUnavailable),
    (Overtaken, Overtaken),
    (Expired, SyncDefect),
    (lambda text: GraphConflict(project_id=text, expected_version=1, found_version=2), SyncDefect),
    (KeyError, SyncDefect),
]


@settings(max_examples=80)
@given(kind=st.sampled_from(KINDS), text=texts)
def test_what_is_raised_comes_back_as_what_it_was_or_as_the_defect_it_is(
    kind: tuple[Made, type[Exception]], text: str
) -> None:
    make, expected = kind
    error = make(text)
    found = decode_answer(encode_error(error, f"traceback {text}"))
    assert type(found) is expected
    assert str(found) == (f"traceback {text}" if expected is SyncDefect else str(error))
    assert getattr(found, "details", None) == (
        getattr(error, "details", None) if expected is not SyncDefect else None
    )


def test_a_frame_that_is_no_answer_is_refused() -> None:
    with pytest.raises(ValueError, match="no answer"):
        decode_answer(json.dumps({}).encode())
