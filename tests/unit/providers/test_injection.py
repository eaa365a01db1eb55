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
from worker.errors import StoreUnavailable, UnknownSubject
from worker.graph.answers import PART_LINE, RELEVANCE_LINE, STATE_LINE, unindexed_line
from worker.graph.pack_file import parse_pack
from worker.graph.pack_writer import NOTES_HEADING
from worker.graph.question import GraphPolicy
from worker.ports import Subject
from worker.providers.graph_reader import GraphReader
from worker.providers.injection import GraphInjector, InjectionRecord
from worker.providers.snapshots import Snapshots
from worker.providers.states import ThreadStates
from worker.providers.threads import SourceThreads
from worker.state.store import Heads
from worker.stores.memory_packs import MemoryPackCache
from worker.stores.sqlite_graph import SqliteGraphStore
from worker.stores.sqlite_state import SqliteStateStore
from worker.telemetry import Telemetry

BIG = 100_000_000
AS_OF = datetime(2026, 1, 1, tzinfo=UTC)
CHAT = Subject(name="chat", inject=False, semantic=False, task_type="DOCUMENT")
SUBJECTS = {row.name: row for row in (IMPLEMENT, CHAT)}
CREDENTIAL = "AKIA" + "Q3EGRAPHINJECTED"[:16]
FILES: dict[str, bytes | None] = {
    "cloud.py": f"def sign(key='{CREDENTIAL}'):\n    return key\n".encode(),
    "net.py": b"def retry(deadline):\n    return send(deadline)\n\ndef send(d):\n    return d\n",
}


class Injecting:
    """An injector above a store, and what it recorded."""

    def __init__(
        self,
        path: Path,
        *,
        unmasked: frozenset[str] = frozenset(),
        max_bytes: int = BIG,
        states: ThreadStates | None = None,
    ) -> None:
        self.store = SqliteGraphStore(path)
        self.snapshots = Snapshots(self.store, SourceThreads(), max_bytes=max_bytes)
        self.reader = GraphReader(
            self.snapshots,
            cache=MemoryPackCache(max_bytes=1_000_000),
            relevance=None,
            policy=GraphPolicy(
                ranking="graph",
                relevance="off",
                settings_digest="s",
                code_version="1",
                unmasked_projects=unmasked,
            ),
            threads=SourceThreads(),
            telemetry=Telemetry(),
            states=states,
        )
        self.records: list[InjectionRecord] = []
        self.injector = GraphInjector(
            self.reader, subjects=SUBJECTS, counter=BYTES, on_injected=self.records.append
        )


@pytest_asyncio.fixture(params=[frozenset[str]()])
async def injecting(tmp_path: Path, request: pytest.FixtureRequest) -> AsyncGenerator[Injecting]:
    made = Injecting(tmp_path / "graph.db", unmasked=request.param)
    await index_files(made.store, "shop", FILES, options=IndexOptions(with_history=False))
    yield made
    await made.reader.close()
    await made.snapshots.close()
    await made.store.close()


def ask(**more: Any) -> AssemblyRequest:
    body = {"request_id": "r1", "project_id": "shop", "volk": "smith", "subject": "implement"}
    return AssemblyRequest.model_validate({**body, "user_message": "`retry` ignores its deadline", **more})


async def test_the_payload_gets_the_pack_and_keeps_the_rest(injecting: Injecting) -> None:
    asked = ask(payload={"task_context": "kept", "files_created": ["net.py"]})
    injection = await injecting.injector.inject_for_task(asked, as_of=AS_OF)
    assert injection.payload["task_context"] == "kept"
    assert injection.payload["files_created"] == ["net.py"]
    assert injection.payload.keys() == {"task_context", "files_created", "graph_context"}
    assert "def retry(deadline)" in injection.payload["graph_context"]


async def test_each_injection_records_budget_spend_sections_and_tiers(injecting: Injecting) -> None:
    injection = await injecting.injector.inject_for_task(ask(), as_of=AS_OF, budget_tokens=2_000)
    again = await injecting.injector.inject_for_task(ask(), as_of=AS_OF, budget_tokens=2_000)
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


async def test_a_record_says_what_a_static_map_would_have_taken(injecting: Injecting) -> None:
    record = (await injecting.injector.inject_for_task(ask(), as_of=AS_OF)).record
    head = "## cloud.py\ndef sign(key='" + CREDENTIAL + "')\n"
    assert record.static_map_tokens is not None
    assert record.static_map_tokens == len(f"{head}## net.py\ndef retry(deadline)\ndef send(d)\n")
    await index_files(injecting.store, "shop", {**FILES, "new.py": b"class New: ...\n"})
    later = (await injecting.injector.inject_for_task(ask(), as_of=AS_OF)).record
    assert later.static_map_tokens is not None
    assert later.static_map_tokens - record.static_map_tokens == len("## new.py\nclass New\n")


async def test_a_smaller_budget_is_never_exceeded(injecting: Injecting) -> None:
    for budget_tokens in (700, 900, 1_200):
        injection = await injecting.injector.inject_for_task(ask(), as_of=AS_OF, budget_tokens=budget_tokens)
        assert injection.record.spent_tokens <= budget_tokens


@pytest.mark.parametrize(
    ("injecting", "is_shown"),
    [(frozenset[str](), False), (frozenset({"shop"}), True)],
    indirect=["injecting"],
)
async def test_a_credential_in_the_code_is_masked_in_the_pack_unless_the_project_has_it_otherwise(
    injecting: Injecting,
    is_shown: bool,  # noqa: FBT001 - a table
) -> None:
    for budget_tokens in (600, 640, 700, 4_000):
        asked = ask(user_message="`sign` takes the wrong key")
        injection = await injecting.injector.inject_for_task(asked, as_of=AS_OF, budget_tokens=budget_tokens)
        pack = injection.payload["graph_context"]
        assert (CREDENTIAL in pack) == (is_shown and "cloud.py::sign |" in pack)
        assert injection.record.spent_tokens == len(pack.encode()) <= budget_tokens
        assert f"spent: {len(pack.encode())}\n" in pack
    assert "cloud.py::sign" in injection.record.sections
    assert ("[masked:" in pack) != is_shown


async def test_without_a_graph_the_pack_is_empty_and_says_why(injecting: Injecting) -> None:
    unknown = await injecting.injector.inject_for_task(ask(project_id="other"), as_of=AS_OF)
    assert unknown.payload["graph_context"] == "(no graph context: not_configured)"
    assert (unknown.record.reason, unknown.record.sections) == ("not_configured", ())
    assert unknown.record.static_map_tokens is None
    behind = ask(after={"graph_version": 10**9}, layer_timeouts_ms={"graph": 10})
    late = await injecting.injector.inject_for_task(behind, as_of=AS_OF)
    assert late.payload["graph_context"] == "(no graph context: graph_behind)"
    assert late.record.reason == "graph_behind"


class Away(SqliteStateStore):
    """A store of states that cannot be read."""

    async def heads(self, *args: object, **more: object) -> Heads:
        raise StoreUnavailable("state")


@pytest.mark.parametrize(
    ("asked", "max_bytes", "reason", "line"),
    [
        (
            {"payload": {"files_created": ["net.py", "gone.py"]}},
            BIG,
            "not_indexed",
            unindexed_line(["gone.py"]),
        ),
        ({"relevance": "prolog"}, BIG, "relevance_unavailable", RELEVANCE_LINE),
        ({"thread_id": "t1"}, BIG, "section_error", STATE_LINE),
        ({}, 100, "section_error", PART_LINE),
        ({}, BIG, "", ""),
    ],
    ids=["files", "rules", "state", "part", "nothing"],
)
async def test_what_a_pack_lacks_is_said_in_it_and_recorded(
    tmp_path: Path, asked: dict[str, Any], max_bytes: int, reason: str, line: str
) -> None:
    unread = ThreadStates(Away(tmp_path / "s.db"), SourceThreads(), max_bytes=1)
    states = unread if "thread_id" in asked else None
    made = Injecting(tmp_path / "graph.db", max_bytes=max_bytes, states=states)
    await index_files(made.store, "shop", FILES, options=IndexOptions(with_history=False))
    for budget_tokens in (650, 1_000, 4_000):
        injection = await made.injector.inject_for_task(
            ask(**asked), as_of=AS_OF, budget_tokens=budget_tokens
        )
        pack, record = injection.payload["graph_context"], injection.record
        assert record.reason == reason
        assert record.spent_tokens == len(pack.encode()) <= budget_tokens
        assert f"spent: {len(pack.encode())}\n" in pack
        assert (NOTES_HEADING in pack) == bool(line)
        assert not line or f"- {line}\n" in pack
        assert "net.py::retry" in record.sections or budget_tokens < 1_000
    await made.reader.close()
    await made.snapshots.close()
    await made.store.close()


async def test_an_empty_pack_says_what_it_lacks_too(injecting: Injecting) -> None:
    asked = ask(user_message="zebra", payload={"files_created": ["gone.py"]})
    injection = await injecting.injector.inject_for_task(asked, as_of=AS_OF)
    assert injection.payload["graph_context"].endswith(f"{NOTES_HEADING}\n- {unindexed_line(['gone.py'])}\n")
    assert injection.record.reason == "not_indexed"


def test_only_subjects_whose_row_says_so_are_injected(tmp_path: Path) -> None:
    injector = Injecting(tmp_path / "graph.db").injector
    assert [injector.should_inject(name) for name in ("implement", "chat", "unheard of")] == [
        True,
        False,
        False,
    ]


async def test_an_unknown_subject_is_refused(injecting: Injecting) -> None:
    with pytest.raises(UnknownSubject):
        await injecting.injector.inject_for_task(ask(subject="unheard of"), as_of=AS_OF)
