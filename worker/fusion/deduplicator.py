"""The same content appears once, with all its provenances."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from worker.ports import Fragment


class ExactDeduplicator:
    """Merges fragments of one layer and group whose deepest texts are equal."""

    def deduplicate(self, fragments: Sequence[Fragment]) -> list[Fragment]:
        """The first of equals survives, with the best relevance and the union of provenances.

        O(n). A pin survives: if any of the equals is pinned the survivor is, with that one's floor.
        Two equal texts in different layers stay two: each layer answers another question.
        """
        survivors: dict[tuple[str, str, str], Fragment] = {}
        for fragment in fragments:
            identity = (fragment.layer, fragment.group, fragment.renderings[0].text)
            first = survivors.get(identity)
            survivors[identity] = fragment if first is None else _merge(first, fragment)
        return list(survivors.values())


def _merge(first: Fragment, other: Fragment) -> Fragment:
    pinned = other if other.is_pinned and not first.is_pinned else first
    provenance = dict.fromkeys((*first.provenance, *other.provenance))
    return replace(
        first,
        renderings=pinned.renderings,
        provenance=tuple(provenance),
        relevance=max(first.relevance, other.relevance),
        rank=min(first.rank, other.rank),
        is_pinned=first.is_pinned or other.is_pinned,
        position=min(first.position, other.position),
    )
