"""Who is shown how deep: renderings against a room, best first where that is nearly as good as any.

The order of packing is what a reader expects, so it decides, class by class: pins before others, what a
strategy puts first before what it puts later, core before related before peripheral. Within a class, best
first can waste the room on one large fragment. So its worth is held against a bound that no filling exceeds;
where it falls short, the densest steps from rendering to rendering are taken instead, and a few swaps tried
where the room ran out. A share is kept for the names of those that go away empty.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from operator import attrgetter
from typing import Final, NamedTuple

from schemas.codes import PartName
from worker.fusion.protocols import ScoredFragment
from worker.fusion.room import MAX_CHARS_A_TOKEN, Room
from worker.fusion.worth import Step, paying_steps, worth, worth_bound, worths_of
from worker.ports import Rendering

NAMES_SHARE: Final = 0.05
"""Of the room, what is kept for names. Measured on real changes: it costs half a point of the bodies that the
work needs, and makes a tenth more of it visible by name."""
ENOUGH: Final = 0.975
"""Of the bound on worth: best first is kept where it reaches this much."""
RANKED_BY_GAIN: Final[frozenset[PartName]] = frozenset({"graph"})
"""Layers whose source weighed gain against size when it ranked: by its places, that cannot be done again."""
MAX_TRIED_ROOMS: Final = 4
MIN_TRIED: Final = 64
MAX_MISSES: Final = 16
"""Renderings that were counted and did not fit, one after the other, after which no more are tried."""
MAX_FEW: Final = 24
"""So many items can be tried with and without a share for names, and swapped with each other."""
MAX_SWAPS: Final = 16

Ranking = tuple[object, ...]


class Item:
    """A fragment as filling sees it: its place in the packing order, and how it can be shown."""

    # No dataclass: a thousand of these are made for a request, and their fields set one by one.
    __slots__ = (
        "_given",
        "counts",
        "deepest",
        "group",
        "is_pinned",
        "is_weighed",
        "levels",
        "number",
        "ranking",
        "score",
        "worths",
    )

    levels: Sequence[Rendering]
    """All renderings, deepest first."""
    worths: Sequence[float]
    """What each of them is worth."""

    def __init__(self, number: int, scored: ScoredFragment, levels: Sequence[Rendering]) -> None:
        """The item for the fragment at this place of the packing order."""
        fragment = scored.fragment
        self.number = number
        self.group = fragment.group
        self.is_pinned = fragment.is_pinned
        self.is_weighed = fragment.layer in RANKED_BY_GAIN
        """Whether its place says what it gives by token, not what it gives."""
        self.score = scored.score
        self.ranking: Ranking = scored.ranking
        """Those with equal ones compete with each other; others come before or after all of them."""
        self.deepest = levels[0]
        self.counts: dict[int, int] = {}
        """Tokens of the renderings that were counted, by level."""
        self._given = levels
        if type(levels) is tuple:
            self.levels = levels

    def __getattr__(self, name: str) -> object:
        """Fill in what is first asked for: renderings that are read off a text, and what each is worth."""
        if name == "worths":
            self.worths = worths_of(self.score, [rendering.depth for rendering in self.levels])
            return self.worths
        if name == "levels":
            self.levels = tuple(self._given)
            return self.levels
        raise AttributeError(name)

    @property
    def name(self) -> Rendering | None:
        """The last of several renderings where it only says what there is; found from the two ends."""
        last = self._given[-1]
        return last if last.depth == 0 and last != self.deepest else None


@dataclass(slots=True)
class Filling:
    """What is shown so far, and the room that is left."""

    room: Room
    shown: dict[int, int] = field(default_factory=dict[int, int])
    """Index of the rendering, by item number."""
    paid: dict[int, int] = field(default_factory=dict[int, int])
    """Tokens of it, without its group's heading."""

    def copy(self) -> Filling:
        """The same filling, to go on with apart from this one."""
        return Filling(self.room.copy(), dict(self.shown), dict(self.paid))


def floor_of(item: Item) -> int:
    """Index of the rendering below which a pin never goes."""
    return len(item.levels) - 1


def near_the_room(
    ranked: Sequence[ScoredFragment], levels: Sequence[Sequence[Rendering]], room: Room
) -> list[Item]:
    """The fragments, in packing order, that may find room: of a thousand, the last have none to hope for.

    All pins, and the first others whose texts would fill `MAX_TRIED_ROOMS` such rooms, at least `MIN_TRIED`.
    """
    chars = 4 * MAX_TRIED_ROOMS * max(0, room.left)
    items: list[Item] = []
    for tried, (scored, of) in enumerate(zip(ranked, levels, strict=True)):
        item = Item(tried, scored, of)
        if not item.is_pinned:
            chars -= len(item.deepest.text)
            if chars < 0 and tried >= MIN_TRIED:
                break
        items.append(item)
    return items


def fill(items: Sequence[Item], room: Room) -> Filling:
    """A filling of the room by items in packing order; pins have their floor whether it fits or not.

    What fits takes, in order: the pins' floors; the bodies, class by class, in all but the share for names;
    the names of what is not shown, best first; and then, in what is left, one deeper rendering after the
    other. Among few items the share can stand in the way of a body that is worth more than all names: it is
    given up where that pays. Same items, same room, same filling. O(n log n).
    """
    counts = _Counts(room)
    floors = Filling(room)
    for item in items:
        if item.is_pinned:
            _put(floors, counts, item, floor_of(item))
    reserve = _names_reserve(items, room)
    filling = _fill(items, floors.copy(), counts, reserve=reserve)
    if reserve and len(items) <= MAX_FEW:
        other = _fill(items, floors.copy(), counts, reserve=0)
        if ENOUGH * _gain(items, floors, other) > _gain(items, floors, filling):
            return other
    return filling


def _fill(items: Sequence[Item], filling: Filling, counts: _Counts, *, reserve: int) -> Filling:
    filling.room.left -= reserve
    for _, members in groupby(items, key=lambda item: item.ranking):
        filling = _fill_class(filling, counts, list(members))
    filling.room.left += reserve
    _deepen(filling, counts, [i for i in items if i.number not in filling.shown], names_only=True)
    _deepen(filling, counts, items)
    return filling


class _Counts:
    """Tokens of renderings, each counted once."""

    def __init__(self, room: Room) -> None:
        self._room = room
        self.missed = 0
        """Renderings in a row that were counted in vain."""

    def of(self, item: Item, level: int, text: str, limit_tokens: int) -> int:
        """The tokens of the rendering with this text, or something above the limit where they are more."""
        known = item.counts.get(level)
        if known is not None:
            return known
        if len(text) > MAX_CHARS_A_TOKEN * (limit_tokens + 1):
            return limit_tokens + 1
        known = self._room.cost_up_to(text, limit_tokens)
        if known <= limit_tokens:
            item.counts[level] = known
            self.missed = 0
        else:
            self.missed += 1
        return known

    def exact(self, item: Item, level: int) -> int:
        """The tokens, whatever they are."""
        known = item.counts.get(level)
        if known is None:
            known = item.counts[level] = self._room.cost(item.levels[level].text)
        return known


def _names_reserve(items: Sequence[Item], room: Room) -> int:
    """The share for names, or what all names together take where that is less."""
    most = int(max(0, room.left) * NAMES_SHARE)
    wanted = 0
    for item in items:
        if not item.is_pinned and (name := item.name) is not None:
            wanted += _guessed_cost(name.text)
            if wanted >= most:
                return most
    return wanted


def _fill_class(before: Filling, counts: _Counts, items: Sequence[Item]) -> Filling:
    """The better of two fillings with the bodies of one class; of nearly equals, the best-first one."""
    if len(items) == 1:
        # A strategy that ranks by itself has as many classes as fragments.
        _best_first(before, counts, items)
        return before
    if items[0].is_weighed:
        _whole_first(before, counts, items)
        return before
    first = before.copy()
    if _best_first(first, counts, items):
        return first
    steps = _steps(before, items)
    reached = _gain(items, before, first)
    if reached >= ENOUGH * worth_bound(steps, before.room.left):
        return first
    second = before.copy()
    _densest_first(second, counts, items, steps)
    if len(items) <= MAX_FEW:
        # Among many, no single one that was left out is worth the search.
        _swap(second, counts, items)
    return second if _gain(items, before, second) > reached else first


def _best_first(filling: Filling, counts: _Counts, items: Sequence[Item]) -> bool:
    """In packing order, each at the deepest that fits and is no mere name; whether all are shown whole."""
    counts.missed = 0
    is_complete = True
    for item in items:
        if counts.missed >= MAX_MISSES:
            return False
        shown = filling.shown.get(item.number)
        if shown == 0 or _offer(filling, counts, item, 0):
            continue
        is_complete = False
        _offer_parts(filling, counts, item)
    return is_complete


def _whole_first(filling: Filling, counts: _Counts, items: Sequence[Item]) -> None:
    """In packing order, each whole if that fits; then, of those that were skipped, less than the whole."""
    counts.missed = 0
    for item in items:
        if filling.shown.get(item.number) != 0:
            _offer(filling, counts, item, 0)
            if counts.missed >= MAX_MISSES:
                break
    counts.missed = 0
    for item in items:
        _offer_parts(filling, counts, item)
        if counts.missed >= MAX_MISSES:
            break


def _offer_parts(filling: Filling, counts: _Counts, item: Item) -> None:
    """Show the item at the deepest that fits below the whole, and is no mere name."""
    shown = filling.shown.get(item.number)
    if shown == 0:
        return
    levels = item.levels
    for level in range(1, len(levels) if shown is None else shown):
        if levels[level].depth > 0 and _offer(filling, counts, item, level):
            return


def _offer(filling: Filling, counts: _Counts, item: Item, level: int) -> bool:
    """Show the item so if that fits, in place of what is shown of it."""
    room, number = filling.room, item.number
    paid = filling.paid.get(number, 0)
    limit = room.left + paid
    text = item.levels[level].text if level else item.deepest.text
    if limit < 0 or len(text) > MAX_CHARS_A_TOKEN * (limit + 1):
        return False
    heading = room.heading_cost(item.group) if item.group else 0
    if heading > limit:
        return False
    tokens = counts.of(item, level, text, limit - heading)
    if tokens > limit - heading:
        return False
    room.spend(tokens - paid + heading, item.group)
    filling.shown[number] = level
    filling.paid[number] = tokens
    return True


def _put(filling: Filling, counts: _Counts, item: Item, level: int) -> None:
    tokens = counts.exact(item, level)
    more = tokens - filling.paid.get(item.number, 0) + filling.room.heading_cost(item.group)
    filling.room.spend(more, item.group)
    filling.shown[item.number] = level
    filling.paid[item.number] = tokens


def _deepen(filling: Filling, counts: _Counts, items: Sequence[Item], *, names_only: bool = False) -> None:
    """Use what is left: in packing order, names where there is nothing, or whatever is deeper and fits."""
    counts.missed = 0
    for item in items:
        if counts.missed >= MAX_MISSES:
            return
        shown = filling.shown.get(item.number)
        if shown == 0:
            continue
        end = len(item.levels) if shown is None else shown
        for level in (end - 1,) if names_only else range(end):
            if _offer(filling, counts, item, level):
                break


# --- The denser filling ------------------------------------------------------------------------------


def _guessed_cost(text: str) -> int:
    """About how many tokens a text has, without counting it. Decides what is tried first, never what fits."""
    return 1 + len(text) // 4


def _worth(item: Item, level: int | None) -> float:
    """Of what is shown; of the deepest without asking for the others."""
    if level is None:
        return 0.0
    return item.worths[level] if level else worth(item.score, item.deepest.depth)


def _gain(items: Sequence[Item], before: Filling, after: Filling) -> float:
    """What the fillings differ in, by worth; of these items alone is anything shown that was not before."""
    total = 0.0
    for item in items:
        shown = after.shown.get(item.number)
        if shown is not None:
            total += _worth(item, shown) - _worth(item, before.shown.get(item.number))
    return total


def _steps(filling: Filling, items: Sequence[Item]) -> list[Step]:
    """All steps that can pay off, the densest first; of equals the earlier item's."""
    found: list[Step] = []
    for number, item in enumerate(items):
        shown = filling.shown.get(item.number)
        if shown == 0:
            continue
        levels = item.levels
        worths = item.worths = worths_of(item.score, [rendering.depth for rendering in levels])
        costs = [_guessed_cost(rendering.text) for rendering in levels]
        if shown is not None:
            found += paying_steps(
                number,
                worths[:shown],
                costs[:shown],
                paid_worth=worths[shown],
                paid_cost=costs[shown],
            )
        elif len(costs) == 1:
            found.append(Step(number, 0, worths[0], costs[0]))
        else:
            found += paying_steps(number, worths, costs)
    # Found in the order that equals have, which this keeps.
    found.sort(key=attrgetter("density"), reverse=True)
    return found


def _densest_first(filling: Filling, counts: _Counts, items: Sequence[Item], steps: Sequence[Step]) -> None:
    """Take the steps that fit."""
    counts.missed = 0
    hopeless = 0
    for step in steps:
        item = items[step.item]
        shown = filling.shown.get(item.number)
        if shown is None or step.level < shown:
            hopeless = 0 if _offer(filling, counts, item, step.level) else hopeless + 1
        if counts.missed >= MAX_MISSES or hopeless >= MIN_TRIED:
            break


class _Gift(NamedTuple):
    """Tokens that an item can give back, what that loses, and as what it is shown then, if at all."""

    item: Item
    level: int | None
    tokens: int
    loss: float


class _Move(NamedTuple):
    """An item shown deeper, paid for by gifts of others; `gain` is what is left when they are paid for."""

    taker: Item
    level: int
    gifts: Sequence[_Gift]
    gain: float


def _swap(filling: Filling, counts: _Counts, items: Sequence[Item]) -> None:
    """As long as that gains, show one of them deeper, in place of others where there is no room else."""
    for _ in range(MAX_SWAPS):
        move = _best_move(filling, counts, items)
        if move is None:
            return
        for gift in move.gifts:
            _take_back(filling, counts, gift)
        _put(filling, counts, move.taker, move.level)


def _best_move(filling: Filling, counts: _Counts, items: Sequence[Item]) -> _Move | None:
    """The move that gains most, if any gains; of equal ones the first in packing order, the deepest first."""
    gifts = [gift for item in items for gift in _gifts(filling, counts, item)]
    gifts.sort(key=lambda gift: gift.loss / gift.tokens)
    most = filling.room.left + sum([gift.tokens for gift in gifts if gift.level is None])
    best: _Move | None = None
    for taker in items:
        shown, paid = filling.shown.get(taker.number), filling.paid.get(taker.number, 0)
        own = filling.room.heading_cost(taker.group) - paid - filling.room.left
        before = _worth(taker, shown)
        for level, rendering in enumerate(taker.levels[:shown]):
            missing = counts.of(taker, level, rendering.text, most + paid) + own
            gain = taker.worths[level] - before
            # Nobody pays less than nothing, so most moves are no match for the best one so far.
            if round(gain, 9) <= (best.gain if best else 0):
                continue
            for chosen in _ways_to_pay(gifts, taker, missing):
                net = round(gain - sum([gift.loss for gift in chosen]), 9)
                if net > (best.gain if best else 0):
                    best = _Move(taker, level, chosen, net)
    return best


def _gifts(filling: Filling, counts: _Counts, item: Item) -> Iterator[_Gift]:
    shown = filling.shown.get(item.number)
    if shown is None:
        return
    paid, worths = filling.paid[item.number], item.worths
    for level in range(shown + 1, len(worths)):
        tokens = paid - counts.exact(item, level)
        if tokens > 0:
            yield _Gift(item, level, tokens, worths[shown] - worths[level])
    if not item.is_pinned and paid > 0:
        yield _Gift(item, None, paid, worths[shown])


def _ways_to_pay(gifts: Sequence[_Gift], taker: Item, missing: int) -> Iterator[Sequence[_Gift]]:
    """At most two: the one gift that suffices and loses least, and the cheapest by token together."""
    if missing <= 0:
        yield ()
        return
    others = [gift for gift in gifts if gift.item is not taker]
    alone = min([g for g in others if g.tokens >= missing], key=attrgetter("loss"), default=None)
    if alone is not None:
        yield (alone,)
    chosen: dict[int, _Gift] = {}
    for gift in others:
        before = chosen.get(gift.item.number)
        if before is None or gift.tokens > before.tokens:
            missing -= gift.tokens - (before.tokens if before else 0)
            chosen[gift.item.number] = gift
            if missing <= 0:
                yield tuple(chosen.values())
                return


def _take_back(filling: Filling, counts: _Counts, gift: _Gift) -> None:
    number = gift.item.number
    filling.room.spend(-filling.paid.pop(number), gift.item.group)
    del filling.shown[number]
    if gift.level is not None:
        _put(filling, counts, gift.item, gift.level)
