"""Tools over real stores that hold two small projects, each with something that the other has not."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from schemas.sync import SyncFile, SyncRequest
from schemas.tools import TOOL_NAMES
from tests.support.state_events import record
from worker.budget.tokens import counter_for
from worker.code.indexing import IndexCache, IndexOptions
from worker.code.sources import SourceRoots
from worker.code.syncing import ProjectSyncer
from worker.ports import Scope
from worker.providers.snapshots import Snapshots
from worker.providers.threads import SourceThreads
from worker.retrieval.artifacts import Artifacts
from worker.retrieval.recording import CallsFor, notes_of
from worker.retrieval.short_ids import ShortIds
from worker.retrieval.toolbox import ToolAnswer, Toolbox, ToolPolicy
from worker.state.writing import StateWriter
from worker.stores.sqlite import SqliteOutcomeStore
from worker.stores.sqlite_graph import SqliteGraphStore
from worker.stores.sqlite_state import SqliteStateStore
from worker.telemetry import Telemetry

KEY = "AKIA" + "Z7QX3MPL5TRW2KDN"
SHOP = f'''"""The shop."""

ACCESS_KEY = "{KEY}"


class Ledger:
    """Keeps the books.

    @traces REQ-1
    """

    def post(self, amount):
        return amount


def charge_order(order):
    """Take the money. @traces REQ-1"""
    return retry_payment(order, "declined")


def retry_payment(order, reason):
    return order, reason


def checkout(cart):
    return charge_order(cart)


def kiosk(cart):
    return checkout(cart)
'''
TESTS = """from src.shop import charge_order


def test_charging_twice_is_refused():
    assert charge_order(1)
"""
REQUIREMENTS = "# Payments\n\n- **REQ-1**: An order is charged once\n- **REQ-2**: A refund is booked\n"
FILES: Mapping[str, str] = {
    "src/shop.py": SHOP,
    "tests/test_shop.py": TESTS,
    "docs/requirements.md": REQUIREMENTS,
    "src/util/same.py": "def twin():\n    return 1\n",
    "lib/same.py": "def twin():\n    return 2\n",
}
FOREIGN: Mapping[str, str] = {"src/vault.py": "def open_secret_vault(code):\n    return code\n"}
LONG = "line of an artifact\n" * 400
ARTIFACTS: tuple[tuple[str, str | None, dict[str, Any]], ...] = (
    ("shop", "t1", {"id": "design-1", "stage": "design", "type": "note", "content": LONG}),
    ("shop", None, {"id": "house-rules", "stage": "setup", "type": "note", "content": "Be kind."}),
    ("shop", "t2", {"id": "design-2", "stage": "design", "type": "note", "content": "of another thread"}),
    ("bank", None, {"id": "design-9", "stage": "design", "type": "note", "content": "of another project"}),
)
POLICY = ToolPolicy(budget_tokens=2_000, max_budget_tokens=20_000, timeout_seconds=5.0)


async def fill(folder: Path, files: Mapping[str, str] = FILES) -> None:
    """Index both projects, the shop with these files, and take the artifacts in."""
    graph, state = SqliteGraphStore(folder / "graph.db"), SqliteStateStore(folder / "state.db")
    syncer = ProjectSyncer(
        graph, SourceRoots({}), cache=IndexCache(), options=IndexOptions(with_history=False)
    )

    async def is_settled() -> bool:
        return False

    for project, own in (("shop", files), ("bank", FOREIGN)):
        sent = tuple(SyncFile(path=path, content=text) for path, text in own.items())
        await syncer.sync(SyncRequest(sync_id="s", project_id=project, files=sent), is_settled=is_settled)
    for number, (project, thread, body) in enumerate(ARTIFACTS):
        await state.apply(project, [record(f"a-{number}", "artifact", body, thread=thread)])
    await graph.close()
    await state.close()


@dataclass(frozen=True, slots=True, kw_only=True)
class Shop:
    """A toolbox and what it reads."""

    toolbox: Toolbox
    state: SqliteStateStore
    outcomes: SqliteOutcomeStore
    writer: StateWriter
    telemetry: Telemetry

    async def call(
        self, tool: str, *, budget: int | None = None, request_id: str | None = None, **arguments: Any
    ) -> ToolAnswer:
        """In thread t1 of the shop."""
        return await self.ask(tool, arguments, budget=budget, request_id=request_id)

    async def ask(
        self,
        tool: str,
        arguments: Mapping[str, Any],
        *,
        budget: int | None = None,
        request_id: str | None = None,
    ) -> ToolAnswer:
        """As `call`, whatever the arguments are named."""
        scope = Scope(project_id="shop", thread_id="t1")
        return await self.toolbox.call(scope, tool, arguments, budget_tokens=budget, request_id=request_id)

    async def called(self, calls: CallsFor, *, project: str = "shop") -> set[str]:
        """The tools of which the state says that they were called in thread t1."""
        scope = Scope(project_id=project, thread_id="t1")
        notes = {note: tool for tool in TOOL_NAMES for note in notes_of(scope, subject=tool, calls=calls)}
        heads = await self.state.heads(project, ["t1"], event_ids=[*notes])
        return {tool for note, tool in notes.items() if note not in heads.missing}


@asynccontextmanager
async def open_shop(folder: Path) -> AsyncGenerator[Shop]:
    """A toolbox over what `fill` made."""
    graph, state = SqliteGraphStore(folder / "graph.db"), SqliteStateStore(folder / "state.db")
    outcomes = SqliteOutcomeStore(folder / "outcomes.db", keep_seconds=60, forget_seconds=120)
    threads = SourceThreads()
    snapshots = Snapshots(graph, threads, max_bytes=100_000_000)
    telemetry = Telemetry()
    toolbox = Toolbox(
        snapshots,
        artifacts=Artifacts(state, threads),
        bundles=outcomes,
        threads=threads,
        counter=counter_for("o200k_base"),
        policy=POLICY,
        telemetry=telemetry,
        short_ids=ShortIds(outcomes),
    )
    writer = StateWriter(state, on_applied=lambda _project, _applied: None)
    try:
        yield Shop(toolbox=toolbox, state=state, outcomes=outcomes, writer=writer, telemetry=telemetry)
    finally:
        await snapshots.close()
        for store in (graph, state, outcomes):
            await store.close()
