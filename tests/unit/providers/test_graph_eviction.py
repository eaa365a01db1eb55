"""What a graph layer shows that has less room than its pack: its order, and tiers where relevance is on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import cycle
from pathlib import Path
from statistics import mean

import pytest

from schemas.fragments import RelevanceTier
from tests.unit.graph.graphs import large_graph, snapshot_of
from tests.unit.providers.frames import SCOPE, frame
from tests.unit.providers.test_graph_reader import PLAIN, Graph, Rules
from worker.budget.tokens import counter_for
from worker.code.indexing import index_files
from worker.fusion.depth import AdmittingDepthResolver
from worker.fusion.packer import WorthBudgetPacker, section_text
from worker.fusion.protocols import RELEVANCE_TIERS, Frame, LayerSpace, Placed, PlanContext
from worker.fusion.scorer import StepwiseScorer
from worker.fusion.sections import Fence
from worker.graph.links import link_request
from worker.graph.model import Node, NodeRef
from worker.graph.pack_writer import PackHead, WrittenPack, write_pack
from worker.graph.packing import TextSizes
from worker.graph.relevance import Refinement, RelevanceFacts
from worker.graph.selection import Ranking, Selection, select
from worker.ports import Fragment, LayerBudget
from worker.providers.graph import HEADING, GraphProvider, build_pack

COUNTER = counter_for("o200k_base")
FENCE = Fence("0123456789abcdef")
FRAME = Frame(opening="[[o]]", heading=HEADING, closing="[[c]]")
FRAME_TOKENS = COUNTER.count(section_text(FRAME, ()))


def shown_in(fragments: Sequence[Fragment], tokens: int) -> list[Placed]:
    """What a layer of so many tokens shows, its frame apart."""
    levels, _ = AdmittingDepthResolver(FENCE).resolve(fragments, tokens)
    scored = StepwiseScorer().score(fragments, PlanContext(task_type="BUILD", as_of=frame().as_of))
    space = LayerSpace(budget_tokens=tokens + FRAME_TOKENS, counter=COUNTER, frame=FRAME)
    return WorthBudgetPacker().pack(scored, space, levels)


# --- The pack's own order ----------------------------------------------------------------------------


def resized(node: Node, lines: int) -> Node:
    """The function with as many lines, its own over and over."""
    first, *others = node.text.splitlines()
    body = [line for _, line in zip(range(lines), cycle(others), strict=False)]
    return replace(node, text="\n".join((first, *body)) + "\n", end_line=node.start_line + lines)


GRAPH = large_graph(functions=200, calls=500, words_a_body=40)
LARGE = snapshot_of(
    [
        resized(node, (2, 60, 5, 9, 25, 3, 14)[n % 7]) if node.label == "Function" else node
        for n, node in enumerate(GRAPH.nodes)
    ],
    GRAPH.edges,
)
FUNCTIONS = [node for node in LARGE.nodes if node.label == "Function"]
SIZES = TextSizes(COUNTER)


def written(selection: Selection, budget_tokens: int) -> WrittenPack:
    about = PackHead(
        project_id="shop",
        requester="volk",
        encoding="o200k_base",
        budget_tokens=budget_tokens,
        layout="prompt",
    )
    return write_pack(selection, LARGE, about, sizes=SIZES)


def share_shown(number: int, budget_tokens: int, ranking: Ranking) -> float:
    """Of the code in a pack of half the budget, what half the room shows of the whole pack.

    What a larger body kept out of the whole pack is not there to be shown, and does not count.
    """
    node = FUNCTIONS[number]
    links = link_request(f"Fix {node.name}()\n\n{node.text[:300]}", (), LARGE)
    selection = select(links, LARGE, task_type="BUILD", ranking=ranking)
    half = written(selection, budget_tokens // 2).packed
    assert half is not None
    whole = build_pack(written(selection, budget_tokens).text, project_id="shop").fragments
    offered = {fragment.about for fragment in whole}
    shown = {p.fragment.about for p in shown_in(whole, budget_tokens // 2) if p.depth == 9 and not p.is_cut}
    wanted = [item for item in half.bodies if item.node.id in offered]
    shown_tokens = sum(item.section.tokens for item in wanted if item.node.id in shown)
    return shown_tokens / max(1, sum(item.section.tokens for item in wanted))


@pytest.mark.parametrize("ranking", ["graph", "hop"])
def test_half_the_room_shows_nearly_what_a_pack_of_half_the_budget_would(ranking: Ranking) -> None:
    shares = [
        share_shown(number, budget, ranking) for number in range(0, 199, 20) for budget in (1_000, 4_000)
    ]
    # By worth a token of the places alone it would be .6; names take their shares of different rooms.
    assert mean(shares) >= 0.95


# --- Tiers -------------------------------------------------------------------------------------------


def tier_named(ref: NodeRef) -> RelevanceTier:
    for tier in RELEVANCE_TIERS:
        if f"::{tier}" in ref.id:
            return tier
    return "peripheral"


class TierByName(Rules):
    """Each function's tier is the beginning of its name."""

    def __init__(self) -> None:
        super().__init__(None)

    async def refine(self, facts: RelevanceFacts) -> Refinement:
        return Refinement(tiers={ref: tier_named(ref) for ref in facts.hops})


def project() -> dict[str, bytes | None]:
    """Chains of calls from one entry, three functions of each tier a step further away each time."""
    functions = ["def start(deadline):\n    return core_0(deadline)\n"]
    names = [f"{tier}_{place}" for place in range(4) for tier in RELEVANCE_TIERS]
    for number, name in enumerate(names):
        following = names[number + 1] if number + 1 < len(names) else "print"
        functions.append(
            f"def {name}(deadline):\n    waited = deadline + {number}\n    return {following}(waited)\n"
        )
    return {"net.py": "\n".join(functions).encode()}


async def test_with_relevance_on_what_is_peripheral_and_far_goes_first_and_pins_never(tmp_path: Path) -> None:
    graph = Graph(tmp_path / "graph.db", TierByName())
    await index_files(graph.store, SCOPE.project_id, project(), options=PLAIN)
    asked = frame(user_message="`start` ignores its deadline", relevance="prolog")
    budget = LayerBudget(tokens=4_000, counter=COUNTER, graph_tokens=4_000)
    provider = GraphProvider(graph.reader)
    fresh, kept = [(await provider.provide(asked, SCOPE, budget)).fragments for _ in range(2)]
    await graph.close()
    assert fresh == kept
    assert {f.relevance_tier for f in fresh} == set(RELEVANCE_TIERS)
    assert {f.hops for f in fresh if f.about} >= {0, 1, 2}

    def distance(fragment: Fragment) -> tuple[int, int]:
        assert fragment.relevance_tier is not None
        hops = 99 if fragment.hops is None else fragment.hops
        return RELEVANCE_TIERS.index(fragment.relevance_tier), hops

    farthest = max(fresh, key=distance)
    pinned = [replace(f, is_pinned=f is farthest) for f in fresh]
    for tokens in range(20, 500, 40):
        for given_fragments, pins in ((fresh, set[str]()), (pinned, {farthest.key})):
            placed = shown_in(given_fragments, tokens)
            whole = {p.fragment.key for p in placed if p.depth == 9 and not p.is_cut} - pins
            gone = [distance(f) for f in given_fragments if f.key not in whole | pins]
            nearest = min(gone, default=(len(RELEVANCE_TIERS), 0))
            assert all(distance(f) <= nearest for f in given_fragments if f.key in whole)
            assert pins <= {p.fragment.key for p in placed}
