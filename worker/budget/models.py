"""The model table: which window, which tokenizer, and what a chat template adds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from schemas.request import AssemblyRequest
from worker.budget.layers import DEFAULT_BUDGET, ContextBudget, requested_budget
from worker.errors import InvalidRequest, UnknownModel


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSpec:
    """One row. `safety_factor` is a decimal string, so that no host rounds it differently."""

    window: int
    encoding: str
    framing_tokens: int = 16
    """Role markers of a system and a user message and the start of the reply, together."""
    safety_factor: str = "1"
    layers: tuple[tuple[str, int], ...] = ()
    """Tokens that layers reserve of the whole window; the others share the rest as in the default split."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """What one request may fill, and how its tokens are counted."""

    model: str
    total_tokens: int
    encoding: str
    framing_tokens: int
    safety_factor: str
    split: ContextBudget
    """How the model's whole window is shared where a request says nothing."""


def resolve_window(
    request: AssemblyRequest, *, models: Mapping[str, ModelSpec], default_model: str
) -> Window:
    """The window of the request's model, narrowed to `budget.total` where given.

    A model that the table lacks is accepted with `budget.total` and `encoding`. Raises UnknownModel, and
    InvalidRequest where the total is beyond the model's window.
    """
    name = request.model or default_model
    total = request.budget.total if request.budget else None
    spec = models.get(name)
    if spec is None:
        if total is None or request.encoding is None:
            raise UnknownModel(name, known=models)
        spec = ModelSpec(window=total, encoding=request.encoding)
    if total is not None and total > spec.window:
        message = f"budget.total {total} is beyond the window of {name}, {spec.window} tokens"
        raise InvalidRequest(message, field="budget.total", window_tokens=spec.window)
    return Window(
        model=name,
        total_tokens=total or spec.window,
        encoding=request.encoding or spec.encoding,
        framing_tokens=spec.framing_tokens,
        safety_factor=spec.safety_factor,
        split=_split(spec.window, spec.layers),
    )


def _split(window: int, layers: tuple[tuple[str, int], ...]) -> ContextBudget:
    # Not the default scaled to the window, which would be rounded twice.
    return requested_budget(total=window, layers=dict(layers)) if layers else DEFAULT_BUDGET
