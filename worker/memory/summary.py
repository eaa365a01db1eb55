"""The story of a thread in its own sentences, within a budget of tokens.

Extractive: every sentence stands in some message. One is chosen for what it says by itself (decisions,
blockers, names, numbers, who said it), for its place in the thread, and for how much of the rest it is like:
the degree centrality of Erkan and Radev, "LexRank" (JAIR 2004), against a sample of the thread.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Final

import numpy as np

from worker.budget.trimming import trim_to_budget
from worker.memory.choosing import Ints, Vectors, choose, percents
from worker.memory.embedding import embed
from worker.memory.thread_state import Candidates, Sentence, ThreadMessage, ThreadState
from worker.ports import TokenCounter

_CENTRALITY_POINTS: Final = 30
_OPENING_POINTS, _EARLY_POINTS, _LATE_POINTS = 20, 6, 16
_ALIKE_PERCENT: Final = 20
"""Two sentences that are alike by no more than this have nothing to do with each other."""

_REPEATED_PERCENT: Final = 80
"""From here on a sentence repeats the other."""


@dataclass(frozen=True, slots=True)
class Summary:
    """A summary, and how much it leaves out."""

    text: str
    """A line for each message that is quoted, in order of time: who spoke, and the sentences."""
    tokens: int
    left_out: int
    """Messages that are not quoted."""


def summarize(messages: Iterable[ThreadMessage], *, max_tokens: int, counter: TokenCounter) -> Summary:
    """The thread's summary in at most `max_tokens`; the same for the same set of messages, in any order.

    Each message is given once. One pass in bounded memory. O(length).
    """
    state = ThreadState()
    for message in messages:
        state.advance(message)
    return summary_of(state, max_tokens=max_tokens, counter=counter)


def summary_of(state: ThreadState, *, max_tokens: int, counter: TokenCounter) -> Summary:
    """The summary of the messages that a state has read; empty where nothing fits. Tens of milliseconds.

    The best sentence comes first into the budget (equals: the latest). One that does not fit is skipped;
    where none fits whole, the beginning of the best one stands for all.
    """
    candidates = state.candidates()
    pool = _distinct(candidates)
    if not pool or max_tokens <= 0:
        return Summary("", 0, state.messages)
    vectors = np.array([embed(sentence.text) for sentence in pool])
    points = _base_points(pool, vectors, candidates)
    chosen = _chosen(pool, vectors, points, max_tokens, counter)
    text = _text_of(chosen)
    # Lines were counted one by one, and the whole may have a few tokens more.
    while chosen and not counter.fits(text, max_tokens):
        chosen.pop()
        text = _text_of(chosen)
    if not chosen:
        best = pool[int(np.argmax(points))]
        text = trim_to_budget(_text_of([best]), max_tokens, counter)
        chosen = [best] if text else []
    quoted = len({sentence.message_id for sentence in chosen})
    return Summary(text, counter.count(text), state.messages - quoted)


def _distinct(candidates: Candidates) -> list[Sentence]:
    """Every text once, as it was said last; the latest first, then by message and place."""
    said: dict[str, Sentence] = {}
    for sentence in (*candidates.salient, *candidates.latest, *candidates.earliest, *candidates.sample):
        other = said.get(sentence.key)
        if other is None or _recency(sentence) < _recency(other):
            said[sentence.key] = sentence
    return sorted(said.values(), key=_recency)


def _recency(sentence: Sentence) -> tuple[int, str, int]:
    return -sentence.time, sentence.message_id, sentence.index


def _base_points(pool: Sequence[Sentence], vectors: Vectors, candidates: Candidates) -> Ints:
    """What each sentence is worth before others are chosen: `(n_sentences,)`."""
    places = _place_points(candidates)
    own = [sentence.points + places.get(sentence.key, 0) for sentence in pool]
    degrees = _degrees(pool, vectors, candidates.sample)
    return np.array(own) + _CENTRALITY_POINTS * degrees // max(1, int(degrees.max()))


def _place_points(candidates: Candidates) -> dict[str, int]:
    """The opening message says what the thread is about, the latest ones where it stands."""
    points: dict[str, int] = {}
    for sentence in candidates.earliest:
        is_opening = sentence.message_id == candidates.earliest[0].message_id
        points[sentence.key] = _OPENING_POINTS if is_opening else _EARLY_POINTS
    messages = dict.fromkeys(sentence.message_id for sentence in candidates.latest)
    late = {message_id: max(0, _LATE_POINTS - rank) for rank, message_id in enumerate(messages)}
    for sentence in candidates.latest:
        points[sentence.key] = max(points.get(sentence.key, 0), late[sentence.message_id])
    return points


def _degrees(pool: Sequence[Sentence], vectors: Vectors, sample: Sequence[Sentence]) -> Ints:
    """How much each sentence resembles those of the sample, itself left out: `(n_sentences,)`."""
    places = {sentence.key: place for place, sentence in enumerate(pool)}
    alike = np.zeros(len(pool), dtype=np.int64)
    for place in (places[sentence.key] for sentence in sample):
        likeness = percents(vectors, vectors[place])
        likeness[place] = 0
        alike += np.where(likeness > _ALIKE_PERCENT, likeness, 0)
    return alike


def _chosen(
    pool: Sequence[Sentence], vectors: Vectors, points: Ints, max_tokens: int, counter: TokenCounter
) -> list[Sentence]:
    """Sentences within the budget, the most valuable first; chat only where there is nothing else."""
    left = max_tokens

    def take(number: int) -> bool:
        nonlocal left
        tokens = counter.count_up_to(_text_of([pool[number]]) + "\n", left)
        if tokens > left:
            return False
        left -= tokens
        return True

    numbers = choose(points, vectors, take, least_points=0, repeated_percent=_REPEATED_PERCENT)
    return [pool[number] for number in numbers]


def _text_of(sentences: Iterable[Sentence]) -> str:
    """A line for each message, in order of time."""
    lines: list[str] = []
    ordered = sorted(sentences)
    for _, group in groupby(ordered, key=lambda sentence: (sentence.time, sentence.message_id)):
        said = list(group)
        lines.append(f"- {said[0].speaker}: " + " ".join(sentence.text for sentence in said))
    return "\n".join(lines)
