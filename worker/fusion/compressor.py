"""A parent's bundle as a child's starting point: bodies to signatures outside the child's focus.

What the parent found is inherited: memory, artifacts, code. Mission, plan and task are the child's own. What
is inherited competes for room like anything else, below what the child's own sources gave, and is merged with
that where both say the same.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

from schemas.codes import PartName
from worker.citations.labels import citable, unmarked
from worker.fusion.protocols import Placed
from worker.fusion.shallower import SIGNATURE_DEPTH, is_fenced_code, shallower_code
from worker.ports import Fragment, LayerContribution, Rendering, TokenCounter

INHERITED_LAYERS: Final[tuple[PartName, ...]] = ("memory", "artifacts", "graph", "ast", "semantic")
SKELETON_SHARE: Final = 0.2
"""Of the tokens of all content layers, what a skeleton may have at the most."""
GROUP: Final = "## From the parent's context"
HEADING: Final = "# FROM THE PARENT"
"""Of a layer in which the child's own source has nothing."""

_FOCUS_RELEVANCE: Final = 0.45
_REST_RELEVANCE: Final = 0.2
_OPEN: Final = frozenset({"ok", "empty", "partial"})
"""Statuses of layers that may inherit; one that is off or failed shows nothing."""


class FocusSkeletonCompressor:
    """Keeps bodies in focus, and of the rest what says that it is there and how it is called."""

    def __init__(self, counter: TokenCounter) -> None:
        """Count with `counter`."""
        self._counter = counter

    def compress(
        self, parent_context: Sequence[Placed], child_focus: Sequence[str], skeleton_budget: int
    ) -> list[Fragment]:
        """Fragments whose deepest renderings sum to at most `skeleton_budget` tokens, best first.

        In focus is what a word of `child_focus` names: an id, a file, a folder above it, or the last part of
        a qualified name. That comes first and keeps what the parent showed of it, with a signature below it;
        the rest is a signature where it is code, else its shortest rendering. Then the parent's scores
        decide; what does not fit is tried shallower, then left out. Pins of the parent are none of the
        child's. O(n log n).
        """
        focus = frozenset(word.strip().strip("/") for word in child_focus) - {""}
        ranked = sorted(
            parent_context, key=lambda p: (not _is_in_focus(p.fragment, focus), -p.score, p.fragment.key)
        )
        left = skeleton_budget
        kept: list[Fragment] = []
        for placed in ranked:
            in_focus = _is_in_focus(placed.fragment, focus)
            levels = _levels(placed, in_focus=in_focus)
            for level, rendering in enumerate(levels):
                tokens = self._counter.count(rendering.text + "\n")
                if tokens <= left:
                    left -= tokens
                    kept.append(_inherited(placed, levels[level:], in_focus=in_focus))
                    break
        return kept


def inherit(
    contributions: Mapping[PartName, LayerContribution], skeleton: Sequence[Fragment]
) -> dict[PartName, LayerContribution]:
    """The contributions with the skeleton's fragments below what each layer holds already.

    A layer that is off or failed inherits nothing; one that was empty becomes `ok`. O(n).
    """
    merged = dict(contributions)
    for layer in INHERITED_LAYERS:
        own = contributions.get(layer)
        heirs = [fragment for fragment in skeleton if fragment.layer == layer]
        if own is None or own.status not in _OPEN or not heirs:
            continue
        start = 1 + max((fragment.position for fragment in own.fragments), default=-1)
        placed = [replace(fragment, position=start + n) for n, fragment in enumerate(heirs)]
        merged[layer] = replace(
            own,
            status="ok" if own.status == "empty" else own.status,
            reason=None if own.status == "empty" else own.reason,
            heading=own.heading or HEADING,
            fragments=(*own.fragments, *placed),
        )
    return merged


def _levels(placed: Placed, *, in_focus: bool) -> list[Rendering]:
    """From what the child may see at the most to the parent's name for it, each shorter than the last."""
    # The child gives it a label of its own.
    text = unmarked(placed.text) if citable(placed.fragment) else placed.text
    shown = Rendering(depth=placed.depth, text=text)
    found = [shown] if in_focus else []
    if is_fenced_code(shown.text):
        deep = replace(shown, depth=max(shown.depth, SIGNATURE_DEPTH + 1))
        found += [r for r in shallower_code(deep) if r.depth == SIGNATURE_DEPTH]
    shortest = placed.fragment.renderings[-1]
    if len(shortest.text) < min((len(r.text) for r in found), default=len(shown.text) + 1):
        found.append(shortest)
    return found or [shown]


def _inherited(placed: Placed, levels: Sequence[Rendering], *, in_focus: bool) -> Fragment:
    base = _FOCUS_RELEVANCE if in_focus else _REST_RELEVANCE
    return replace(
        placed.fragment,
        renderings=tuple(levels),
        relevance=round(base + 0.2 * placed.score, 6),
        rank=0,
        group=GROUP,
        is_pinned=False,
        is_divisible=False,
        volatility="request",
        absorbed=(),
    )


def _is_in_focus(fragment: Fragment, focus: frozenset[str]) -> bool:
    names = {fragment.node, fragment.about, fragment.metadata.get("symbol", "")}
    names |= {source.location for source in fragment.provenance}
    return any(_is_named(name, focus) for name in names if name)


def _is_named(name: str, focus: frozenset[str]) -> bool:
    if name in focus:
        return True
    path, separator, qualname = name.partition("::")
    if separator and (qualname in focus or qualname.rpartition(".")[2] in focus):
        return True
    parts = path.split("/")
    return any("/".join(parts[:end]) in focus for end in range(1, len(parts) + 1))
