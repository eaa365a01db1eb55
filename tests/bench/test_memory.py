"""Recall, summary and compression: in milliseconds, and as ratios within one run.

Targets: recall over 10,000 memories in 10 ms; a thread of 100,000 messages summarised in bounded memory, its
state no larger than that of a thread of 1,000. Nothing is asserted on time: the table says `over` where a
target is missed. Processor time is measured, since the machine is shared.
"""

from __future__ import annotations

import random
import tracemalloc
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from time import thread_time

import pytest

from schemas.session import MemoryItem
from worker.budget.tokens import counter_for
from worker.memory.compression import compress
from worker.memory.index import MemoryIndex
from worker.memory.recall import recall_from
from worker.memory.summary import summary_of
from worker.memory.thread_state import ThreadMessage, ThreadState

pytestmark = pytest.mark.bench

COUNTER = counter_for("o200k_base")
START = datetime(2026, 1, 1, tzinfo=UTC)
RECALL_TARGET_MS = 10.0
STEMS = [
    first + last for first in ("bro", "cli", "sto", "que", "lay", "tok") for last in ("ker", "ent", "re")
]
WORDS = STEMS + [f"{stem}_{other}" for stem in STEMS for other in STEMS if stem < other]


def prose(chance: random.Random, *, words: int) -> str:
    return " ".join(chance.choices(WORDS, k=words)).capitalize() + "."


def facts(count: int) -> list[MemoryItem]:
    chance = random.Random(count)
    return [
        MemoryItem(
            id=f"m{n}",
            text=prose(chance, words=chance.randrange(6, 24)),
            subject=f"subject {n % 9_000}" if n % 2 else None,
            occurred_at=START + timedelta(minutes=n),
        )
        for n in range(count)
    ]


def messages(count: int) -> list[ThreadMessage]:
    chance = random.Random(count)
    return [
        ThreadMessage(
            id=f"m{n}",
            text=" ".join(prose(chance, words=chance.randrange(4, 16)) for _ in range(3)),
            speaker=chance.choice(["smith", "medic", "ann"]),
            occurred_at=START + timedelta(seconds=n),
        )
        for n in range(count)
    ]


def best_ms(work: Callable[[], object], *, rounds: int) -> float:
    """The least processor time of one run."""
    best = float("inf")
    for _ in range(rounds):
        started = thread_time()
        work()
        best = min(best, thread_time() - started)
    return best * 1_000


def table(capsys: pytest.CaptureFixture[str], *lines: str) -> None:
    with capsys.disabled():
        print("\n" + "\n".join(lines))  # noqa: T201  # the table is what this is for


@pytest.mark.timeout(300)
def test_recall_over_ten_thousand_memories(capsys: pytest.CaptureFixture[str]) -> None:
    lines = [
        f"{'memories':<10}{'query':>7}{'recall ms':>11}{'rank ms':>9}{'recall/tokens':>15}{'build ms':>10}"
    ]
    for count in (1_000, 10_000):
        items = facts(count)
        started = thread_time()
        index = MemoryIndex(items)
        build = (thread_time() - started) * 1_000
        for words in (12, 400):
            query = prose(random.Random(1), words=words)

            def ask(index: MemoryIndex = index, query: str = query) -> list[str]:
                found = recall_from(index, query, budget_tokens=2_000, counter=COUNTER)
                return [recalled.line for recalled in found.items]

            shown = ask()
            assert shown
            recall_ms = best_ms(ask, rounds=15)
            rank_ms = best_ms(lambda i=index, q=query: i.rank(q, limit=256), rounds=15)
            tokens_ms = best_ms(lambda s=shown: [COUNTER.count(line) for line in s], rounds=15)
            verdict = "PASS" if recall_ms <= RECALL_TARGET_MS else "over"
            lines.append(
                f"{count:<10,}{words:>7}{recall_ms:>11.2f}{rank_ms:>9.2f}{recall_ms / tokens_ms:>15.2f}"
                f"{build:>10.0f} {verdict}"
            )
    table(capsys, *lines)


@pytest.mark.timeout(300)
def test_an_index_takes_bounded_memory(capsys: pytest.CaptureFixture[str]) -> None:
    items = facts(10_000)
    MemoryIndex(items[:500])  # words that are remembered for all indexes
    tracemalloc.start()
    try:
        index = MemoryIndex(items)
        size_bytes = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert len(index) > 0
    table(
        capsys,
        f"an index of 10,000 memories: {size_bytes / 1e6:.1f} MB, {size_bytes / 10_000:.0f} bytes each",
    )


@pytest.mark.timeout(300)
def test_summary_of_a_hundred_thousand_messages(capsys: pytest.CaptureFixture[str]) -> None:
    lines = [
        f"{'messages':<10}{'read ms':>9}{'µs each':>9}{'read/tokens':>13}{'summary ms':>12}{'in bytes':>10}"
    ]
    for count in (1_000, 100_000):
        thread = messages(count)
        state = ThreadState()
        started = thread_time()
        for message in thread:
            state.advance(message)
        read_ms = (thread_time() - started) * 1_000
        sample = thread[:1_000]
        tokens_ms = (
            best_ms(lambda s=sample: [COUNTER.count(m.text) for m in s], rounds=3) * count / len(sample)
        )
        summary = summary_of(state, max_tokens=500, counter=COUNTER)
        assert 0 < summary.tokens <= 500
        summary_ms = best_ms(lambda s=state: summary_of(s, max_tokens=500, counter=COUNTER), rounds=5)
        lines.append(
            f"{count:<10,}{read_ms:>9.0f}{read_ms / count * 1_000:>9.1f}{read_ms / tokens_ms:>13.2f}"
            f"{summary_ms:>12.1f}{len(state.to_bytes()):>10,}"
        )
    stored = state.to_bytes()
    lines.append(
        f"stored state: written in {best_ms(state.to_bytes, rounds=20):.2f} ms, "
        f"read in {best_ms(lambda: ThreadState.from_bytes(stored), rounds=20):.2f} ms"
    )
    table(capsys, *lines)


@pytest.mark.timeout(300)
def test_compression_of_long_items(capsys: pytest.CaptureFixture[str]) -> None:
    lines = [f"{'chars':<12}{'max tokens':>11}{'ms':>9}{'tokens':>8}"]
    for sentences in (20, 400, 10_000):
        chance = random.Random(sentences)
        text = " ".join(prose(chance, words=12) for _ in range(sentences))
        for max_tokens in (80, 500):

            def run(text: str = text, max_tokens: int = max_tokens) -> str:
                return compress(text, max_tokens=max_tokens, counter=COUNTER)

            tokens = COUNTER.count(run())
            assert tokens <= max_tokens
            lines.append(f"{len(text):<12,}{max_tokens:>11}{best_ms(run, rounds=3):>9.1f}{tokens:>8}")
    table(capsys, *lines)
