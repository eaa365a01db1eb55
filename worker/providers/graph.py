"""The graph layer: the sections of a pack, inline in the request or selected from the project's graph."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Final

from schemas.codes import PartName
from schemas.fragments import RelevanceTier
from worker.graph.answers import PART_LINE, Standing, unindexed_line
from worker.graph.pack_file import PackNode, PackSection, parse_pack
from worker.graph.packing import CHANGES_HEADING, NAMES_HEADING, PATTERNS_HEADING
from worker.graph.sections import prompt_headings
from worker.ports import GraphMeasures, LayerBudget, LayerContribution, RequestFrame, Scope
from worker.providers.contribution import ContributionBuilder, no_content
from worker.providers.graph_reader import Answered, GraphReader
from worker.providers.offload import run_by_weight
from worker.providers.threads import SourceThreads

HEADING: Final = "# GRAPH CONTEXT"
_LEAST_RELEVANCE: Final = 0.25
_MOST_RELEVANCE: Final = 0.75
"""Of the first section; the others fall towards the least, half way at rank `_HALF_WAY_RANK`. What a pack
says of its scores cannot be compared with what other sources say of theirs: that it ranks can."""
_HALF_WAY_RANK: Final = 20
_LISTS: Final = (NAMES_HEADING, CHANGES_HEADING, PATTERNS_HEADING)
"""What begins the sections that stand for the rest of a selection."""


class GraphProvider:
    """A pack that stands inline in the request, whatever the subject; else the graph's own."""

    layer: PartName = "graph"

    def __init__(self, reader: GraphReader | None = None, *, threads: SourceThreads | None = None) -> None:
        """Ask `reader`; work on heavy input in these threads, its own where none are given."""
        self._reader = reader
        self._threads = threads or SourceThreads()

    async def provide(self, frame: RequestFrame, scope: Scope, budget: LayerBudget) -> LayerContribution:
        """The pack's sections.

        Without an inline pack the layer is off where the subject has no use for it, or where the project was
        never indexed.

        Raises InvalidRequest where an inline pack's front matter is malformed or names another project,
        StoreUnavailable and GraphBehind where the graph cannot be had.
        """
        pack = frame.request.pack
        if pack is not None:
            return await self._sections(pack, scope)
        if not frame.subject.inject:
            return LayerContribution(layer=self.layer, status="off", reason="subject_gated")
        answered = (
            None
            if self._reader is None
            else await self._reader.answer(
                frame, scope, budget_tokens=budget.graph_tokens or budget.tokens, counter=budget.counter
            )
        )
        if answered is None:
            return LayerContribution(layer=self.layer, status="off", reason="not_configured")
        answer = answered.answer
        sections = await self._sections(answer.pack, scope, answer.standings)
        layer = with_unindexed(sections, answer.unindexed)
        if answer.is_part:
            layer = _with_line(layer, "pack://part", PART_LINE)
        layer = with_missing(layer, answered)
        if answer.is_relevance_missing and layer.status == "ok":
            layer = replace(layer, status="partial", reason="relevance_unavailable")
        measures = GraphMeasures(
            is_cache_hit=answered.is_hit, tiers=answer.tiers, snapshot_id=answer.snapshot_id
        )
        return replace(layer, measures=measures)

    async def _sections(
        self, pack: str, scope: Scope, standings: Sequence[Standing] = ()
    ) -> LayerContribution:
        build = partial(build_pack, pack, project_id=scope.project_id, standings=standings)
        return await run_by_weight(self._threads, build, pack)


def with_missing(layer: LayerContribution, answered: Answered) -> LayerContribution:
    """The layer, `partial` where only a part of the graph was read, or what fails in the thread was not."""
    if (answered.is_state_missing or answered.answer.is_part) and layer.status == "ok":
        return replace(layer, status="partial", reason="section_error")
    return layer


def with_unindexed(layer: LayerContribution, paths: Sequence[str]) -> LayerContribution:
    """The layer with a line that names files of interest that the graph lacks; `partial` then."""
    if not paths:
        return layer
    layer = _with_line(layer, "pack://not-indexed", unindexed_line(paths))
    return replace(layer, status="partial", reason="not_indexed")


def _with_line(layer: LayerContribution, uri: str, line: str) -> LayerContribution:
    """The layer, and a line below it; with that it is not empty."""
    block = ContributionBuilder("graph", heading=HEADING, resource_type="pack")
    block.add(uri, line, relevance=1.0)
    note = block.finish().fragments[0]
    status, reason = ("ok", None) if layer.status == "empty" else (layer.status, layer.reason)
    return replace(
        layer,
        status=status,
        reason=reason,
        heading=HEADING,
        fragments=(*layer.fragments, replace(note, position=len(layer.fragments))),
    )


def build_pack(pack: str, *, project_id: str, standings: Sequence[Standing] = ()) -> LayerContribution:
    """The pack's sections as fragments in the order of the file, ranked as its node lines say.

    A prompt shows the code, with its file once above all of it that stands together, and no node lines: what
    these say is in the fragments' metadata. Shorter than a section is the line that names it. Plain text has
    the rank of the section above it, and says in its metadata that it cannot be cited; lists of what else
    there is come last. Of nodes that `standings` name, tier and distance are known; of others neither.

    Raises InvalidRequest as `parse_pack` does.
    """
    sections = parse_pack(pack, project_id=project_id).sections
    if not sections:
        return no_content("graph", "no_data")
    block = ContributionBuilder("graph", heading=HEADING, resource_type="pack")
    known = {standing.node_id: standing for standing in standings}
    last = 1 + max((section.node.rank for section in sections if section.node is not None), default=0)
    rank, standing = 0, None
    for section in sections:
        if section.node is not None:
            rank, standing = section.node.rank, known.get(section.node.node_id)
            _write_node(block, section, section.node, standing)
        elif section.text.startswith(_LISTS):
            _write_text(block, section, rank=last, tier="peripheral" if _has_tiers(standings) else None)
        else:
            tier, hops = (standing.tier, standing.hops) if standing is not None else (None, None)
            _write_text(block, section, rank=rank, tier=tier, hops=hops)
    return block.finish()


def _has_tiers(standings: Sequence[Standing]) -> bool:
    return any(standing.tier is not None for standing in standings)


def _relevance(rank: int) -> float:
    """Falls with the rank, so that each section is worth more than the next."""
    share = _HALF_WAY_RANK / (_HALF_WAY_RANK + max(0, rank))
    return round(_LEAST_RELEVANCE + (_MOST_RELEVANCE - _LEAST_RELEVANCE) * share, 6)


def _write_text(
    block: ContributionBuilder,
    section: PackSection,
    *,
    rank: int,
    tier: RelevanceTier | None,
    hops: int | None = None,
) -> None:
    block.add(
        "pack://text",
        section.text,
        relevance=_relevance(rank),
        rank=rank,
        is_divisible=True,
        metadata={"citable": "false"},
        relevance_tier=tier,
        hops=hops,
    )


def _write_node(
    block: ContributionBuilder, section: PackSection, node: PackNode, standing: Standing | None
) -> None:
    headings = prompt_headings(kind=node.kind, name=node.name, node_id=node.node_id)
    block.add(
        f"pack://{node.node_id}",
        headings.above(section.body.strip("\n")),
        brief=headings.name,
        group=headings.file,
        relevance=_relevance(node.rank),
        rank=node.rank,
        is_divisible=True,
        location=node.node_id,
        about=node.node_id,
        metadata={
            "citable": "true",
            "kind": node.kind,
            "name": node.name,
            "template": node.template,
            "score": f"{node.score:.6f}",
            "tokens": str(node.tokens),
        },
        relevance_tier=None if standing is None else standing.tier,
        hops=None if standing is None else standing.hops,
    )
