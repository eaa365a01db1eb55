"""What is known of the threads of projects, read once a request and kept while its versions stand.

All layers of one request share one reading, so that they tell one story. What was read and built is kept by
the version of its place: a request whose thread has not moved costs one question to the store.
"""

from __future__ import annotations

import asyncio
import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Any, Final, Generic, TypeVar

import structlog

from schemas.codes import PartName
from schemas.request import layer_timeout_ms
from schemas.session import Artifact, MemoryItem, SessionContext
from worker.errors import StateBehind, StateUnavailable, StoreUnavailable
from worker.memory.index import MemoryIndex
from worker.memory.recall import Recall, recall_from
from worker.memory.summary import Summary, summary_of
from worker.memory.thread_state import ThreadState
from worker.ports import RequestFrame, Scope, TokenCounter
from worker.providers.threads import SourceThreads
from worker.state.records import WHOLE_PROJECT, Group
from worker.state.store import Place, StateStore
from worker.state.view import (
    Entity,
    StoredPlan,
    artifacts_of,
    decode_group,
    memories_of,
    plan_of,
    session_of,
)

T = TypeVar("T")

log = structlog.get_logger()

SIGNAL_KEEP: Final = timedelta(days=7)
"""How long a failure is news."""

POLL_SECONDS: Final = 0.02
"""How often events that another process takes in are looked for; those of this one are told at once."""

_WAIT_SHARE: Final = 0.8
"""Of a layer's timeout, what is spent on waiting for events that the request wants to see."""

_MOMENT_SECONDS: Final = 0.02
"""How long all sources wait for it together: mostly that is enough, and costs none of them a task."""

_WAITING_FAILURES: Final = 3
"""In a row, that the wait for events gets over."""

_HEAVY_BYTES: Final = 65_536


class Memories:
    """The facts of one thread, ready to be searched; follows them from version to version."""

    def __init__(self) -> None:
        """Nothing is remembered yet."""
        self._index = MemoryIndex()
        self._items: dict[str, MemoryItem] = {}
        self._lock = threading.Lock()

    def follow(self, items: Iterable[MemoryItem]) -> None:
        """Hold these facts and no others. O(facts), and the length of those that changed."""
        wanted = {item.id: item for item in items}
        with self._lock:
            for item_id in self._items.keys() - wanted.keys():
                self._index.remove(item_id)
            for item_id, item in wanted.items():
                if self._items.get(item_id) != item:
                    self._index.add(item)
            self._items = wanted

    def recall(self, query: str, *, budget_tokens: int, counter: TokenCounter) -> Recall:
        """As `worker.memory.recall.recall_from`."""
        with self._lock:
            return recall_from(self._index, query, budget_tokens=budget_tokens, counter=counter)

    def current(self) -> list[MemoryItem]:
        """The facts that hold, by id."""
        with self._lock:
            return self._index.current()

    @property
    def count(self) -> int:
        """How many facts hold."""
        return len(self._index)


@dataclass(frozen=True, slots=True, kw_only=True)
class StateReading:
    """What one request sees; the same for all of its layers."""

    session: SessionContext | None
    plans: tuple[Sequence[Entity], Sequence[Entity]]
    """Of the thread, and of the project as a whole."""
    memories: Memories
    thread: ThreadState | None
    """Of the messages; None where there are none."""
    artifacts: tuple[Artifact, ...]
    events: tuple[Sequence[Entity], Sequence[Entity]]
    """Test results and what happened at run time, of the thread and of the project."""

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

    def __init__(self, store: StateStore, threads: SourceThreads, *, max_bytes: int) -> None:
        """Read from `store`; keep what takes about `max_bytes` there, the thread used last always."""
        self._store = store
        self._threads = threads
        self._kept = _Kept(max_bytes)
        self._readings: dict[int, asyncio.Task[StateReading]] = {}
        self._waiting: dict[str, set[asyncio.Event]] = {}

    async def prepare(self, frame: RequestFrame, scope: Scope) -> None:
        """As `worker.ports.Preparation`: begin to read, unless the request brings everything itself."""
        request = frame.request
        brought = (request.session, request.plan, request.memory, request.artifacts or None, request.working)
        if None in brought:
            reading = self._reading(frame, scope, request.after.event_ids if request.after else ())
            await asyncio.wait({reading}, timeout=_MOMENT_SECONDS)

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
        self._kept.forget(project_id)

    async def close(self) -> None:
        """Stop reading."""
        for reading in self._readings.values():
            reading.cancel()
        if self._readings:
            await asyncio.wait(self._readings.values())

    def _reading(
        self, frame: RequestFrame, scope: Scope, event_ids: Sequence[str]
    ) -> asyncio.Task[StateReading]:
        key = id(frame)
        reading = self._readings.get(key)
        if reading is None:
            reading = asyncio.create_task(self._read(scope, event_ids), name="read state")
            # Whoever waited has raised its error; nobody may have.
            reading.add_done_callback(lambda done: done.cancelled() or done.exception())
            self._readings[key] = reading
            weakref.finalize(frame, self._drop, key)
        return reading

    def _drop(self, key: int) -> None:
        reading = self._readings.pop(key, None)
        if reading is not None:
            # Nobody reads on for a request that is over.
            reading.cancel()

    async def _read(self, scope: Scope, event_ids: Sequence[str]) -> StateReading:
        project_id, thread_id = scope.project_id, scope.thread_id or WHOLE_PROJECT
        threads = [WHOLE_PROJECT] if thread_id == WHOLE_PROJECT else [thread_id, WHOLE_PROJECT]
        try:
            versions = await self._versions(project_id, threads, event_ids)
            held = await self._places(project_id, versions)
        except StoreUnavailable as error:
            raise StateUnavailable(str(error)) from error

        if not held:
            return _NOTHING_KNOWN

        async def built(group: Group, build: Callable[[Sequence[Entity], Sequence[Entity]], T]) -> T:
            places = [held.get(Place(thread, group), _NOTHING) for thread in threads]
            return await self._built((project_id, thread_id, group), places, build)

        return StateReading(
            session=await built("session", session_of),
            plans=await built("plan", lambda thread, project: (thread, project)),
            memories=await built("memory", partial(self._memories, project_id, thread_id)),
            thread=await built("messages", lambda thread, _: _messages_of(thread)),
            artifacts=await built("artifacts", artifacts_of),
            events=await built("signals", lambda thread, project: (thread, project)),
        )

    async def _versions(
        self, project_id: str, threads: Sequence[str], event_ids: Sequence[str]
    ) -> Mapping[Place, int]:
        """How far the state is, once it holds the events."""
        changed = asyncio.Event()
        if event_ids:
            self._waiting.setdefault(project_id, set()).add(changed)
        patience = _WAITING_FAILURES if event_ids else 0
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
                self._kept.put((project_id, *place), held[place])
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
            self._kept.put(key, _Held(versions, value, size))
        return value

    def _memories(
        self, project_id: str, thread_id: str, thread: Sequence[Entity], project: Sequence[Entity]
    ) -> Memories:
        before = self._kept.get((project_id, thread_id, "memory", "built"))
        memories = Memories() if before is None else before.value
        memories.follow(memories_of(thread, project))
        return memories

    async def _run(self, size_bytes: int, work: Callable[[], T]) -> T:
        return await self._threads.run(work) if size_bytes > _HEAVY_BYTES else work()


Entities = Sequence[Entity]
_Key = tuple[str, ...]
"""Project, thread, group; and `built` for what was made of it."""


@dataclass(frozen=True, slots=True)
class _Held(Generic[T]):
    """A value, the versions of what it was made from, and how much that was."""

    versions: tuple[int, ...]
    value: T
    size: int


_NOTHING_KNOWN: Final = StateReading(
    session=None, plans=((), ()), memories=Memories(), thread=None, artifacts=(), events=((), ())
)
_NOTHING: Final[_Held[Entities]] = _Held((0,), (), 0)


class _Kept:
    """The values used last, within so many bytes."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._held: OrderedDict[_Key, _Held[Any]] = OrderedDict()
        self._bytes = 0
        self._lock = threading.Lock()

    def get(self, key: _Key) -> _Held[Any] | None:
        with self._lock:
            held = self._held.get(key)
            if held is not None:
                self._held.move_to_end(key)
            return held

    def put(self, key: _Key, held: _Held[Any]) -> None:
        with self._lock:
            before = self._held.pop(key, None)
            self._bytes += held.size - (0 if before is None else before.size)
            self._held[key] = held
            while self._bytes > self._max_bytes and len(self._held) > 1:
                self._bytes -= self._held.popitem(last=False)[1].size

    def forget(self, project_id: str) -> None:
        with self._lock:
            for key in [key for key in self._held if key[0] == project_id]:
                self._bytes -= self._held.pop(key).size


def _messages_of(entities: Sequence[Entity]) -> ThreadState | None:
    """What a summary of the thread is made from."""
    for entity in entities:
        try:
            return ThreadState.from_bytes(entity.document["thread"].encode())
        except ValueError as error:
            # Written by another version of this program; the next message has it made anew.
            log.warning("state.summary_outdated", cause=str(error))
    return None
