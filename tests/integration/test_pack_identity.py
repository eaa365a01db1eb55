"""One project, one question: the same pack whatever store, index, process and hash seed it came through."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from tests.support.hash_seeds import outputs
from worker.code.indexing import IndexOptions, index_project
from worker.graph.store import GraphStore
from worker.stores.neo4j_graph import Neo4jGraphStore
from worker.stores.neo4j_link import Neo4jLink
from worker.stores.sqlite_graph import SqliteGraphStore

ROOT = Path(__file__).parents[2]
TREES = ("worker/graph", "worker/budget", "schemas")
OPTIONS = IndexOptions(with_history=False)

ASK = """
import asyncio, json, sys
from pathlib import Path
from worker.budget.tokens import counter_for
from worker.graph.answers import AnswerInputs, build_answer, encode_answer
from worker.graph.links import link_request
from worker.graph.pack_writer import PackHead, write_pack
from worker.graph.packing import TextSizes
from worker.graph.selection import select
from worker.graph.snapshot import build_snapshot
from worker.stores.neo4j_graph import Neo4jGraphStore
from worker.stores.neo4j_link import Neo4jLink
from worker.stores.sqlite_graph import SqliteGraphStore

async def main():
    where = json.loads(sys.argv[1])
    if "path" in where:
        store = SqliteGraphStore(Path(where["path"]))
    else:
        store = Neo4jGraphStore(Neo4jLink(where["url"], user=where["user"], password=where["password"]))
    loaded = await store.load(where["project"])
    await store.close()
    snapshot = build_snapshot(*loaded)
    counter = counter_for("o200k_base", safety_factor="1")
    for ranking in ("graph", "hop"):
        for text in ("`trim_to_budget` cuts inside a fence", "why does packing skip large nodes"):
            links = link_request(text, ("worker/budget/tokens.py",), snapshot)
            selection = select(links, snapshot, task_type="DEBUG", ranking=ranking)
            head = PackHead(project_id="p", requester="volk", encoding="o200k_base", budget_tokens=4_000)
            written = write_pack(selection, snapshot, head, sizes=TextSizes(counter))
            answer = build_answer(selection, snapshot, written, AnswerInputs(paths=("worker/x.py",)))
            sys.stdout.buffer.write(encode_answer(answer) + b"\\n")

asyncio.run(main())
"""


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A copy of a part of this project, which does not change while it is indexed."""
    root = tmp_path / "tree"
    for folder in TREES:
        for source in sorted((ROOT / folder).glob("*.py")):
            target = root / source.relative_to(ROOT)
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(source.read_bytes())
    (root / "docs.md").write_text("# Rules\n\n- **REQ-1**: Budgets hold.\n")
    return root


async def index_in_steps(store: GraphStore, project: str, tree: Path) -> None:
    """Index, then an edit and a deletion and back again, so that the graph was patched, not only written."""
    await index_project(store, project, tree, options=OPTIONS)
    edited, removed = tree / "worker/budget/tokens.py", tree / "schemas/codes.py"
    before = edited.read_bytes(), removed.read_bytes()
    edited.write_bytes(before[0] + b"\n\ndef extra():\n    return 1\n")
    removed.unlink()
    await index_project(store, project, tree, options=OPTIONS)
    edited.write_bytes(before[0])
    removed.write_bytes(before[1])
    await index_project(store, project, tree, options=OPTIONS)


@pytest.mark.timeout(240)
async def test_packs_are_the_same_bytes_from_both_stores_and_both_kinds_of_index(
    tree: Path, tmp_path: Path, neo4j_url: str, neo4j_auth: tuple[str, str], namespace: str
) -> None:
    whole = SqliteGraphStore(tmp_path / "whole.db")
    patched = SqliteGraphStore(tmp_path / "patched.db")
    user, password = neo4j_auth
    shared = Neo4jGraphStore(Neo4jLink(neo4j_url, user=user, password=password, retry_seconds=10))
    try:
        await index_project(whole, "p", tree, options=OPTIONS)
        await index_in_steps(patched, "p", tree)
        await index_in_steps(shared, namespace, tree)
    finally:
        for store in (whole, patched, shared):
            await store.close()
    places = [
        {"path": str(tmp_path / "whole.db"), "project": "p"},
        {"path": str(tmp_path / "patched.db"), "project": "p"},
        {"url": neo4j_url, "user": user, "password": password, "project": namespace},
    ]
    told = [
        text for place in places for text in await asyncio.to_thread(outputs, ["-c", ASK, json.dumps(place)])
    ]
    assert len(set(told)) == 1
    assert told[0].count(b"## Function") > 20
