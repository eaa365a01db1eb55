"""How fragments compare where a strategy's own measure says nothing: the same for all strategies."""

from __future__ import annotations

from typing import Final

from schemas.codes import PARTS
from worker.ports import Fragment

_LAYER_NUMBER: Final = {layer: number for number, layer in enumerate(PARTS)}


def relevance_of(fragment: Fragment) -> float:
    """Rounded as scores are compared; a relevance that is no number counts as 0."""
    relevance = fragment.relevance
    if 0 <= relevance <= 1:
        return round(relevance, 6)
    return 1.0 if relevance > 1 else 0.0


def standing(fragment: Fragment) -> tuple[bool, float, int, int, str, int]:
    """By which fragments of all layers are compared: pins, relevance, the source's rank, layer, node."""
    return (
        not fragment.is_pinned,
        -relevance_of(fragment),
        fragment.rank,
        _LAYER_NUMBER[fragment.layer],
        fragment.node,
        fragment.position,
    )
