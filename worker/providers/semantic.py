"""The semantic layer: source and chunks that words found and the graph's pack has no room for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from schemas.codes import PartName
from worker.graph.answers import Passage, find_passages
from worker.graph.links import link_request
from worker.graph.selection import select
from worker.graph.snapshot import Snapshot
from worker.ports import LayerBudget, LayerContribution, RequestFrame, Scope, Subject
from worker.providers.contribution import ContributionBuilder, layer_text
from worker.providers.graph import with_missing
from worker.providers.graph_reader import GraphReader
from worker.providers.text import fold

HEADING: Final = "# FOUND BY WORDS"
MAX_LINES: Final = 200
"""Of the block as plain text; in a bundle the layer's tokens are the cap."""


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
        if not _is_open_to(frame.subject):
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
        return with_missing(build_passages(answered.answer.passages), answered)


def render_semantic_context(
    user_message: str,
    target_files: Sequence[str] = (),
    *,
    snapshot: Snapshot | None,
    subject: Subject,
    max_lines: int = MAX_LINES,
) -> str:
    """The block as text, at most `max_lines` lines: what the message and the files' names found by words.

    Empty without a snapshot, for a subject that has no use for it, and where nothing was found. Some 10 ms at
    50,000 functions.
    """
    if snapshot is None or not _is_open_to(subject):
        return ""
    links = link_request(user_message, target_files, snapshot)
    selection = select(links, snapshot, task_type=subject.task_type, has_passages=True)
    return layer_text(build_passages(find_passages(selection, snapshot), max_lines=max_lines))


def _is_open_to(subject: Subject) -> bool:
    return subject.inject and subject.semantic


def build_passages(passages: Sequence[Passage], *, max_lines: int | None = None) -> LayerContribution:
    """One fragment a passage, which shrinks to the line that says where it is; whole ones up to a cap."""
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
            about=passage.node_id,
            metadata={"citable": "true", "kind": passage.label},
        )
    return block.finish(max_lines=max_lines)
