"""Made-up traffic, for whoever has none recorded: distinct requests of several projects and threads.

The same seed gives the same records. Every text of a project carries the project's canary, so that a text
which strays into another project's bundle is seen (see `canary_of`).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from random import Random
from typing import Any, Final

from schemas.times import format_time
from worker.load.recording import RecordedRecord

CANARY_PREFIX: Final = "canary-"
_CANARY_HEX: Final = 16
_START: Final = datetime(2026, 1, 2, tzinfo=UTC)
_PARTITIONS: Final = 12
_SUBJECTS: Final = ("implement", "fix_issues", "review_and_test", "design_review", "scope_review", "chat")
_VOLKS: Final = ("architect", "smith", "medic", "auditor")
_MODELS: Final = ("gpt-4o", "gpt-4-turbo", "gpt-3.5-turbo")
_VERBS: Final = (
    "Add",
    "Fix",
    "Rename",
    "Measure",
    "Simplify",
    "Document",
    "Split",
    "Test",
    "Review",
    "Cache",
)
_NOUNS: Final = (
    "retry loop",
    "offset tracker",
    "token counter",
    "session store",
    "rate limiter",
    "search index",
    "export job",
    "login form",
    "payment client",
    "audit log",
)
_ENDS: Final = (
    "before the release",
    "so that no call outlives its deadline",
    "without a second lookup",
    "and keep the old behaviour behind a switch",
    "since two customers asked for it",
    "because the last change broke it",
)


def canary_of(project_id: str) -> str:
    """The mark that texts of a project may carry: whoever finds it in another project's bundle found a leak.

    `canary-` and the first 16 hex digits of the SHA-256 of the project's id.
    """
    return CANARY_PREFIX + hashlib.sha256(project_id.encode()).hexdigest()[:_CANARY_HEX]


@dataclass(frozen=True, slots=True, kw_only=True)
class Traffic:
    """What is made up."""

    requests: int
    seed: int = 0
    projects: int = 4
    threads: int = 3
    """In each project."""
    rate_per_second: float = 50.0
    """The pace that the records bear; arrivals are a Poisson process, as those of many callers are."""
    total_tokens: int = 8_000


def generate(traffic: Traffic) -> Iterator[RecordedRecord]:
    """The records, in the order of their times; equal arguments give equal bytes."""
    random = Random(traffic.seed)
    seconds = 0.0
    for number in range(1, traffic.requests + 1):
        seconds += random.expovariate(traffic.rate_per_second)
        project = f"load-{random.randrange(traffic.projects) + 1}"
        thread = f"thread-{random.randrange(traffic.threads) + 1}"
        instant = _START + timedelta(seconds=seconds)
        body = _request(random, number, project, thread, total_tokens=traffic.total_tokens)
        body["expires_at"] = format_time(instant.replace(microsecond=0) + timedelta(minutes=10))
        yield RecordedRecord(
            # By thread, as the key says: the load is spread also where there are few projects.
            partition=int.from_bytes(hashlib.sha256(f"{project}#{thread}".encode()).digest()[:4], "big")
            % _PARTITIONS,
            timestamp_ms=int(instant.timestamp() * 1_000),
            key=f"{project}#{thread}".encode(),
            value=json.dumps(body, separators=(",", ":")).encode(),
            headers=(("context-kind", b"request"),),
        )


def _request(random: Random, number: int, project: str, thread: str, *, total_tokens: int) -> dict[str, Any]:
    canary = canary_of(project)
    return {
        "request_id": f"r-{number}",
        "project_id": project,
        "thread_id": thread,
        "volk": random.choice(_VOLKS),
        "subject": random.choice(_SUBJECTS),
        "user_message": f"{_sentence(random)} ({canary}, number {number})",
        "system_prompt": f"You are one agent of a team. Cite what you use. {canary}",
        "model": random.choice(_MODELS),
        "budget": {"total": total_tokens},
        "include": ["messages", "layers", "usage"],
        "session": {
            "goal": {
                "id": f"g-{thread}",
                "status": "active",
                "statement": f"{_sentence(random)} {canary}",
                "criteria": [{"text": _sentence(random), "met": random.random() < 0.5} for _ in range(3)],  # noqa: PLR2004 - a coin
                "tasks": [_task(random, step) for step in range(1, 6)],
                "current_step": "3",
                "blockers": [_sentence(random)],
            },
            "work_items": [{"title": _sentence(random), "priority": "high"} for _ in range(3)],
            "handoff": {"decisions": [{"title": _sentence(random)} for _ in range(2)]},
        },
        "memory": {
            "summary": f"{_paragraph(random, sentences=6)} {canary}",
            "items": [_memory(random, item) for item in range(1, 9)],
        },
        "artifacts": [_artifact(random, canary, item) for item in range(1, 4)],
        "payload": {"task_context": f"{_paragraph(random, sentences=random.randint(5, 60))} {canary}"},
    }


def _task(random: Random, step: int) -> dict[str, Any]:
    current = 3
    status = "done" if step < current else "active" if step == current else "pending"
    return {"id": str(step), "title": _sentence(random), "status": status, "actions": [_sentence(random)]}


def _memory(random: Random, item: int) -> dict[str, Any]:
    return {
        "id": f"m-{item}",
        "subject": random.choice(_NOUNS),
        "text": _paragraph(random, sentences=2),
        "occurred_at": format_time(_START - timedelta(hours=item)),
    }


def _artifact(random: Random, canary: str, item: int) -> dict[str, Any]:
    return {
        "stage": "design",
        "type": "design_note",
        "path": f"docs/note-{item}.md",
        "content": f"{_paragraph(random, sentences=8)} {canary}",
        "occurred_at": format_time(_START - timedelta(days=item)),
    }


def _paragraph(random: Random, *, sentences: int) -> str:
    return " ".join(f"{_sentence(random)}." for _ in range(sentences))


def _sentence(random: Random) -> str:
    return f"{random.choice(_VERBS)} the {random.choice(_NOUNS)} {random.choice(_ENDS)}"
