"""Depth against count under one layer's hard budget.

Counting is the cost, so it is avoided where the answer is known: a layer that fits whole is asked about
once, and only one that overflows has its fragments counted one by one. Lines are counted with their
newline, which is where encodings split, so the sum of parts differs from the joined text by a few tokens
at most; the join is recounted afterwards.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from worker.budget.trimming import trim_to_budget
from worker.fusion.protocols import DetailLevels, Frame, LayerSpace, Placed, ScoredFragment
from worker.fusion.sections import SECTION_GAP, compose
from worker.ports import Rendering, TokenCounter

MIN_CUT_TOKENS = 8
"""A shorter prefix of a fragment is noise, not context."""


def section_text(frame: Frame, placed: Iterable[Placed]) -> str:
    """The whole section as it stands in the prompt, its trailing gap included."""
    body = compose(frame.heading, ((p.fragment.group, p.text) for p in placed))
    return f"{frame.opening}\n{body}\n{frame.closing}{SECTION_GAP}"


def floor_placements(scored: Sequence[ScoredFragment], levels: DetailLevels) -> list[Placed]:
    """The pinned fragments at their floors, in packing order."""
    return [
        place(item, levels[item.fragment.key][-1])
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
        first divisible fragment that was left out is cut to the room that remains, and where nothing at
        all was kept, the best one is, divisible or not. O(n log n), each rendering counted at most once.
        """
        ranked = sorted(scored_fragments, key=lambda s: s.order_key)
        whole = [place(item, detail_level_maps[item.fragment.key][0]) for item in ranked]
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
                placed = place(item, rendering)
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
        left_out = [item for item in ranked if item.fragment.key not in kept]
        candidates = [item for item in left_out if item.fragment.is_divisible] or (
            left_out if not kept else []
        )
        if not candidates:
            return
        item = candidates[0]
        left = room.left_for(item)
        if left < MIN_CUT_TOKENS:
            return
        deepest = levels[item.fragment.key][0]
        # One token is kept back for the newline that follows.
        text = trim_to_budget(deepest.text, left - 1, budget.counter)
        if text:
            kept[item.fragment.key] = Placed(
                fragment=item.fragment, score=item.score, depth=deepest.depth, text=text, is_cut=True
            )


def place(item: ScoredFragment, rendering: Rendering) -> Placed:
    """The fragment shown as this rendering."""
    return Placed(fragment=item.fragment, score=item.score, depth=rendering.depth, text=rendering.text)


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
