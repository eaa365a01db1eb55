"""The assembler as a library: the package's classic interface over the same pipeline, without a broker.

    with worker.wiring.build_library(project_id="shop") as assembler:
        assembly = assembler.assemble({}, "implement", "Add a retry", session_context=context, memory=memory)
        prompt = assembly.effective_message

What a request may carry inline comes as keywords (`InlineContext`), what is stored is read where the
settings say; what comes out is what the worker would send for the same request.
"""

from __future__ import annotations

import json
import os
import weakref
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, Final, Protocol, Self, TypedDict, Unpack
from uuid import uuid4

import structlog
from pydantic import TypeAdapter, ValidationError

from schemas.codes import PartName, Ranking, Relevance, TaskType
from schemas.fragments import FragmentProvenance
from schemas.request import AssemblyRequest
from schemas.session import After, Artifact, Memory, Plan, SessionContext, WorkingSet
from schemas.tools import ToolName
from schemas.usage import UsageEvent
from schemas.wire import ProjectId
from worker.assembly import Assembled, Assembler
from worker.budget.layers import ContextBudget, requested_budget
from worker.budget.models import ModelSpec
from worker.budget.tokens import counter_for
from worker.budget.utf8 import well_formed
from worker.context_assembly import ContextAssembly, assembly_of, raw_assembly, raw_usage
from worker.decoding import check_request, validation_refusal
from worker.errors import InvalidEncoding, Rejected
from worker.failpoints import Failpoints
from worker.fusion.masking import mask_secrets
from worker.fusion.protocols import ContextStrategy
from worker.loop_thread import CLOSE_SECONDS, LoopThread
from worker.outcomes import rejection_usage
from worker.planning import ContentPolicy
from worker.ports import (
    Fragment,
    LayerBudget,
    LayerContribution,
    OutcomeKey,
    Preparation,
    Provider,
    Rendering,
    RequestFrame,
    Scope,
    TokenCounter,
)
from worker.providers.gather import Abandonment
from worker.providers.proposals import PluginProposals
from worker.providers.threads import MAX_THREADS, SourceThreads
from worker.telemetry import Telemetry
from worker.usage.log import write_usage_record

log = structlog.get_logger()

_MODEL: Final = "library"
_INCLUDED: Final = ("messages", "layers", "usage", "parts")
_CITED: Final = ("must_cite", "required_tools")
"""What makes sense only where the prompt says how to cite and answer."""


class ContextInjector(Protocol):
    """A source of graph context that writes into the payload it is given, as older runners wire it."""

    def should_inject(self, subject: str) -> bool:
        """Whether this kind of work gets graph context."""
        ...

    def inject(self, payload: dict[str, Any], subject: str) -> dict[str, Any]:
        """The payload with `graph_context` filled in."""
        ...


class InlineContext(TypedDict, total=False):
    """What one call may bring along, by the fields of `AssemblyRequest`: models, or the same as JSON values.

    It wins over stored state of its kind.
    """

    plan_id: str
    plan: Plan | dict[str, Any]
    memory: Memory | dict[str, Any]
    artifacts: Sequence[Artifact | dict[str, Any]]
    """Where there are some, `artifact_store` is not asked."""
    pack: str
    working: WorkingSet | dict[str, Any]
    must_cite: Sequence[str]
    required_tools: Sequence[ToolName]
    after: After | dict[str, Any]
    ranking: Ranking
    relevance: Relevance
    deadline_ms: int
    layer_timeouts_ms: Mapping[str, int]


ProvidersFor = Callable[[object | None], Sequence[Provider]]
"""The providers of one call, given the artifact store that the call names."""


class UnifiedContextAssembler:
    """Composes all context sources under one token budget; one per pipeline run.

    Safe from any thread. Its sources live on an event loop of its own, on a thread that the first call
    starts: their connections stay from call to call. Close it, by `close` or as a context manager; one that
    is merely dropped lets go of them when it is collected.
    """

    def __init__(
        self,
        *,
        providers_for: ProvidersFor,
        preload: Callable[[], Awaitable[None]] | None = None,
        preparation: Preparation | None = None,
        on_close: Callable[[], Awaitable[None]] | None = None,
        policy: ContentPolicy,
        proposals: PluginProposals | None = None,
        injector: ContextInjector | None = None,
        budget: ContextBudget | None = None,
        token_counter: TokenCounter | None = None,
        encoding: str = "o200k_base",
        project_id: str = "local",
        usage_log: Path | None = None,
        telemetry: Telemetry | None = None,
        abandoned_cap: int = MAX_THREADS,
    ) -> None:
        """Assemble for `project_id` under `budget` (default: the 128k split).

        Tokens are counted by `token_counter`, else as `encoding` has them. `worker.wiring.build_library`
        fills in providers and policy. `providers_for`, `preload` and `on_close` are called on the event loop:
        `preload` before each assembling, outside of its deadline, `on_close` once. Of each layer's source,
        `abandoned_cap` calls may be left behind. With an injector, what it injects takes the place of the
        graph provider's contribution. Raises ValueError for a project id that is none.
        """
        self._providers_for = providers_for
        self._preload = preload
        self._preparation = preparation
        self._kept: tuple[object | None, list[Provider]] | None = None
        self._injector = injector
        self._budget = budget or requested_budget(total=128_000, layers={})
        row = ModelSpec(window=self._budget.total, encoding=encoding, framing_tokens=0)
        self._policy = replace(policy, models={_MODEL: row}, default_model=_MODEL, counter=token_counter)
        self._proposals = proposals
        self._counter = token_counter or counter_for(encoding)
        self._threads = SourceThreads(max_threads=max(MAX_THREADS, abandoned_cap))
        self._project_id = TypeAdapter[str](ProjectId).validate_python(project_id)
        self._usage_log = usage_log
        self._telemetry = telemetry or Telemetry()
        self._abandonment = Abandonment(cap=abandoned_cap)
        self._loop = LoopThread(on_close or _close_nothing, name="context-library")
        weakref.finalize(self, self._loop.stop).atexit = False

    def close(self, *, timeout_seconds: float = CLOSE_SECONDS) -> None:
        """Let calls under way end, then close the sources and end the thread. Idempotent.

        What has not ended after `timeout_seconds` is left behind, which is logged.
        """
        self._loop.close(timeout_seconds=timeout_seconds)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

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
        is_citing: bool = False,
        **inline: Unpack[InlineContext],
    ) -> ContextAssembly:
        """The parts and their ledger. Writes one usage record, of a refusal too; a failure there only warns.

        With `is_citing`, or where something must be cited or called, what is shown gets ids and the prompt
        says how to answer. The caller's payload stays untouched: an injector gets a shallow copy of it.
        Blocks, within a running event loop as well.

        Raises Rejected, as the worker would answer; TypeError for a keyword that is none; RuntimeError where
        this was closed, and in a process that forked after the first call. Where assembling itself fails,
        whatever the cause, the result is the caller's own texts and what the injector gives, within the same
        budget.
        """
        unknown = sorted(inline.keys() - InlineContext.__annotations__.keys())
        if unknown:
            raise TypeError(f"assemble() knows no keyword {', '.join(unknown)}")
        is_citing = is_citing or any(inline.get(name) for name in _CITED)
        key = OutcomeKey(project_id=self._project_id, request_id=uuid4().hex, generation=0)
        request = None
        try:
            request = _read_request(
                {
                    "request_id": key.request_id,
                    "project_id": key.project_id,
                    "thread_id": thread_id,
                    "volk": volk_alias,
                    "subject": subject,
                    "user_message": user_message,
                    "system_prompt": system_prompt,
                    "task_type": task_type,
                    "strategy": strategy,
                    "as_of": as_of,
                    "budget": {"total": self._budget.total, "layers": self._budget.as_layers()},
                    "include": (*_INCLUDED, "citations") if is_citing else _INCLUDED,
                    "payload": dict(payload),
                    "session": session_context,
                    **inline,
                }
            )
            return self._answer(request, payload, artifact_store)
        except Rejected as error:
            self._record(rejection_usage(error, key=key, timestamp=datetime.now(UTC), request=request))
            raise

    def _answer(
        self,
        request: AssemblyRequest,
        payload: Mapping[str, Any],
        artifact_store: object | None,
    ) -> ContextAssembly:
        call = self._loop.submit(self._assembled(request, payload, artifact_store))
        try:
            assembled = call.result()
        except Rejected:
            raise
        except Exception as error:  # noqa: BLE001 - the prompt is worth more than its context
            log.error("library.assembly_failed", error=type(error).__name__)  # noqa: TRY400 - may quote it
            return self._raw(request, payload)
        finally:
            call.cancel()  # of no effect on one that has ended: the wait was interrupted
        self._record(assembled.usage)
        return assembly_of(assembled)

    async def _assembled(
        self,
        request: AssemblyRequest,
        payload: Mapping[str, Any],
        artifact_store: object | None,
    ) -> Assembled:
        if self._preload is not None:
            await self._preload()
        providers = self._providers(artifact_store)
        if self._injector is not None:
            graph = InjectedGraphProvider(self._injector, payload, threads=self._threads)
            providers = [provider for provider in providers if provider.layer != "graph"] + [graph]
        assembler = Assembler(
            providers=providers,
            preparation=self._preparation,
            policy=self._policy,
            telemetry=self._telemetry,
            abandonment=self._abandonment,
            now=lambda: datetime.now(UTC),
            failpoints=Failpoints(),
            proposals=self._proposals,
        )
        return await assembler.assemble(request, as_of=request.as_of or datetime.now(UTC))

    def _providers(self, artifact_store: object | None) -> list[Provider]:
        """Kept from call to call, and with them what they keep, until another store is named."""
        if self._kept is None or self._kept[0] is not artifact_store:
            self._kept = (artifact_store, list(self._providers_for(artifact_store)))
        return self._kept[1]

    def _record(self, usage: UsageEvent) -> None:
        try:
            write_usage_record(usage, path=self._usage_log, env=os.environ)
        except Exception as error:  # noqa: BLE001 - telemetry never costs an assembly
            log.warning("usage.not_written", error=str(error))

    def _raw(self, request: AssemblyRequest, payload: Mapping[str, Any]) -> ContextAssembly:
        """Without the pipeline: system prompt, injected graph context, task context, message."""
        texts: dict[PartName, str] = {
            "graph": self._injected(payload, request.subject),
            "task": _task_text(request.payload.task_context),
        }
        texts = {layer: well_formed(text) for layer, text in texts.items()}
        if request.project_id not in self._policy.unmasked_projects:
            texts = {layer: mask_secrets(text)[0] for layer, text in texts.items()}
        assembly = raw_assembly(
            texts,
            system=request.system_prompt,
            user=request.user_message,
            budget=self._budget,
            counter=self._counter,
        )
        now = datetime.now(UTC)
        self._record(raw_usage(assembly, request, budget=self._budget, model=_MODEL, timestamp=now))
        return assembly

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


def _read_request(fields: Mapping[str, Any]) -> AssemblyRequest:
    """Raises InvalidRequest, UnknownLayer, and InvalidEncoding where a text can be no part of a prompt."""
    try:
        request = AssemblyRequest.model_validate(fields)
    except ValidationError as error:
        raise validation_refusal(error) from None
    check_request(request)
    for text in (request.system_prompt, request.user_message):
        if well_formed(text) != text:
            raise InvalidEncoding("a string holds a lone surrogate")
        if "\0" in text:
            raise InvalidEncoding("a string holds NUL")
    return request


def _task_text(task_context: object) -> str:
    """The task context as it is, or as JSON where it is no text; what is neither is left out."""
    if isinstance(task_context, str):
        return task_context
    try:
        return "" if task_context is None else json.dumps(task_context, ensure_ascii=False)
    except (TypeError, ValueError, RecursionError) as error:
        log.warning("library.task_left_out", error=type(error).__name__)
        return ""


def _context_in(payload: Mapping[str, Any]) -> str:
    return str(payload.get("graph_context") or "").strip()


async def _close_nothing() -> None:
    """Where no sources were opened, none are left to close."""
