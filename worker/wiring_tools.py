"""Composition by hand, the tools' part: what serves calls, whichever door they come through."""

from __future__ import annotations

from worker.budget.tokens import counter_for
from worker.ports import OutcomeStore
from worker.providers.threads import SourceThreads
from worker.retrieval.artifacts import Artifacts
from worker.retrieval.short_ids import ShortIds
from worker.retrieval.toolbox import Toolbox, ToolPolicy
from worker.settings import Settings
from worker.telemetry import Telemetry
from worker.wiring_graph import GraphSource
from worker.wiring_state import StateSource


def build_toolbox(
    settings: Settings,
    *,
    graph: GraphSource,
    state: StateSource,
    bundles: OutcomeStore,
    telemetry: Telemetry,
) -> Toolbox:
    """The tools of one process, which reads the same graphs, state and bundles as its other parts."""
    content, tools = settings.content, settings.tools
    row = content.models[content.default_model]
    threads = SourceThreads()
    return Toolbox(
        graph.snapshots,
        artifacts=Artifacts(state.store, threads),
        bundles=bundles,
        threads=threads,
        counter=counter_for(row.encoding, safety_factor=str(row.safety_factor)),
        policy=ToolPolicy(
            budget_tokens=tools.budget_tokens,
            max_budget_tokens=tools.max_budget_tokens,
            timeout_seconds=tools.timeout_seconds,
            unmasked_projects=content.unmasked_projects,
        ),
        telemetry=telemetry,
        short_ids=ShortIds(bundles),
    )
