"""Judging an answer of 100 KB against a manifest of 500 ids, beside one regular expression over the text.

Nothing is asserted on time: the table shows CPU milliseconds of this thread, the best and the median of many
runs, and the best as a multiple of finding all words of the answer, which carries to other machines.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable
from statistics import median
from time import thread_time

import pytest

from schemas.citations import TEMPLATE_SECTIONS, CitationItem, Citations
from worker.citations.validator import judge

pytestmark = [pytest.mark.bench, pytest.mark.timeout(300)]

ANSWER_BYTES, IDS, ROUNDS = 100_000, 500, 60
SENTENCE = (
    "the retry deadline of this client is counted before any attempt, so that a slow server never holds it "
    "longer than was asked; see also `open_connection`, shop/net.py and the notes - they say (in short) why"
)
NEW_WORDS = 0.2
"""The share of words that are made up, so that an answer has some 3,000 different ones, as real ones have."""
PARSED = re.compile(r"\w+")


NUMBERED_EVERY = 5
"""Among the ids of functions as many of requirements."""


def manifest(rng: random.Random) -> Citations:
    def item(number: int) -> CitationItem:
        digits = f"{rng.randrange(10**6):06}"
        if number % NUMBERED_EVERY == 0:
            return CitationItem(
                short=f"r:{digits}", id=f"REQ-106-{number:03}", kind="requirement", layer="graph"
            )
        own_id = f"shop/{'abcde'[number % 5]}/module_{number // 7}.py::Class{number % 11}.method_{number}"
        return CitationItem(short=f"f:{digits}", id=own_id, kind="function", layer="graph")

    items = [item(number) for number in range(IDS)]
    musts = [item.short for item in items[:20]]
    return Citations(items=tuple(items), must_cite=tuple(musts), unresolved=(), template="Cite.")


def prose(rng: random.Random, citations: Citations, *, fence_every: int = 0) -> str:
    """Lines that each cite something, by either id; a code block after every so many."""
    lines: list[str] = []
    known, size = SENTENCE.split(), 0
    while size < ANSWER_BYTES:
        words = [
            rng.choice(known) + (str(rng.randrange(4_000)) if rng.random() < NEW_WORDS else "")
            for _ in range(14)
        ]
        item = rng.choice(citations.items)
        words[rng.randrange(14)] = rng.choice([f"[{item.short}]", f"`{item.id}`"])
        lines.append(" ".join(words))
        size += len(lines[-1]) + 1
        if fence_every and len(lines) % fence_every == 0:
            lines.append("```python\n    total += price * 7\n    return total\n```")
            size += len(lines[-1]) + 1
    lines.append(" ".join(f"[{short}!]" for short in citations.must_cite))
    return "\n".join([*lines, *(f"## {name}\nnone" for name in TEMPLATE_SECTIONS)])


def answers(rng: random.Random, citations: Citations) -> dict[str, str]:
    plain = prose(rng, citations)
    return {
        "prose": plain,
        "Markdown with code": prose(rng, citations, fence_every=5),
        "JSON": json.dumps({"answer": plain.split("\n")}),
        "not ASCII": plain.replace("the", "thé"),
    }


def test_judging_an_answer() -> None:
    rng = random.Random(3)
    citations = manifest(rng)
    for kind, text in answers(rng, citations).items():
        assert judge(text, citations).has_complied
        judged = cpu_ms(lambda text=text: judge(text, citations))
        found = cpu_ms(lambda text=text: PARSED.findall(text))
        print(  # noqa: T201 - the figures are the result
            f"{kind:20} {len(text):7} characters  best {min(judged):5.2f} ms  p50 {median(judged):5.2f} ms  "
            f"= {min(judged) / min(found):4.2f} times all its words"
        )


def cpu_ms(work: Callable[[], object]) -> list[float]:
    spent: list[float] = []
    for _ in range(ROUNDS):
        started = thread_time()
        work()
        spent.append(1_000 * (thread_time() - started))
    return spent
