"""The semantic layer: source and chunks that words found and the graph's pack has no room for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from schemas.codes import PartName
from worker.graph.answers import Passage
from worker.ports import LayerBudget, LayerContribution, RequestFrame, Scope
from worker.providers.contribution import ContributionBuilder
from worker.providers.graph import with_state_missing
from worker.providers.graph_reader import GraphReader
from worker.providers.text import fold

HEADING: Final = "# FOUND BY WORDS"


class SemanticProvider:
    """Shows the passages of the answer that the graph layer shows the pack of."""

    layer: PartName = "semantic"

    def __init__(self, reader: GraphReader | None = None) -> None:
        """Ask `reader`."""
        self._reader = reader

    async def provide(self, frame: RequestFrame, scope: Scope, budget: LayerBudget) -> LayerContribution:
        """The passages, the strongest first.

        `off` where the subject has no use for them, which is looked at first, so that a gated one never waits
        for a store; and where the project was never indexed.

        Raises StoreUnavailable and GraphBehind where the graph cannot be had.
        """
        if not (frame.subject.inject and frame.subject.semantic):
            return LayerContribution(layer=self.layer, status="off", reason="subject_gated")
        answered = (
            None
            if self._reader is None
            else await self._reader.answer(
                frame, scope, budget_tokens=budget.graph_tokens, counter=budget.counter
            )
        )
        if answered is None:
            return LayerContribution(layer=self.layer, status="off", reason="not_configured")
        return with_state_missing(build_passages(answered.answer.passages), answered)


def build_passages(passages: Sequence[Passage]) -> LayerContribution:
    """One fragment a passage, which shrinks to the line that says where it is."""
    block = ContributionBuilder("semantic", heading=HEADING, resource_type="code")
    for rank, passage in enumerate(passages):
        place = f"## {passage.label} {fold(passage.node_id)}"
        if passage.line:
            place += f" (line {passage.line})"
        block.add(
            f"graph://{passage.node_id}",
            f"{place}\n{passage.texts[0]}",
            brief=place,
            relevance=passage.strength,
            rank=rank,
            location=passage.node_id,
            metadata={"citable": "true", "kind": passage.label},
        )
    return block.finish()
