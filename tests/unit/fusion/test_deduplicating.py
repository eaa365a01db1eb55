"""The same content stands once, wherever it came from; nothing else goes."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from schemas.codes import CONTENT_LAYERS, PartName
from schemas.fragments import FragmentProvenance
from worker.fusion.deduplicator import MIN_SHARED_CHARS, CrossLayerDeduplicator, stands_in
from worker.ports import Fragment, Rendering, Volatility

CODE = "def retry(deadline):\n    while deadline > 0:\n        attempt(deadline)\n    return None"
LINE = "The retry loop outlived its deadline by a minute in production."


def fragment(
    node: str,
    text: str,
    *,
    layer: PartName = "memory",
    position: int = 0,
    source: str = "memory",
    floor: str = "",
    about: str = "",
    group: str = "",
    depth: int = 9,
    relevance: float = 0.5,
    is_pinned: bool = False,
    volatility: Volatility = "request",
) -> Fragment:
    name = (Rendering(depth=0, text=floor),) if floor else ()
    return Fragment(
        layer=layer,
        node=node,
        renderings=(Rendering(depth=depth, text=text), *name),
        provenance=(FragmentProvenance(resource_uri=f"uri:{layer}:{node}", resource_type=source),),
        position=position,
        relevance=relevance,
        about=about,
        group=group,
        is_pinned=is_pinned,
        volatility=volatility,
    )


def merged(*fragments: Fragment) -> list[Fragment]:
    return CrossLayerDeduplicator().deduplicate(fragments)


lines = st.sampled_from(
    [LINE, "a", "- b", CODE, CODE.split("\n")[2], f"# Title\n{CODE}", f"{LINE}\n{CODE}", "x" * 50]
)


@st.composite
def mixtures(draw: st.DrawFn) -> list[Fragment]:
    drawn = draw(
        st.lists(
            st.tuples(
                lines,
                st.sampled_from(CONTENT_LAYERS),
                st.sampled_from(["task", "pack", "code", "memory", "odd"]),
                st.sampled_from(["", "f", "id"]),
                st.sampled_from(["", "short"]),
                st.sampled_from([0.1, 0.5, float("nan")]),
                st.booleans(),
                st.sampled_from(["request", "step", "thread"]),
            ),
            max_size=14,
        )
    )
    return [
        fragment(
            f"n{n}",
            text,
            layer=layer,
            position=n,
            source=source,
            about=about,
            floor=floor,
            relevance=relevance,
            is_pinned=is_pinned,
            volatility=volatility,
        )
        for n, (text, layer, source, about, floor, relevance, is_pinned, volatility) in enumerate(drawn)
    ]


@settings(max_examples=50)
@given(mixtures(), st.randoms(use_true_random=False))
def test_every_fragment_survives_or_is_spoken_for_whatever_the_order(
    given_: list[Fragment], rng: random.Random
) -> None:
    survivors = merged(*given_)
    shuffled = merged(*rng.sample(given_, len(given_)))
    assert sorted(map(repr, survivors)) == sorted(map(repr, shuffled))
    spoken_for = [absorbed.key for survivor in survivors for absorbed in survivor.absorbed]
    assert sorted([*spoken_for, *(s.key for s in survivors)]) == sorted(f.key for f in given_)
    by_key = {f.key: f for f in given_}
    for survivor in survivors:
        others = [by_key[absorbed.key] for absorbed in survivor.absorbed]
        sources = {p.resource_uri for f in (by_key[survivor.key], *others) for p in f.provenance}
        assert {p.resource_uri for p in survivor.provenance} == sources
        assert survivor.is_pinned or not any(other.is_pinned for other in others)
        is_lasting = survivor.volatility != "request"
        assert is_lasting or all(other.volatility == "request" for other in others)


@settings(max_examples=40)
@given(mixtures(), st.integers(0, 13))
def test_without_one_of_the_sources_its_content_is_still_there(given_: list[Fragment], gone: int) -> None:
    survivors = merged(*given_)
    left = merged(*(f for n, f in enumerate(given_) if n != gone))
    shown = "\n".join(f.renderings[0].text for f in left)
    for survivor in survivors:
        others = [absorbed for absorbed in survivor.absorbed if absorbed.rule == "exact"]
        if others and gone < len(given_) and survivor.key == given_[gone].key:
            assert survivor.renderings[0].text in shown


@settings(max_examples=40)
@given(mixtures(), lines)
def test_one_more_pin_removes_no_other_pin(given_: list[Fragment], text: str) -> None:
    more = fragment("new", text, layer="task", position=99, is_pinned=True, volatility="step")

    def pins(found: list[Fragment]) -> set[tuple[str, str]]:
        return {(f.renderings[0].text, f.renderings[-1].text) for f in found if f.is_pinned}

    assert pins(merged(*given_)) <= pins(merged(*given_, more))


def test_equal_texts_of_two_sources_stand_where_the_more_trusted_one_put_them() -> None:
    told = fragment("m", LINE, layer="memory", source="memory", relevance=0.9)
    written = fragment("s", LINE, layer="semantic", source="code", relevance=0.1)
    [survivor] = merged(told, written)
    assert (survivor.layer, survivor.node, survivor.relevance) == ("semantic", "s", 0.9)
    assert [p.resource_type for p in survivor.provenance] == ["code", "memory"]
    assert [(a.node, a.layer, a.rule) for a in survivor.absorbed] == [("m", "memory", "exact")]


def test_a_short_text_means_what_its_heading_says() -> None:
    key_file = fragment("a", "- src/a.py", layer="mission", group="## Key files")
    work = fragment("b", "- src/a.py", layer="mission", group="## Active work", position=1)
    assert len(merged(key_file, work)) == 2
    assert len(merged(key_file, replace(work, group="## Key files"))) == 1
    assert len("- src/a.py") < MIN_SHARED_CHARS


def test_what_is_contained_is_shown_by_itself_where_the_whole_has_no_room() -> None:
    whole = fragment("w", f"Notes of the day\n{LINE}\n{'more ' * 60}", floor="Notes", layer="artifacts")
    part = fragment("p", LINE)
    [survivor] = merged(part, whole)
    assert survivor.node == "w"
    assert [r.text for r in survivor.renderings[1:]] == [f"Notes\n{LINE}", "Notes"]
    assert [a.rule for a in survivor.absorbed] == ["contained"]


def test_a_text_within_a_line_is_not_contained() -> None:
    assert len(merged(fragment("w", f"Yesterday: {LINE} And so on.", position=1), fragment("p", LINE))) == 2


def test_the_same_node_found_by_three_sources_stands_once_with_all_of_them() -> None:
    body = fragment("b", f"```python\n{CODE}\n```", layer="graph", source="pack", about="c.py::retry")
    words = fragment(
        "w", f"## Function c.py::retry\n{CODE}", layer="semantic", source="code", about="c.py::retry"
    )
    line = fragment(
        "l", "- c.py:3 def retry(deadline)", layer="ast", source="code", about="c.py::retry", depth=3
    )
    other = fragment("o", "- retry: never outlives its caller, by decree", about="c.py::retry")
    survivors = merged(line, words, other, body)
    assert sorted(f.node for f in survivors) == ["o", "w"]
    assert {a.rule for f in survivors for a in f.absorbed} == {"same_node"}
    [found] = [f for f in survivors if f.node == "w"]
    assert {p.resource_type for p in found.provenance} == {"pack", "code"}


def test_what_outlasts_the_message_is_not_merged_into_what_does_not() -> None:
    stable = fragment("s", LINE, layer="artifacts", source="artifact", volatility="step", depth=2)
    fleeting = fragment("g", LINE, layer="graph", source="pack")
    longer = fragment("h", f"{LINE}\n{CODE}", layer="graph", source="pack", position=1)
    survivors = merged(stable, fleeting, longer)
    assert "s" in {f.node for f in survivors}
    assert "g" not in {f.node for f in survivors}


def test_provenances_that_lead_to_each_other_end() -> None:
    one = fragment("a", LINE, layer="graph")
    other = replace(
        fragment("b", LINE, position=1), provenance=(FragmentProvenance(resource_uri="a"),), absorbed=()
    )
    one = replace(one, provenance=(FragmentProvenance(resource_uri="b"),))
    [survivor] = merged(one, other)
    [again] = merged(survivor, replace(other, absorbed=survivor.absorbed))
    assert {p.resource_uri for p in again.provenance} == {"a", "b"}
    assert sorted([again.key, *(a.key for a in again.absorbed)]) == sorted([one.key, other.key])


@pytest.mark.timeout(60)
def test_a_line_that_all_have_in_common_makes_no_comparison_of_all_with_all() -> None:
    many = [fragment(f"n{n}", f"{LINE}\nnumber {n}", position=n) for n in range(2_000)]
    [*survivors] = merged(*many, fragment("p", LINE, position=9_999))
    assert len(survivors) == 2_000


LINES = st.lists(st.sampled_from(["a", "aa", "", "b", "common"]), min_size=1, max_size=7).map("\n".join)


@settings(max_examples=300)
@given(inner=LINES, text=LINES)
def test_lines_are_found_where_a_search_finds_them(inner: str, text: str) -> None:
    anchor = max(inner.split("\n"), key=len)
    offsets = [n for n in range(len(text) + 1) if f"\n{text}\n".startswith(f"\n{anchor}\n", n)]
    assert stands_in(inner, text, anchor, offsets) == (f"\n{inner}\n" in f"\n{text}\n")


def test_equal_pins_with_floors_of_their_own_and_equal_facts_become_one_fact() -> None:
    pins = [fragment(f"p{n}", LINE * 9, floor=f"{n}", position=n, is_pinned=True) for n in range(40)]
    facts = [fragment(f"f{n}", LINE * 9, position=9_000 + n, volatility="thread") for n in range(40)]
    assert len(CrossLayerDeduplicator().deduplicate([*pins, *facts])) == 41
