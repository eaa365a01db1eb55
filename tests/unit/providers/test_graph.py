from __future__ import annotations

import pytest

from tests.unit.providers.frames import BUDGET, SCOPE, frame
from worker.errors import InvalidRequest
from worker.ports import Subject
from worker.providers.contribution import layer_text
from worker.providers.graph import GraphProvider, build_pack
from worker.providers.semantic import SemanticProvider

CHAT = Subject(name="chat", inject=False, semantic=False, task_type="DOCUMENT")
SCOPE_REVIEW = Subject(name="scope_review", inject=True, semantic=False, task_type="REVIEW")
INJECT_ONLY = Subject(name="odd", inject=False, semantic=True, task_type="BUILD")


def section(name: str, rank: int) -> str:
    node = f"<!-- node: src/net.py::{name} | template: BUILD | rank: {rank} | score: 0.500000 | tokens: 9 -->"
    return f"## Function {name}\n{node}\n```python\ndef {name}(): ...\n```"


PACK = f"""---
pack_version: 1
project: shop
---
Mind the locks.

{section("b", 1)}

{section("a", 0)}

## A note without provenance
text
"""


def code(name: str) -> str:
    return f"```python\ndef {name}(): ...\n```"


async def test_an_inline_pack_fills_the_layer_with_its_code_and_each_path_once() -> None:
    contribution = await GraphProvider().provide(frame(pack=PACK), SCOPE, BUDGET)
    note = "## A note without provenance\ntext"
    assert layer_text(contribution) == (
        f"# GRAPH CONTEXT\nMind the locks.\n## src/net.py\n{code('b')}\n{code('a')}\n{note}"
    )
    assert contribution.status == "ok"
    assert [f.node for f in contribution.fragments] == [
        "pack://text",
        "pack://src/net.py::b",
        "pack://src/net.py::a",
        "pack://text#2",
    ]


def test_a_section_can_be_shown_by_its_name_alone() -> None:
    [fragment] = build_pack(section("a", 3), project_id="shop").fragments
    assert [r.text for r in fragment.renderings] == [code("a"), "### a"]
    assert (fragment.rank, fragment.is_pinned, fragment.is_divisible) == (3, False, True)
    assert fragment.metadata == {
        "citable": "true",
        "kind": "Function",
        "name": "a",
        "template": "BUILD",
        "score": "0.500000",
        "tokens": "9",
    }


def test_a_name_that_the_code_does_not_say_stands_above_it() -> None:
    edited = section("Client.retry", 0).replace("def Client.retry", "def retry")
    [method] = build_pack(edited, project_id="shop").fragments
    assert method.renderings[0].text == "### Client.retry\n```python\ndef retry(): ...\n```"
    assert method.group == "## src/net.py"
    line = "<!-- node: REQ-1 | template: BUILD | rank: 0 | score: 0.500000 | tokens: 9 -->"
    [item] = build_pack(f"## Requirement Refunds\n\n{line}\n\nPay back.", project_id="shop").fragments
    assert (item.group, item.renderings[0].text) == ("", "## Requirement Refunds\nPay back.")


def test_a_section_whose_code_was_deleted_still_names_its_node() -> None:
    [fragment] = build_pack("\n".join(section("a", 0).split("\n")[:2]), project_id="shop").fragments
    assert [r.text for r in fragment.renderings] == ["### a"]


def test_ranks_of_the_pack_decide_and_plain_text_ranks_with_the_section_above() -> None:
    fragments = build_pack(PACK, project_id="shop").fragments
    assert [f.rank for f in fragments] == [0, 1, 0, 0]
    assert [f.relevance for f in fragments] == [0.75, 0.72619, 0.75, 0.75]
    lists = f"{PACK}\n## Related, by name only\nsrc/a.py: one, two\n"
    assert [f.rank for f in build_pack(lists, project_id="shop").fragments] == [0, 1, 0, 0, 2]


def test_plain_text_cannot_be_cited() -> None:
    citable = [f.metadata["citable"] for f in build_pack(PACK, project_id="shop").fragments]
    assert citable == ["false", "true", "true", "false"]


def test_a_node_that_stands_twice_keeps_both_sections() -> None:
    nodes = [
        f.node for f in build_pack(section("a", 0) + "\n" + section("a", 1), project_id="shop").fragments
    ]
    assert nodes == ["pack://src/net.py::a", "pack://src/net.py::a#2"]


@pytest.mark.parametrize("pack", ["", " \n", "---\nproject: shop\n---\n"])
async def test_a_pack_without_sections_is_an_empty_layer(pack: str) -> None:
    contribution = await GraphProvider().provide(frame(pack=pack), SCOPE, BUDGET)
    assert (contribution.status, contribution.reason) == ("empty", "no_data")


@pytest.mark.parametrize("pack", ["---\nproject: bank\n---\n", "---\nproject: [\n---\n", "---\nopen"])
async def test_a_foreign_or_malformed_pack_refuses_the_request(pack: str) -> None:
    with pytest.raises(InvalidRequest):
        await GraphProvider().provide(frame(pack=pack), SCOPE, BUDGET)


async def test_an_inline_pack_is_used_whatever_the_subject() -> None:
    contribution = await GraphProvider().provide(frame(CHAT, pack=PACK), SCOPE, BUDGET)
    assert contribution.status == "ok"


@pytest.mark.parametrize(
    ("subject", "reason"),
    [(CHAT, "subject_gated"), (INJECT_ONLY, "subject_gated"), (SCOPE_REVIEW, "not_configured")],
)
async def test_without_a_pack_the_graph_is_off_and_says_why(subject: Subject, reason: str) -> None:
    contribution = await GraphProvider().provide(frame(subject), SCOPE, BUDGET)
    assert (contribution.status, contribution.reason) == ("off", reason)


@pytest.mark.parametrize("subject", [CHAT, INJECT_ONLY, SCOPE_REVIEW])
async def test_the_semantic_layer_is_gated_by_its_subject(subject: Subject) -> None:
    contribution = await SemanticProvider().provide(frame(subject), SCOPE, BUDGET)
    assert (contribution.status, contribution.reason) == ("off", "subject_gated")


async def test_the_semantic_layer_has_no_source_yet() -> None:
    contribution = await SemanticProvider().provide(frame(), SCOPE, BUDGET)
    assert (contribution.status, contribution.reason) == ("off", "not_configured")


async def test_a_heavy_pack_gives_the_same_from_a_thread() -> None:
    pack = "\n\n".join(section(f"f{n}", n) for n in range(2_000))
    contribution = await GraphProvider().provide(frame(pack=pack), SCOPE, BUDGET)
    assert contribution == build_pack(pack, project_id="shop")
    assert len(contribution.fragments) == 2_000
