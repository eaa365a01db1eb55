"""What the AST layer says with a graph of the project around its target files."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import pytest_asyncio

from schemas.codes import TaskType
from tests.unit.providers.frames import BUDGET, IMPLEMENT, SCOPE, frame, texts
from tests.unit.providers.test_graph_reader import Graph
from worker.code.indexing import IndexOptions, index_files
from worker.code.sources import SourceRoots
from worker.errors import StoreUnavailable
from worker.ports import LayerContribution, RequestFrame, Subject
from worker.providers.ast import AstProvider
from worker.providers.ast_signals import heading_of

PLAIN = IndexOptions(with_history=False, processes=1)
FILES = {
    "svc/pay.py": '"""@traces REQ-1"""\nfrom svc.net import send\n\n\ndef charge(order):\n'
    "    # @traces REQ-404\n    if order:\n        return send(order)\n    return helper(order)\n\n\n"
    "def _quiet(a):\n    if a: return 1\n    if a > 1: return 2\n",
    "svc/net.py": "def send(order):\n    return order\n",
    "svc/shop.py": "from svc.pay import charge\n\n\ndef buy(order):\n    return charge(order)\n",
    "svc/odd.py": "class A:\n    def move(self): ...\n",
    "svc/even.py": "class B:\n    def move(self): ...\n\n\ndef sell(x):\n    x.move()\n",
    "docs/requirements.md": "- **REQ-1**: It pays.\n",
}


@pytest_asyncio.fixture
async def graph(tmp_path: Path) -> AsyncGenerator[Graph]:
    made = Graph(tmp_path / "graph.db")
    await index_files(
        made.store, SCOPE.project_id, {path: text.encode() for path, text in FILES.items()}, options=PLAIN
    )
    yield made
    await made.close()


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for path, text in FILES.items():
        target = tmp_path / "root" / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text)
    return tmp_path / "root"


async def layer_of(
    graph: Graph | None, root: Path, asked: RequestFrame | None = None, **fields: Any
) -> LayerContribution:
    provider = AstProvider(
        SourceRoots({SCOPE.project_id: (root,)}), graph=None if graph is None else graph.reader
    )
    body = {"payload": {"files_created": ["svc/pay.py"]}} | fields
    return await provider.provide(asked or frame(**body), SCOPE, BUDGET)


def lines(layer: LayerContribution, group: str) -> list[str]:
    return [f.renderings[0].text for f in layer.fragments if f.group.startswith(group)]


async def test_callers_and_callees_are_those_of_the_whole_project(graph: Graph, root: Path) -> None:
    assert lines(await layer_of(None, root), "## Calls") == [
        "- svc/pay.py::charge (L5-L9) calls send, helper"
    ]
    layer = await layer_of(graph, root)
    assert layer.status == "ok"
    assert lines(layer, "## Calls") == [
        "- svc/pay.py::charge (L5-L9) calls svc/net.py::send, helper · used by svc/shop.py::buy"
    ]


async def test_a_caller_that_is_one_of_several_readings_is_marked(graph: Graph, root: Path) -> None:
    layer = await layer_of(graph, root, payload={"files_created": ["svc/odd.py"]}, user_message="Fix `move`")
    assert lines(layer, "## Calls")[0] == "- svc/odd.py::A.move (L2-L2) used by svc/even.py::sell?"


async def test_a_tag_that_no_document_defines_comes_first_and_only_with_a_graph(
    graph: Graph, root: Path
) -> None:
    assert lines(await layer_of(None, root), "## Traces") == []
    layer = await layer_of(graph, root)
    assert texts(layer)[0] == "- svc/pay.py:6 @traces REQ-404: no document defines it"
    assert layer.fragments[0].group == "## Traces to mend before the work is done"


async def test_below_a_project_directory_the_graph_knows_the_same_symbols(graph: Graph, root: Path) -> None:
    layer = await layer_of(graph, root, payload={"files_created": ["pay.py"], "project_dir": "svc"})
    [line] = lines(layer, "## Calls")
    assert line.startswith("- pay.py::charge (L5-L9) calls net.py::send, helper · used by shop.py::buy")


async def test_what_the_request_names_comes_before_what_is_larger(graph: Graph, root: Path) -> None:
    layer = await layer_of(graph, root)
    assert [line.split()[1] for line in lines(layer, "## Branch")] == [
        "svc/pay.py::_quiet",
        "svc/pay.py::charge",
    ]
    layer = await layer_of(graph, root, user_message="Let `charge` retry")
    assert [line.split()[1] for line in lines(layer, "## Branch")] == [
        "svc/pay.py::charge",
        "svc/pay.py::_quiet",
    ]


@pytest.mark.parametrize(
    ("name", "task_type", "first", "asks"),
    [
        ("implement", "BUILD", "## Public API", "answer by number"),
        ("fix_issues", "DEBUG", "## Complexity hotspots", "answer by number"),
        ("review_and_test", "TEST", "## Complexity hotspots", "cover each with a test"),
        ("design_review", "REVIEW", "## Complexity hotspots", ""),
    ],
)
async def test_each_kind_of_work_has_its_order_and_is_asked_to_answer_for_branches(
    root: Path, name: str, task_type: TaskType, first: str, asks: str
) -> None:
    (root / "svc/pay.py").write_text("def f(a):\n" + "    if a: pass\n" * 6)
    subject = Subject(name=name, inject=True, semantic=True, task_type=task_type)
    asked = frame(subject, payload={"files_created": ["svc/pay.py"]})
    asked = RequestFrame(request=asked.request, subject=subject, task_type=task_type, as_of=asked.as_of)
    layer = await layer_of(None, root, asked)
    assert layer.fragments[0].group == first
    assert asks in heading_of("branches", task_type)
    assert len(lines(layer, heading_of("branches", task_type))) == 1


async def test_a_graph_that_is_away_leaves_the_files_and_is_said(graph: Graph, root: Path) -> None:
    async def away(*_: object, **__: object) -> None:
        raise StoreUnavailable("neo4j")

    plain = await layer_of(None, root)
    with patch.object(graph.store, "head", away):
        layer = await layer_of(graph, root)
    assert (layer.status, layer.reason) == ("partial", "section_error")
    assert texts(layer) == texts(plain)


async def test_work_that_is_to_see_no_graph_does_not_ask_for_it(graph: Graph, root: Path) -> None:
    chat = Subject(name="chat", inject=False, semantic=False, task_type=IMPLEMENT.task_type)
    asked = frame(chat, payload={"files_created": ["svc/pay.py"]})
    assert texts(await layer_of(graph, root, asked)) == texts(await layer_of(None, root))


async def test_a_new_version_of_the_graph_is_seen_though_the_files_are_the_same(
    graph: Graph, root: Path
) -> None:
    provider = AstProvider(SourceRoots({SCOPE.project_id: (root,)}), graph=graph.reader)
    asked = frame(payload={"files_created": ["svc/pay.py"]})
    assert any("REQ-404" in text for text in texts(await provider.provide(asked, SCOPE, BUDGET)))
    files = FILES | {"docs/requirements.md": "- **REQ-1**: It pays.\n- **REQ-404**: It is found.\n"}
    contents = {path: text.encode() for path, text in files.items()}
    await index_files(graph.store, SCOPE.project_id, contents, options=PLAIN)
    assert not any("REQ-404" in text for text in texts(await provider.provide(asked, SCOPE, BUDGET)))
