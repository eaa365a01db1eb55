"""In which order the kept fragments stand in a layer's text."""

from __future__ import annotations

from collections.abc import Sequence

from worker.fusion.protocols import Placed


class DocumentOrderer:
    """As the source laid them out; rank decides what is kept, not where it stands."""

    def order(self, placed: Sequence[Placed]) -> list[Placed]:
        """By position, then node id. Runs of one group stay together, since sources number them so."""
        return sorted(placed, key=lambda p: (p.fragment.position, p.fragment.node))
