from __future__ import annotations

import time

import pytest
import structlog
from hypothesis import given, settings
from hypothesis import strategies as st

from worker.errors import InvalidRequest
from worker.ports import LayerContribution
from worker.providers.contribution import ContributionBuilder, layer_text


def builder() -> ContributionBuilder:
    return ContributionBuilder("mission", heading="# H", resource_type="session")


def test_groups_stand_once_above_their_run() -> None:
    block = builder()
    block.add("a", "one", relevance=0.5)
    for name in ("b", "c"):
        block.add(name, name, relevance=0.5, group="## G")
    assert layer_text(block.finish()) == "# H\none\n## G\nb\nc"


def test_nothing_added_is_an_empty_layer_without_a_heading() -> None:
    contribution = builder().finish()
    assert (contribution.status, contribution.reason) == ("empty", "no_data")
    assert layer_text(contribution) == ""


def test_nodes_that_are_taken_get_numbers() -> None:
    block = builder()
    for node in ("a", "a#2", "a", "a", "a#2", "b"):
        block.add(node, "x", relevance=0.5)
    assert [f.node for f in block.finish().fragments] == ["a", "a#2", "a#3", "a#4", "a#2#2", "b"]


def test_ten_thousand_equal_nodes_are_told_apart_in_linear_time() -> None:
    block = builder()
    started = time.process_time()
    for _ in range(10_000):
        block.add("a", "x", relevance=0.5)
    assert time.process_time() - started < 5
    assert len({f.node for f in block.finish().fragments}) == 10_000


def test_a_rendering_ends_without_a_newline_and_with_whole_characters() -> None:
    block = builder()
    block.add("a\ud800", "text\ud800\r\n\n", brief="brief\n", relevance=0.5, location="x\udfff")
    [fragment] = block.finish().fragments
    assert [r.text for r in fragment.renderings] == ["text�", "brief"]
    assert fragment.node == "a�"
    assert fragment.provenance[0].location == "x�"


def test_a_brief_that_says_the_same_is_no_rendering_of_its_own() -> None:
    block = builder()
    block.add("a", "text\n", brief="text", relevance=0.5, is_pinned=True)
    [fragment] = block.finish().fragments
    assert len(fragment.renderings) == 1


def test_a_section_that_raises_takes_back_what_it_added_and_nothing_else() -> None:
    block = builder()
    block.add("a", "before", relevance=0.5)

    def fail() -> None:
        block.add("b", "half", relevance=0.5)
        block.leave_out(3)
        raise ValueError("secret text")

    with structlog.testing.capture_logs() as logs:
        block.section("odd", fail)
    block.section("fine", lambda: block.add("c", "after", relevance=0.5))
    contribution = block.finish()
    assert layer_text(contribution) == "# H\nbefore\nafter"
    assert (contribution.status, contribution.reason, contribution.capped) == ("partial", "section_error", 0)
    assert logs == [
        {
            "event": "source.section_failed",
            "layer": "mission",
            "section": "odd",
            "error": "ValueError",
            "log_level": "warning",
        }
    ]


def test_a_layer_whose_only_section_raises_has_failed() -> None:
    block = builder()

    def fail() -> None:
        raise RecursionError

    block.section("odd", fail)
    assert (block.finish().status, block.finish().reason) == ("failed", "error")


def test_errors_raised_on_purpose_pass_a_section() -> None:
    block = builder()

    def refuse() -> None:
        raise InvalidRequest("no")

    with pytest.raises(InvalidRequest):
        block.section("odd", refuse)


def filled(items: list[tuple[int, bool, int, int]]) -> ContributionBuilder:
    block = builder()
    for number, (relevance, is_pinned, lines, group) in enumerate(items):
        block.add(
            f"n{number}",
            "\n".join(["x"] * lines),
            relevance=relevance / 10,
            is_pinned=is_pinned,
            group=f"## {group}" if group else "",
        )
    return block


_ITEMS = st.lists(
    st.tuples(st.integers(0, 10), st.booleans(), st.integers(1, 3), st.integers(0, 2)), max_size=12
)


def line_count(contribution: LayerContribution) -> int:
    return layer_text(contribution).count("\n") + 1


@settings(max_examples=300)
@given(_ITEMS, st.integers(0, 25))
def test_the_line_cap_spares_pins_and_counts_every_line(
    items: list[tuple[int, bool, int, int]], max_lines: int
) -> None:
    # A group that other groups interrupt is headed twice, so keep its members together as sources do.
    items = sorted(items, key=lambda item: item[3])
    whole = filled(items).finish()
    capped = filled(items).finish(max_lines=max_lines)
    pinned = [f.node for f in whole.fragments if f.is_pinned]
    assert [f.node for f in capped.fragments if f.is_pinned] == pinned
    assert capped.capped == len(whole.fragments) - len(capped.fragments)
    if any(not f.is_pinned for f in capped.fragments):
        assert line_count(capped) <= max_lines
    left_out = [f for f in whole.fragments if f.node not in {c.node for c in capped.fragments}]
    kept = [f for f in capped.fragments if not f.is_pinned]
    assert all((-k.relevance, k.rank) < (-out.relevance, out.rank) for k in kept for out in left_out)


def test_a_cap_that_everything_fits_changes_nothing() -> None:
    items = [(5, False, 2, 1), (5, True, 1, 1), (5, False, 1, 2)]
    assert filled(items).finish(max_lines=7) == filled(items).finish()
    assert len(filled(items).finish(max_lines=6).fragments) == 2
