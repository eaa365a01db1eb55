from __future__ import annotations

from collections.abc import AsyncGenerator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from schemas.request import AssemblyRequest
from tests.unit.providers.frames import BYTES, IMPLEMENT
from worker.code.indexing import IndexOptions, index_files
from worker.errors import UnknownSubject
from worker.graph.pack_file import parse_pack
from worker.graph.question import GraphPolicy
from worker.ports import Subject
from worker.providers.graph_reader import GraphReader
from worker.providers.injection import GraphInjector, InjectionRecord
from worker.providers.snapshots import Snapshots
from worker.providers.threads import SourceThreads
from worker.stores.memory_packs import MemoryPackCache
from worker.stores.sqlite_graph import SqliteGraphStore
from worker.telemetry import Telemetry

AS_OF = datetime(2026, 1, 1, tzinfo=UTC)
CHAT = Subject(name="chat", inject=False, semantic=False, task_type="DOCUMENT")
SUBJECTS = {row.name: row for row in (IMPLEMENT, CHAT)}
FILES: dict[str, bytes | None] = {
    "net.py": b"def retry(deadline):\n    return send(deadline)\n\ndef send(d):\n    return d\n"
}


class Injecting:
    """An injector above a store, and what it recorded."""

    def __init__(self, path: Path) -> None:
        self.store = SqliteGraphStore(path)
        self.snapshots = Snapshots(self.store, SourceThreads(), max_bytes=100_000_000)
        self.reader = GraphReader(
            self.snapshots,
            cache=MemoryPackCache(max_bytes=1_000_000),
            relevance=None,
            policy=GraphPolicy(ranking="graph", relevance="off", settings_digest="s", code_version="1"),
            threads=SourceThreads(),
            telemetry=Telemetry(),
        )
        self.records: list[InjectionRecord] = []
        self.injector = GraphInjector(
            self.reader, subjects=SUBJECTS, counter=BYTES, on_injected=self.records.append
        )


@pytest_asyncio.fixture
async def injecting(tmp_path: Path) -> AsyncGenerator[Injecting]:
    made = Injecting(tmp_path / "graph.db")
    await index_files(made.store, "shop", FILES, options=IndexOptions(with_history=False))
    yield made
    await made.reader.close()
    await made.snapshots.close()
    await made.store.close()


def request(**more: Any) -> AssemblyRequest:
    body = {"request_id": "r1", "project_id": "shop", "volk": "smith", "subject": "implement"}
    return AssemblyRequest.model_validate({**body, "user_message": "`retry` ignores its deadline", **more})


async def test_the_payload_gets_the_pack_and_keeps_the_rest(injecting: Injecting) -> None:
    asked = request(payload={"task_context": "kept", "files_created": ["net.py"]})
    injection = await injecting.injector.inject_for_task(asked, as_of=AS_OF)
    assert injection.payload["task_context"] == "kept"
    assert injection.payload["files_created"] == ["net.py"]
    assert injection.payload.keys() == {"task_context", "files_created", "graph_context"}
    assert "def retry(deadline)" in injection.payload["graph_context"]


async def test_each_injection_records_budget_spend_sections_and_tiers(injecting: Injecting) -> None:
    injection = await injecting.injector.inject_for_task(request(), as_of=AS_OF, budget_tokens=2_000)
    again = await injecting.injector.inject_for_task(request(), as_of=AS_OF, budget_tokens=2_000)
    record = injection.record
    assert injecting.records == [record, again.record]
    pack = injection.payload["graph_context"]
    assert (record.project_id, record.subject, record.budget_tokens) == ("shop", "implement", 2_000)
    assert record.spent_tokens == len(pack.encode()) <= 2_000
    assert record.sections[0] == "net.py::retry"
    assert len(record.sections) == sum(
        s.node is not None for s in parse_pack(pack, project_id="shop").sections
    )
    assert record.snapshot_id
    assert record.tiers is None
    assert (record.is_cache_hit, again.record.is_cache_hit) == (False, True)
    assert again.payload == injection.payload


async def test_a_smaller_budget_is_never_exceeded(injecting: Injecting) -> None:
    for budget_tokens in (700, 900, 1_200):
        injection = await injecting.injector.inject_for_task(
            request(), as_of=AS_OF, budget_tokens=budget_tokens
        )
        assert injection.record.spent_tokens <= budget_tokens


async def test_without_a_graph_the_pack_is_empty_and_says_why(injecting: Injecting) -> None:
    unknown = await injecting.injector.inject_for_task(request(project_id="other"), as_of=AS_OF)
    assert unknown.payload["graph_context"] == "(no graph context: not_configured)"
    assert (unknown.record.reason, unknown.record.sections) == ("not_configured", ())
    behind = request(after={"graph_version": 10**9}, layer_timeouts_ms={"graph": 10})
    late = await injecting.injector.inject_for_task(behind, as_of=AS_OF)
    assert late.payload["graph_context"] == "(no graph context: graph_unavailable)"
    assert late.record.reason == "graph_unavailable"


def test_only_subjects_whose_row_says_so_are_injected(tmp_path: Path) -> None:
    injector = Injecting(tmp_path / "graph.db").injector
    assert [injector.should_inject(name) for name in ("implement", "chat", "unheard of")] == [
        True,
        False,
        False,
    ]


async def test_an_unknown_subject_is_refused(injecting: Injecting) -> None:
    with pytest.raises(UnknownSubject):
        await injecting.injector.inject_for_task(request(subject="unheard of"), as_of=AS_OF)
