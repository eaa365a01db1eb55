"""What is known of the threads of projects, read once a request and kept while its versions stand.

All layers of one request share one reading, so that they tell one story. What was read and built is kept by
the version of its place: a request whose thread has not moved costs one question to the store.
"""

from __future__ import annotations

import asyncio
import threading
import weakref
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from typing import Any, Final, Generic, TypeVar

import structlog

from schemas.codes import PartName
from schemas.request import layer_timeout_ms
from schemas.session import Artifact, MemoryItem, SessionContext
from worker.errors import StateBehind, StateUnavailable, StoreUnavailable
from worker.fusion.tiers import ContextTierService
from worker.memory.index import MemoryIndex
from worker.memory.recall import Recall, recall_from
from worker.memory.summary import Summary, summary_of
from worker.memory.thread_state import ThreadState
from worker.ports import RequestFrame, Scope, StorageTier, TokenCounter
from worker.providers.eager import EagerStarter
from worker.providers.kept import Kept
from worker.providers.threads import SourceThreads
from worker.state.records import WHOLE_PROJECT, Group, instant_of
from worker.state.store import Place, StateStore
from worker.state.view import (
    Entity,
    StoredPlan,
    artifacts_of,
    decode_group,
    memories_of,
    plan_of,
    session_of,
    uses_of,
)

T = TypeVar("T")

log = structlog.get_logger()

SIGNAL_KEEP: Final = timedelta(days=7)
"""How long a failure is news."""

POLL_SECONDS: Final = 0.02
"""How often events that another process takes in are looked for; those of this one are told at once."""

_WAIT_SHARE: Final = 0.8
"""Of a layer's timeout, what is spent on waiting for events that the request wants to see."""

_MOMENT_SHARE: Final = 0.05
_MOMENT_SECONDS: Final = 0.1
"""How long all sources wait for it together, of the request's deadline and at most: mostly that is enough,
and costs none of them a task. In a burst the answer is there long before the loop comes to look at it."""

_WAITING_FAILURES: Final = 3
"""In a row, that the wait for events gets over."""

_HEAVY_BYTES: Final = 65_536


class FactIndex:
    """Makes the facts of one thread ready to be searched, and follows them from version to version."""

    def __init__(self) -> None:
        """Nothing is remembered yet."""
        self._index = MemoryIndex()
        self._items: Mapping[str, MemoryItem] = {}
        self._lock = threading.Lock()

    @contextmanager
    def holding(self, items: Mapping[str, MemoryItem]) -> Generator[MemoryIndex]:
        """The index with these facts, by id, and no others; nobody else has it meanwhile.

        O(facts), and the length of those that changed; nothing where it holds them already.
        """
        with self._lock:
            if items is not self._items:
                self._follow(items)
            yield self._index

    def _follow(self, items: Mapping[str, MemoryItem]) -> None:
        for item_id in self._items.keys() - items.keys():
            self._index.remove(item_id)
        for item_id, item in items.items():
            if self._items.get(item_id) != item:
                self._index.add(item)
        self._items = items


class Memories:
    """The facts of one thread at one version, whatever versions others look at meanwhile."""

    def __init__(self, items: Iterable[MemoryItem] = (), index: FactIndex | None = None) -> None:
        """These facts; `index` may be shared with other versions of the same thread."""
        self._items = {item.id: item for item in items}
        self.index = index or FactIndex()
        with self.index.holding(self._items) as held:
            self.count = len(held)

    def recall(self, query: str, *, budget_tokens: int, counter: TokenCounter) -> Recall:
        """As `worker.memory.recall.recall_from`."""
        with self.index.holding(self._items) as held:
            return recall_from(held, query, budget_tokens=budget_tokens, counter=counter)

    def current(self) -> list[MemoryItem]:
        """The facts that hold, by id."""
        with self.index.holding(self._items) as held:
            return held.current()


@dataclass(frozen=True, slots=True, kw_only=True)
class StateReading:
    """What one request sees; the same for all of its layers."""

    session: SessionContext | None
    plans: tuple[Sequence[Entity], Sequence[Entity]]
    """Of the thread, and of the project as a whole."""
    memories: Memories
    thread: ThreadState | None
    """Of the messages, those of the whole project among them; None where there are none."""
    artifacts: tuple[Artifact, ...]
    events: tuple[Sequence[Entity], Sequence[Entity]]
    """Test results and what happened at run time, of the thread and of the project."""
    used: tuple[Mapping[str, int], ...] = ()
    """When facts, messages and what happened at run time last referred to a thing, by its id, in
    microseconds."""
    tiers: ContextTierService = ContextTierService()  # noqa: RUF009 - holds settings alone, and never changes

    def storage_tier(self, item_id: str, occurred_at: datetime | None, *, as_of: datetime) -> StorageTier:
        """The tier of a stored thing, by when it was told and when events referred to it."""
        used_at = [instant_of(used[item_id]) for used in self.used if item_id in used]
        return self.tiers.tier(told_at=occurred_at, used_at=used_at, as_of=as_of)

    def summary_tier(self, *, as_of: datetime) -> StorageTier:
        """The tier of the thread's messages together, by the last of them."""
        told_at = None if self.thread is None else self.thread.last_told_at
        return self.tiers.tier(told_at=told_at, as_of=as_of)

    @property
    def is_anything_known(self) -> bool:
        """Whether events told anything of the thread, or of its project as a whole."""
        told = self.session, self.thread, self.artifacts, self.memories.current()
        return any(told) or any(self.plans) or any(self.events)

    def plan(self, plan_id: str | None) -> StoredPlan | None:
        """The named plan, else the current one."""
        return plan_of(*self.plans, plan_id)

    def summary(self, *, max_tokens: int, counter: TokenCounter) -> Summary | None:
        """The thread's messages in so many tokens."""
        return (
            None if self.thread is None else summary_of(self.thread, max_tokens=max_tokens, counter=counter)
        )


class ThreadStates:
    """Reads, keeps and gives out what is known; one per worker."""

    def __init__(
        self,
        store: StateStore,
        threads: SourceThreads,
        *,
        max_bytes: int,
        tiers: ContextTierService | None = None,
    ) -> None:
        """Read from `store`; keep what takes about `max_bytes` there, the thread used last always.

        `tiers` says how long what is known stays hot and warm.
        """
        self._store = store
        self._threads = threads
        self._tiers = tiers or ContextTierService()
        self._kept = Kept[_Key, _Held[Any]](max_bytes)
        self._readings: dict[int, asyncio.Future[StateReading]] = {}
        self._waiting: dict[str, set[asyncio.Event]] = {}

    async def prepare(self, frame: RequestFrame, scope: Scope) -> None:
        """As `worker.ports.Preparation`: begin to read, unless the request brings everything itself."""
        request = frame.request
        fails = request.working.failing_tests if request.working is not None else ()
        brought = (request.session, request.plan, request.memory, request.artifacts or None, fails or None)
        if None in brought:
            moment_seconds = min(_MOMENT_SECONDS, _MOMENT_SHARE * request.deadline_ms / 1_000)
            event_ids = request.after.event_ids if request.after is not None else ()
            try:
                reading = (
                    self._reading(frame, scope, event_ids)
                    if event_ids
                    else await self._begin(frame, scope, moment_seconds=moment_seconds)
                )
            except TimeoutError:
                # The moment is over; whoever has something to wait for waits for this.
                self._reading(frame, scope, ())
                return
            if not reading.done():
                await asyncio.wait({reading}, timeout=moment_seconds)

    async def _begin(
        self, frame: RequestFrame, scope: Scope, *, moment_seconds: float
    ) -> asyncio.Future[StateReading]:
        """Ask here how far the state is, which is all where nothing is known or nothing has moved.

        A task for that, and the wait for it, would cost more than the answer. Raises TimeoutError where it
        does not come within the moment; nothing is kept then.
        """
        loop = asyncio.get_running_loop()
        reading: asyncio.Future[StateReading] = loop.create_future()
        patience = asyncio.timeout(None)

        def look() -> None:
            # A turn later once more: one that took long may have the answer, which then waits behind this.
            patience.reschedule(loop.time())

        def start_clock() -> None:
            nonlocal timer
            timer = loop.call_later(moment_seconds, look)

        # The clock starts when the requests of this turn have asked, which together they do at once.
        timer = loop.call_soon(start_clock)
        try:
            async with patience:
                versions = await self._versions(scope, ())
            begun = EagerStarter[StateReading]().start(self._read_at(scope, versions))
        except TimeoutError:
            raise
        except Exception as error:  # noqa: BLE001  # not swallowed: every source that asks raises it
            reading.set_exception(error)
        else:
            if isinstance(begun, asyncio.Task):
                reading = begun
            else:
                reading.set_result(begun)
        finally:
            timer.cancel()
        return self._keep(frame, reading)

    async def of(self, frame: RequestFrame, scope: Scope, *, layer: PartName) -> StateReading:
        """What the request sees, with all the events that it wants to see; the same for all of its layers.

        Raises StateUnavailable, and StateBehind where the events do not come within most of the layer's time.
        """
        after = frame.request.after
        event_ids = after.event_ids if after is not None else ()
        reading = self._reading(frame, scope, event_ids)
        if reading.done():
            return reading.result()
        if not event_ids:
            return await asyncio.shield(reading)
        seconds = _WAIT_SHARE * layer_timeout_ms(frame.request, layer) / 1_000
        try:
            async with asyncio.timeout(seconds):
                return await asyncio.shield(reading)
        except TimeoutError:
            raise StateBehind(len(event_ids)) from None

    async def read(self, scope: Scope) -> StateReading:
        """What is known of the thread now. Raises StateUnavailable."""
        return await self._read(scope, ())

    def changed(self, project_id: str) -> None:
        """Events of the project were applied by this process: whoever waits for them looks again."""
        for event in self._waiting.get(project_id, ()):
            event.set()

    def forget(self, project_id: str) -> None:
        """Let go of what is kept of the project."""
        self._kept.forget(lambda key: key[0] == project_id)

    async def close(self) -> None:
        """Stop reading."""
        for reading in self._readings.values():
            reading.cancel()
        if self._readings:
            await asyncio.wait(self._readings.values())

    def _reading(
        self, frame: RequestFrame, scope: Scope, event_ids: Sequence[str]
    ) -> asyncio.Future[StateReading]:
        return self._readings.get(id(frame)) or self._keep(
            frame, asyncio.create_task(self._read(scope, event_ids), name="read state")
        )

    def _keep(
        self, frame: RequestFrame, reading: asyncio.Future[StateReading]
    ) -> asyncio.Future[StateReading]:
        # Whoever waited has raised its error; nobody may have.
        if reading.done():
            reading.exception()
        else:
            reading.add_done_callback(lambda done: done.cancelled() or done.exception())
        self._readings[id(frame)] = reading
        weakref.finalize(frame, self._drop, id(frame))
        return reading

    def _drop(self, key: int) -> None:
        reading = self._readings.pop(key, None)
        if reading is not None:
            # Nobody reads on for a request that is over.
            reading.cancel()

    async def _read(self, scope: Scope, event_ids: Sequence[str]) -> StateReading:
        return await self._read_at(scope, await self._versions(scope, event_ids))

    async def _read_at(self, scope: Scope, versions: Mapping[Place, int]) -> StateReading:
        """What is known at these versions; waits for nothing where all of it is kept."""
        if not versions:
            return _NOTHING_KNOWN
        project_id, thread_id = scope.project_id, scope.thread_id or WHOLE_PROJECT
        threads = _threads_of(scope)
        try:
            held = await self._places(project_id, versions)
        except StoreUnavailable as error:
            raise StateUnavailable(str(error)) from error

        if not held:
            return _NOTHING_KNOWN

        async def built(group: Group, build: Callable[[Sequence[Entity], Sequence[Entity]], T]) -> T:
            places = [held.get(Place(thread, group), _NOTHING) for thread in threads]
            return await self._built((project_id, thread_id, group), places, build)

        memories, used_by_facts = await built("memory", partial(self._memories, project_id, thread_id))
        thread, used_by_messages = await built("messages", _messages_of)
        events, used_by_events = await built("signals", _events_of)
        return StateReading(
            session=await built("session", session_of),
            plans=await built("plan", lambda thread, project: (thread, project)),
            memories=memories,
            thread=thread,
            artifacts=await built("artifacts", artifacts_of),
            events=events,
            used=(used_by_facts, used_by_messages, used_by_events),
            tiers=self._tiers,
        )

    async def _versions(self, scope: Scope, event_ids: Sequence[str]) -> Mapping[Place, int]:
        """How far the state is, once it holds the events. Raises StateUnavailable."""
        project_id, threads = scope.project_id, _threads_of(scope)
        try:
            if not event_ids:
                return (await self._store.heads(project_id, threads)).versions
            return await self._versions_with(project_id, threads, event_ids)
        except StoreUnavailable as error:
            raise StateUnavailable(str(error)) from error

    async def _versions_with(
        self, project_id: str, threads: Sequence[str], event_ids: Sequence[str]
    ) -> Mapping[Place, int]:
        changed = asyncio.Event()
        self._waiting.setdefault(project_id, set()).add(changed)
        patience = _WAITING_FAILURES
        try:
            while True:
                # Before the store is asked: a change in between must not be slept through.
                changed.clear()
                try:
                    heads = await self._store.heads(project_id, threads, event_ids=event_ids)
                    if not heads.missing:
                        return heads.versions
                    patience = _WAITING_FAILURES
                except StoreUnavailable:
                    # Who waits anyway is not put off by one slow answer of many.
                    patience -= 1
                    if patience < 0:
                        raise
                with suppress(TimeoutError):
                    await asyncio.wait_for(changed.wait(), POLL_SECONDS)
        finally:
            waiting = self._waiting.get(project_id, set())
            waiting.discard(changed)
            if not waiting:
                self._waiting.pop(project_id, None)

    async def _places(self, project_id: str, versions: Mapping[Place, int]) -> dict[Place, _Held[Entities]]:
        held: dict[Place, _Held[Entities]] = {}
        for place, version in versions.items():
            kept = self._kept.get((project_id, *place))
            if kept is not None and kept.versions == (version,):
                held[place] = kept
        stale = {place: version for place, version in versions.items() if place not in held}
        if stale:
            for place, group in (await self._store.groups(project_id, stale)).items():
                entities = await self._run(len(group.data), partial(decode_group, group.data))
                held[place] = _Held((group.version,), entities, len(group.data))
                self._kept.put((project_id, *place), held[place], size_bytes=len(group.data))
        return held

    async def _built(
        self,
        key: _Key,
        places: Sequence[_Held[Entities]],
        build: Callable[[Sequence[Entity], Sequence[Entity]], T],
    ) -> T:
        """What `build` makes of a thread's entities and its project's; kept until one of them moves."""
        versions = tuple(place.versions[0] for place in places)
        key = (*key, "built")
        kept = self._kept.get(key)
        if kept is not None and kept.versions == versions:
            return kept.value
        size = sum(place.size for place in places)
        thread, project = (places[0].value, places[-1].value if len(places) > 1 else ())
        value = await self._run(size, partial(build, thread, project))
        if size:
            self._kept.put(key, _Held(versions, value, size), size_bytes=size)
        return value

    def _memories(
        self, project_id: str, thread_id: str, thread: Sequence[Entity], project: Sequence[Entity]
    ) -> tuple[Memories, Mapping[str, int]]:
        before = self._kept.get((project_id, thread_id, "memory", "built"))
        index = None if before is None else before.value[0].index
        return Memories(memories_of(thread, project), index), uses_of((*project, *thread))

    async def _run(self, size_bytes: int, work: Callable[[], T]) -> T:
        return await self._threads.compute(work) if size_bytes > _HEAVY_BYTES else work()


Entities = Sequence[Entity]
_Key = tuple[str, ...]
"""Project, thread, group; and `built` for what was made of it."""


@dataclass(frozen=True, slots=True)
class _Held(Generic[T]):
    """A value, the versions of what it was made from, and how much that was."""

    versions: tuple[int, ...]
    value: T
    size: int


def _threads_of(scope: Scope) -> list[str]:
    """Where what the request sees was told: in its thread, and in its project as a whole."""
    return [WHOLE_PROJECT] if not scope.thread_id else [scope.thread_id, WHOLE_PROJECT]


_NOTHING_KNOWN: Final = StateReading(
    session=None, plans=((), ()), memories=Memories(), thread=None, artifacts=(), events=((), ())
)
_NOTHING: Final[_Held[Entities]] = _Held((0,), (), 0)


def _events_of(
    thread: Sequence[Entity], project: Sequence[Entity]
) -> tuple[tuple[Sequence[Entity], Sequence[Entity]], Mapping[str, int]]:
    return (thread, project), uses_of((*project, *thread))


def _messages_of(
    thread: Sequence[Entity], project: Sequence[Entity]
) -> tuple[ThreadState | None, Mapping[str, int]]:
    """What a summary is made from, and what the messages refer to: the thread's and the whole project's."""
    known: ThreadState | None = None
    for entity in (*thread, *project):
        try:
            told = ThreadState.from_bytes(entity.document["thread"].encode())
        except ValueError as error:
            # Written by another version of this program; the next message has it made anew.
            log.warning("state.summary_outdated", cause=str(error))
            continue
        if known is None:
            known = told
        else:
            known.join(told)
    return known, uses_of((*project, *thread))
