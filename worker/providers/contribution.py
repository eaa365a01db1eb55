"""How a source puts its layer together: fragments in text order, guarded sections, one line cap."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from functools import lru_cache
from typing import Final

import structlog

from schemas.codes import LayerReason, PartName
from schemas.fragments import FragmentProvenance, RelevanceTier, StorageTier
from worker.budget.utf8 import well_formed
from worker.errors import WorkerError
from worker.fusion.sections import compose
from worker.ports import Fragment, LayerContribution, Rendering, Volatility

log = structlog.get_logger()

WHOLE_DEPTH: Final = 9
"""Depth of a rendering that leaves nothing out."""
NAME_DEPTH: Final = 0
"""Depth of a rendering that only says what there is: the floor of a pin."""


class ContributionBuilder:
    """Collects one layer's fragments; lives for one call and is used by one thread."""

    def __init__(
        self, layer: PartName, *, heading: str, resource_type: str, volatility: Volatility = "request"
    ) -> None:
        """Start an empty layer whose text begins with `heading`, and changes with what `volatility` names."""
        self._layer: PartName = layer
        self._heading = heading
        self._resource_type = resource_type
        self._volatility: Volatility = volatility
        self._fragments: list[Fragment] = []
        self._nodes: dict[str, int] = {}
        self._positions = 0
        self._capped = 0
        self._has_failed_section = False

    def add(
        self,
        node: str,
        text: str,
        *,
        brief: str | None = None,
        between: Sequence[tuple[int, str]] = (),
        relevance: float,
        rank: int | None = None,
        group: str = "",
        is_pinned: bool = False,
        is_divisible: bool = False,
        depth: int = WHOLE_DEPTH,
        resource_uri: str | None = None,
        location: str = "",
        created_at: datetime | None = None,
        storage_tier: StorageTier = "warm",
        metadata: Mapping[str, str] | None = None,
        about: str = "",
        volatility: Volatility | None = None,
        relevance_tier: RelevanceTier | None = None,
        hops: int | None = None,
    ) -> None:
        """Add a fragment below what is there already.

        `brief` is a shorter rendering, the floor of a pin; `between` are others with their depths, deepest
        first, of which those that are not shorter than the one before are left out. `rank` orders equals in
        relevance and is the position where absent. A node that is taken gets `#2`, `#3` and so on, in order
        of arrival here. `resource_uri` is where the text comes from, the node itself where absent. `about` is
        the id of what the text shows, where other sources may show the same.
        """
        renderings = [Rendering(depth=depth, text=_admit(text))]
        for between_depth, between_text in between:
            shorter = _admit(between_text)
            if len(brief or "") < len(shorter) < len(renderings[-1].text):
                renderings.append(Rendering(depth=between_depth, text=shorter))
        if brief is not None and (shorter := _admit(brief)) != renderings[0].text:
            renderings.append(Rendering(depth=NAME_DEPTH, text=shorter))
        node = self._unique(well_formed(node))
        provenance = FragmentProvenance(
            resource_uri=node if resource_uri is None else well_formed(resource_uri),
            location=well_formed(location),
            resource_type=self._resource_type,
        )
        self._fragments.append(
            Fragment(
                layer=self._layer,
                node=node,
                renderings=tuple(renderings),
                provenance=(provenance,),
                position=self._positions,
                relevance=relevance,
                rank=self._positions if rank is None else rank,
                group=group,
                is_pinned=is_pinned,
                is_divisible=is_divisible,
                created_at=created_at,
                storage_tier=storage_tier,
                metadata=metadata or {},
                about=about,
                volatility=volatility or self._volatility,
                relevance_tier=relevance_tier,
                hops=hops,
            )
        )
        self._positions += 1

    def leave_out(self, items: int) -> None:
        """Count items that the source's own caps left out."""
        self._capped += items

    def section(self, name: str, write: Callable[[], None]) -> None:
        """Run one section; where it raises, what it added is taken back and the layer is `partial`.

        Only errors that this project raises on purpose pass.
        """
        kept, capped = len(self._fragments), self._capped
        try:
            write()
        except WorkerError:
            raise
        except Exception as error:  # noqa: BLE001 - odd data may raise anything, and costs its own section only
            del self._fragments[kept:]
            self._capped = capped
            self._has_failed_section = True
            # The message may quote the data, so only the kind of error is said.
            log.warning("source.section_failed", layer=self._layer, section=name, error=type(error).__name__)

    def finish(self, *, max_lines: int | None = None) -> LayerContribution:
        """The layer, cut to `max_lines` lines, heading and group headings included.

        Pins count first and always stay. Then the others, by relevance and rank, until one does not fit;
        that one and all that rank below it are left out.
        """
        fragments = self._fragments if max_lines is None else self._within(max_lines)
        capped = self._capped + len(self._fragments) - len(fragments)
        if not fragments:
            if self._has_failed_section:
                return LayerContribution(layer=self._layer, status="failed", reason="error")
            return no_content(self._layer, "no_data", capped=capped)
        return LayerContribution(
            layer=self._layer,
            status="partial" if self._has_failed_section else "ok",
            reason="section_error" if self._has_failed_section else None,
            heading=self._heading,
            fragments=tuple(fragments),
            capped=capped,
        )

    def _within(self, max_lines: int) -> list[Fragment]:
        kept: set[int] = set()
        groups = {""}
        left: float = max_lines - 1
        ranked = sorted(self._fragments, key=lambda f: (not f.is_pinned, -f.relevance, f.rank, f.position))
        for fragment in ranked:
            lines = fragment.renderings[0].text.count("\n") + 1 + (fragment.group not in groups)
            if lines > left and not fragment.is_pinned:
                left = -math.inf
                continue
            left -= lines
            kept.add(fragment.position)
            groups.add(fragment.group)
        return [fragment for fragment in self._fragments if fragment.position in kept]

    def _unique(self, node: str) -> str:
        candidate, number = node, self._nodes.get(node, 0) + 1
        while candidate in self._nodes:
            candidate = f"{node}#{number}"
            number += candidate in self._nodes
        self._nodes[node] = number
        self._nodes.setdefault(candidate, 1)
        return candidate


def layer_text(contribution: LayerContribution) -> str:
    """The layer as it reads when nothing is dropped; empty where it has no fragments."""
    if not contribution.fragments:
        return ""
    return compose(contribution.heading, ((f.group, f.renderings[0].text) for f in contribution.fragments))


@lru_cache(maxsize=256)
def no_content(layer: PartName, reason: LayerReason, *, capped: int = 0) -> LayerContribution:
    """A source that was asked and has nothing for this request."""
    return LayerContribution(layer=layer, status="empty", reason=reason, capped=capped)


def _admit(text: str) -> str:
    return well_formed(text).rstrip("\r\n")
