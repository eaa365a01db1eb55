"""Refinement by tiers, and what an answer holds."""

from __future__ import annotations

from worker.budget.tokens import counter_for
from worker.graph.answers import AnswerInputs, GraphAnswer, build_answer, decode_answer, encode_answer
from worker.graph.links import link_request
from worker.graph.model import Node
from worker.graph.pack_writer import PackHead, write_pack
from worker.graph.packing import TextSizes
from worker.graph.refining import refine_order, relevance_facts
from worker.graph.relevance import Refinement
from worker.graph.selection import Selection, select
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
