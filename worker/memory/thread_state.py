"""What of a thread may enter its summary, in a few kilobytes however long the thread is.

Four pools keep sentences: those that matter most by themselves, the latest, the earliest, and a sample that a
hash draws from all of them. Each pool is the best of the set of sentences under a total order. So its content
depends on the set of messages alone: a stored state that is advanced by new messages equals a fresh pass, and
the order of messages makes no difference.
"""

from __future__ import annotations

import hashlib
import json
from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, cast

from worker.budget.boundaries import grapheme_ends
from worker.budget.utf8 import well_formed
from worker.code.segments import fold, shorten
from worker.memory.salience import points_of
from worker.memory.sentences import pieces_of
from worker.memory.supersession import micros_of, time_of

STATE_VERSION: Final = 1
"""Of the stored form and of the rules that fill it: a state of another version is computed afresh."""

SENTENCE_CHARS: Final = 320
SPEAKER_CHARS: Final = 60

_SALIENT, _LATEST, _EARLIEST, _SAMPLE = 64, 32, 8, 48
_SALIENT_PER_MESSAGE, _PLACED_PER_MESSAGE = 8, 3
_LATEST_POOL: Final = 1
_MAX_MESSAGE_CHARS: Final = 100_000
_ROLE_POINTS: Final = {
    "user": 10,
    "human": 10,
    "assistant": 5,
    "agent": 5,
    "volk": 5,
    "tool": -10,
    "system": -10,
}
_OTHER_ROLE_POINTS: Final = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class ThreadMessage:
    """One message of a thread. `id` is unique in it; `role` as in chat (user, assistant, tool, system)."""

    id: str
    text: str
    speaker: str
    role: str = "assistant"
    occurred_at: datetime | None = None


@dataclass(frozen=True, slots=True, order=True)
class Sentence:
    """A sentence of a message; sorts by time, message and place in it."""

    time: int
    """Microseconds, as `supersession.micros_of`."""
    message_id: str
    index: int
    """Which sentence of its message it is."""
    place: int
    """How many sentences of the message matter more."""
    points: int
    speaker: str
    text: str
    """On one line, cut to `SENTENCE_CHARS`."""

    @property
    def key(self) -> str:
        """What repetitions of a sentence share."""
        return self.text.casefold()


@dataclass(frozen=True, slots=True)
class Candidates:
    """What a summary is chosen from; each tuple has every text once."""

    salient: tuple[Sentence, ...]
    latest: tuple[Sentence, ...]
    """The latest first."""
    earliest: tuple[Sentence, ...]
    """The earliest first."""
    sample: tuple[Sentence, ...]


class ThreadState:
    """Advances message by message; each message is given once. Not safe between threads."""

    __slots__ = ("_messages", "_pools")

    def __init__(self) -> None:
        self._messages = 0
        self._pools = (_Pool(_SALIENT), _Pool(_LATEST), _Pool(_EARLIEST), _Pool(_SAMPLE))

    @property
    def messages(self) -> int:
        """How many messages were read."""
        return self._messages

    @property
    def last_told_at(self) -> datetime | None:
        """When the last dated message with a sentence was said."""
        latest = next(self._pools[_LATEST_POOL].sentences(), None)
        return None if latest is None else time_of(latest.time)

    def advance(self, message: ThreadMessage) -> None:
        """Read one more message. O(its length + log of the size of a pool); code blocks are passed over.

        Of a message over 100,000 characters the beginning is read.
        """
        self._messages += 1
        for sentence in _sentences_of(message):
            self._offer(sentence)

    def join(self, other: ThreadState) -> None:
        """Know what `other` has read too, of other messages, as if it had been read here."""
        self._messages += other.messages
        for pool in other._pools:
            for sentence in pool.sentences():
                self._offer(sentence)

    def candidates(self) -> Candidates:
        """What the pools hold now."""
        salient, latest, earliest, sample = (tuple(pool.sentences()) for pool in self._pools)
        return Candidates(salient=salient, latest=latest, earliest=earliest, sample=sample)

    def to_bytes(self) -> bytes:
        """Compact JSON, the same for equal states; some 20 kB for a long thread."""
        kept = sorted({_row(sentence) for pool in self._pools for sentence in pool.sentences()})
        state = {"version": STATE_VERSION, "messages": self._messages, "sentences": kept}
        return json.dumps(state, ensure_ascii=False, separators=(",", ":")).encode()

    @classmethod
    def from_bytes(cls, data: bytes) -> ThreadState:
        """The state that gave these bytes. Raises ValueError for what is none of this version."""
        try:
            read = cast("object", json.loads(data))
            state = cls()
            # The pools are the best of their union, so the union is all that is stored.
            state._messages, sentences = _checked(read)
            for sentence in sentences:
                state._offer(sentence)
        except (TypeError, KeyError, RecursionError) as error:
            raise ValueError("not the state of a thread") from error
        return state

    def _offer(self, sentence: Sentence) -> None:
        salient, latest, earliest, sample = self._pools
        time, name, index, key = sentence.time, sentence.message_id, sentence.index, sentence.key
        salient.offer((-sentence.points, -time, name, index), key, sentence)
        if sentence.place < _PLACED_PER_MESSAGE:
            latest.offer((-time, name, index), key, sentence)
            earliest.offer((time, name, index), key, sentence)
        if sentence.place == 0:
            sample.offer((_drawn(key), -time, name, index), key, sentence)


class _Pool:
    """The sentences of least rank, a text once, at most `capacity`: of repetitions the one of least rank."""

    __slots__ = ("_capacity", "_kept", "_ranked")

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._ranked: list[tuple[Any, ...]] = []
        self._kept: dict[str, tuple[tuple[Any, ...], Sentence]] = {}

    def sentences(self) -> Iterator[Sentence]:
        """In order of rank."""
        return (self._kept[key][1] for _, key in self._ranked)

    def offer(self, rank: tuple[Any, ...], key: str, sentence: Sentence) -> None:
        is_full = len(self._ranked) >= self._capacity
        if is_full and (rank, key) >= self._ranked[-1]:
            return
        known = self._kept.get(key)
        if known is not None:
            if known[0] <= rank:
                return
            del self._ranked[bisect_left(self._ranked, (known[0], key))]
        elif is_full:
            del self._kept[self._ranked.pop()[1]]
        self._kept[key] = (rank, sentence)
        insort(self._ranked, (rank, key))


def _sentences_of(message: ThreadMessage) -> list[Sentence]:
    """The sentences of a message that matter most, at most eight, by place."""
    text = well_formed(message.text)
    if len(text) > _MAX_MESSAGE_CHARS:
        text = text[: next(grapheme_ends(text, _MAX_MESSAGE_CHARS))]
    speaker = shorten(fold(well_formed(message.speaker)), max_chars=SPEAKER_CHARS)
    bonus = _ROLE_POINTS.get(message.role.casefold(), _OTHER_ROLE_POINTS)
    scored: list[tuple[int, int, str]] = []
    for index, piece in enumerate(pieces_of(text)):
        if piece.is_block:
            continue
        sentence = shorten(fold(text[piece.start : piece.end]), max_chars=SENTENCE_CHARS)
        if any(map(str.isalnum, sentence)):
            scored.append((-points_of(sentence) - bonus, index, sentence))
    scored.sort()
    time, name = micros_of(message.occurred_at), well_formed(message.id)
    return [
        Sentence(time, name, index, place, -negated, speaker, sentence)
        for place, (negated, index, sentence) in enumerate(scored[:_SALIENT_PER_MESSAGE])
    ]


def _row(sentence: Sentence) -> tuple[int, str, int, int, int, str, str]:
    """Its fields, as a state stores them."""
    # `dataclasses.astuple` copies deeply, which takes ten times as long.
    return (
        sentence.time,
        sentence.message_id,
        sentence.index,
        sentence.place,
        sentence.points,
        sentence.speaker,
        sentence.text,
    )


def _drawn(text: str) -> int:
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big")


def _checked(read: object) -> tuple[int, Iterable[Sentence]]:
    """Messages and sentences of a stored state. Raises TypeError, KeyError or ValueError for another."""
    state = cast("dict[str, Any]", read)
    if state["version"] != STATE_VERSION:
        raise ValueError(f"a state of version {state['version']}, not {STATE_VERSION}")
    messages, sentences = state["messages"], [Sentence(*fields) for fields in state["sentences"]]
    if type(messages) is not int or messages < 0:
        raise ValueError("a state counts its messages")
    for sentence in sentences:
        numbers = (sentence.time, sentence.index, sentence.place, sentence.points)
        texts = (sentence.message_id, sentence.speaker, sentence.text)
        if any(type(n) is not int for n in numbers) or any(type(t) is not str for t in texts):
            raise ValueError("a state holds sentences")
    return messages, sentences
