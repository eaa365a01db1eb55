"""The semantic layer: chunks that words find. Off until there is a store of chunks to search."""

from __future__ import annotations

from schemas.codes import PartName
from worker.ports import LayerBudget, LayerContribution, RequestFrame, Scope


class SemanticProvider:
    """Says why there is nothing: the subject has no use for chunks, or there is no store of them."""

    layer: PartName = "semantic"

    async def provide(self, frame: RequestFrame, scope: Scope, budget: LayerBudget) -> LayerContribution:
        """`off`. The subject is looked at first, so that a gated one never waits for a store."""
        del scope, budget  # there is nothing to read
        is_gated = not (frame.subject.inject and frame.subject.semantic)
        reason = "subject_gated" if is_gated else "not_configured"
        return LayerContribution(layer=self.layer, status="off", reason=reason)
