"""The ten components over fragments that a library user brings, under one plain token budget.

    pipeline = ContextPipeline()
    pipeline.register_strategy("mine", Mine())
    payload = pipeline.assemble(plan_id="p", fragments=fragments, budget=FragmentBudget(), strategy="mine")

There are no sources here, no layers with reservations and no prompt around it: what is chosen and in which
order is all there is. Same fragments, same strategy, same payload, whatever order they come in.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from itertools import accumulate
from typing import Final

from schemas.codes import PartName
from schemas.fragments import ContextFragment, ContextPayload, FragmentBudget
from schemas.request import AssemblyRequest
from schemas.wire import sha256_hex
from worker.budget.tokens import TokenCounter, counter_for
from worker.fusion.packer import section_text
from worker.fusion.pipeline import Components, FusionPipeline, default_components
from worker.fusion.protocols import ContextStrategy, Placed
from worker.fusion.sections import fence_for
from worker.fusion.strategies.registry import BUILT_IN
from worker.ports import Fragment, LayerContribution, Rendering, RequestFrame, Scope, Subject

DEFAULT_STRATEGY: Final = "relevance"

_LAYER: Final[PartName] = "task"
"""All fragments compete for one budget, so they stand in one."""

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_SCOPE: Final = Scope(project_id="local", thread_id=None)
_SUBJECT: Final = Subject(name="implement", inject=True, semantic=True, task_type="BUILD")
_GAP: Final = "\n"


class ContextPipeline:
    """Chooses fragments; one may serve any number of calls."""

    def __init__(self, *, components: Components | None = None, counter: TokenCounter | None = None) -> None:
        """Use these components and this counter; the built-in ones and `o200k_base` where absent."""
        self._counter = counter or counter_for("o200k_base")
        self._fence = fence_for(_SCOPE)
        self._components = components or default_components(
            fence=self._fence, counter=self._counter, default_strategy=DEFAULT_STRATEGY
        )
        self._strategies = BUILT_IN

    def register_strategy(self, name: str, strategy: ContextStrategy) -> None:
        """Let later calls name it. Raises ValueError where the name is taken or not the strategy's own."""
        self._strategies = self._strategies.with_strategy(name, strategy)

    def assemble(
        self,
        *,
        plan_id: str,
        fragments: Iterable[ContextFragment],
        budget: FragmentBudget,
        strategy: str = DEFAULT_STRATEGY,
    ) -> ContextPayload:
        """The fragments that were chosen, in the order in which the strategy wants them, and their texts.

        Their tokens, each counted for itself, sum to at most `budget.available_tokens`; one that does not fit
        is passed over. Equal texts are one fragment with all provenances. `span` is the place in the texts
        joined by newlines, `context_hash` the SHA-256 of that, `assembled_at` the newest `created_at`.
        Raises UnknownStrategy, and ValueError for a fragment without content.
        """
        self._strategies.check(strategy)
        given = sorted(fragments, key=lambda f: (f.fragment_id, f.uko_node, f.content or ""))
        as_of = max((fragment.created_at for fragment in given), default=_EPOCH)
        frame = _frame(strategy, plan_id, as_of)
        contribution = LayerContribution(
            layer=_LAYER,
            status="ok" if given else "empty",
            fragments=tuple(_fragment(one, place) for place, one in enumerate(given)),
        )
        available = budget.available_tokens
        pipeline = FusionPipeline(self._components, self._strategies.in_process, self._fence)
        candidates = pipeline.rank(frame, {_LAYER: contribution}, budget_tokens=available)
        placed: Sequence[Placed] = ()
        if candidates.scored[_LAYER]:
            # The frame of a section, which is not shown here, is not to take room.
            room = available + self._counter.count(section_text(candidates.frames[_LAYER], ()))
            packed = pipeline.pack(candidates, _LAYER, budget_tokens=room, counter=self._counter)
            order = {item.fragment.key: item.order_key for item in candidates.scored[_LAYER]}
            placed = sorted(packed.placed, key=lambda p: order[p.fragment.key])
        return self._payload(placed, given, frame, budget, candidates.strategies_used)

    def _payload(
        self,
        placed: Sequence[Placed],
        given: Sequence[ContextFragment],
        frame: RequestFrame,
        budget: FragmentBudget,
        strategies_used: tuple[str, ...],
    ) -> ContextPayload:
        tokens = [self._counter.count(one.text) for one in placed]
        # Apart they may have a few tokens more than together, as which they were packed.
        kept = sum(total <= budget.available_tokens for total in accumulate(tokens))
        placed, tokens = placed[:kept], tokens[:kept]
        text = _GAP.join([one.text for one in placed])
        starts = accumulate([0, *[len(one.text) + len(_GAP) for one in placed]])
        shown = tuple(
            _as_shown(given[one.fragment.position], one, start, count)
            for one, start, count in zip(placed, starts, tokens, strict=False)
        )
        total, digest = sum(tokens), sha256_hex(text.encode())
        return ContextPayload(
            payload_id="p_" + digest[:24],
            plan_id=frame.request.plan_id,
            fragments=shown,
            total_tokens=total,
            budget=budget,
            budget_used=round(total / max(1, budget.available_tokens), 6),
            strategies_used=strategies_used,
            context_hash=digest,
            provenance_map={fragment.fragment_id: fragment.provenance for fragment in shown},
            assembled_at=frame.as_of,
        )


def _as_shown(given: ContextFragment, placed: Placed, start: int, tokens: int) -> ContextFragment:
    """The fragment as it was given, with what was made of it."""
    changes = {
        "content": placed.text,
        "span": (start, start + len(placed.text)),
        "token_count": tokens,
        "relevance_score": placed.score,
        "provenance": placed.fragment.provenance,
    }
    return given.model_copy(update=changes)


def _frame(strategy: str, plan_id: str, as_of: datetime) -> RequestFrame:
    """A request that says nothing but which strategy is wanted."""
    request = AssemblyRequest(
        request_id="local",
        project_id=_SCOPE.project_id,
        plan_id=plan_id,
        volk="library",
        subject=_SUBJECT.name,
        user_message="",
        strategy=strategy,
    )
    return RequestFrame(request=request, subject=_SUBJECT, task_type=_SUBJECT.task_type, as_of=as_of)


def _fragment(given: ContextFragment, place: int) -> Fragment:
    """Raises ValueError where there is nothing to show."""
    if given.content is None:
        msg = f"fragment {given.fragment_id} has no content"
        raise ValueError(msg)
    return Fragment(
        layer=_LAYER,
        node=given.uko_node,
        renderings=(Rendering(depth=given.detail_depth, text=given.content),),
        provenance=given.provenance,
        position=place,
        relevance=given.relevance_score,
        storage_tier=given.tier,
        relevance_tier=given.relevance_tier,
        created_at=given.created_at,
        metadata=given.metadata,
    )
