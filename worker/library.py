"""The assembler as a library: the package's classic interface over the same pipeline, without a broker.

    assembler = worker.wiring.build_library(project_id="shop")
    assembly = assembler.assemble({}, "implement", "Add a retry", session_context=context)
    prompt = assembly.effective_message

Everything that a request may carry inline works here too; what comes out is what the worker would send.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Protocol
from uuid import uuid4

import structlog

from schemas.codes import LAYERS, PARTS, PartName, TaskType
from schemas.fragments import FragmentProvenance
from schemas.request import AssemblyRequest
from schemas.session import SessionContext
from worker.assembly import Assembled, Assembler
from worker.budget.layers import ContextBudget, requested_budget
from worker.budget.ledger import ContextUsage
from worker.budget.models import ModelSpec
from worker.failpoints import Failpoints
from worker.planning import ContentPolicy
from worker.ports import Fragment, LayerBudget, LayerContribution, Provider, Rendering, RequestFrame, Scope
from worker.providers.gather import Abandonment
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

    @property
    def effective_message(self) -> str:
        """All parts but the system prompt, the user message last."""
        return "".join(self.parts[layer] for layer in PARTS if layer != "system")


ProvidersFor = Callable[[object | None], Sequence[Provider]]
"""The providers of one call, given the artifact store that the call names."""


class UnifiedContextAssembler:
    """Composes all context sources under one token budget; one per pipeline run."""

    def __init__(
        self,
        *,
        providers_for: ProvidersFor,
        policy: ContentPolicy,
        injector: ContextInjector | None = None,
        budget: ContextBudget | None = None,
        encoding: str = "o200k_base",
        project_id: str = "local",
        usage_log: Path | None = None,
    ) -> None:
        """Assemble for `project_id` under `budget` (default: the 128k split), counted in `encoding`.

        `worker.wiring.build_library` fills in providers and policy. With an injector, what it injects takes
        the place of the graph provider's contribution.
        """
        self._providers_for = providers_for
        self._injector = injector
        self._budget = budget or requested_budget(total=128_000, layers={})
        row = ModelSpec(window=self._budget.total, encoding=encoding, framing_tokens=0)
        self._policy = replace(policy, models={_MODEL: row}, default_model=_MODEL)
        self._project_id = project_id
        self._usage_log = usage_log

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
        as_of: datetime | None = None,
    ) -> ContextAssembly:
        """The parts and their ledger. Writes one usage record; a failure there only warns.

        The caller's payload stays untouched: an injector gets a shallow copy of it. Blocks; from within a
        running event loop it works on a thread of its own. Raises Rejected, as the worker would answer.
        """
        providers = list(self._providers_for(artifact_store))
        if self._injector is not None:
            graph = InjectedGraphProvider(self._injector, payload)
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
                "budget": {"total": self._budget.total, "layers": self._budget.as_layers()},
                "include": ("messages", "layers", "usage", "parts"),
                "payload": dict(payload),
                "session": session_context,
            }
        )
        assembled = _run(self._assembler(providers), request, as_of or datetime.now(UTC))
        try:
            write_usage_record(assembled.usage, path=self._usage_log, env=os.environ)
        except OSError as error:
            log.warning("usage.not_written", error=str(error))
        return _assembly(assembled)

    def _assembler(self, providers: Sequence[Provider]) -> Assembler:
        telemetry = Telemetry()
        return Assembler(
            providers=providers,
            policy=self._policy,
            telemetry=telemetry,
            abandonment=Abandonment(cap=1),
            now=lambda: datetime.now(UTC),
            failpoints=Failpoints(),
        )


class InjectedGraphProvider:
    """The graph layer from an injector that a library user brings."""

    layer: PartName = "graph"

    def __init__(self, injector: ContextInjector, payload: Mapping[str, Any]) -> None:
        """Inject into copies of `payload`."""
        self._injector = injector
        self._payload = payload

    async def provide(self, frame: RequestFrame, scope: Scope, budget: LayerBudget) -> LayerContribution:
        """One divisible fragment, or `off` where the injector says that the subject gets none."""
        del scope, budget
        subject = frame.request.subject
        if not self._injector.should_inject(subject):
            return LayerContribution(layer=self.layer, status="off", reason="subject_gated")
        injected = await asyncio.to_thread(self._injector.inject, dict(self._payload), subject)
        text = str(injected.get("graph_context") or "").strip()
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


def _run(assembler: Assembler, request: AssemblyRequest, as_of: datetime) -> Assembled:
    def run() -> Assembled:
        return asyncio.run(assembler.assemble(request, as_of=as_of))

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
