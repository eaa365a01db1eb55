"""What a plug-in proposed, written down: from here on it is an input like any other.

Fusing never calls a plug-in. So a bundle can be made again where the plug-in is not, and where it would say
something else today.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from worker.fusion.protocols import (
    BackendSet,
    FailureCode,
    PlanContext,
    StrategyCapabilities,
    StrategyFailed,
)
from worker.ports import Fragment, RequestFrame


@dataclass(frozen=True, slots=True, kw_only=True)
class PluginProposal:
    """One plug-in's answer to one request."""

    name: str
    capabilities: StrategyCapabilities
    explanation: str = ""
    """Its own sentence for a person who asks why."""
    confidence: float = 1.0
    """0 to 1."""
    entries: tuple[tuple[str, float], ...] = ()
    """Fragment keys, best first, each with a relevance of 0 to 1."""
    failure: FailureCode | None = None
    """Why there are no entries."""
    clamped_scores: int = 0
    """How many relevances had to be brought into their range."""

    @classmethod
    def failed(cls, name: str, code: FailureCode) -> PluginProposal:
        """Nothing, for this reason."""
        return cls(name=name, capabilities=StrategyCapabilities(), failure=code)


class RecordedStrategy:
    """A plug-in's proposal in a strategy's place."""

    def __init__(self, proposal: PluginProposal) -> None:
        """Say what it says."""
        self._proposal = proposal
        self.name = proposal.name
        self.capabilities = proposal.capabilities

    def can_handle(self, request: RequestFrame, backends: BackendSet) -> float:
        """The recorded confidence. A plug-in that failed is chosen, so that its failure is seen."""
        del request, backends
        return 1.0 if self._proposal.failure is not None else self._proposal.confidence

    def assemble(
        self, request: RequestFrame, backends: BackendSet, budget: int, plan_context: PlanContext
    ) -> Sequence[Fragment]:
        """The recorded fragments. Raises StrategyFailed as recorded, or for one that was not given."""
        del request, budget, plan_context
        if self._proposal.failure is not None:
            raise StrategyFailed(self._proposal.failure)
        given = {fragment.key: fragment for fragment in backends.fragments()}
        proposed: list[Fragment] = []
        for key, relevance in self._proposal.entries:
            if key not in given:
                raise StrategyFailed("plugin_foreign")
            fragment = given[key]
            proposed.append(
                fragment if fragment.relevance == relevance else replace(fragment, relevance=relevance)
            )
        return proposed

    def explain(self) -> str:
        """One sentence for a person who asks why."""
        return self._proposal.explanation or f"The plug-in {self.name} chose and ordered the fragments."
