"""Depth against count under one layer's hard budget.

Counting is the cost, so it is avoided where the answer is known: a layer that fits whole is asked about
once, and only one that overflows has its fragments counted one by one, as far as there is room for them.
`filling` decides who is shown how deep.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from worker.budget.tokens import lines_fit
from worker.fusion.cutting import cut_into
from worker.fusion.filling import Filling, Item, fill, floor_of, near_the_room
from worker.fusion.protocols import DetailLevels, Frame, LayerSpace, Placed, PlacedRule, ScoredFragment
from worker.fusion.room import Room
from worker.fusion.sections import SECTION_GAP
from worker.ports import Rendering

_CHARS_OF_NO_LAYER: Final = 12
"""No layer has so many characters for each of its tokens: a line of dashes may, prose and code have half."""


def section_lines(frame: Frame, pieces: Iterable[tuple[str, str]]) -> list[str]:
    """What joins to a section as it stands in the prompt, from `(group, text)` pairs in order.

    The mark above, heading and texts, each with the line break behind it; last the mark below, with the gap.
    """
    lines = [f"{frame.opening}\n"]
    if frame.heading:
        lines.append(f"{frame.heading}\n")
    previous = ""
    for group, text in pieces:
        if group and group != previous:
            lines.append(f"{group}\n")
        previous = group
        lines.append(f"{text}\n")
    if len(lines) == 1:
        lines.append("\n")
    lines.append(f"{frame.closing}{SECTION_GAP}")
    return lines


def section_text(frame: Frame, placed: Iterable[Placed]) -> str:
    """The whole section as it stands in the prompt, its trailing gap included."""
    return "".join(section_lines(frame, [(p.fragment.group, p.text) for p in placed]))


def floor_placements(scored: Sequence[ScoredFragment], levels: DetailLevels) -> list[Placed]:
    """The pinned fragments at their floors, in packing order."""
    return [
        place(item, levels[item.fragment.key][-1], rule="pinned_floor")
        for item in sorted((s for s in scored if s.fragment.is_pinned), key=lambda s: s.order_key)
    ]


class WorthBudgetPacker:
    """Best first, each at the deepest rendering that fits, unless that wastes the room."""

    def pack(
        self,
        scored_fragments: Sequence[ScoredFragment],
        budget: LayerSpace,
        detail_level_maps: DetailLevels,
    ) -> list[Placed]:
        """Kept fragments in packing order.

        Pins come first and hold their floor whatever the budget: the caller made room for them. For who is
        shown how deep see `fill`. Last resort: the best divisible fragment that is not shown at its deepest,
        left out or kept shallower, gets as much of its deepest rendering as the room that remains holds, and
        loses nothing that it showed already. Where nothing at all was kept, the best one is cut, divisible or
        not. O(n log n), each rendering counted at most once.
        """
        ranked = sorted(scored_fragments, key=lambda s: s.order_key)
        levels = [detail_level_maps[item.fragment.key] for item in ranked]
        if _fit_whole(budget, ranked, levels):
            return [place(item, of[0], rule="whole") for item, of in zip(ranked, levels, strict=True)]
        room = Room.of(budget)
        items = near_the_room(ranked, levels, room)
        filling = fill(items, room)
        kept = {
            number: place(ranked[number], levels[number][level], rule=_rule(items[number], level))
            for number, level in filling.shown.items()
        }
        _cut_last(ranked, levels, filling, kept, budget)
        return [kept[number] for number in sorted(kept)]


def place(item: ScoredFragment, rendering: Rendering, *, rule: PlacedRule) -> Placed:
    """The fragment shown as this rendering."""
    return Placed(
        fragment=item.fragment, score=item.score, depth=rendering.depth, text=rendering.text, rule=rule
    )


def _rule(item: Item, level: int) -> PlacedRule:
    if item.is_pinned and level == floor_of(item):
        return "pinned_floor"
    if level == 0:
        return "fits"
    return "name" if item.levels[level].depth == 0 else "shallower"


def _cut_last(
    ranked: Sequence[ScoredFragment],
    levels: Sequence[Sequence[Rendering]],
    filling: Filling,
    kept: dict[int, Placed],
    space: LayerSpace,
) -> None:
    """Give the room that is left to the beginning of one more fragment, if that makes sense for any."""
    numbers = [
        number
        for number, item in enumerate(ranked)
        if item.fragment.is_divisible and _can_grow(filling.shown.get(number), levels[number])
    ]
    if not numbers and not kept:
        numbers = [*range(len(ranked[:1]))]
    for number in numbers:
        item = ranked[number]
        deepest = place(item, levels[number][0], rule="cut")
        shown = kept[number].text if number in kept else ""
        left = filling.room.left - filling.room.heading_cost(item.fragment.group)
        text = cut_into(deepest.text, shown, left, counter=space.counter)
        if text:
            kept[number] = deepest._replace(text=text, is_cut=True)
            return


def _can_grow(shown: int | None, levels: Sequence[Rendering]) -> bool:
    """Whether the beginning of the deepest can follow what is shown.

    What stands between the deepest and the last is another choice from the whole, not a beginning of it.
    """
    return shown is None or (shown > 0 and shown == len(levels) - 1)


def _fit_whole(
    space: LayerSpace, ranked: Sequence[ScoredFragment], levels: Sequence[Sequence[Rendering]]
) -> bool:
    """Whether everything fits at its deepest, each group's heading counted once for each of its runs."""
    frame = space.frame
    if sum([len(of[0].text) for of in levels]) > space.budget_tokens * _CHARS_OF_NO_LAYER:
        return False
    pieces = [(item.fragment.group, of[0].text) for item, of in zip(ranked, levels, strict=True)]
    return lines_fit(space.counter, section_lines(frame, pieces), space.budget_tokens)
