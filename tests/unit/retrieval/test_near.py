"""Ids that are near an unknown one, over a graph of names that are hard to tell apart."""

from __future__ import annotations

from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.graph.graphs import function, snapshot_of
from worker.retrieval.entities import near_ids

NAMES = st.text(st.sampled_from("abAB_éſßﬁ"), min_size=1, max_size=8)


def groups(text: str) -> Counter[str]:
    padded = f"\n{text.casefold()}\n"
    return Counter({padded[at : at + 3]: 1 for at in range(len(padded) - 2)})


@settings(max_examples=40)
@given(st.lists(NAMES, min_size=1, max_size=12, unique=True), NAMES)
def test_whatever_is_near_shares_a_group_of_letters_and_itself_is_nearest(
    names: list[str], wanted: str
) -> None:
    snapshot = snapshot_of([function("m.py", name) for name in names])
    near = near_ids(snapshot, wanted)
    found = [node_id.partition("::")[2] for node_id in near]
    assert all(groups(name) & groups(wanted) for name in found)
    if wanted in names:
        assert found[0].casefold() == wanted.casefold()


def test_a_group_that_very_many_names_have_tells_nothing() -> None:
    # All names share `get` and an underscore; one shares more.
    names = [f"get_{number:05}" for number in range(2_500)]
    snapshot = snapshot_of([function("m.py", name) for name in (*names, "retrieve_cart")])
    assert near_ids(snapshot, "retrive_cart") == ("m.py::retrieve_cart",)
    assert near_ids(snapshot, "get_xx") == ()
