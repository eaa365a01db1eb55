"""Composition by hand, the graph's part: store, caches, relevance rules and the reader above them."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Final

from schemas.wire import canonical_json, sha256_hex
from worker.deciding import code_version
from worker.errors import StoreUnavailable
from worker.graph.question import GraphPolicy
from worker.graph.store import GraphStore
from worker.ports import PackCache
from worker.providers.graph_reader import GraphReader
from worker.providers.indexed_modules import ModuleIndex
from worker.providers.snapshots import Snapshots
from worker.providers.states import ThreadStates
from worker.providers.threads import SourceThreads
from worker.settings import Content, Settings, read_secret
from worker.stores.memory_packs import MemoryPackCache
from worker.stores.swipl import SwiPrologRelevance
from worker.telemetry import Telemetry
from worker.wiring_graph_store import NO_PROJECT
from worker.wiring_graph_store import build_graph_store as build_graph_store  # noqa: PLC0414 - the commands take it from here
from worker.wiring_graph_store import build_neo4j_link as build_neo4j_link  # noqa: PLC0414 - as above

# Beside what is content: what sources read at most, and how far back.
_SHAPING: Final[Mapping[str, set[str]]] = {
    "content": set(Content.model_fields) - {"roots"},
    "graph": {"ranking", "relevance", "max_snapshot_bytes"},
    "limits": {"max_source_bytes"},
    "state": {"failure_days"},
}


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphSource:
    """All that reads and keeps graphs. Nothing is opened before it is needed; close it at the end."""

    store: GraphStore
    snapshots: Snapshots
    cache: PackCache
    reader: GraphReader
    relevance: SwiPrologRelevance

    async def warm(self) -> None:
        """Ask what every request asks, once: the first one is not to pay for connections and plans."""
        with suppress(StoreUnavailable):
            await self.store.head(NO_PROJECT)

    async def aclose(self) -> None:
        """Stop what is under way and release connections; idempotent."""
        await self.reader.close()
        await self.snapshots.close()
        await self.relevance.close()
        await self.cache.close()
        await self.store.close()


def build_graph(settings: Settings, telemetry: Telemetry, states: ThreadStates | None = None) -> GraphSource:
    """The graph's part of one worker; `states` say what fails in a thread.

    Raises ValueError for a secret file that cannot be read.
    """
    graph = settings.graph
    threads = SourceThreads()
    store, cache = build_graph_store(settings), build_pack_cache(settings)
    snapshots = Snapshots(store, threads, max_bytes=graph.max_snapshot_bytes)
    relevance = build_relevance(settings)
    reader = GraphReader(
        snapshots,
        cache=cache,
        relevance=relevance,
        policy=GraphPolicy(
            ranking=graph.ranking,
            relevance=graph.relevance,
            settings_digest=settings_digest(settings),
            code_version=code_version(),
            unmasked_projects=settings.content.unmasked_projects,
        ),
        threads=threads,
        telemetry=telemetry,
        modules=ModuleIndex(store),
        states=states,
        signal_keep=timedelta(days=settings.state.failure_days),
    )
    return GraphSource(store=store, snapshots=snapshots, cache=cache, reader=reader, relevance=relevance)


def build_relevance(settings: Settings) -> SwiPrologRelevance:
    """The relevance rules; nothing is started before they are asked."""
    graph = settings.graph
    return SwiPrologRelevance(executable=graph.prolog, timeout_seconds=graph.prolog_timeout_seconds)


def build_pack_cache(settings: Settings) -> PackCache:
    """The pack cache that the settings name."""
    graph, outcomes = settings.graph, settings.outcomes
    if graph.pack_cache == "redis" and outcomes.redis_address is not None:
        from worker.stores.redis_packs import RedisPackCache  # noqa: PLC0415 - only where the settings name one

        return RedisPackCache(
            outcomes.redis_address,
            password=read_secret(outcomes.redis_password, outcomes.redis_password_file),
            keep_seconds=graph.pack_keep_seconds,
            key_prefix=outcomes.key_prefix,
        )
    return MemoryPackCache(max_bytes=graph.pack_cache_bytes)


def settings_digest(settings: Settings) -> str:
    """A digest of the settings that shape content; where things lie on this host is none of them.

    A tokenizer file stands in it by what it holds. Raises ValueError where one cannot be read.
    """
    shaping = settings.model_dump(mode="json", include=_SHAPING)
    for row in shaping["content"]["models"].values():
        kind, is_file, path = row["encoding"].partition("file:")
        if is_file and not kind:
            row["encoding"] = f"file:{_digest_of(path)}"
    return sha256_hex(canonical_json(shaping))[:16]


def _digest_of(tokenizer: str) -> str:
    try:
        return sha256_hex(Path(tokenizer).read_bytes())
    except OSError as error:
        raise ValueError(f"cannot load the tokenizer file {tokenizer!r}: {error}") from error
