"""The names of strategies, and what stands behind them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import lru_cache
from types import MappingProxyType
from typing import Final

from worker.errors import UnknownStrategy
from worker.fusion.protocols import ContextStrategy
from worker.fusion.strategies.layered import LayeredStrategy
from worker.fusion.strategies.recency import RecencyStrategy
from worker.fusion.strategies.relevance import RelevanceStrategy
from worker.fusion.strategies.tiered import TieredStrategy

_NAME: Final = re.compile(r"[a-z0-9][a-z0-9_.-]{0,63}")
_JOIN: Final = "+"


class StrategyRegistry:
    """The strategies of this process by name, and the names of those that run in processes of their own.

    Does not change: `with_strategy` gives a new one.
    """

    __slots__ = ("_plugins", "_strategies")

    def __init__(self, strategies: Mapping[str, ContextStrategy], plugins: Iterable[str] = ()) -> None:
        """Hold these, and know of these plug-ins. Raises ValueError for a name that is none or is taken."""
        self._strategies = MappingProxyType(dict(strategies))
        self._plugins = tuple(plugins)
        names = [*self._strategies, *self._plugins]
        for name in names:
            _check_name(name)
        taken = sorted({name for name in names if names.count(name) > 1})
        if taken:
            raise ValueError(f"two strategies are called {taken[0]!r}")

    @property
    def in_process(self) -> Mapping[str, ContextStrategy]:
        """The strategies that run here."""
        return self._strategies

    @property
    def plugins(self) -> tuple[str, ...]:
        """The names of those that do not, as they were given."""
        return self._plugins

    @property
    def names(self) -> list[str]:
        """All names, sorted."""
        return sorted([*self._strategies, *self._plugins])

    def is_competing(self, name: str) -> bool:
        """Whether the strategy has layers compete with each other; a plug-in may, which is not known yet."""
        strategy = self._strategies.get(name)
        return strategy is None or strategy.capabilities.competes == "across_layers"

    def with_strategy(self, name: str, strategy: ContextStrategy) -> StrategyRegistry:
        """This one and one more. Raises ValueError where the name is taken, or is not the strategy's own."""
        if strategy.name != name:
            raise ValueError(f"the strategy calls itself {strategy.name!r}, not {name!r}")
        check_capabilities(strategy)
        if name in self.names:
            raise ValueError(f"a strategy called {name!r} is there already")
        return StrategyRegistry({**self._strategies, name: strategy}, self._plugins)

    def knowing(self, plugins: Iterable[str]) -> StrategyRegistry:
        """This one, with these plug-ins where they are not known yet. Raises ValueError as for a new one."""
        more = [name for name in dict.fromkeys(plugins) if name not in self.names]
        return StrategyRegistry(self._strategies, [*self._plugins, *more]) if more else self

    def check(self, spec: str) -> tuple[str, ...]:
        """The names in a request's `strategy`. Raises UnknownStrategy for one that is not known."""
        names = strategy_names(spec)
        for name in names:
            if name not in self._strategies and name not in self._plugins:
                raise UnknownStrategy(name, known=self.names)
        return names


@lru_cache(maxsize=1_024)
def strategy_names(spec: str) -> tuple[str, ...]:
    """The names that a `strategy` joins with `+`, in order, each once."""
    return tuple(dict.fromkeys(name.strip() for name in spec.split(_JOIN)))


def check_capabilities(strategy: ContextStrategy) -> None:
    """Raise ValueError where the strategy needs what this worker does not have."""
    capabilities = strategy.capabilities
    if capabilities.uses_vector:
        raise ValueError(f"strategy {strategy.name!r} uses vectors, and no fragment has one here")
    if not 0 < capabilities.quality_score <= 1:
        raise ValueError(f"strategy {strategy.name!r} has a quality_score outside of (0, 1]")


def built_in_strategies() -> dict[str, ContextStrategy]:
    """The strategies that every worker has, the default first."""
    built_in: tuple[ContextStrategy, ...] = (
        LayeredStrategy(),
        RelevanceStrategy(),
        RecencyStrategy(),
        TieredStrategy(),
    )
    return {strategy.name: strategy for strategy in built_in}


def _check_name(name: str) -> None:
    if not _NAME.fullmatch(name):
        raise ValueError(f"{name!r} is no name for a strategy: a-z, 0-9, '.', '_' and '-', at most 64")


BUILT_IN: Final = StrategyRegistry(built_in_strategies())
"""What a worker knows where its settings name no plug-in."""
