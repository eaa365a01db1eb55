"""Messages of a staged thread for the tests of summaries."""

from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta

from worker.memory.thread_state import ThreadMessage

START = datetime(2026, 1, 1, tzinfo=UTC)

DECISIONS = (
    "We decided to keep outcomes in SQLite.",
    "Agreed: replies are published after the store holds them.",
    "Blocked: the broker image lacks the TLS certificate.",
)

_NOISE = (
    "I am reading the file now.",
    "Ok, thanks!",
    "Let me look at it.",
    "Here is what I see so far, more to come later today.",
    "The page is loading.",
    "Running it once more to be sure about that.",
    "Sounds good to me.",
    "I had a coffee and came back.",
)


def message(number: int, text: str, *, speaker: str = "smith", role: str = "assistant") -> ThreadMessage:
    return ThreadMessage(
        id=f"m{number:06}",
        text=text,
        speaker=speaker,
        role=role,
        occurred_at=START + timedelta(seconds=number),
    )


def _noise(chance: random.Random) -> str:
    """A sentence like no other, about nothing."""
    things = chance.sample(
        [
            "page",
            "view",
            "colour",
            "list",
            "part",
            "piece",
            "draft",
            "look",
            "shape",
            "text",
            "line",
            "place",
        ],
        5,
    )
    return f"So this is the {' and the '.join(things)} as it was a little earlier today."


def staged_thread(messages: int) -> list[ThreadMessage]:
    """A goal, three findings far apart, chatter between them and a last word."""
    chance = random.Random(7)
    thread = [
        message(
            n, f"{chance.choice(_NOISE)} {chance.choice(_NOISE)}", speaker=chance.choice(["smith", "medic"])
        )
        for n in range(messages)
    ]
    thread[0] = message(
        0, "Please make the outcome store survive a crash of the worker.", speaker="ann", role="user"
    )
    for place, text in enumerate(DECISIONS, start=1):
        at = place * messages // 5
        thread[at] = message(at, f"{chance.choice(_NOISE)} {text} {chance.choice(_NOISE)}", speaker="medic")
    thread[-1] = message(messages - 1, "The crash test of the outcome store passes on my branch.")
    return thread
