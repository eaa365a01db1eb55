"""The same content appears once, with all its provenances."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import chain

from worker.ports import Absorbed, Fragment


class ExactDeduplicator:
    """Merges fragments of one layer and group whose deepest texts are equal."""

    def deduplicate(self, fragments: Sequence[Fragment]) -> list[Fragment]:
        """The first of equals survives, with the best relevance and the union of provenances.

        O(n). A pin survives: if any of the equals is pinned the survivor is, with that one's floor.
        Two equal texts in different layers stay two: each layer answers another question.
        """
        equals: dict[tuple[str, str, str], list[Fragment]] = {}
        for fragment in fragments:
            identity = (fragment.layer, fragment.group, fragment.renderings[0].text)
            equals.setdefault(identity, []).append(fragment)
        return [_merge(group) if len(group) > 1 else group[0] for group in equals.values()]


def _merge(group: Sequence[Fragment]) -> Fragment:
    """One for all of a group, which is in input order; the union of provenances is made once."""
    first = group[0]
    return replace(
        first,
        renderings=next((fragment for fragment in group if fragment.is_pinned), first).renderings,
        provenance=tuple(dict.fromkeys(chain.from_iterable(fragment.provenance for fragment in group))),
        relevance=max(fragment.relevance for fragment in group),
        rank=min(fragment.rank for fragment in group),
        is_pinned=any(fragment.is_pinned for fragment in group),
        position=min(fragment.position for fragment in group),
        absorbed=tuple(
            Absorbed(key=fragment.key, layer=fragment.layer, node=fragment.node, rule="exact")
            for fragment in group[1:]
        ),
    )
