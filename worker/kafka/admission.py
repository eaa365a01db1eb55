"""How many records are in work at once, in all, per topic and per project, and whose turn is next.

A project that floods a topic is held to its share: what is beyond it waits, in the order in which it came,
while the records of others, also those behind it on the same partition, find their slots free. Where the
topic itself is full the waiting projects take turns, one record each, so that none waits for the backlog of
another (round robin over flows, as in Nagle's fair queueing, RFC 970).

A project is known by the key of its records, before any body is decoded; records without a key count as one
project.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Final

Start = Callable[[], bool]
"""Begins the work of a record; False where nobody wants it any more, which takes no slot."""

_EVERYBODY: Final = b""
"""The one project of a topic in which projects do not take turns."""


def project_of(key: bytes | None) -> bytes:
    """Whose record it is by its key, `project` or `project#thread`; empty where it has none."""
    return (key or b"").partition(b"#")[0]


@dataclass(slots=True, kw_only=True)
class _Topic:
    """The records of one topic. A project waits in `ready`, or in `held` while it has its whole share."""

    limit: int
    share: int
    has_turns: bool
    in_flight: int = 0
    aside: int = 0
    """Of those in flight, how many wait for something with nothing to do."""
    of_project: dict[bytes, int] = field(default_factory=dict[bytes, int])
    ready: dict[bytes, deque[Start]] = field(default_factory=dict[bytes, "deque[Start]"])
    held: dict[bytes, deque[Start]] = field(default_factory=dict[bytes, "deque[Start]"])

    def has_share(self, project: bytes) -> bool:
        return self.of_project.get(project, 0) < self.share

    def count(self, project: bytes, change: int) -> None:
        self.in_flight += change
        number = self.of_project.get(project, 0) + change
        if number:
            self.of_project[project] = number
        else:
            del self.of_project[project]

    def queue(self, project: bytes) -> deque[Start]:
        """Where its next record waits, made where none does."""
        found = self.ready.get(project) or self.held.get(project)
        if found is None:
            found = deque[Start]()
            (self.ready if self.has_share(project) else self.held)[project] = found
        return found


@dataclass(slots=True, kw_only=True)
class _Aside:
    """A record that has stepped aside, and its turn to come back where it has to wait for one."""

    topic: _Topic
    turn: asyncio.Future[None] | None = None
    is_back: bool = False


class Slots:
    """Counts the records in work against the limits, and starts those that wait as soon as they may begin.

    In quarantine one record in all is in work, beside those that wait for a store. Everything happens on one
    event loop, without a lock, and every operation takes amortised constant time.
    """

    __slots__ = ("_aside", "_is_exclusive", "_returning", "_topics", "_total")

    def __init__(self, limits: Mapping[str, int], *, shares: Mapping[str, int] | None = None) -> None:
        """`limits`: topic to records in work at once; `shares`: topic to those of one project among them.

        A topic without a share lets one project have all of it, and serves records in the order of asking.
        """
        shares = shares or {}
        self._topics = {
            topic: _Topic(limit=limit, share=shares.get(topic, limit), has_turns=topic in shares)
            for topic, limit in limits.items()
        }
        self._total = 0
        self._aside = 0
        self._returning: deque[_Aside] = deque()
        self._is_exclusive = False

    @property
    def total(self) -> int:
        """Records in work now, also those that have stepped aside."""
        return self._total

    def limit_of(self, topic: str) -> int:
        """How many records of the topic may be in work at once; in quarantine one."""
        return 1 if self._is_exclusive else self._topics[topic].limit

    def aside_of(self, topic: str) -> int:
        """Records of the topic that have stepped aside, or wait for their turn to come back."""
        return self._topics[topic].aside

    @property
    def is_exclusive(self) -> bool:
        """Whether only one record in all may be in work. Those already in work are waited for."""
        return self._is_exclusive

    @is_exclusive.setter
    def is_exclusive(self, value: bool) -> None:
        self._is_exclusive = value
        self._fill()

    def ask(self, topic: str, project: bytes, start: Start) -> None:
        """Start a record now where there is room and nothing of its project waits, else when its turn comes.

        Raises KeyError for a topic without a limit.
        """
        asked = self._topics[topic]
        project = project if asked.has_turns else _EVERYBODY
        waits = project in asked.ready or project in asked.held
        if not waits and self._has_room(asked) and asked.has_share(project):
            self._start(asked, project, start)
        else:
            asked.queue(project).append(start)

    def release(self, topic: str, project: bytes) -> None:
        """Give a slot back, to whoever's turn it is."""
        left = self._topics[topic]
        project = project if left.has_turns else _EVERYBODY
        left.count(project, -1)
        self._total -= 1
        if (waiting := left.held.pop(project, None)) is not None:
            left.ready[project] = waiting
        if self._is_exclusive:
            # The topics take turns, too.
            self._topics[topic] = self._topics.pop(topic)
            self._fill()
        elif left.ready:
            self._fill_topic(left)

    @asynccontextmanager
    async def aside(self, topic: str) -> AsyncGenerator[None]:
        """Within this context a record that is in work waits for something; in quarantine others go on.

        Its slot of the topic stays taken, so that what must come in order does, and in quarantine none of its
        topic begins meanwhile, for it would wait for the same. On the way out it waits until no other is in
        work, and comes before whoever has not begun. Cancelled or failing, it comes back at once: whoever
        started it will release it.
        """
        one = _Aside(topic=self._topics[topic])
        one.topic.aside += 1
        self._aside += 1
        try:
            if self._is_exclusive:
                self._fill()
            yield
            if not self._may_come_back:
                one.turn = asyncio.get_running_loop().create_future()
                self._returning.append(one)
                await one.turn
        finally:
            self._bring_back(one)

    @property
    def _may_come_back(self) -> bool:
        return not self._is_exclusive or self._total == self._aside

    def _bring_back(self, one: _Aside) -> None:
        """Count it among those that work; idempotent."""
        if one.is_back:
            return
        one.is_back = True
        one.topic.aside -= 1
        self._aside -= 1
        if one.turn is not None and not one.turn.done():
            one.turn.set_result(None)

    def _has_room(self, topic: _Topic) -> bool:
        if self._is_exclusive:
            return self._total == self._aside and not topic.aside
        return topic.in_flight < topic.limit

    def _fill(self) -> None:
        while self._returning and self._may_come_back:
            self._bring_back(self._returning.popleft())
        for topic in list(self._topics.values()):
            self._fill_topic(topic)

    def _fill_topic(self, topic: _Topic) -> None:
        while topic.ready and self._has_room(topic):
            project = next(iter(topic.ready))
            waiting = topic.ready.pop(project)
            self._start(topic, project, waiting.popleft())
            if waiting:
                # Behind all others that wait.
                (topic.ready if topic.has_share(project) else topic.held)[project] = waiting

    def _start(self, topic: _Topic, project: bytes, start: Start) -> None:
        if start():
            topic.count(project, 1)
            self._total += 1
