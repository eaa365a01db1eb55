"""The plan of one request: its window, its counter, and the budget that its layers start from."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Final

from schemas.codes import CONTENT_LAYERS
from schemas.request import BudgetRequest
from worker.budget.allocation import Overhead, plan_budget
from worker.budget.layers import ContextBudget, requested_budget
from worker.budget.models import ModelSpec, Window, resolve_window
from worker.budget.tokens import TokenCounter, counter_for
from worker.citations.manifest import template_of
from worker.errors import BudgetTooSmall
from worker.fusion.pipeline import FusionPipeline, default_components
from worker.fusion.sections import SECTION_GAP, Fence, fence_for
from worker.fusion.strategies.registry import BUILT_IN, StrategyRegistry
from worker.ports import RequestFrame, Scope, Subject

_NOTHING_ASKED: Final = BudgetRequest()

_PREAMBLE_PART: Final = 10
"""Of the window, the part that a preamble may have at the most."""

_SEAM_TOKENS: Final = 2
"""Kept beside the preamble for tokenizers that merge across its end; given back where they do not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ContentPolicy:
    """The tables and defaults that shape the bytes of a bundle."""

    models: Mapping[str, ModelSpec]
    default_model: str
    subjects: Mapping[str, Subject]
    default_strategy: str
    strategies: StrategyRegistry = BUILT_IN
    """What requests may name."""
    counter: TokenCounter | None = None
    """Counts for every model, in place of the one that its encoding names."""
    unmasked_projects: frozenset[str] = frozenset()
    """Whose retrieved text is shown as it is, credentials and all."""
    settings_digest: str = ""
    """Of the settings that shape content, as receipts name it; so is the next."""
    code_version: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The window of one request, before anything was gathered."""

    project_id: str
    policy: ContentPolicy
    window: Window
    counter: TokenCounter
    requested: ContextBudget
    effective: ContextBudget
    overhead: Overhead
    preamble: str
    template: str
    """How to cite and answer, with the gap that ends it; empty where nobody asked, or there is no room."""
    is_cramped: bool
    """Whether preamble or template had to give way to what is never trimmed."""
    system_tokens: int
    """What a text takes that is never trimmed, or all that is reserved for it where it surely fits."""
    user_tokens: int
    fusion: FusionPipeline
    plugins: tuple[str, ...]
    """The strategies of the request that run in processes of their own."""
    is_competing: bool
    """Whether the fragments of all layers compete for the tokens of all."""

    @property
    def is_masking(self) -> bool:
        """Whether credentials in the project's retrieved text are masked."""
        return self.project_id not in self.policy.unmasked_projects

    @property
    def content_tokens(self) -> int:
        """What the content layers may spend together; what is reserved for nobody is not theirs."""
        return sum([self.effective.layer_budget(layer) for layer in CONTENT_LAYERS])

    def without_template(self) -> Plan:
        """The same window without a word on how to answer, and what that took given to the layers."""
        if not self.template:
            return self
        overhead = replace(self.overhead, template=0)
        effective = plan_budget(
            self.requested,
            overhead=overhead,
            system_tokens=self.system_tokens,
            user_tokens=self.user_tokens,
        )
        return replace(self, template="", is_cramped=True, overhead=overhead, effective=effective)


def plan_request(frame: RequestFrame, scope: Scope, policy: ContentPolicy) -> Plan:
    """The window, the counter, and the effective budget before pins: overhead paid, system and user seated.

    A window too small for the template does without it, and one too small for the preamble without both.
    Raises UnknownModel, UnknownStrategy, UnknownLayer, InvalidRequest, BudgetTooSmall.
    """
    request = frame.request
    strategies = policy.strategies.check(
        policy.default_strategy if request.strategy is None else request.strategy
    )
    window = resolve_window(request, models=policy.models, default_model=policy.default_model)
    counter = policy.counter or counter_for(window.encoding, safety_factor=window.safety_factor)
    asked = request.budget or _NOTHING_ASKED
    requested = requested_budget(total=window.total_tokens, layers=asked.layers, split=window.split)
    fusion = _fusion(fence_for(scope), counter, policy.default_strategy, policy.strategies)
    plugins = tuple([name for name in strategies if name in policy.strategies.plugins])
    client, framing = asked.client_overhead_tokens, window.framing_tokens
    spoken_for = client + framing + requested.system + requested.output
    preamble = fusion.preamble(
        frame,
        strategies=strategies,
        budget_used=min(1.0, spoken_for / window.total_tokens),
        max_tokens=window.total_tokens // _PREAMBLE_PART,
    )
    template = _template(frame, preamble, counter, window.total_tokens // _PREAMBLE_PART)
    quick = (
        _quick_size(request.system_prompt, requested.system, counter),
        _quick_size(request.user_message, requested.user, counter),
    )

    def seat(text: str, answering: str, system_tokens: int, user_tokens: int) -> Plan:
        overhead = Overhead(
            client=client,
            framing=framing,
            preamble=_preamble_tokens(counter, text),
            template=_preamble_tokens(counter, answering),
        )
        return Plan(
            project_id=request.project_id,
            policy=policy,
            window=window,
            counter=counter,
            requested=requested,
            effective=plan_budget(
                requested, overhead=overhead, system_tokens=system_tokens, user_tokens=user_tokens
            ),
            overhead=overhead,
            preamble=text,
            template=answering,
            is_cramped=(text, answering) != (preamble, template),
            system_tokens=system_tokens,
            user_tokens=user_tokens,
            fusion=fusion,
            plugins=plugins,
            is_competing=len(strategies) > 1 or any(map(policy.strategies.is_competing, strategies)),
        )

    with suppress(BudgetTooSmall):
        return seat(preamble, template, *quick)
    sizes = (counter.count(request.system_prompt), counter.count(request.user_message))
    with suppress(BudgetTooSmall):
        return seat(preamble, template, *sizes)
    with suppress(BudgetTooSmall):
        return seat(preamble, "", *sizes)
    return seat("", "", *sizes)


def _template(frame: RequestFrame, preamble: str, counter: TokenCounter, max_tokens: int) -> str:
    """For subjects whose work is on what the context shows, behind a preamble, where both have room."""
    if "citations" not in frame.request.include or not frame.subject.inject or not preamble:
        return ""
    text = template_of(frame.request.required_tools) + SECTION_GAP
    tokens = _preamble_tokens(counter, preamble) + _preamble_tokens(counter, text)
    return text if tokens <= max_tokens else ""


@lru_cache(maxsize=4_096)
def _fusion(
    fence: Fence, counter: TokenCounter, default_strategy: str, strategies: StrategyRegistry
) -> FusionPipeline:
    """The pipeline of a thread's requests; it holds nothing of any one of them."""
    components = default_components(fence=fence, counter=counter, default_strategy=default_strategy)
    return FusionPipeline(components, strategies.in_process, fence)


@lru_cache(maxsize=4_096)
def _preamble_tokens(counter: TokenCounter, text: str) -> int:
    """What is set aside for the preamble; the same for all prompts of a thread."""
    return counter.count(text) + _SEAM_TOKENS if text else 0


def _quick_size(text: str, reserved: int, counter: TokenCounter) -> int:
    """The size of a part that is never trimmed, or its whole reservation where it surely fits that."""
    return reserved if counter.fits(text, reserved) else counter.count(text)
