"""Prints one digest of what memory says about hostile and ordinary text; run under several hash seeds."""

from __future__ import annotations

import hashlib
import random

from tests.support.hostile import text
from tests.unit.memory.facts import fact
from tests.unit.memory.thread import message, staged_thread
from worker.budget.tokens import counter_for
from worker.memory.compression import compress
from worker.memory.recall import recall
from worker.memory.summary import summary_of
from worker.memory.thread_state import ThreadState

COUNTER = counter_for("o200k_base")


def digest(rounds: int) -> str:
    """SHA-256 over recalls, summaries, states and compressed texts, in order."""
    rng, seen = random.Random(11), hashlib.sha256()
    state = ThreadState()
    for each in staged_thread(60):
        state.advance(each)
    for n in range(rounds):
        items = [fact(f"m{k}", text(rng, 4), rng.choice([None, "s", "t"]), 1 + k % 3) for k in range(12)]
        state.advance(message(1_000 + n, text(rng)))
        results = (
            recall(items, text(rng, 3), budget_tokens=300, counter=COUNTER),
            compress(text(rng, 30), max_tokens=60, counter=COUNTER),
            summary_of(state, max_tokens=150, counter=COUNTER),
            state.to_bytes(),
        )
        seen.update(repr(results).encode("utf-8", "surrogatepass"))
    return seen.hexdigest()


if __name__ == "__main__":
    print(digest(2))  # noqa: T201 - the test reads it
