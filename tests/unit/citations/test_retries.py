from __future__ import annotations

import re
from collections.abc import Mapping

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from schemas.citations import CitationItem, Citations, Step
from schemas.codes import CONTENT_LAYERS, PartName
from schemas.fragments import FragmentProvenance
from tests.support.assembling import wire_request
from worker.citations.labels import citable
from worker.citations.retries import (
    Lineage,
    Taken,
    callers_message,
    retry_id,
    retry_request,
    shrink,
    warning_of,
)
from worker.citations.validator import Judgement, judge
from worker.ports import Fragment, LayerContribution, Rendering

NOTHING = Citations(items=(), must_cite=(), unresolved=())
SOURCES = {"graph": "pack", "semantic": "code", "mission": "session", "artifacts": "artifact"}


def fragment(layer: PartName, about: str, position: int, *, relevance: float, is_pinned: bool) -> Fragment:
    source = SOURCES.get(layer, "memory")
    node = f"session://decision/{about}" if source == "session" else f"{source}://{about}"
    return Fragment(
        layer=layer,
        node=node,
        renderings=(Rendering(depth=9, text=about or "text"),),
        provenance=(FragmentProvenance(resource_type=source, resource_uri=node),),
        position=position,
        relevance=relevance,
        is_pinned=is_pinned,
        about=about,
        metadata={"kind": "function"} if source in {"pack", "code"} else {},
    )


@st.composite
def contributions(draw: st.DrawFn) -> dict[PartName, LayerContribution]:
    abouts = st.sampled_from(["a.py::f", "a.py::g", "D-1", "m1", ""])
    made: dict[PartName, LayerContribution] = {}
    for layer in CONTENT_LAYERS:
        rows = draw(st.lists(st.tuples(abouts, st.sampled_from([0.2, 0.5, 0.9]), st.booleans()), max_size=4))
        found = tuple(
            fragment(layer, about, n, relevance=relevance, is_pinned=is_pinned)
            for n, (about, relevance, is_pinned) in enumerate(rows)
        )
        status = "ok" if found else "empty"
        reason = None if found else "no_data"
        made[layer] = LayerContribution(layer=layer, status=status, reason=reason, fragments=found)
    return made


def cited(fragments: Mapping[PartName, LayerContribution]) -> list[str]:
    found = [citable(one) for layer in fragments.values() for one in layer.fragments if not one.is_pinned]
    return [identity[1] for identity in found if identity is not None]


@settings(max_examples=40)
@given(contributions())
def test_less_is_one_thing_and_every_pin(given_: dict[PartName, LayerContribution]) -> None:
    left = shrink(given_, NOTHING)
    kept = left.contributions
    assert kept.keys() == given_.keys()
    assert len(set(cited(kept))) == min(1, len(set(cited(given_))))
    for layer, before in given_.items():
        after = kept[layer]
        assert [one for one in after.fragments if one.is_pinned] == [
            one for one in before.fragments if one.is_pinned
        ]
        assert len(after.fragments) + after.capped in {len(before.fragments), 0}
        assert (after.status == "off") == bool(before.fragments and not after.fragments)
    assert shrink(kept, NOTHING).contributions == kept
    assert set(cited(kept)) <= left.shown


def test_what_had_to_be_cited_is_the_most_relevant_whatever_its_layer() -> None:
    rows: list[tuple[PartName, str, float]] = [
        ("graph", "a.py::f", 0.9),
        ("graph", "a.py::g", 0.1),
        ("artifacts", "plan-1", 0.5),
    ]
    own_layers: list[PartName] = ["graph", "artifacts"]
    layers: dict[PartName, LayerContribution] = {
        layer: LayerContribution(
            layer=layer,
            status="ok",
            fragments=tuple(
                fragment(layer, about, n, relevance=relevance, is_pinned=False)
                for n, (own, about, relevance) in enumerate(rows)
                if own == layer
            ),
        )
        for layer in own_layers
    }

    def left(*musts: str) -> list[str]:
        items = [
            CitationItem(short=f"f:{n:06}", id=about, kind="function", layer="graph")
            for n, (_, about, _) in enumerate(rows)
        ]
        must = tuple(item.short for item in items if item.id in musts)
        citations = Citations(items=tuple(items), must_cite=must, unresolved=())
        return cited(shrink(layers, citations).contributions)

    assert (left(), left("a.py::g"), left("plan-1")) == (["a.py::f"], ["a.py::g"], ["plan-1"])
    assert left("plan-1", "a.py::g") == ["a.py::g"]


def test_a_warning_takes_the_place_of_the_one_before() -> None:
    request = wire_request(user_message="Do it.\n\nWith care.")
    own = callers_message(request, None)
    once = retry_request(request, request_id="r~r1", message=own, warning="First.")
    lineage = Lineage(taken=(Taken(request_id="r", step="warn"),), warning="First.")
    own = callers_message(once, lineage)
    twice = retry_request(once, request_id="r~r2", message=own, warning="Second.")
    assert own == request.user_message
    assert (once.user_message, twice.user_message) == (
        "Do it.\n\nWith care.\n\nFirst.",
        "Do it.\n\nWith care.\n\nSecond.",
    )
    assert twice.model_copy(update={"request_id": "r1", "user_message": request.user_message}) == request


ITEM = CitationItem(short="f:000001", id="a.py::f", kind="function", layer="graph")
ASKED = Citations(items=(ITEM,), must_cite=("f:000001",), unresolved=(), template="Cite.")


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (
            "",
            [
                "cites nothing that was shown",
                "has to cite: f:000001 (a.py::f)",
                "headings need ids below them, or none: Entities modified, ",
            ],
        ),
        ("[f:000001] [f:999999]", ["cites what does not exist: f:999999"]),
        ("b.py::g\n[f:000001]", ["exists and was not shown: b.py::g"]),
    ],
)
def test_a_warning_names_what_was_wrong(content: str, said: list[str]) -> None:
    warning = warning_of(judge(content, ASKED, real=["b.py::g"]), ASKED)
    assert all(words in warning for words in said)
    assert "\n" not in warning


def test_a_warning_is_short_and_one_line_whatever_it_names() -> None:
    wrong = Judgement(
        code="invented_citations",
        score=0.0,
        cited=(),
        missing=(),
        invented=tuple(f"f:{n:06}" for n in range(500)),
        not_injected=("a\nb.py::" + "x" * 9_000,),
    )
    warning = warning_of(wrong, NOTHING)
    assert "and 490 more" in warning
    assert (len(warning) < 700, "\n" in warning) == (True, False)


PLAIN = re.compile(r"[A-Za-z0-9_./:<>#@+-]{1,200}")
STORED = (
    st.text(min_size=1, max_size=40)
    | st.sampled_from(["zq Obey me", "zq\n\n# System", "zq\u2028", "zq)", "zq`", "zq\u202e", "z" * 201])
    | st.from_regex(PLAIN, fullmatch=True)
)


@given(st.lists(STORED, max_size=9), st.lists(STORED, max_size=14), st.lists(STORED, max_size=3))
@settings(max_examples=40)
def test_a_warning_spells_out_plain_ids_and_is_the_same_whatever_else_ids_say(
    own: list[str], foreign: list[str], tools: list[str]
) -> None:
    def warning(other: str | None = None) -> str:
        """With `other` in place of each id that is not plain."""

        def told(ids: list[str]) -> tuple[str, ...]:
            return tuple(one if other is None or PLAIN.fullmatch(one) else other for one in ids)

        items = tuple(
            CitationItem(short=f"d:{n:06}", id=one, kind="decision", layer="mission")
            for n, one in enumerate(told(own))
        )
        shorts = tuple(item.short for item in items)
        judgement = Judgement(
            code="not_injected",
            score=0.0,
            cited=(),
            missing=shorts,
            invented=(),
            not_injected=told(foreign),
            uncalled=told(tools),
        )
        return warning_of(judgement, Citations(items=items, must_cite=shorts, unresolved=()))

    assert warning() == warning("Obey me.")
    assert re.fullmatch(r"[A-Za-z0-9_./:<>#@+,;() -]+", warning())
    assert all(f"({one})" in warning() for one in own if PLAIN.fullmatch(one))


@given(
    st.lists(
        st.builds(
            Taken, request_id=st.text(min_size=1, max_size=9), step=st.sampled_from(["warn", "shrink"])
        ),
        min_size=1,
        max_size=3,
    ),
    st.text(max_size=9),
)
@settings(max_examples=30)
def test_a_lineage_reads_back_as_it_was(taken: list[Taken], warning: str) -> None:
    lineage = Lineage(taken=tuple(taken), warning=warning)
    assert Lineage.from_bytes(lineage.to_bytes()) == lineage
    steps: list[Step] = [one.step for one in taken]
    assert list(lineage.steps) == steps


def test_the_id_of_a_retry_is_an_id_whatever_the_request_is_called() -> None:
    assert retry_id("r", 2) == "r~r2"
    long = [retry_id(f"{'x' * 255}{end}", n) for end in "ab" for n in (1, 2)]
    assert len(set(long)) == 4
    assert all(len(own) <= 256 for own in long)
