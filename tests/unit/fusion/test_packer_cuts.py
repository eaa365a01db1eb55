"""The last resort of packing: the deepest rendering of one fragment, cut into the room that remains."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from schemas.session import FailingTest
from worker.budget.fences import open_fence
from worker.budget.tokens import BytesCounter, counter_for
from worker.fusion.cutting import ELLIPSIS
from worker.fusion.depth import AdmittingDepthResolver
from worker.fusion.packer import WorthBudgetPacker, section_text
from worker.fusion.protocols import Frame, LayerSpace, Placed, PlanContext
from worker.fusion.scorer import StepwiseScorer
from worker.fusion.sections import Fence
from worker.ports import Fragment, LayerContribution, TokenCounter
from worker.providers.contribution import ContributionBuilder
from worker.providers.task import FailingTests, build_task

FENCE = Fence("0123456789abcdef")
FRAME = Frame(opening="[[o]]", heading="# H", closing="[[c]]")
BYTES = BytesCounter()
PLAN = PlanContext(task_type="BUILD", as_of=None)  # pyright: ignore[reportArgumentType]  # not read by the scorer


def pack(layer: LayerContribution, budget_tokens: int, counter: TokenCounter = BYTES) -> list[Placed]:
    levels, _ = AdmittingDepthResolver(FENCE).resolve(layer.fragments, budget_tokens)
    space = LayerSpace(budget_tokens=budget_tokens, counter=counter, frame=FRAME)
    scored = StepwiseScorer().score(layer.fragments, PLAN)
    return WorthBudgetPacker().pack(scored, space, levels)


def size(placed: list[Placed], counter: TokenCounter = BYTES) -> int:
    return counter.count(section_text(FRAME, placed))


def diff_of(path: str, lines: int) -> str:
    changes = "\n".join(f"+    total += price_{n} * {n}  # line {n} of the change" for n in range(lines))
    return (
        f"diff --git a/{path} b/{path}\n--- a/{path}\n+++ b/{path}\n"
        f"@@ -1,0 +1,{lines} @@ def total():\n{changes}\n"
    )


def floor_of(fragment: Fragment) -> str:
    return fragment.renderings[-1].text


def test_a_large_diff_of_one_file_fills_its_layer() -> None:
    counter = counter_for("o200k_base")
    layer = build_task(None, diff_of("shop/prices.py", 4_000))
    budget = 20_750
    [shown] = pack(layer, budget, counter)
    assert shown.is_cut
    assert shown.text.startswith(floor_of(layer.fragments[0]) + "\n```diff\n")
    assert shown.text.endswith("\n```")
    assert budget * 0.97 < size([shown], counter) <= budget


def test_of_several_diffs_kept_at_their_floors_the_first_is_deepened() -> None:
    layer = build_task(None, "".join(diff_of(f"m{n}.py", 200) for n in range(3)))
    placed = pack(layer, 4_000)
    assert [p.is_cut for p in placed] == [True, False, False]
    assert [p.text for p in placed[1:]] == [floor_of(f) for f in layer.fragments[1:]]
    assert 3_900 < size(placed) <= 4_000


def test_a_long_message_of_a_failing_test_says_its_first_line_once() -> None:
    message = "AssertionError: totals differ\n" + "\n".join(f"  at step {n}" for n in range(500))
    layer = build_task(None, None, FailingTests((FailingTest(id="test_total", message=message),)))
    [shown] = pack(layer, 600)
    assert shown.text.startswith("- test_total: AssertionError: totals differ\n```\nAssertionError")
    assert shown.text.count("- test_total") == 1
    assert open_fence(shown.text) is None


def test_one_long_line_goes_on_where_its_short_form_ended() -> None:
    line = "- test_total: " + "the totals of the basket and of the invoice differ " * 40
    block = ContributionBuilder("task", heading="# TASK", resource_type="task")
    short = line[:300].rstrip() + ELLIPSIS
    block.add("test://t", line.rstrip(), brief=short, relevance=1.0, is_pinned=True, is_divisible=True)
    [shown] = pack(block.finish(), 900)
    assert line.startswith(shown.text)
    assert 800 < size([shown]) <= 900


def test_where_a_fence_is_open_behind_the_common_lines_nothing_is_left_out() -> None:
    block = ContributionBuilder("task", heading="# TASK", resource_type="task")
    whole = "```\nfirst\n" + "second\n" * 100 + "```"
    block.add("n", whole, brief="```\nfirst\n```\nmore", relevance=1.0, is_pinned=True, is_divisible=True)
    [shown] = pack(block.finish(), 300)
    assert shown.text.startswith("```\nfirst\n```\nmore\n```\nfirst\nsecond\n")
    assert open_fence(shown.text) is None


def test_what_is_not_divisible_stays_at_its_floor() -> None:
    block = ContributionBuilder("task", heading="# TASK", resource_type="task")
    block.add("n", "whole " * 100, brief="floor", relevance=1.0, is_pinned=True)
    assert [p.text for p in pack(block.finish(), 300)] == ["floor"]


texts = st.lists(
    st.one_of(
        st.sampled_from(["```", "````py", "~~~", "- item", "", "> quote", "    code", "word " * 9, "…"]),
        st.text(st.characters(exclude_categories=["Cs"]), max_size=30),
    ),
    min_size=1,
    max_size=12,
).map("\n".join)
pieces = st.lists(st.tuples(texts, texts, st.booleans(), st.booleans()), min_size=1, max_size=5)
counters = st.sampled_from([BYTES, counter_for("o200k_base"), counter_for("cl100k_base")])


def layer_of(drawn: list[tuple[str, str, bool, bool]]) -> LayerContribution:
    block = ContributionBuilder("task", heading="# TASK", resource_type="task")
    for number, (whole, brief, is_pinned, is_divisible) in enumerate(drawn):
        block.add(
            f"n{number}",
            f"{whole}\n{whole}",
            brief=brief,
            relevance=0.5,
            is_pinned=is_pinned,
            is_divisible=is_divisible,
        )
    return block.finish()


@settings(max_examples=60)
@given(pieces, st.integers(0, 700), counters)
def test_a_floor_never_vanishes_and_every_fence_is_closed(
    drawn: list[tuple[str, str, bool, bool]], budget: int, counter: TokenCounter
) -> None:
    layer = layer_of(drawn)
    levels, _ = AdmittingDepthResolver(FENCE).resolve(layer.fragments, budget)
    shown = {p.fragment.key: p for p in pack(layer, budget, counter)}
    for fragment in layer.fragments:
        if fragment.is_pinned:
            placed, texts = shown[fragment.key], [r.text for r in levels[fragment.key]]
            floor = texts[-1].removesuffix(ELLIPSIS)
            assert placed.text.startswith(floor) if placed.is_cut else placed.text in texts
    assert all(open_fence(p.text) is None for p in shown.values())


@settings(max_examples=60)
@given(pieces, st.integers(0, 700))
def test_a_cut_never_exceeds_the_budget(drawn: list[tuple[str, str, bool, bool]], budget: int) -> None:
    placed = pack(layer_of(drawn), budget)
    if any(p.is_cut for p in placed):
        assert size(placed) <= budget


@settings(max_examples=40)
@given(text=texts, budget=st.integers(0, 300), more=st.integers(0, 300), is_pinned=st.booleans())
def test_more_budget_never_shows_less_of_a_divisible_fragment(
    text: str, budget: int, more: int, *, is_pinned: bool
) -> None:
    layer = layer_of([(text, "floor", is_pinned, True)])

    def shown(tokens: int) -> int:
        return max((len(p.text) for p in pack(layer, tokens)), default=0)

    # A cut may end with a line that closes a fence, which a longer one does not need.
    assert shown(budget + more) >= shown(budget) - len("\n````")


@settings(max_examples=40)
@given(pieces, counters)
def test_what_fits_whole_is_shown_whole(
    drawn: list[tuple[str, str, bool, bool]], counter: TokenCounter
) -> None:
    layer = layer_of(drawn)
    levels, _ = AdmittingDepthResolver(FENCE).resolve(layer.fragments, 0)
    placed = pack(layer, 100_000, counter)
    assert {p.fragment.key: p.text for p in placed} == {key: of[0].text for key, of in levels.items()}
    assert pack(layer, size(placed, counter), counter) == placed
