"""Refinement by tiers, and what an answer holds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import yaml

from schemas.fragments import RelevanceTier
from worker.budget.tokens import counter_for
from worker.graph.answers import AnswerInputs, GraphAnswer, build_answer, decode_answer, encode_answer
from worker.graph.expansion import MAX_FAN_OUT
from worker.graph.links import MAX_READINGS, link_request
from worker.graph.model import Node, NodeRef
from worker.graph.pack_writer import PackHead, write_pack
from worker.graph.packing import TextSizes
from worker.graph.refining import MAX_REFINED, refine_order, relevance_facts
from worker.graph.relevance import Refinement
from worker.graph.selection import Ranking, Selection, select
from worker.graph.snapshot import Snapshot

from .graphs import edge, function, snapshot_of

RETRY = function("net.py", "retry", "    return send_again(deadline)")
SEND = function("net.py", "send_again", "    return socket.write(deadline)")
OTHER = function("log.py", "rotate", "    return move(deadline)")
TEST = function("tests/test_net.py", "test_retry", "    assert retry() == 1")
MODULE = Node(label="Module", id="net.py::<module>", name="net", path="net.py")
FILE = Node(label="File", id="net.py", name="net.py", path="net.py", properties=(("status", "parsed"),))
BROKEN = Node(label="File", id="old.py", name="old.py", path="old.py", properties=(("status", "failed"),))
OWNER = Node(label="Owner", id="@net", name="@net")
KNOWN = Node(label="RequirementItem", id="REQ-1", name="REQ-1", text="Deadlines hold.")
DANGLING = Node(label="RequirementItem", id="REQ-9", name="REQ-9", properties=(("status", "dangling"),))
NODES = [RETRY, SEND, OTHER, TEST, MODULE, FILE, BROKEN, OWNER, KNOWN, DANGLING]
EDGES = [
    edge(RETRY, "CALLS", SEND),
    edge(RETRY, "TESTED_BY", TEST),
    edge(RETRY, "TRACES_TO", KNOWN),
    edge(SEND, "TRACES_TO", DANGLING),
    edge(OTHER, "TRACES_TO", KNOWN),
    edge(MODULE, "DEFINES", RETRY),
    edge(OWNER, "OWNS", FILE),
]


def selected(text: str) -> tuple[Selection, Snapshot]:
    snapshot = snapshot_of(NODES, EDGES)
    return select(link_request(text, (), snapshot), snapshot, task_type="DEBUG"), snapshot


def answer(text: str, *, budget_tokens: int = 2_000, paths: tuple[str, ...] = ()) -> GraphAnswer:
    selection, snapshot = selected(text)
    head = PackHead(project_id="shop", requester="volk", encoding="o200k_base", budget_tokens=budget_tokens)
    sizes = TextSizes(counter_for("o200k_base", safety_factor="1"))
    written = write_pack(selection, snapshot, head, sizes=sizes)
    return build_answer(selection, snapshot, written, AnswerInputs(paths=paths))


def test_facts_speak_of_candidates_by_distance_tests_and_traces_and_in_reviews_by_owners() -> None:
    selection, snapshot = selected("`retry` ignores its deadline")
    facts = relevance_facts(selection, snapshot, task_type="DEBUG", failing=[TEST.ref])
    assert facts.hops[RETRY.ref] == 0
    assert facts.hops[SEND.ref] == 1
    assert RETRY.ref in facts.roots
    assert RETRY.ref in facts.tested
    assert RETRY.ref in facts.failing
    assert (RETRY.ref, "REQ-1") in facts.traces
    assert (facts.depends, facts.owners) == ((), ())
    facts = relevance_facts(selection, snapshot, task_type="REVIEW")
    assert (RETRY.ref, SEND.ref) in facts.depends
    assert ("@net", RETRY.ref) in facts.owners


def ranked_last(named: Sequence[Node], text: str, others: Sequence[Node]) -> tuple[Selection, Snapshot]:
    """A selection in which the nodes that the text names rank behind all others."""
    snapshot = snapshot_of([*others, *named])
    selection = select(link_request(text, (), snapshot), snapshot, task_type="DEBUG")
    refs = {node.ref for node in named}
    last = [one for one in selection.ranked if snapshot.nodes[one[0]].ref in refs]
    first = [one for one in selection.ranked if snapshot.nodes[one[0]].ref not in refs]
    assert len(last) == len(named)
    scores = [score for _, score in selection.ranked]
    numbers = [number for number, _ in (*first, *last)]
    return replace(selection, ranked=tuple(zip(numbers, scores, strict=True))), snapshot


@pytest.mark.parametrize("others", [MAX_REFINED, MAX_REFINED + 90])
def test_a_root_is_looked_at_wherever_it_ranks(others: int) -> None:
    many = [function(f"m{n}.py", f"deadline_{n}", "    return deadline") for n in range(others)]
    selection, snapshot = ranked_last([RETRY], "`retry` ignores its deadline", many)
    facts = relevance_facts(selection, snapshot, task_type="DEBUG")
    assert facts.hops[RETRY.ref] == 0
    assert len(facts.hops) == MAX_REFINED
    tiers: dict[NodeRef, RelevanceTier] = {RETRY.ref: "core"}
    refined = refine_order(selection, snapshot, Refinement(tiers=tiers), hops=facts.hops)
    number = refined.ranked[0][0]
    assert snapshot.nodes[number].ref == RETRY.ref
    assert (refined.tier_of(number), refined.hops[number]) == ("core", 0)
    # The others are the best ones, in their order.
    assert {snapshot.nodes[n].ref for n, _ in selection.ranked[: MAX_REFINED - 1]} < set(facts.hops)


def test_readings_of_a_common_name_take_no_more_than_half_of_the_room() -> None:
    many = [function(f"m{n}.py", f"deadline_{n}", "    return deadline") for n in range(MAX_REFINED)]
    common = [function(f"c{n}.py", "handle_it", "    return 1") for n in range(150)]
    selection, snapshot = ranked_last([*common, RETRY], "`retry` and `handle_it`: deadline", many)
    facts = relevance_facts(selection, snapshot, task_type="DEBUG")
    assert RETRY.ref in facts.hops
    assert sum(ref.id.endswith("handle_it") for ref in facts.hops) == MAX_REFINED // 2 - 1
    assert set(facts.ambiguous) == {node.ref for node in common}
    assert {node.ref for node in common} | {RETRY.ref} == set(facts.roots)


@pytest.mark.parametrize("ranking", ["graph", "hop"])
def test_what_caps_leave_out_stands_at_the_head_of_the_pack(ranking: Ranking) -> None:
    callers = [function(f"c{n:03}.py", f"call_{n}", "    retry(deadline)") for n in range(MAX_FAN_OUT + 30)]
    namesakes = [function(f"n{n:03}.py", "handle_it") for n in range(MAX_READINGS + 1)]
    whole = snapshot_of([RETRY, *callers, *namesakes], [edge(caller, "CALLS", RETRY) for caller in callers])

    def head_of(text: str, snapshot: Snapshot) -> dict[str, Any]:
        selection = select(link_request(text, (), snapshot), snapshot, task_type="DEBUG", ranking=ranking)
        facts = relevance_facts(selection, snapshot, task_type="DEBUG")
        refined = refine_order(
            selection, snapshot, Refinement(tiers={}), hops=facts.hops, truncated=facts.truncated
        )
        about = PackHead(project_id="shop", requester="volk", encoding="o200k_base", budget_tokens=900)
        sizes = TextSizes(counter_for("o200k_base", safety_factor="1"))
        return yaml.safe_load(write_pack(refined, snapshot, about, sizes=sizes).text.split("---\n")[1])

    def said(text: str, snapshot: Snapshot) -> tuple[object, object, object]:
        found = head_of(text, snapshot)
        return found.get("truncated"), found["frame"].get("mentions"), found.get("graph")

    assert said("`call_7` is slow", snapshot_of(callers)) == (None, None, None)
    hub = said("`retry` is slow", whole)
    assert isinstance(hub[0], int)
    assert hub[0] >= len(callers) - MAX_FAN_OUT
    assert hub[1:] == (None, None)
    assert said("`handle_it` is slow", whole)[1:] == ("partly", None)
    assert said("`call_7` is slow", replace(snapshot_of(callers), is_part=True)) == (None, None, "partly")


def test_a_requirement_serves_the_items_that_it_defines() -> None:
    requirement = Node(label="Requirement", id="REQ-7", name="Deadlines", text="What a deadline is.")
    items = [Node(label="RequirementItem", id=f"REQ-7-{n}", name="item", text="deadline") for n in (1, 2)]
    edges = [*(edge(requirement, "DEFINES", item) for item in items), edge(RETRY, "TRACES_TO", items[0])]
    snapshot = snapshot_of([RETRY, requirement, *items], edges)
    selection = select(link_request("`retry` deadline", (), snapshot), snapshot, task_type="BUILD")
    facts = relevance_facts(selection, snapshot, task_type="BUILD")
    assert sorted(facts.traces) == [
        (RETRY.ref, "REQ-7-1"),
        (requirement.ref, "REQ-7-1"),
        (requirement.ref, "REQ-7-2"),
        (items[0].ref, "REQ-7-1"),
        (items[1].ref, "REQ-7-2"),
    ]


def test_what_words_find_stands_for_the_roots_of_a_request_that_names_nothing() -> None:
    selection, snapshot = selected("again writing to the socket")
    assert not selection.entities
    assert SEND.ref in relevance_facts(selection, snapshot, task_type="DEBUG").roots


def test_a_tier_outweighs_any_score_and_keeps_the_order_within() -> None:
    selection, snapshot = selected("`retry` ignores its deadline")
    plain = [snapshot.nodes[number].ref for number, _ in selection.ranked]
    last = plain[-1]
    refined = refine_order(selection, snapshot, Refinement(tiers={last: "core"}))
    assert [snapshot.nodes[number].ref for number, _ in refined.ranked] == [last, *plain[:-1]]
    assert refined.relevance == "prolog"
    unchanged = refine_order(selection, snapshot, Refinement(tiers=dict.fromkeys(plain, "peripheral")))
    assert unchanged.ranked == selection.ranked


def test_passages_are_what_words_found_and_the_pack_lacks() -> None:
    wide = answer("deadline retry send rotate")
    assert not {passage.node_id for passage in wide.passages} & {
        RETRY.id,
        SEND.id,
        OTHER.id,
    }
    narrow = answer("deadline retry send rotate", budget_tokens=160)
    shown = {passage.node_id for passage in narrow.passages}
    assert shown
    assert not any(f"<!-- node: {node_id} " in narrow.pack for node_id in shown)


def test_tests_and_open_traces_of_the_best_nodes_are_told() -> None:
    told = answer("`retry` and `send_again` ignore the deadline")
    assert [fact.node_id for fact in told.tests] == [TEST.id]
    assert [(fact.node_id, fact.text.rpartition(": ")[2]) for fact in told.open_traces] == [
        ("REQ-9", "no document defines it")
    ]


def test_files_of_interest_that_are_not_indexed_whole_are_named() -> None:
    assert answer("retry", paths=("net.py", "old.py", "new.py")).unindexed == ("new.py", "old.py")


def test_an_answer_survives_being_kept() -> None:
    told = answer("`retry` ignores its deadline", budget_tokens=160, paths=("x.py",))
    assert decode_answer(encode_answer(told)) == told
    assert decode_answer(b"0:" + encode_answer(told)) is None


def test_nothing_found_is_an_empty_pack_that_says_so() -> None:
    told = answer("zebra quagga")
    assert "reason: nothing_found" in told.pack
    assert told.passages == ()
