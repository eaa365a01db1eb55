"""The facts of a refinement as one Prolog term, and its numbers read back."""

from __future__ import annotations

from random import Random

from hypothesis import given
from hypothesis import strategies as st

from worker.graph.model import NodeRef
from worker.graph.relevance import RelevanceFacts, number_facts

A, B, C = (NodeRef("Function", f"a.py::{name}") for name in "abc")
REQUIREMENT = NodeRef("RequirementItem", "REQ-1")


def test_the_term_holds_numbers_and_labels_only() -> None:
    facts = RelevanceFacts(
        task_type="DEBUG",
        hops={B: 1, A: 0, REQUIREMENT: 1},
        roots=[A],
        tested=[B],
        ambiguous=[B],
        traces=[(B, "REQ-'); halt."), (A, "REQ-1")],
        defines=[(A, B)],
        owners=[("@team", A)],
        depends=[(B, A)],
    )
    numbered = number_facts(facts)
    assert numbered.term == (
        "facts(debug,[c(function,0,[0]),c(function,1,[1]),c(requirementItem,1,[2])],"
        "[0],[1],[],[1],[0,1,1,0],[0,1],[0,[0]],[1,[0]])"
    )
    assert numbered.nodes == (A, B, REQUIREMENT)


def test_a_fact_about_a_node_that_was_not_selected_is_left_out() -> None:
    facts = RelevanceFacts(task_type="TEST", hops={A: 0}, roots=[A, B], traces=[(C, "R")], defines=[(A, C)])
    assert number_facts(facts).term == "facts(test,[c(function,0,[0])],[0],[],[],[],[],[],[],[])"


def test_numbers_are_read_back_as_the_nodes_that_they_stand_for() -> None:
    numbered = number_facts(RelevanceFacts(task_type="TEST", hops={C: 2, A: 0, B: 1}))
    refinement = numbered.refinement(core=[0], related=[2], undecided=3)
    assert refinement.tiers == {A: "core", B: "peripheral", C: "related"}
    assert refinement.counts() == {"core": 1, "related": 1, "peripheral": 1}
    assert refinement.undecided_owners == 3


@given(st.lists(st.tuples(st.sampled_from("abcdef"), st.sampled_from("abcdef")), max_size=12), st.randoms())
def test_the_order_of_facts_changes_nothing(names: list[tuple[str, str]], random: Random) -> None:
    pairs = [(NodeRef("Function", a), NodeRef("Class", b)) for a, b in names]
    nodes = list(dict.fromkeys(node for pair in pairs for node in pair))

    def term() -> str:
        random.shuffle(nodes)
        random.shuffle(pairs)
        return number_facts(
            RelevanceFacts(
                task_type="BUILD",
                hops={node: len(node.id) for node in nodes},
                roots=nodes,
                defines=[*pairs, *pairs],
                traces=[(a, b.id) for a, b in pairs],
                owners=[(a.id, b) for a, b in pairs],
                depends=[*pairs, *pairs],
            )
        ).term

    assert term() == term()
