from __future__ import annotations

from itertools import pairwise
from random import Random
from typing import TypeVar

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from schemas.codes import TaskType
from tests.support.hash_seeds import outputs
from tests.unit.graph.graphs import edge, function, snapshot_of
from worker.graph.expansion import expand
from worker.graph.history import COMMITTED_AT
from worker.graph.links import link_request
from worker.graph.model import Edge, Node, NodeRef
from worker.graph.selection import Ranking, Selection, led_by, select
from worker.graph.signals import MAX_FOUND, file_scores, page_rank
from worker.graph.snapshot import Snapshot
from worker.graph.templates import TEMPLATES, widened

T = TypeVar("T")

ROOT = function("shop/cart.py", "checkout", "    return pay(total)")
CALLEE = function("shop/pay.py", "charge_card", "    return gateway.send()")
FAR = function("shop/ledger.py", "post_entry", "    return journal.append()")
ALONE = function("shop/mail.py", "render_template", "    return html")
ITEM = Node(label="RequirementItem", id="REQ-1-001", name="Charging is idempotent", text="never twice")
REQUIREMENT = Node(label="Requirement", id="REQ-1", name="Charging", text="Charging")
SPEC = Node(label="Spec", id="specs/1", name="Money", text="Money")
DECISION = Node(label="Decision", id="adr-7", name="One gateway", text="We use one gateway.")
TEST = function("tests/test_pay.py", "test_charge")
FILE = Node(label="File", id="shop/pay.py", name="pay.py", path="shop/pay.py")
COMMIT = Node(
    label="Commit",
    id="c" * 40,
    name="Send mail after paying",
    text="Send mail after paying",
    properties=((COMMITTED_AT, "2026-01-01T00:00:00Z"),),
)
EDGES = (
    edge(ROOT, "CALLS", CALLEE),
    edge(CALLEE, "CALLS", FAR),
    edge(FAR, "CALLS", ROOT),
    edge(CALLEE, "TRACES_TO", ITEM),
    edge(REQUIREMENT, "DEFINES", ITEM),
    edge(SPEC, "DEFINES", REQUIREMENT),
    edge(DECISION, "APPLIES_TO", CALLEE),
    edge(CALLEE, "TESTED_BY", TEST),
    edge(COMMIT, "TOUCHES", FILE),
)
NODES = (ROOT, CALLEE, FAR, ALONE, ITEM, REQUIREMENT, SPEC, DECISION, TEST, FILE, COMMIT)
SHOP = snapshot_of(NODES, EDGES)


def selected(
    text: str, *, snapshot: Snapshot = SHOP, task_type: TaskType = "DEBUG", ranking: Ranking = "graph"
) -> Selection:
    return select(link_request(text, (), snapshot), snapshot, task_type=task_type, ranking=ranking)


def ids(selection: Selection, snapshot: Snapshot = SHOP) -> list[str]:
    return [snapshot.nodes[number].id for number, _ in selection.ranked]


def test_the_graph_brings_what_no_word_of_the_request_names() -> None:
    found = ids(selected("checkout()"))
    assert found[0] == ROOT.id
    assert {CALLEE.id, FAR.id} <= set(found)
    assert ALONE.id not in found


def test_requirements_and_decisions_come_with_the_code_and_say_so() -> None:
    selection = selected("charge_card() fails")
    rules = {SHOP.nodes[number].id: rule for number, rule in selection.rules.items()}
    assert rules[ITEM.id] == rules[REQUIREMENT.id] == rules[SPEC.id] == "requirements"
    assert rules[DECISION.id] == "decisions"
    found = ids(selection)
    assert found.index(ITEM.id) < found.index(REQUIREMENT.id) < found.index(SPEC.id)
    number = SHOP.find(ITEM.ref)
    assert number is not None
    assert selection.template_of(number) == "DEBUG.requirements"


def test_tests_come_along_where_the_work_is_testing() -> None:
    assert "tests" in selected("charge_card()", task_type="TEST").rules.values()
    assert "tests" not in selected("charge_card()", task_type="BUILD").rules.values()


def test_an_untested_node_is_never_filtered_out() -> None:
    assert ROOT.id in ids(selected("checkout() and charge_card()"))


def test_the_commits_that_touched_the_best_files_are_told() -> None:
    [commit] = selected("charge_card() fails").changes
    assert SHOP.nodes[commit].id == COMMIT.id


def test_an_earlier_message_speaks_for_the_files_that_it_touched() -> None:
    assert CALLEE.id in ids(selected("send mail after paying, please"))


def test_classes_of_the_same_family_are_told() -> None:
    base = function("a.py", "Base", label="Class")
    one, two = function("b.py", "StoreOne", label="Class"), function("c.py", "Other", label="Class")
    snapshot = snapshot_of(
        [base, one, two], [edge(one, "INHERITS_FROM", base), edge(two, "INHERITS_FROM", base)]
    )
    selection = selected("extend StoreOne", snapshot=snapshot, task_type="BUILD")
    assert two.id in [snapshot.nodes[number].id for number in selection.patterns] or two.id in ids(
        selection, snapshot
    )


@pytest.mark.parametrize("ranking", ["graph", "hop"])
@pytest.mark.parametrize("text", ["", "\N{SNOWMAN}", "zzz qqq"])
def test_nothing_found_says_so(text: str, ranking: Ranking) -> None:
    selection = selected(text, ranking=ranking)
    assert (selection.ranked, selection.reason) == ((), "nothing_found")


@pytest.mark.parametrize(
    "text", ["Thanks, that is all.", "ok", "Please continue", "Go ahead, all is well!", "Hello?"]
)
def test_small_talk_brings_nothing_whatever_it_stands_in(text: str) -> None:
    all_of = function("shop/all.py", "ok", "    return all(please, go, hello)")
    snapshot = snapshot_of([all_of, *NODES], EDGES)
    assert selected(text, snapshot=snapshot).reason == "nothing_found"
    # Any other word, a name spelled as code, or a file that the request comes with: then all words count.
    assert ids(selected(f"{text} Mail", snapshot=snapshot), snapshot)
    assert ids(selected(f"{text} `ok`", snapshot=snapshot), snapshot)[0] == all_of.id
    with_file = link_request(text, ("shop/mail.py",), snapshot)
    assert ids(select(with_file, snapshot, task_type="DEBUG"), snapshot)


@pytest.mark.parametrize("ranking", ["graph", "hop"])
def test_an_empty_graph_gives_an_empty_selection(ranking: Ranking) -> None:
    assert selected("anything", snapshot=snapshot_of([]), ranking=ranking).reason == "nothing_found"


# --- hop ---------------------------------------------------------------------------------------------


def test_hop_ranks_by_distance_first_whatever_else_speaks_for_a_node() -> None:
    # Both are one edge away; the callee has a trace, a test and a commit.
    found = ids(selected("checkout()", ranking="hop"))
    assert found == [ROOT.id, CALLEE.id, FAR.id, TEST.id]


def test_hop_score_is_the_linear_sum() -> None:
    scores = {SHOP.nodes[n].id: score for n, score in selected("checkout()", ranking="hop").ranked}
    assert scores[ROOT.id] == 0.0
    # One hop, one trace of five, tested, and in the file that changed last.
    assert scores[CALLEE.id] == -10.0 + 2.0 / 5 + 1.0 + 1.0
    assert scores[FAR.id] == -10.0


def test_hop_penalises_each_reading_of_an_ambiguous_name() -> None:
    one, two = function("a.py", "save"), function("b.py", "save")
    snapshot = snapshot_of([one, two])
    assert selected("`save`", snapshot=snapshot, ranking="hop").ranked == ((0, -1.5), (1, -1.5))


def test_hop_goes_as_far_as_the_template_says_and_no_further() -> None:
    chain = [function("a.py", f"step_{n}") for n in range(6)]
    snapshot = snapshot_of(chain, [edge(a, "CALLS", b) for a, b in pairwise(chain)])
    for task_type, template in TEMPLATES.items():
        selection = selected("step_0()", snapshot=snapshot, task_type=task_type, ranking="hop")
        assert len(selection.ranked) == template.max_hops + 1


def test_equal_scores_are_ordered_by_id() -> None:
    leaves = [function(f"m{n}.py", "leaf") for n in (3, 1, 2)]
    root = function("root.py", "fan_out")
    snapshot = snapshot_of([root, *leaves], [edge(root, "CALLS", leaf) for leaf in leaves])
    found = ids(selected("fan_out()", snapshot=snapshot, ranking="hop"), snapshot)
    assert found == ["root.py::fan_out", "m1.py::leaf", "m2.py::leaf", "m3.py::leaf"]


def test_a_hub_is_followed_as_far_as_the_cap_and_the_rest_is_counted() -> None:
    hub = function("a.py", "hub")
    leaves = [function("b.py", f"leaf_{n:02d}") for n in range(20)]
    snapshot = snapshot_of([hub, *leaves], [edge(hub, "CALLS", leaf) for leaf in leaves])
    root = snapshot.find(hub.ref)
    assert root is not None
    kinds = TEMPLATES["BUILD"].edge_weights()
    wide = expand(snapshot, [root], kinds, max_hops=1, max_fan_out=5)
    assert (len(wide.nodes), wide.truncated) == (6, 15)
    few = expand(snapshot, [root], kinds, max_hops=1, max_nodes=4)
    assert (len(few.nodes), few.truncated) == (4, 17)


# --- Properties --------------------------------------------------------------------------------------

NAMES = st.sampled_from(["load_cart", "send_mail", "parse_order", "Cart", "retry"])
PLACES = st.integers(0, 7)


@st.composite
def graphs(draw: st.DrawFn) -> tuple[list[Node], list[Edge]]:
    nodes = [function(f"m{n % 3}.py", f"{draw(NAMES)}_{n}", docstring=draw(NAMES)) for n in range(8)]
    pairs = draw(st.sets(st.tuples(PLACES, PLACES), max_size=20))
    return nodes, [edge(nodes[a], "CALLS", nodes[b]) for a, b in sorted(pairs)]


@settings(max_examples=40)
@given(graphs(), st.randoms(use_true_random=False), st.sampled_from(["graph", "hop"]), NAMES)
def test_the_order_in_which_nodes_and_edges_arrive_changes_nothing(
    graph: tuple[list[Node], list[Edge]], rng: Random, ranking: Ranking, name: str
) -> None:
    nodes, edges = graph
    straight = snapshot_of(nodes, edges)
    shuffled = snapshot_of(_shuffled(nodes, rng), _shuffled(edges, rng))
    text = f"fix {name}_1 and {name}_4 in m1.py"
    assert selected(text, snapshot=straight, ranking=ranking) == selected(
        text, snapshot=shuffled, ranking=ranking
    )


def _shuffled(items: list[T], rng: Random) -> list[T]:
    return rng.sample(items, len(items))


@settings(max_examples=40)
@given(graphs(), NAMES, st.sampled_from(["graph", "hop"]))
def test_any_graph_cycles_and_all_is_ranked_once_and_in_order(
    graph: tuple[list[Node], list[Edge]], name: str, ranking: Ranking
) -> None:
    snapshot = snapshot_of(*graph)
    ranked = selected(f"{name}_0 retry", snapshot=snapshot, ranking=ranking).ranked
    numbers = [number for number, _ in ranked]
    assert len(set(numbers)) == len(numbers)
    keys = [(-score, snapshot.nodes[number].id) for number, score in ranked]
    assert keys == sorted(keys)
    assert all(score == round(score, 6) for _, score in ranked)


@settings(max_examples=60)
@given(st.lists(st.lists(st.sampled_from([0.0, 0.25, 0.5, 1.0]), max_size=6), min_size=1, max_size=5))
def test_a_file_counts_its_three_best_documents(files: list[list[float]]) -> None:
    owners = np.repeat(np.arange(len(files)), list(map(len, files))).astype(np.int32)
    evidence = np.array([value for file in files for value in file], dtype=np.float64)
    expected = [
        sum(w * v for w, v in zip((1.0, 0.5, 0.25), sorted(file, reverse=True), strict=False))
        for file in files
    ]
    assert file_scores(evidence, owners, file_count=len(files)).tolist() == pytest.approx(expected)


@settings(max_examples=40)
@given(graphs(), st.integers(1, 8))
def test_propagation_makes_no_mass_and_starts_from_its_roots(
    graph: tuple[list[Node], list[Edge]], roots: int
) -> None:
    snapshot = snapshot_of(*graph)
    starts = np.arange(min(roots, len(snapshot.nodes)), dtype=np.int64)
    restart = np.full(len(starts), 1 / len(starts))
    nodes, ranks = page_rank(snapshot.edges, starts, restart, TEMPLATES["DEBUG"].edge_weights())
    assert set(starts.tolist()) <= set(nodes.tolist())
    assert nodes.tolist() == sorted(set(nodes.tolist()))
    assert 0.5 - 1e-9 <= ranks.sum() <= 1 + 1e-9


def test_a_hub_keeps_what_it_is_given() -> None:
    hub, leaves = function("a.py", "hub"), [function("b.py", f"leaf_{n}") for n in range(6_000)]
    snapshot = snapshot_of([hub, *leaves], [edge(leaf, "CALLS", hub) for leaf in leaves])
    root = snapshot.find(hub.ref)
    assert root is not None
    nodes, ranks = page_rank(
        snapshot.edges, np.array([root]), np.array([1.0]), TEMPLATES["DEBUG"].edge_weights()
    )
    assert (nodes.tolist(), ranks.tolist()) == ([root], [0.5])


def test_what_a_request_names_is_a_candidate_however_much_else_its_words_find() -> None:
    named = function("z.py", "zebra")
    others = [function(f"m{n // 50}.py", f"cart_{n}", "    cart = order") for n in range(MAX_FOUND + 300)]
    snapshot = snapshot_of([named, *others])
    found = ids(selected("cart order, cart order and `zebra`", snapshot=snapshot), snapshot)
    assert named.id in found
    assert len(found) == MAX_FOUND


@pytest.mark.timeout(180)
def test_neither_hash_seed_nor_process_nor_arrival_changes_a_pack() -> None:
    assert len(outputs(["tests/unit/graph/print_pack.py"])) == 1


def test_a_node_of_another_kind_with_the_same_id_is_another_node() -> None:
    path = "docs/a.md"
    snapshot = snapshot_of([Node(label="Spec", id=path, name="A"), Node(label="File", id=path, path=path)])
    assert snapshot.find(NodeRef("Spec", path)) != snapshot.find(NodeRef("File", path))


@pytest.mark.parametrize("ranking", ["graph", "hop"])
def test_what_leads_comes_first_and_nothing_is_lost(ranking: Ranking) -> None:
    plain = selected("checkout()", ranking=ranking)
    led = led_by(plain, SHOP, [ALONE.id, FAR.id, "nobody.py::here"])
    assert ids(led)[:2] == [FAR.id, ALONE.id]
    assert ids(led)[2:] == [own for own in ids(plain) if own != FAR.id]
    scores = [score for _, score in led.ranked]
    assert scores == sorted(scores, reverse=True)
    assert led_by(plain, SHOP, []) is plain


@pytest.mark.parametrize("task_type", sorted(TEMPLATES))
def test_a_wider_template_goes_further_and_follows_requirements_and_tests(task_type: TaskType) -> None:
    plain = TEMPLATES[task_type]
    wide = widened(plain, 1)
    assert wide.max_hops == plain.max_hops + 1
    assert wide.edge_weights().keys() >= plain.edge_weights().keys()
    assert {"TRACES_TO", "TESTED_BY"} <= {rule.relation for rule in wide.edges}
    assert widened(plain, 0) is plain
    links = link_request("checkout()", (), SHOP)
    reached = select(links, SHOP, task_type=task_type, ranking="hop", extra_hops=1)
    assert {*ids(selected("checkout()", task_type=task_type, ranking="hop"))} < {*ids(reached)}
