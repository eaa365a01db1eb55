"""The same content appears once, in the layer where it is worth most, with all its provenances.

Three rules, tried in this order. `exact`: the deepest texts are equal. `same_node`: both show the same thing,
and the one says next to nothing that the other does not. `contained`: all lines of the one stand together in
the other. A line of a few words means what its heading says, so the first and the last rule leave short
texts alone, but for equal ones under one heading.

Whatever the rule, a pin is never taken in by what is no pin, nor by a pin with another floor; and what stays
from one message to the next never by what the next message may change, or prefixes of prompts would change.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from typing import Final

from schemas.codes import PARTS
from worker.ports import Absorbed, Fragment, MergeRule, Rendering

MIN_SHARED_CHARS: Final = 40
"""A shorter text may stand in two places and mean two things."""
COVERED_SHARE: Final = 0.8
"""Of its distinct words, how many must stand in what takes a text in under the `same_node` rule."""
MAX_LOOKED_AT: Final = 32
"""How many that might take a text in are looked at, the best first: a line that stands in a thousand
fragments is no reason to compare each with each."""

TRUST: Final[Mapping[str, int]] = {
    "task": 4,
    "session": 4,
    "plan": 4,
    "pack": 3,
    "code": 3,
    "artifact": 2,
    "memory": 1,
}
"""How near to its origin a kind of source is: who asks states it, the project's files hold it, an earlier
stage wrote it, somebody remembered it. Others count 0."""

_LAYER_ORDER: Final = {layer: number for number, layer in enumerate(PARTS)}
_WORD: Final = re.compile(r"[^\W_]+")


class CrossLayerDeduplicator:
    """Merges equal, contained and same-node fragments of all layers."""

    def deduplicate(self, fragments: Sequence[Fragment]) -> list[Fragment]:
        """The survivors in input order, each with what it took in under `absorbed`.

        Of equals the one survives that is pinned; then one that outlasts the message; then the one that its
        source shows deepest; then the one from the more trusted source; then the more relevant; then the one
        of the earlier layer, and there the first. It keeps its node, layer and place, and gets the best
        relevance and rank and all provenances.
        What took in a contained text can also be shown as its own name and that text, so that a budget which
        has no room for the whole still has it for the part.

        Which survive does not depend on the order of the input. O(n log n) in fragments and lines.
        """
        merging = _Merging(fragments)
        merging.merge_equal()
        merging.merge_same_nodes()
        merging.merge_contained()
        return merging.survivors()


class _Merging:
    """The state of one call: who was taken in by whom, by place in the input.

    Wherever there is a choice, candidates are put in the order of preference first, so that the order of the
    input decides nothing; most fragments are candidates of nothing, and are never compared.
    """

    def __init__(self, fragments: Sequence[Fragment]) -> None:
        self._given = fragments
        self._taken: dict[int, tuple[int, MergeRule]] = {}

    def merge_equal(self) -> None:
        """Texts that are equal, wherever they stand if they are long, else under the same heading."""
        seen: dict[str | tuple[str, ...], int] = {}
        equals: dict[int, list[int]] = {}
        for number, fragment in enumerate(self._given):
            text = fragment.renderings[0].text
            is_own = len(text) >= MIN_SHARED_CHARS
            first = seen.setdefault(text if is_own else (text, fragment.layer, fragment.group), number)
            if first != number:
                equals.setdefault(first, [first]).append(number)
        for numbers in equals.values():
            self._merge_equals(self._by_preference(numbers))

    def _merge_equals(self, numbers: Sequence[int]) -> None:
        """One pin for each floor, and whatever is no pin for the first that may take it."""
        floors: dict[str, int] = {}
        first: int | None = None
        first_lasting: int | None = None
        for number in numbers:
            fragment = self._given[number]
            is_lasting = fragment.volatility != "request"
            if fragment.is_pinned:
                taker = floors.setdefault(fragment.renderings[-1].text, number)
            else:
                taker = first_lasting if is_lasting else first
            if taker is not None and taker != number:
                self._taken[number] = (taker, "exact")
                continue
            first = number if first is None else first
            first_lasting = number if first_lasting is None and is_lasting else first_lasting

    def merge_same_nodes(self) -> None:
        """What shows the same thing and says nothing of its own."""
        by_node: dict[str, list[int]] = {}
        for number in self._left():
            if about := self._given[number].about:
                by_node.setdefault(about, []).append(number)
        for numbers in by_node.values():
            if len(numbers) > 1:
                self._merge_node(self._by_preference(numbers))

    def _merge_node(self, numbers: Sequence[int]) -> None:
        words = {number: _words(self._given[number].renderings[0].text) for number in numbers}
        # Who says most first among equals in standing; the sort keeps the order of preference below that.
        ordered = sorted(numbers, key=lambda n: (*_standing(self._given[n]), -len(words[n])))
        kept: list[int] = []
        for number in ordered:
            own = words[number]
            needed = COVERED_SHARE * len(own)
            taker = next(
                (
                    n
                    for n in kept[:MAX_LOOKED_AT]
                    if self._may_take(n, number) and len(own & words[n]) >= needed
                ),
                None,
            )
            if taker is None:
                kept.append(number)
            else:
                self._taken[number] = (taker, "same_node")

    def merge_contained(self) -> None:
        """What stands in another text from the beginning of a line to the end of one."""
        texts = {number: self._given[number].renderings[0].text for number in self._left()}
        anchors = {n: anchor for n, text in texts.items() if (anchor := self._anchor(n, text))}
        places = _places(texts, anchors)
        preferred = {
            anchor: self._by_preference(offsets)[:MAX_LOOKED_AT] for anchor, offsets in places.items()
        }
        for number, anchor in anchors.items():
            inner = texts[number]
            for taker in preferred.get(anchor, ()):
                text = texts[taker]
                # Longer alone: equal texts that are still two are pins with floors of their own.
                is_candidate = len(text) > len(inner) and self._may_take(taker, number)
                if is_candidate and stands_in(inner, text, anchor, places[anchor][taker]):
                    self._taken[number] = (taker, "contained")
                    break

    def _anchor(self, number: int, text: str) -> str:
        """The line by which others that may contain it are found: its longest, so hardly a common one."""
        if len(text) < MIN_SHARED_CHARS or self._given[number].is_pinned:
            return ""
        return max(text.split("\n"), key=len) if "\n" in text else text

    def _may_take(self, taker: int, number: int) -> bool:
        """Whether the one may speak for the other, which is no pin and lasts no longer."""
        fragment = self._given[number]
        is_lasting = self._given[taker].volatility != "request"
        return not fragment.is_pinned and (is_lasting or fragment.volatility == "request")

    def survivors(self) -> list[Fragment]:
        """Who is left, in input order, with what each took in."""
        taken: dict[int, list[tuple[int, MergeRule]]] = {}
        for number in self._by_preference(self._taken):
            _, rule = self._taken[number]
            taken.setdefault(self._root(number), []).append((number, rule))
        return [
            self._merged(number, taken[number]) if number in taken else fragment
            for number, fragment in enumerate(self._given)
            if number not in self._taken
        ]

    def _root(self, number: int) -> int:
        """Who speaks for it in the end. Each step leads to one that was preferred or is longer: it ends."""
        while number in self._taken:
            number = self._taken[number][0]
        return number

    def _merged(self, number: int, taken: Sequence[tuple[int, MergeRule]]) -> Fragment:
        first = self._given[number]
        others = [self._given[n] for n, _ in taken]
        parts = [self._given[n] for n, rule in taken if rule == "contained"]
        return replace(
            first,
            renderings=_with_parts(first, parts) if parts else first.renderings,
            provenance=tuple(dict.fromkeys(chain.from_iterable(f.provenance for f in (first, *others)))),
            relevance=max(fragment.relevance for fragment in (first, *others)),
            rank=min(fragment.rank for fragment in (first, *others)),
            absorbed=_absorbed(first, [(self._given[n], rule) for n, rule in taken]),
        )

    def _left(self) -> Iterator[int]:
        return (number for number in range(len(self._given)) if number not in self._taken)

    def _by_preference(self, numbers: Collection[int]) -> list[int]:
        if len(numbers) == 1:
            return list(numbers)
        return sorted(numbers, key=lambda n: _preference(self._given[n]))


def _standing(fragment: Fragment) -> tuple[bool, bool]:
    """Sorts pins first, and what outlasts the message before what does not."""
    return (not fragment.is_pinned, fragment.volatility == "request")


def _trust(fragment: Fragment) -> int:
    """That of its most trusted source."""
    sources = fragment.provenance
    if len(sources) == 1:
        return TRUST.get(sources[0].resource_type, 0)
    return max((TRUST.get(source.resource_type, 0) for source in sources), default=0)


def _preference(fragment: Fragment) -> tuple[tuple[bool, bool], int, int, float, int, int, str]:
    """Sorts the fragment that should survive a merge first. Total: place and node tell all others apart."""
    return (
        _standing(fragment),
        -fragment.renderings[0].depth,
        -_trust(fragment),
        # What is no number would make the order depend on the input.
        0.0 if math.isnan(fragment.relevance) else -fragment.relevance,
        _LAYER_ORDER[fragment.layer],
        fragment.position,
        fragment.node,
    )


def _places(texts: Mapping[int, str], anchors: Mapping[int, str]) -> dict[str, dict[int, list[int]]]:
    """Whose text has which anchors of others as lines, besides others, and at which first few offsets.

    `anchors` are by whose they are. O(length of all texts).
    """
    wanted = frozenset(anchors.values())
    lines = {number: text.split("\n") for number, text in texts.items() if "\n" in text}
    found = {number: wanted.intersection(own) for number, own in lines.items()}
    # A text has its own anchor; of most anchors that is all there is to find.
    seen = Counter(chain.from_iterable(found.values()))
    seen.update(anchor for number, anchor in anchors.items() if number not in lines)
    shared = frozenset(anchor for anchor, count in seen.items() if count > 1)
    places: dict[str, dict[int, list[int]]] = {}
    for number, of_text in found.items():
        of_others = of_text & shared
        if not of_others:
            continue
        offset = 0
        for line in lines[number]:
            if line in of_others:
                offsets = places.setdefault(line, {}).setdefault(number, [])
                if len(offsets) < MAX_LOOKED_AT:
                    offsets.append(offset)
            offset += len(line) + 1
    return places


def stands_in(inner: str, text: str, anchor: str, offsets: Iterable[int]) -> bool:
    """Whether whole lines of the text are the other, whose first line `anchor` is at one of these offsets.

    It is compared where it would have to stand, never searched for: a line that is common to thousands of
    fragments and to a large text would cost the product of their sizes.
    """
    # At the beginning of a line: the same words may stand within a longer one before it.
    ahead = f"\n{inner}\n".index(f"\n{anchor}\n")
    for offset in offsets:
        begin, end = offset - ahead, offset - ahead + len(inner)
        if begin < 0 or not text.startswith(inner, begin):
            continue
        if (begin == 0 or text[begin - 1] == "\n") and (end == len(text) or text[end] == "\n"):
            return True
    return False


def _with_parts(first: Fragment, parts: Iterable[Fragment]) -> tuple[Rendering, ...]:
    """The renderings, and below the deepest one that shows the name, or the floor, and what was taken in."""
    deepest, *others = first.renderings
    if first.is_pinned and not others:
        return first.renderings
    texts = dict.fromkeys(part.renderings[0].text for part in parts)
    text = "\n".join((*(rendering.text for rendering in others[-1:]), *texts))
    if len(text) >= len(deepest.text):
        return first.renderings
    between = max(deepest.depth - 1, others[0].depth if others else 0)
    return (deepest, Rendering(depth=between, text=text), *others)


def _absorbed(first: Fragment, taken: Iterable[tuple[Fragment, MergeRule]]) -> tuple[Absorbed, ...]:
    """What it spoke for before, then what it took in and what that spoke for; each once, itself never."""
    found = {one.key: one for one in first.absorbed}
    for other, rule in taken:
        own = Absorbed(key=other.key, layer=other.layer, node=other.node, rule=rule)
        for one in (own, *other.absorbed):
            found.setdefault(one.key, one)
    found.pop(first.key, None)
    return tuple(found.values())


def _words(text: str) -> frozenset[str]:
    return frozenset(_WORD.findall(text.casefold()))
