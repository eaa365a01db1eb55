"""Depth against count under one layer's hard budget.

Counting is the cost, so it is avoided where the answer is known: a layer that fits whole is asked about
once, and only one that overflows has its fragments counted one by one. Lines are counted with their
newline, which is where encodings split, so the sum of parts differs from the joined text by a few tokens
at most; the join is recounted afterwards.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from worker.budget.fences import close_open_fence, open_fence
from worker.budget.trimming import trim_to_budget
from worker.fusion.protocols import DetailLevels, Frame, LayerSpace, Placed, PlacedRule, ScoredFragment
from worker.fusion.sections import SECTION_GAP, compose
from worker.ports import Rendering, TokenCounter

MIN_CUT_TOKENS = 8
"""A shorter prefix of a fragment is noise, not context."""

ELLIPSIS = "…"
"""Ends a short rendering where a deeper one goes on."""


def section_text(frame: Frame, placed: Iterable[Placed]) -> str:
    """The whole section as it stands in the prompt, its trailing gap included."""
    body = compose(frame.heading, ((p.fragment.group, p.text) for p in placed))
    return f"{frame.opening}\n{body}\n{frame.closing}{SECTION_GAP}"


def floor_placements(scored: Sequence[ScoredFragment], levels: DetailLevels) -> list[Placed]:
    """The pinned fragments at their floors, in packing order."""
    return [
        place(item, levels[item.fragment.key][-1], rule="pinned_floor")
        for item in sorted(scored, key=lambda s: s.order_key)
        if item.fragment.is_pinned
    ]


class GreedyBudgetPacker:
    """Best first, each at the deepest rendering that fits; what does not fit is skipped, later ones tried."""

    def pack(
        self,
        scored_fragments: Sequence[ScoredFragment],
        budget: LayerSpace,
        detail_level_maps: DetailLevels,
    ) -> list[Placed]:
        """Kept fragments in packing order.

        Pins come first and hold their floor whatever the budget: the caller made room for them. Then, in
        packing order, every fragment takes the deepest rendering that the room allows. Last resort: the
        best divisible fragment that is not shown at its deepest, left out or kept shallower, gets as much of
        its deepest rendering as the room that remains holds, and loses nothing that it showed already. Where
        nothing at all was kept, the best one is cut, divisible or not. O(n log n), each rendering counted
        at most once.
        """
        ranked = sorted(scored_fragments, key=lambda s: s.order_key)
        whole = [place(item, detail_level_maps[item.fragment.key][0], rule="whole") for item in ranked]
        if _fits(budget, whole):
            return whole
        room = _Room(budget)
        kept: dict[str, Placed] = {}
        for floor in floor_placements(ranked, detail_level_maps):
            room.take(floor)
            kept[floor.fragment.key] = floor
        for item in ranked:
            floor = kept.get(item.fragment.key)
            for rendering in detail_level_maps[item.fragment.key]:
                placed = place(item, rendering, rule=_rule(rendering, detail_level_maps[item.fragment.key]))
                if floor is not None and placed.text == floor.text:
                    break
                if room.offer(placed, instead_of=floor):
                    kept[item.fragment.key] = placed
                    break
        self._cut_last(ranked, budget, detail_level_maps, room, kept)
        return [kept[item.fragment.key] for item in ranked if item.fragment.key in kept]

    @staticmethod
    def _cut_last(
        ranked: Sequence[ScoredFragment],
        budget: LayerSpace,
        levels: DetailLevels,
        room: _Room,
        kept: dict[str, Placed],
    ) -> None:
        def is_whole(item: ScoredFragment) -> bool:
            shown = kept.get(item.fragment.key)
            return shown is not None and shown.text == levels[item.fragment.key][0].text

        candidates = [item for item in ranked if item.fragment.is_divisible and not is_whole(item)]
        if not candidates and not kept:
            candidates = list(ranked[:1])
        for item in candidates:
            key = item.fragment.key
            deepest = levels[key][0]
            shown = kept[key].text if key in kept else ""
            text = _cut_into(deepest.text, shown, room.left_for(item), counter=budget.counter)
            if text:
                kept[key] = replace(place(item, deepest, rule="cut"), text=text, is_cut=True)
                return


def place(item: ScoredFragment, rendering: Rendering, *, rule: PlacedRule) -> Placed:
    """The fragment shown as this rendering."""
    return Placed(
        fragment=item.fragment, score=item.score, depth=rendering.depth, text=rendering.text, rule=rule
    )


def _rule(rendering: Rendering, levels: Sequence[Rendering]) -> PlacedRule:
    if rendering is levels[0]:
        return "fits"
    return "name" if rendering.depth == 0 else "shallower"


def _cut_into(deepest: str, shown: str, left_tokens: int, *, counter: TokenCounter) -> str:
    """The beginning of `deepest` in place of `shown`, in `left_tokens` more; "" where that is too few.

    Where `shown` is no prefix of it, it stays as it is, and what `deepest` has beyond it follows.
    """
    if left_tokens < MIN_CUT_TOKENS:
        return ""
    limit = left_tokens + (counter.count(shown + "\n") if shown else 0)
    # One token is kept back for the newline that follows.
    text = trim_to_budget(deepest, limit - 1, counter)
    says_more = text.startswith(shown.removesuffix(ELLIPSIS)) and len(text) > len(shown)
    if says_more and counter.fits(text + "\n", limit):
        return text
    rest = _beyond(deepest, shown)
    above = f"{shown}\n" if shown else ""
    kept_back = 1
    while left_tokens - kept_back >= MIN_CUT_TOKENS:
        more = trim_to_budget(rest, left_tokens - kept_back, counter)
        if not more:
            return ""
        # Counted as it will stand: the two may have more tokens together than apart.
        text = close_open_fence(above + more)
        if counter.fits(text + "\n", limit):
            return text
        kept_back *= 2
    return ""


def _beyond(deepest: str, shown: str) -> str:
    """`deepest` without the first lines that `shown` says too, unless a code fence is open behind them."""
    lines = deepest.split("\n")
    said = 0
    for line, known in zip(lines, shown.split("\n"), strict=False):
        if not known.startswith(line):
            break
        said += 1
    return deepest if open_fence("\n".join(lines[:said])) else "\n".join(lines[said:])


def _fits(space: LayerSpace, placed: Sequence[Placed]) -> bool:
    return space.counter.fits(section_text(space.frame, placed), space.budget_tokens)


class _Room:
    """Tokens left in one layer while it is being filled."""

    def __init__(self, space: LayerSpace) -> None:
        self._counter: TokenCounter = space.counter
        self._left = space.budget_tokens - space.counter.count(section_text(space.frame, ()))
        self._groups: set[str] = set()
        self._floor_tokens: dict[str, int] = {}

    def take(self, placed: Placed) -> None:
        """Spend for a pin's floor, whether there is room or not."""
        tokens = self._counter.count(placed.text + "\n")
        self._floor_tokens[placed.fragment.key] = tokens
        self._left -= tokens + self._group_tokens(placed.fragment.group)
        self._groups.add(placed.fragment.group)

    def offer(self, placed: Placed, *, instead_of: Placed | None) -> bool:
        """Spend for the fragment if it fits, in place of its floor where it has one."""
        freed = self._floor_tokens[placed.fragment.key] if instead_of is not None else 0
        limit = self._left + freed - self._group_tokens(placed.fragment.group)
        if limit <= 0:
            return False
        tokens = self._counter.count_up_to(placed.text + "\n", limit)
        if tokens > limit:
            return False
        self._left = limit - tokens
        self._groups.add(placed.fragment.group)
        return True

    def left_for(self, item: ScoredFragment) -> int:
        """What one more fragment could have."""
        return self._left - self._group_tokens(item.fragment.group)

    def _group_tokens(self, group: str) -> int:
        # Counted once a group even where its run is interrupted; the recount of the join sees the truth.
        if not group or group in self._groups:
            return 0
        return self._counter.count(group + "\n")
