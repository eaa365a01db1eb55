"""The graph layer: the sections of an inline pack. The graph itself comes with a store for it."""

from __future__ import annotations

from functools import partial
from typing import Final

from schemas.codes import PartName
from worker.graph.pack_file import PackSection, parse_pack
from worker.ports import LayerBudget, LayerContribution, RequestFrame, Scope
from worker.providers.contribution import ContributionBuilder, no_content
from worker.providers.offload import run_by_weight
from worker.providers.threads import SourceThreads

HEADING: Final = "# GRAPH CONTEXT"
_RELEVANCE: Final = 0.5
"""Of every section: within a pack, its own ranks decide."""


class GraphProvider:
    """A pack that stands inline in the request; it is used whatever the subject."""

    layer: PartName = "graph"

    def __init__(self, *, threads: SourceThreads | None = None) -> None:
        """Work on heavy input in these threads, its own where none are given."""
        self._threads = threads or SourceThreads()

    async def provide(self, frame: RequestFrame, scope: Scope, budget: LayerBudget) -> LayerContribution:
        """The pack's sections; without a pack the layer is off: gated by the subject, or without a store.

        Raises InvalidRequest where the pack's front matter is malformed or names another project.
        """
        del budget  # whoever made the pack knew a budget; fusion fits it into this one
        pack = frame.request.pack
        if pack is not None:
            return await run_by_weight(
                self._threads, partial(build_pack, pack, project_id=scope.project_id), pack
            )
        reason = "not_configured" if frame.subject.inject else "subject_gated"
        return LayerContribution(layer=self.layer, status="off", reason=reason)


def build_pack(pack: str, *, project_id: str) -> LayerContribution:
    """The pack's sections as fragments in the order of the file, ranked as its node lines say.

    Shorter than a section is its heading line. Plain text has the rank of the section above it, and says in
    its metadata that it cannot be cited. Raises InvalidRequest as `parse_pack` does.
    """
    sections = parse_pack(pack, project_id=project_id).sections
    if not sections:
        return no_content("graph", "no_data")
    block = ContributionBuilder("graph", heading=HEADING, resource_type="pack")
    rank = 0
    for section in sections:
        rank = section.node.rank if section.node is not None else rank
        _write_section(block, section, rank=rank)
    return block.finish()


def _write_section(block: ContributionBuilder, section: PackSection, *, rank: int) -> None:
    node = section.node
    if node is None:
        block.add(
            "pack://text",
            section.text,
            relevance=_RELEVANCE,
            rank=rank,
            is_divisible=True,
            metadata={"citable": "false"},
        )
        return
    block.add(
        f"pack://{node.node_id}",
        section.text,
        brief=f"## {node.kind} {node.name}",
        relevance=_RELEVANCE,
        rank=rank,
        is_divisible=True,
        location=node.node_id,
        metadata={
            "citable": "true",
            "kind": node.kind,
            "name": node.name,
            "template": node.template,
            "score": f"{node.score:.6f}",
            "tokens": str(node.tokens),
        },
    )
