"""Asks the plug-in strategies that a request names, between gathering and fusing.

They are asked here and not while fusing, so that what they say is an input of the bundle, written down with
the others: fusing stays a function of its inputs, and a bundle can be made again without the plug-in.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from functools import partial

from schemas.codes import PartName
from worker.fusion.plugins import StrategyPlugins
from worker.fusion.protocols import StrategyCapabilities
from worker.fusion.strategies.recorded import PluginProposal
from worker.ports import LayerContribution, RequestFrame
from worker.providers.threads import SourceThreads


class PluginProposals:
    """Plug-ins asked from threads of their own: what hangs in one starves nobody else."""

    def __init__(self, plugins: StrategyPlugins, threads: SourceThreads | None = None) -> None:
        """Ask these."""
        self._plugins = plugins
        self._threads = threads or SourceThreads()

    def close(self) -> None:
        """End the processes of the plug-ins; blocks until they have ended. Idempotent."""
        self._plugins.close()

    async def propose(
        self,
        names: Sequence[str],
        frame: RequestFrame,
        contributions: Mapping[PartName, LayerContribution],
        *,
        budget_tokens: int,
        wait_seconds: float,
    ) -> tuple[PluginProposal, ...]:
        """What each of these proposes, all asked at once, in the order of the names.

        Where there is nothing to choose from, none is asked and none has failed.
        """
        if not any(contribution.fragments for contribution in contributions.values()):
            return tuple([PluginProposal(name=name, capabilities=StrategyCapabilities()) for name in names])
        ask = partial(
            self._plugins.ask,
            frame=frame,
            contributions=contributions,
            budget_tokens=budget_tokens,
            wait_seconds=wait_seconds,
        )
        return tuple(await asyncio.gather(*[self._threads.run(partial(ask, name)) for name in names]))
