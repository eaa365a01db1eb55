"""Composition by hand: settings become providers and the assembler.

`worker.wiring_graph` adds the graph, `worker.wiring_kafka` says how Kafka and the outcome store are reached,
and `worker.wiring_worker` builds the whole worker. The wiring modules alone read settings; the commands get
them from here.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import AsyncExitStack, aclosing, asynccontextmanager, suppress
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path

import structlog

from schemas.codes import LAYERS, PartName
from schemas.request import REQUESTED_ENCODINGS, AssemblyRequest
from schemas.wire import format_time
from worker.assembly import Assembled, Assembler
from worker.budget.layers import ContextBudget
from worker.budget.models import ModelSpec, resolve_window
from worker.budget.tokens import counter_for
from worker.code.extracting_pool import ExtractingPool
from worker.code.sources import SourceRoots
from worker.deciding import code_version
from worker.decoding import check_request, decode_request
from worker.errors import Expired, Rejected, UnknownStrategy
from worker.explaining.parents import StoredParents
from worker.failpoints import Failpoints
from worker.fusion.plugins import StrategyPlugins, find_plugins
from worker.fusion.strategies.registry import BUILT_IN, StrategyRegistry
from worker.library import ContextInjector, UnifiedContextAssembler
from worker.planning import ContentPolicy
from worker.ports import (
    LayerBudget,
    LayerContribution,
    OutcomeStore,
    Provider,
    RequestFrame,
    Scope,
    Subject,
    TokenCounter,
)
from worker.providers.artifacts import ArtifactsProvider
from worker.providers.ast import AstProvider
from worker.providers.gather import Abandonment
from worker.providers.graph import GraphProvider
from worker.providers.graph_reader import GraphReader
from worker.providers.injection import GraphInjector
from worker.providers.memory import MemoryProvider
from worker.providers.mission import MissionProvider
from worker.providers.plan import PlanProvider
from worker.providers.proposals import PluginProposals
from worker.providers.semantic import SemanticProvider
from worker.providers.states import ThreadStates
from worker.providers.task import TaskProvider
from worker.providers.threads import MAX_THREADS, SourceThreads
from worker.settings import Settings as Settings  # noqa: PLC0414 - the commands name its type from here
from worker.telemetry import Telemetry
from worker.wiring_graph import build_graph, settings_digest
from worker.wiring_state import build_state

log = structlog.get_logger()


def content_policy(settings: Settings) -> ContentPolicy:
    """The tables that shape the bytes of a bundle."""
    content = settings.content
    return ContentPolicy(
        models={
            name: ModelSpec(
                window=row.window,
                encoding=row.encoding,
                framing_tokens=row.framing_tokens,
                safety_factor=str(row.safety_factor),
                layers=tuple([(layer, row.layers[layer]) for layer in LAYERS if layer in row.layers]),
            )
            for name, row in content.models.items()
        },
        default_model=content.default_model,
        subjects={
            name: Subject(name=name, inject=row.inject, semantic=row.semantic, task_type=row.task_type)
            for name, row in content.subjects.items()
        },
        default_strategy=content.strategy,
        strategies=strategy_registry(settings),
        unmasked_projects=content.unmasked_projects,
        settings_digest=settings_digest(settings),
        code_version=code_version(),
    )


def strategy_registry(settings: Settings) -> StrategyRegistry:
    """What requests may name. Raises ValueError where the default is none of that, or a name is taken."""
    content = settings.content
    registry = BUILT_IN
    try:
        if content.strategy_plugins:
            registry = StrategyRegistry(BUILT_IN.in_process, content.strategy_plugins)
        registry.check(content.strategy)
    except (UnknownStrategy, ValueError) as error:
        msg = f"content.strategy, content.strategy_plugins: {error}"
        raise ValueError(msg) from None
    return registry


def build_plugins(settings: Settings) -> StrategyPlugins:
    """The plug-ins that the settings name, none of them started. Raises ValueError where one is missing."""
    targets = find_plugins(settings.content.strategy_plugins)
    return StrategyPlugins(targets, timeout_seconds=settings.limits.strategy_seconds)


def build_proposals(settings: Settings) -> PluginProposals | None:
    """Who asks the plug-ins that the settings name, which are started here; None where they name none."""
    if not settings.content.strategy_plugins:
        return None
    plugins = build_plugins(settings)
    plugins.start()
    return PluginProposals(plugins)


def build_providers(
    settings: Settings,
    graph: GraphReader | None = None,
    states: ThreadStates | None = None,
    *,
    artifact_store: object | None = None,
    parsers: ExtractingPool | None = None,
) -> list[Provider]:
    """One provider a layer, in layer order. A new source adds its line here.

    Without `graph` no project has one; without `states` nothing is known but what requests bring.
    """
    roots = SourceRoots(settings.content.roots)
    # Threads of its own for each, so that what hangs in one source holds up no other. Never fewer than the
    # cap on calls left behind: with fewer, a source would time out for ever where it should not be called.
    threads = partial(SourceThreads, max_threads=max(MAX_THREADS, settings.limits.abandoned_cap))
    return [
        MissionProvider(states, threads=threads()),
        PlanProvider(states, threads=threads()),
        MemoryProvider(states, summary_tokens=settings.content.summary_tokens, threads=threads()),
        ArtifactsProvider(
            states,
            store_of=None if artifact_store is None else lambda _scope: artifact_store,
            threads=threads(),
        ),
        GraphProvider(graph, threads=threads()),
        AstProvider(
            roots,
            index=graph.modules if graph is not None else None,
            graph=graph,
            max_source_bytes=settings.limits.max_source_bytes,
            threads=threads(),
            pool=parsers,
        ),
        SemanticProvider(graph),
        TaskProvider(
            graph, states, signal_keep=timedelta(days=settings.state.failure_days), threads=threads()
        ),
    ]


class DrilledProvider:
    """A provider with a failpoint in front; only there while a drill is set."""

    def __init__(self, inner: Provider, failpoints: Failpoints) -> None:
        """Reach `provider.<layer>` before asking `inner`."""
        self.layer: PartName = inner.layer
        self._inner = inner
        self._failpoints = failpoints

    async def provide(self, frame: RequestFrame, scope: Scope, budget: LayerBudget) -> LayerContribution:
        """What `inner` gives, unless the drill says otherwise."""
        await self._failpoints.reach(f"provider.{self.layer}", frame.request.user_message)
        return await self._inner.provide(frame, scope, budget)


def build_assembler(
    settings: Settings,
    telemetry: Telemetry,
    graph: GraphReader | None = None,
    states: ThreadStates | None = None,
    *,
    failpoints: Failpoints | None = None,
    parsers: ExtractingPool | None = None,
    outcomes: OutcomeStore | None = None,
) -> Assembler:
    """The assembler of one worker, with the worker's armed failpoints, else those that the settings arm.

    Requests may start from what `outcomes` hold of others.
    """
    failpoints = failpoints or Failpoints(settings.failpoints)
    providers = build_providers(settings, graph, states, parsers=parsers)
    if settings.failpoints:
        providers = [*map(partial(DrilledProvider, failpoints=failpoints), providers)]
    policy = content_policy(settings)
    return Assembler(
        providers=providers,
        preparation=states,
        policy=policy,
        telemetry=telemetry,
        abandonment=Abandonment(cap=settings.limits.abandoned_cap),
        now=utc_now,
        failpoints=failpoints,
        proposals=build_proposals(settings),
        parents=None if outcomes is None else StoredParents(outcomes, policy),
    )


def build_library(
    settings: Settings | None = None,
    *,
    injector: ContextInjector | None = None,
    budget: ContextBudget | None = None,
    token_counter: TokenCounter | None = None,
    project_id: str = "local",
    usage_log: Path | None = None,
) -> UnifiedContextAssembler:
    """The classic in-process interface, with this project's providers and what the stores know of it.

    The stores are opened by the first call that needs them, and closed with the assembler.
    """
    chosen, telemetry = settings or Settings(), Telemetry()
    state = build_state(chosen, telemetry)
    graph = build_graph(chosen, telemetry, state.states)
    proposals = build_proposals(chosen)

    async def close() -> None:
        async with AsyncExitStack() as stack:
            stack.push_async_callback(state.aclose)
            stack.push_async_callback(graph.aclose)
            if proposals is not None:
                await asyncio.to_thread(proposals.close)

    return UnifiedContextAssembler(
        providers_for=lambda store: build_providers(chosen, graph.reader, state.states, artifact_store=store),
        preload=lambda: graph.snapshots.preload([project_id]),
        preparation=state.states,
        on_close=close,
        policy=content_policy(chosen),
        proposals=proposals,
        injector=injector,
        budget=budget,
        token_counter=token_counter,
        project_id=project_id,
        usage_log=usage_log,
        telemetry=telemetry,
        abandoned_cap=chosen.limits.abandoned_cap,
    )


@asynccontextmanager
async def open_injector(settings: Settings | None = None) -> AsyncGenerator[GraphInjector]:
    """Graph context for whoever runs agents without the assembler, from the stores that the settings name.

    What each injection cost and held is logged.
    """
    chosen = settings or Settings()
    telemetry, policy = Telemetry(), content_policy(chosen)
    model = policy.models[policy.default_model]
    async with (
        aclosing(build_state(chosen, telemetry)) as state,
        aclosing(build_graph(chosen, telemetry, state.states)) as graph,
    ):
        yield GraphInjector(
            graph.reader,
            subjects=policy.subjects,
            counter=counter_for(model.encoding, safety_factor=model.safety_factor),
            on_injected=lambda record: log.info("graph.injected", **asdict(record)),
        )


async def assemble_once(
    settings: Settings, body: bytes, *, as_of: datetime | None, say: Callable[[str], None]
) -> Assembled:
    """One request without a broker: what the worker would publish and keep for the same `as_of`.

    `as_of`, else the wall clock, also says whether the request has expired. Raises Rejected.
    """
    limits = settings.limits
    decoded = decode_request(body, max_bytes=limits.max_request_bytes, max_depth=limits.max_depth)
    expires_at = decoded.request.expires_at
    if expires_at is not None and expires_at <= (as_of or utc_now()):
        raise Expired("the request was met after its `expires_at`")
    check_request(decoded.request)
    instant = decoded.request.as_of or as_of
    chosen = instant or utc_now()
    telemetry = Telemetry()
    # Not on the request's time: reading a vocabulary can take longer than its deadline.
    await asyncio.to_thread(_load_counter, decoded.request, content_policy(settings))
    async with (
        aclosing(build_state(settings, telemetry)) as state,
        aclosing(build_graph(settings, telemetry, state.states)) as graph,
    ):
        # Not on the request's time either: a large graph takes longer to load than its layer may.
        await graph.snapshots.preload([decoded.request.project_id])
        assembler = build_assembler(settings, telemetry, graph.reader, state.states)
        assembled = await assembler.assemble(
            decoded.request, as_of=chosen, notes=decoded.notes, meaning=decoded.meaning
        )
    if instant is None:
        say(f"as of {format_time(chosen)}; give --as-of to get the same bytes again")
    return assembled


def _load_counter(request: AssemblyRequest, policy: ContentPolicy) -> None:
    """Read the tokenizer of this request's model; each takes as long as the rest of a start does.

    Raises ValueError for one that cannot be read. A model that is not known is refused in its turn.
    """
    with suppress(Rejected):
        window = resolve_window(request, models=policy.models, default_model=policy.default_model)
        counter_for(window.encoding, safety_factor=window.safety_factor)


def load_counters(settings: Settings) -> None:
    """Read every tokenizer that a request may name. Raises ValueError for one that cannot be read."""
    for encoding in REQUESTED_ENCODINGS:
        counter_for(encoding, safety_factor="1")
    for row in settings.content.models.values():
        counter_for(row.encoding, safety_factor=str(row.safety_factor))


def utc_now() -> datetime:
    """The wall clock."""
    return datetime.now(UTC)
