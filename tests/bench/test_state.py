"""State: how fast one bundle's is read, and how fast one worker takes events in.

Targets: what one bundle reads in 5 ms against a live Redis, 1,000 events/s applied by one worker. Nothing is
asserted on time: the table says `over` or `under` where a target is missed. Each figure is the median of
several runs, since the machine is shared. Beside those of Neo4j stands what a bare question to it costs at
the time: on a busy machine only the ratio says something.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from time import perf_counter, process_time

import pytest

from tests.support.state_bundles import STORY, tell
from tests.support.state_events import record
from worker.ports import Scope
from worker.providers.states import ThreadStates
from worker.providers.threads import SourceThreads
from worker.state.records import StateRecord
from worker.state.store import Applied, StateStore
from worker.state.writing import StateWriter
from worker.stores.neo4j_link import Neo4jLink
from worker.stores.neo4j_state import Neo4jStateStore
from worker.stores.redis_state import HotStateStore
from worker.stores.sqlite_state import SqliteStateStore

pytestmark = [pytest.mark.bench, pytest.mark.timeout(300)]

READ_TARGET_MS = 5.0
WRITE_TARGET_PER_SECOND = 1_000
READS = 100
EVENTS = 2_000
ROUNDS = 3
AT_ONCE = 256
"""Records that the dispatcher has in work at most are 64 a topic; here a backlog is met."""


def table(capsys: pytest.CaptureFixture[str], *lines: str) -> None:
    with capsys.disabled():
        print("\n" + "\n".join(lines))  # noqa: T201  # the table is what this is for


Ask = Callable[[], Awaitable[object]]
Product = tuple[str, Callable[[], StateStore], Ask | None]


@pytest.fixture(params=["sqlite", pytest.param("neo4j", marks=pytest.mark.services)])
async def product(request: pytest.FixtureRequest, tmp_path: Path, namespace: str) -> AsyncGenerator[Product]:
    """Its name, what opens a store, and what asks the server a bare question, where there is one."""
    if request.param == "sqlite":
        yield request.param, lambda: SqliteStateStore(tmp_path / "state.db"), None
        return
    user, password = request.getfixturevalue("neo4j_auth")

    def link() -> Neo4jLink:
        return Neo4jLink(request.getfixturevalue("neo4j_url"), user=user, password=password)

    def opened() -> StateStore:
        return Neo4jStateStore(link(), timeout_seconds=20)

    bare = link()
    yield request.param, opened, lambda: bare.ask("RETURN 1", {}, timeout_seconds=20)
    await bare.close()
    async with aclosing(Closing(opened())) as last:
        for project_id in await last.store.projects():
            if project_id.startswith(namespace):
                await last.store.purge(project_id)


@dataclass(frozen=True)
class Closing:
    store: StateStore

    async def aclose(self) -> None:
        await self.store.close()


# --- Reading -----------------------------------------------------------------------------------------


SCOPE_THREADS = ("t1", "")


async def median_ms(work: Ask) -> float:
    spent: list[float] = []
    for _ in range(READS):
        started = perf_counter()
        await work()
        spent.append((perf_counter() - started) * 1_000)
    return median(spent)


async def store_ms(store: StateStore, project_id: str) -> float:
    """What one bundle waits for the stores alone, all that it can ask for."""

    async def ask() -> None:
        heads = await store.heads(project_id, SCOPE_THREADS)
        await store.groups(project_id, heads.versions)

    return await median_ms(ask)


async def reading_ms(store: StateStore, project_id: str, *, is_known: bool) -> float:
    """That, and what is made of it: indexes, goals, plans; `is_known` by a worker that has it already."""
    states = ThreadStates(store, SourceThreads(), max_bytes=10_000_000)
    scope = Scope(project_id=project_id, thread_id="t1")

    async def read() -> None:
        if not is_known:
            states.forget(project_id)
        await states.read(scope)

    await read()
    spent = await median_ms(read)
    await states.close()
    return spent


async def test_the_state_of_one_bundle_is_read(
    product: Product,
    redis_url: str,
    namespace: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    name, opened, bare = product
    counts: Counter[str] = Counter()

    def count(result: str, many: int) -> None:
        counts[result] += many

    store = opened()
    hot = HotStateStore(store, redis_url, keep_seconds=60, key_prefix=namespace, on_result=count)
    facts = [
        record(f"x{n:04}", "memory", {"id": f"x{n}", "text": f"Fact {n} of many."}, at=100 + n)
        for n in range(500)
    ]
    await tell(store, namespace, [*STORY, *facts])
    figures = {
        f"{name} alone, the store's answers": await store_ms(store, namespace),
        f"{name} and live Redis, the stores' answers": await store_ms(hot, namespace),
    }
    made = {
        f"{name}, all made of it by a new worker": await reading_ms(hot, namespace, is_known=False),
        f"{name}, a worker for which nothing moved": await reading_ms(hot, namespace, is_known=True),
    }
    if bare is not None:
        made[f"{name}, a bare question"] = await median_ms(bare)
    await hot.close()
    # Else the last line says nothing of Redis.
    assert counts["hit"] > READS
    lines = [
        f"{what:<46} {spent:8.2f} ms {'over' if what in figures and spent > READ_TARGET_MS else ''}"
        for what, spent in (figures | made).items()
    ]
    table(capsys, f"state of one bundle, median of {READS}, 12 messages and 512 memories", *lines)


# --- Writing -----------------------------------------------------------------------------------------


def mixed(count: int) -> list[StateRecord]:
    """As a run of stages publishes: mostly messages and calls, some facts and steps, of eight threads."""

    def one(n: int) -> StateRecord:
        kinds: list[tuple[str, dict[str, object]]] = [
            ("message", {"role": "user", "content": f"We tried number {n}. It failed in the parser."}),
            ("tool_call", {"tool": "edit", "files": [f"src/{n % 40}.py"]}),
            ("gateway_event", {"name": "POST /pay", "status": "ok"}),
            ("memory", {"id": f"m{n % 200}", "text": f"Fact {n}."}),
            ("test_result", {"test_id": f"t{n % 50}", "status": "passed"}),
        ]
        kind, body = kinds[n % len(kinds)]
        return record(f"e{n:06}", kind, body, at=n, thread=f"t{n // 5 % 8}")

    return [one(n) for n in range(count)]


async def applied_per_second(
    store: StateStore, project_id: str, events: list[StateRecord], seen: Callable[[str, Applied], None]
) -> tuple[float, float]:
    """Events a second of the clock, and microseconds of this process's time for each."""
    writer = StateWriter(store, on_applied=seen)
    may_start = asyncio.Semaphore(AT_ONCE)

    async def apply(event: StateRecord) -> None:
        async with may_start:
            await writer.apply(project_id, event)

    started, spent = perf_counter(), process_time()
    await asyncio.gather(*map(apply, events))
    seconds, spent = perf_counter() - started, process_time() - spent
    return len(events) / seconds, spent / len(events) * 1_000_000


async def test_events_are_applied(
    product: Product, namespace: str, capsys: pytest.CaptureFixture[str]
) -> None:
    name, opened, bare = product
    store = opened()
    events = mixed(EVENTS)
    groups: list[int] = []
    # Connections, schema and plans are made once.
    await store.apply(f"{namespace}-warm", events[:50])
    runs = [
        await applied_per_second(
            store, f"{namespace}-{number}", events, lambda _, applied: groups.append(applied.new)
        )
        for number in range(ROUNDS)
    ]
    beside = "" if bare is None else f"; a bare question takes {await median_ms(bare):.1f} ms"
    await store.close()
    assert sum(groups) == ROUNDS * EVENTS
    rate, spent_us = median(rate for rate, _ in runs), median(spent for _, spent in runs)
    verdict = "under" if rate < WRITE_TARGET_PER_SECOND else ""
    table(
        capsys,
        f"{name}: {rate:,.0f} events/s {verdict} (median of {ROUNDS} runs of {EVENTS}, groups of"
        f" {median(groups):.0f}), {spent_us:,.0f} us of processor time an event{beside}",
    )
