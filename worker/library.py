"""The assembler as a library: the package's classic interface over the same pipeline, without a broker.

    assembler = worker.wiring.build_library(project_id="shop")
    assembly = assembler.assemble({}, "implement", "Add a retry", session_context=context)
    prompt = assembly.effective_message

Everything that a request may carry inline works here too; what comes out is what the worker would send.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, Protocol
from uuid import uuid4

import structlog

from schemas.codes import CONTENT_LAYERS, LAYERS, PARTS, PartName, TaskType
from schemas.fragments import FragmentProvenance
from schemas.request import AssemblyRequest
from schemas.session import SessionContext
from worker.assembly import Assembled, Assembler
from worker.budget.layers import ContextBudget, requested_budget
from worker.budget.ledger import ContextUsage
from worker.budget.models import ModelSpec
from worker.budget.tokens import counter_for
from worker.budget.trimming import trim_to_budget
from worker.errors import BudgetTooSmall, Rejected
from worker.failpoints import Failpoints
from worker.fusion.collapsing import graph_context
from worker.fusion.protocols import ContextStrategy
from worker.fusion.sections import SECTION_GAP
from worker.planning import ContentPolicy
from worker.ports import (
    Fragment,
    LayerBudget,
    LayerContribution,
    Provider,
    Rendering,
    RequestFrame,
    Scope,
    TokenCounter,
)
from worker.providers.gather import Abandonment
from worker.providers.proposals import PluginProposals
from worker.providers.threads import SourceThreads
from worker.telemetry import Telemetry
from worker.usage.log import write_usage_record

log = structlog.get_logger()

_MODEL = "library"


class ContextInjector(Protocol):
    """A source of graph context that writes into the payload it is given, as older runners wire it."""

    def should_inject(self, subject: str) -> bool:
        """Whether this kind of work gets graph context."""
        ...

    def inject(self, payload: dict[str, Any], subject: str) -> dict[str, Any]:
        """The payload with `graph_context` filled in."""
        ...


@dataclass(frozen=True, slots=True)
class ContextAssembly:
    """One prompt's parts by layer, and the ledger of what they spent."""

    parts: dict[PartName, str]
    usage: ContextUsage
    is_raw: bool = False
    """Whether assembling failed, and these are the caller's own texts and what the injector gave."""

    @property
    def effective_message(self) -> str:
        """All parts but the system prompt, the user message last."""
        return "".join(self.parts[layer] for layer in PARTS if layer != "system")

    def collapsed_into(self, payload: Mapping[str, Any]) -> dict[str, Any]:
        """A shallow copy of the payload with the layers in its `graph_context`; all else stays as it is.

        So whoever prepends `graph_context` to a message shows the whole bundle, and whoever reads
        `task_context` finds what was there.
        """
        return {**payload, "graph_context": graph_context(self.parts)}


ProvidersFor = Callable[[object | None], Sequence[Provider]]
"""The providers of one call, given the artifact store that the call names."""


class UnifiedContextAssembler:
    """Composes all context sources under one token budget; one per pipeline run."""

    def __init__(
        self,
        *,
        providers_for: ProvidersFor,
        prepare: Callable[[], Awaitable[None]] | None = None,
        policy: ContentPolicy,
        proposals: PluginProposals | None = None,
        injector: ContextInjector | None = None,
        budget: ContextBudget | None = None,
        token_counter: TokenCounter | None = None,
        encoding: str = "o200k_base",
        project_id: str = "local",
        usage_log: Path | None = None,
    ) -> None:
        """Assemble for `project_id` under `budget` (default: the 128k split).

        Tokens are counted by `token_counter`, else as `encoding` has them. `worker.wiring.build_library`
        fills in providers and policy. `prepare` is awaited before each assembling, outside of its deadline.
        With an injector, what it injects takes the place of the graph provider's contribution.
        """
        self._providers_for = providers_for
        self._prepare = prepare
        self._kept: tuple[object | None, list[Provider]] | None = None
        self._injector = injector
        self._budget = budget or requested_budget(total=128_000, layers={})
        row = ModelSpec(window=self._budget.total, encoding=encoding, framing_tokens=0)
        self._policy = replace(policy, models={_MODEL: row}, default_model=_MODEL, counter=token_counter)
        self._proposals = proposals
        self._counter = token_counter or counter_for(encoding)
        self._threads = SourceThreads()
        self._project_id = project_id
        self._usage_log = usage_log

    def register_strategy(self, name: str, strategy: ContextStrategy) -> None:
        """Let later calls name this strategy. It runs in this process, so one that hangs is waited for.

        Raises ValueError where the name is taken or not the strategy's own, or where it needs what is not
        here. What it raises when it is called costs it its share and the caller nothing: `layered` steps in.
        """
        self._policy = replace(self._policy, strategies=self._policy.strategies.with_strategy(name, strategy))

    def assemble(
        self,
        payload: Mapping[str, Any],
        subject: str,
        user_message: str,
        *,
        session_context: SessionContext | None = None,
        artifact_store: object | None = None,
        task_type: TaskType | None = None,
        thread_id: str | None = None,
        volk_alias: str = "volk",
        system_prompt: str = "",
        strategy: str | None = None,
        as_of: datetime | None = None,
    ) -> ContextAssembly:
        """The parts and their ledger. Writes one usage record; a failure there only warns.

        The caller's payload stays untouched: an injector gets a shallow copy of it. Blocks; from within a
        running event loop it works on a thread of its own.

        Raises Rejected, as the worker would answer. Where assembling itself fails, whatever the cause, the
        result is the caller's own texts and what the injector gives, within the same budget.
        """
        providers = self._providers(artifact_store)
        if self._injector is not None:
            graph = InjectedGraphProvider(self._injector, payload, threads=self._threads)
            providers = [provider for provider in providers if provider.layer != "graph"] + [graph]
        request = AssemblyRequest.model_validate(
            {
                "request_id": uuid4().hex,
                "project_id": self._project_id,
                "thread_id": thread_id,
                "volk": volk_alias,
                "subject": subject,
                "user_message": user_message,
                "system_prompt": system_prompt,
                "task_type": task_type,
                "strategy": strategy,
                "budget": {"total": self._budget.total, "layers": self._budget.as_layers()},
                "include": ("messages", "layers", "usage", "parts"),
                "payload": dict(payload),
                "session": session_context,
            }
        )
        try:
            assembled = _run(self._assembled(providers, request, as_of or datetime.now(UTC)))
        except Rejected:
            raise
        except Exception as error:  # noqa: BLE001 - the prompt is worth more than its context
            log.error("library.assembly_failed", error=type(error).__name__)  # noqa: TRY400 - may quote it
            return self._raw(request, payload)
        self._record(assembled)
        return _assembly(assembled)

    def _providers(self, artifact_store: object | None) -> list[Provider]:
        """Kept from call to call, and with them what they keep, until another store is named."""
        if self._kept is None or self._kept[0] is not artifact_store:
            self._kept = (artifact_store, list(self._providers_for(artifact_store)))
        return self._kept[1]

    async def _assembled(
        self, providers: Sequence[Provider], request: AssemblyRequest, as_of: datetime
    ) -> Assembled:
        if self._prepare is not None:
            await self._prepare()
        return await self._assembler(providers).assemble(request, as_of=as_of)

    def _record(self, assembled: Assembled) -> None:
        try:
            write_usage_record(assembled.usage, path=self._usage_log, env=os.environ)
        except Exception as error:  # noqa: BLE001 - telemetry never costs an assembly
            log.warning("usage.not_written", error=str(error))

    def _raw(self, request: AssemblyRequest, payload: Mapping[str, Any]) -> ContextAssembly:
        """Without the pipeline: system prompt, injected graph context, task context, message."""
        texts: dict[PartName, str] = {
            "graph": self._injected(payload, request.subject),
            "task": _task_text(request.payload.task_context),
        }
        return raw_assembly(
            texts,
            system=request.system_prompt,
            user=request.user_message,
            budget=self._budget,
            counter=self._counter,
        )

    def _injected(self, payload: Mapping[str, Any], subject: str) -> str:
        if self._injector is None:
            return ""
        try:
            if not self._injector.should_inject(subject):
                return ""
            return _context_in(self._injector.inject(dict(payload), subject))
        except Exception as error:  # noqa: BLE001 - it may be what made assembling fail
            log.warning("library.injection_failed", error=type(error).__name__)
            return ""

    def _assembler(self, providers: Sequence[Provider]) -> Assembler:
        telemetry = Telemetry()
        return Assembler(
            providers=providers,
            policy=self._policy,
            telemetry=telemetry,
            abandonment=Abandonment(cap=1),
            now=lambda: datetime.now(UTC),
            failpoints=Failpoints(),
            proposals=self._proposals,
        )


class InjectedGraphProvider:
    """The graph layer from an injector that a library user brings."""

    layer: PartName = "graph"

    def __init__(
        self, injector: ContextInjector, payload: Mapping[str, Any], *, threads: SourceThreads
    ) -> None:
        """Inject into copies of `payload`, in these threads."""
        self._injector = injector
        self._payload = payload
        self._threads = threads

    async def provide(self, frame: RequestFrame, scope: Scope, budget: LayerBudget) -> LayerContribution:
        """One divisible fragment, or `off` where the injector says that the subject gets none."""
        del scope, budget
        subject = frame.request.subject
        if not self._injector.should_inject(subject):
            return LayerContribution(layer=self.layer, status="off", reason="subject_gated")
        inject = partial(self._injector.inject, dict(self._payload), subject)
        text = _context_in(await self._threads.run(inject))
        if not text:
            return LayerContribution(layer=self.layer, status="empty", reason="no_data")
        fragment = Fragment(
            layer=self.layer,
            node="graph://injected",
            renderings=(Rendering(depth=9, text=text),),
            provenance=(FragmentProvenance(resource_uri="graph://injected", resource_type="injector"),),
            position=0,
            is_divisible=True,
        )
        return LayerContribution(
            layer=self.layer, status="ok", heading="# GRAPH CONTEXT", fragments=(fragment,)
        )


def raw_assembly(
    texts: Mapping[PartName, str],
    *,
    system: str,
    user: str,
    budget: ContextBudget,
    counter: TokenCounter,
) -> ContextAssembly:
    """An assembly of plain texts: each in its layer's reservation and in what `system` and `user` leave.

    Those two are never cut. The ledger's budget is what each part spends, within the same total. Raises
    BudgetTooSmall where the two and `output` exceed it.
    """
    parts: dict[PartName, str] = {**dict.fromkeys(PARTS, ""), "system": system, "user": user}
    spent: dict[PartName, int] = {"system": counter.count(system), "user": counter.count(user)}
    left = budget.total - budget.output - sum(spent.values())
    if left < 0:
        raise BudgetTooSmall(layer="user", overage_tokens=-left, total_tokens=budget.total)
    for layer in CONTENT_LAYERS:
        room = min(left, budget.layer_budget(layer))
        kept = trim_to_budget(texts.get(layer, "").rstrip(), room - counter.count(SECTION_GAP), counter)
        # Counted with the gap: a seam may cost a token more than its two sides.
        if kept and counter.fits(kept + SECTION_GAP, room):
            parts[layer] = kept + SECTION_GAP
            spent[layer] = counter.count(parts[layer])
            left -= spent[layer]
    usage = ContextUsage(ContextBudget(total=budget.total, output=budget.output, **spent))
    for layer, tokens in spent.items():
        usage.spend(layer, tokens)
    return ContextAssembly(parts=parts, usage=usage, is_raw=True)


def _task_text(task_context: object) -> str:
    """The task context as it is, or as JSON where it is no text."""
    if isinstance(task_context, str):
        return task_context
    return "" if task_context is None else json.dumps(task_context, ensure_ascii=False)


def _context_in(payload: Mapping[str, Any]) -> str:
    return str(payload.get("graph_context") or "").strip()


def _run(work: Coroutine[Any, Any, Assembled]) -> Assembled:
    def run() -> Assembled:
        return asyncio.run(work)

    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return run()
    with ThreadPoolExecutor(max_workers=1) as pool:
        return pool.submit(run).result()


def _assembly(assembled: Assembled) -> ContextAssembly:
    totals = assembled.usage.usage
    parts = assembled.bundle.parts
    if totals is None or parts is None:  # asked for both, so both are there
        raise AssertionError
    layers = {layer: totals.layers[layer] for layer in LAYERS}
    usage = ContextUsage(
        ContextBudget(total=totals.total, **{layer: spend.budget for layer, spend in layers.items()})
    )
    for layer, spend in layers.items():
        usage.spend(layer, spend.spent)
    return ContextAssembly(parts=parts, usage=usage)
