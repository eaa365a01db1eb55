"""The eleven layers of a prompt and the tokens that are reserved for each of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from operator import attrgetter
from types import MappingProxyType
from typing import Final

from schemas import codes
from worker.errors import InvalidRequest, UnknownLayer

LAYERS: Final[tuple[str, ...]] = codes.LAYERS
"""The eleven slots in the order of the joined prompt; `output` comes last and is never a part."""

PARTS: Final[tuple[str, ...]] = codes.PARTS
"""The ten slots that become text."""

CONTENT_LAYERS: Final = codes.CONTENT_LAYERS
"""The eight slots that providers fill and that may be trimmed: all parts but `system` and `user`."""

_KNOWN: Final = frozenset(LAYERS)
_reservations: Final[Callable[[object], tuple[int, ...]]] = attrgetter(*LAYERS)

LENDING_ORDER: Final[tuple[codes.PartName, ...]] = (
    "semantic",
    "ast",
    "artifacts",
    "memory",
    "graph",
    "task",
    "plan",
    "mission",
)
"""Who gives way first when something that must be in needs room: the guesses before the facts."""

DEFAULT_WINDOW: Final = 128_000
"""Tokens of the window that `DEFAULT_SPLIT_128K` is written for."""

DEFAULT_SPLIT_128K: Final[Mapping[str, int]] = MappingProxyType(
    {
        # The caller's own standing text: a long one is a few thousand tokens, and it may borrow.
        "system": 8_000,
        # Forty lines of status, goal, blockers and hand-off, each a sentence or two.
        "mission": 4_000,
        # Twenty-five lines: the current step in full, its neighbours in a sentence each.
        "plan": 3_000,
        # A 500-token thread summary and about ten recalled items of the same size.
        "memory": 6_000,
        # Ten digest lines with previews; the whole artifact is one tool call away.
        "artifacts": 4_000,
        # The code, requirements and decisions themselves: what an answer is mostly made from.
        "graph": 36_000,
        # Signatures, hot spots and call summaries of the target files: dense, five of each.
        "ast": 6_000,
        # Chunks that words found beyond the graph: useful, but the least certain of all.
        "semantic": 12_000,
        # The task's own material: its pack, the current diff, the failing tests.
        "task": 12_000,
        # The instruction with a pasted log or file; it may borrow beyond this.
        "user": 12_000,
        # Headroom for the answer, the customary 8k of a 128k model.
        "output": 8_000,
    }
)
"""Reservations for a 128k window. 17,000 tokens stay unreserved, for overhead and for borrowing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ContextBudget:
    """A hard reservation in tokens for each of the eleven layers against a `total` window.

    Raises ValueError when a number is negative or the reservations exceed `total`.
    """

    total: int
    system: int = 0
    mission: int = 0
    plan: int = 0
    memory: int = 0
    artifacts: int = 0
    graph: int = 0
    ast: int = 0
    semantic: int = 0
    task: int = 0
    user: int = 0
    output: int = 0

    def __post_init__(self) -> None:
        """Refuse what cannot be honoured."""
        if self.total < 0 or min(_reservations(self)) < 0:
            negative = {name: tokens for name, tokens in self.as_layers().items() if tokens < 0}
            raise ValueError(f"a budget is never negative: total {self.total}, layers {negative}")
        if self.reserved > self.total:
            raise ValueError(f"reservations of {self.reserved} tokens exceed the total of {self.total}")

    @property
    def reserved(self) -> int:
        """Tokens of all reservations together."""
        return sum(_reservations(self))

    @property
    def available(self) -> int:
        """Tokens of `total` that no layer has reserved."""
        return self.total - self.reserved

    def layer_budget(self, name: str) -> int:
        """The reservation of one layer, in tokens. Raises ValueError on an unknown name."""
        if name not in _KNOWN:
            _refuse_unknown((name,))
        return int(getattr(self, name))

    def as_layers(self) -> dict[str, int]:
        """All reservations by name, in the order of the joined prompt."""
        return dict(zip(LAYERS, _reservations(self), strict=True))

    def with_layers(self, layers: Mapping[str, int]) -> ContextBudget:
        """The same window with some reservations replaced.

        Raises ValueError on an unknown name, and on what the constructor refuses.
        """
        _refuse_unknown(layers)
        return ContextBudget(total=self.total, **{**self.as_layers(), **layers})


DEFAULT_BUDGET: Final = ContextBudget(total=DEFAULT_WINDOW, **DEFAULT_SPLIT_128K)
"""The default split as a budget."""


def default_layers(total: int) -> dict[str, int]:
    """The default split scaled to a window of `total` tokens, each share rounded down."""
    return {name: total * tokens // DEFAULT_WINDOW for name, tokens in DEFAULT_SPLIT_128K.items()}


def requested_budget(
    *, total: int, layers: Mapping[str, int], split: ContextBudget = DEFAULT_BUDGET
) -> ContextBudget:
    """The budget that a request asks for, of a model whose window is split so where nobody asks.

    Layers that are not named share what the named ones leave, in proportion to the split and rounded
    down. Its unreserved part takes its share too, so a request that names no layer gets exactly the split,
    scaled to `total`, and there is room left for overhead.

    Raises UnknownLayer on a name outside the eleven, InvalidRequest when the named layers are
    negative or exceed `total`.
    """
    return _split_budget(total, tuple(layers.items()), split)


@lru_cache(maxsize=1_024)
def _split_budget(total: int, named: tuple[tuple[str, int], ...], split: ContextBudget) -> ContextBudget:
    """The same for all requests that name the same shares, which most do."""
    layers = dict(named)
    for name in layers:
        if name not in LAYERS:
            raise UnknownLayer(name, known=LAYERS)
    negative = sorted(name for name, tokens in layers.items() if tokens < 0)
    if total < 0 or negative:
        raise InvalidRequest("budget: a reservation is never negative", total=total, layers=negative)
    left = total - sum(layers.values())
    if left < 0:
        raise InvalidRequest(
            f"budget: layers ask for {total - left} tokens, the total is {total}",
            total_tokens=total,
            requested_tokens=total - left,
        )
    default = split.as_layers()
    # A model's own split may leave nothing for those that are not named: then they have nothing to share by.
    unnamed = max(1, split.total - sum(default[name] for name in layers))
    shares = {name: left * tokens // unnamed for name, tokens in default.items() if name not in layers}
    return ContextBudget(total=total, **shares, **layers)


def _refuse_unknown(names: Mapping[str, int] | tuple[str, ...]) -> None:
    for name in names:
        if name not in LAYERS:
            raise ValueError(f"unknown layer {name!r}; known: {', '.join(LAYERS)}")
