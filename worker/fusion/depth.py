"""At which depths a fragment can be shown."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from operator import is_
from typing import Final, overload

from schemas.codes import PartName
from worker.budget.fences import close_open_fence, may_open_fence
from worker.fusion.protocols import DetailLevels
from worker.fusion.room import MAX_CHARS_A_TOKEN
from worker.fusion.sections import Fence, admit_text
from worker.fusion.shallower import is_fenced_code, shallower_code
from worker.ports import Fragment, Rendering

MAX_DERIVED: Final = 64
"""Fragments of a layer, the best first, whose code is read for renderings that their source did not give."""
_LINE_ENDS: Final = frozenset("\r\n")


class AdmittingDepthResolver:
    """Makes each rendering fit to be shown, and leaves out those that are not worth trying."""

    def __init__(self, fence: Fence) -> None:
        """Admit text into sections of this fence."""
        self._fence = fence

    def resolve(self, fragments: Sequence[Fragment], budget: int) -> tuple[DetailLevels, int]:
        """Deepest first, each shorter than the one before; the deepest always, for it may be cut.

        Of a pin the last is its floor, whatever its length. Between deepest and last a rendering is left out
        where it is as long as a deeper one, or surely longer than `budget` tokens. Where a source gave code
        and a name alone, what lies between is read off the code, once somebody asks for it.

        Text is admitted: delimiters escaped, code fences closed, no trailing newline. An escape counts once,
        however many renderings show it. O(length of the texts).
        """
        admit = _Admission(self._fence, fragments)
        levels: dict[str, Sequence[Rendering]] = {}
        derived: Counter[PartName] = Counter()
        most_chars = max(0, budget) * MAX_CHARS_A_TOKEN
        for fragment in fragments:
            shown = _worth_trying(admit.renderings(fragment), most_chars, keeps_last=fragment.is_pinned)
            # What ends no fence is no fenced code; most fragments are none, so that is asked first.
            if (
                shown[0].text.endswith("```")
                and derived[fragment.layer] < MAX_DERIVED
                and _leaves_a_gap(shown)
                and is_fenced_code(shown[0].text)
            ):
                derived[fragment.layer] += 1
                shown = _DerivedLevels(shown)
            levels[fragment.key] = shown
        return levels, admit.escapes


class _Admission:
    """Makes texts fit for a section; looks closely only where something is there to be looked at."""

    def __init__(self, fence: Fence, fragments: Iterable[Fragment]) -> None:
        self._fence = fence
        # One look at all of them: next to no request has a text with marks, and many have no code.
        texts = "\n".join([r.text for fragment in fragments for r in fragment.renderings])
        self._has_marks = fence.has_marks(texts)
        self._is_plain = not self._has_marks and not may_open_fence(texts)
        self.escapes = 0

    def renderings(self, fragment: Fragment) -> tuple[Rendering, ...]:
        given = fragment.renderings
        if self._is_plain:
            for rendering in given:
                if rendering.text[-1:] in _LINE_ENDS:
                    break
            else:
                return given
        admitted = [self._admitted(rendering, is_first=not n) for n, rendering in enumerate(given)]
        return given if all(map(is_, admitted, given)) else tuple(admitted)

    def _admitted(self, rendering: Rendering, *, is_first: bool) -> Rendering:
        text = rendering.text
        if self._has_marks:
            text, escaped = admit_text(text, self._fence)
            # The same occurrence stands in the shallower renderings again.
            self.escapes += escaped if is_first else 0
        else:
            text = close_open_fence(text.rstrip("\r\n"))
        return rendering if text == rendering.text else Rendering(depth=rendering.depth, text=text)


def _worth_trying(
    given: tuple[Rendering, ...], most_chars: int, *, keeps_last: bool
) -> tuple[Rendering, ...]:
    if len(given) == 1:
        return given
    if len(given) == 2:  # noqa: PLR2004 - text and name, as most sources give them
        deepest, last = given
        if last.depth <= deepest.depth and (len(last.text) < len(deepest.text)):
            return given
    if any(one.depth < other.depth for one, other in pairwise(given)):
        given = tuple(sorted(given, key=lambda rendering: -rendering.depth))
    kept = [given[0]]
    last = given[-1]
    for rendering in given[1:]:
        if rendering is last and keeps_last:
            if rendering.text != kept[-1].text:
                kept.append(rendering)
        elif len(rendering.text) < len(kept[-1].text) and (
            rendering is last or len(rendering.text) <= most_chars
        ):
            kept.append(rendering)
    return given if len(kept) == len(given) else tuple(kept)


def _leaves_a_gap(shown: Sequence[Rendering]) -> bool:
    """Whether the source said nothing between its deepest text and a name."""
    return len(shown) == 1 or (len(shown) == 2 and shown[1].depth == 0)  # noqa: PLR2004 - text and name


class _DerivedLevels(Sequence[Rendering]):
    """Renderings of code; those between the deepest and the name are made when they are asked for."""

    __slots__ = ("_all", "_given")

    def __init__(self, given: Sequence[Rendering]) -> None:
        self._given = given
        self._all: Sequence[Rendering] | None = None

    @overload
    def __getitem__(self, index: int) -> Rendering: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Rendering]: ...
    def __getitem__(self, index: int | slice) -> Rendering | Sequence[Rendering]:
        if index == 0:
            return self._given[0]
        if index == -1 and len(self._given) > 1:
            return self._given[-1]
        return self._derived()[index]

    def __len__(self) -> int:
        return len(self._derived())

    def __iter__(self) -> Iterator[Rendering]:
        yield self._given[0]
        yield from self._derived()[1:]

    def _derived(self) -> Sequence[Rendering]:
        if self._all is None:
            deepest, *names = self._given
            shortest = len(names[0].text) if names else 0
            between = [r for r in shallower_code(deepest) if len(r.text) > shortest]
            self._all = (deepest, *between, *names)
        return self._all
