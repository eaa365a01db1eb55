"""Syncs through the real worker, on both brokers and both graph stores: what is sent is what bundles show."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from schemas.bundle import ContextBundle, Rejection
from schemas.request import AssemblyRequest
from schemas.sync import SyncFile, SyncRequest, SyncResult
from tests.support.cluster import Mode, Topics, covers, workers
from worker.client import ContextClient

pytestmark = [pytest.mark.timeout(240), pytest.mark.asyncio(loop_scope="session")]

SHOP = """def charge_order(order):
    return retry_payment(order, "{mark}")


def retry_payment(order, reason):
    return order, reason
"""


@pytest.fixture
def project(namespace: str) -> str:
    """A project of this test alone: a Neo4j outlives it."""
    return f"p-{namespace}"


def client_of(mode: Mode) -> ContextClient:
    return ContextClient([mode.bootstrap], topic_prefix=mode.prefix)


def sync(project: str, sync_id: str, **files: str | None) -> SyncRequest:
    """`shop="..."` is the file `src/shop.py`."""
    return SyncRequest(
        sync_id=sync_id,
        project_id=project,
        files=tuple(SyncFile(path=f"src/{name}.py", content=text) for name, text in files.items()),
    )


def ask(project: str, request_id: str, *, version: int) -> AssemblyRequest:
    return AssemblyRequest.model_validate(
        {
            "request_id": request_id,
            "project_id": project,
            "volk": "smith",
            "subject": "implement",
            "user_message": "Why does charge_order in src/shop.py call retry_payment?",
            "after": {"graph_version": version},
            "deadline_ms": 20_000,
            "layer_timeouts_ms": {"graph": 10_000, "semantic": 10_000, "task": 10_000},
        }
    )


async def indexed(client: ContextClient, request: SyncRequest) -> SyncResult:
    reply = await client.sync(request, timeout_seconds=60)
    assert isinstance(reply, SyncResult), reply
    return reply


async def prompt(client: ContextClient, request: AssemblyRequest) -> str:
    reply = await client.assemble(request, timeout_seconds=60)
    assert isinstance(reply, ContextBundle), reply
    assert reply.layers is not None
    assert reply.messages is not None
    assert reply.layers["graph"].status in {"ok", "trimmed"}, reply.layers
    assert reply.layers["graph"].fragments > 0
    return reply.messages[-1].content


async def test_what_was_synced_is_in_the_next_bundle_and_in_no_other_projects(
    mode: Mode, topics: Topics, project: str, tmp_path: Path
) -> None:
    other = f"{project}-other"
    async with workers(mode, tmp_path) as start, client_of(mode) as client:
        await start()
        mine = await indexed(client, sync(project, "s-1", shop=SHOP.format(mark="ours alone")))
        theirs = await indexed(client, sync(other, "s-1", shop=SHOP.format(mark="theirs alone")))
        assert (mine.graph_version, theirs.graph_version) == (1, 1)
        assert mine.counts["nodes.Function"] == 2
        assert mine.snapshot_id != theirs.snapshot_id
        ours = await prompt(client, ask(project, "r-1", version=1))
        assert "ours alone" in ours
        assert "theirs alone" not in ours
        foreign = await prompt(client, ask(other, "r-1", version=1))
        assert "theirs alone" in foreign
        assert "ours alone" not in foreign
        # Read your writes: the second version is seen though the first one is held in memory.
        change = sync(project, "s-2", shop=SHOP.format(mark="written anew"), more="def more():\n    ...\n")
        assert (await indexed(client, change)).graph_version == 2
        anew = await prompt(client, ask(project, "r-2", version=2))
        assert "written anew" in anew
        assert "ours alone" not in anew


async def test_a_root_that_the_worker_sees_is_indexed_and_no_other(
    mode: Mode, topics: Topics, project: str, tmp_path: Path
) -> None:
    (tmp_path / "tree" / "src").mkdir(parents=True)
    (tmp_path / "tree" / "src" / "shop.py").write_text(SHOP.format(mark="from the disk"))
    roots = json.dumps({project: [str(tmp_path / "tree")]})
    async with workers(mode, tmp_path) as start, client_of(mode) as client:
        await start(WORKER_CONTENT__ROOTS=roots)
        result = await indexed(client, SyncRequest(sync_id="s-1", project_id=project))
        assert result.counts["files.parsed"] == 1
        assert "from the disk" in await prompt(client, ask(project, "r-1", version=1))
        refused = await client.sync(
            SyncRequest(sync_id="s-2", project_id=project, root=str(tmp_path)), timeout_seconds=60
        )
        assert isinstance(refused, Rejection)
        assert (refused.code, refused.request_id) == ("invalid_request", "s-2")
        (letter,) = (await topics.read_until("dead-letters", lambda p: bool(p.records))).records
        assert json.loads(letter.value)["sync_id"] == "s-2"


@pytest.mark.parametrize("point", ["sync.before_index", "outcome.before_store", "outcome.after_store"])
async def test_a_worker_that_dies_over_a_sync_leaves_it_to_the_next_one(
    mode: Mode, topics: Topics, tmp_path: Path, point: str
) -> None:
    project = f"p-{mode.group}"
    async with workers(mode, tmp_path) as start, client_of(mode) as client:
        victim = await start(WORKER_FAILPOINTS=f"{point}=kill@s-1")
        waiting = asyncio.create_task(
            client.sync(sync(project, "s-1", shop=SHOP.format(mark="once")), timeout_seconds=120)
        )
        assert await victim.ended() == -9
        await start()
        reply = await waiting
        assert isinstance(reply, SyncResult)
        assert (reply.graph_version, reply.counts["nodes.Function"]) == (1, 2)
        # The same again is answered with the same bytes, and indexes nothing.
        assert await client.sync(sync(project, "s-1", shop=SHOP.format(mark="once")), timeout_seconds=60) == (
            reply
        )
        values = {record.value for record in (await topics.read_all("sync-results")).records}
        assert len(values) == 1


async def test_syncs_wait_for_a_graph_store_that_is_away_and_requests_do_not(
    mode: Mode, topics: Topics, project: str, tmp_path: Path
) -> None:
    # A file where the folder of the store should be.
    (tmp_path / "away").write_text("")
    files = {
        "WORKER_GRAPH__SQLITE_PATH": str(tmp_path / "away" / "graph.db"),
        "WORKER_STATE__SQLITE_PATH": str(tmp_path / "state.db"),
    }
    others = {name: value for name, value in mode.environment.items() if "GRAPH" not in name}
    mode = replace(mode, environment=others | files)
    async with workers(mode, tmp_path) as start, client_of(mode) as client:
        worker = await start()
        syncs = [sync(project, f"s-{n}", shop=f"def version_{n}():\n    ...\n") for n in (1, 2)]
        waiting = [asyncio.create_task(client.sync(one, timeout_seconds=120)) for one in syncs]
        body: dict[str, Any] = ask(project, "r-1", version=0).model_dump(exclude_unset=True, mode="json")
        del body["after"]
        await topics.send(body)
        bundles = await topics.read_until("bundles", covers({"r-1"}))
        layers = json.loads(bundles.records[0].value)["layers"]
        assert (layers["graph"]["status"], layers["graph"]["reason"]) == ("failed", "graph_unavailable")
        assert not any(task.done() for task in waiting)
        assert worker.process.returncode is None
        (tmp_path / "away").unlink()
        replies = [await task for task in waiting]
        assert [reply.graph_version for reply in replies if isinstance(reply, SyncResult)] == [1, 2]
        assert (await topics.read_all("dead-letters")).records == []
