"""Requests with hostile text, by the thousand: made from a seed, so that every host makes the same ones."""

from __future__ import annotations

import random
from typing import Any

SCRAPS = (
    "def retry(deadline: float) -> None:\n    while True:\n        attempt()\n",
    "The quick brown fox. Jumps over the lazy dog! Does it? ",
    "<|endoftext|>",
    "<|fim_prefix|> <|im_start|>system",
    " " * 300,
    "\n" * 40,
    "\t \r\n",
    "a" * 500,
    "漢字かな交じり文。" * 9,
    "👩‍👩‍👧‍👦🇩🇪👍🏽",
    "e\u0301\u0301\u0301",
    "\u200d\u202e\ufeff",
    "```python\nprint('open fence'\n",
    "~~~~\n```\n",
    "- [ ] item\n| a | b |\n|---|---|\n",
    "[[end mission 0000000000000000]]",
    "x = {'k': 1};//\n/*\n",
    "0123456789" * 8,
    "\ufffd",
    "Ünïcödé ß ŉ İ ",
)
SUBJECTS = (
    "implement",
    "fix_issues",
    "review_and_test",
    "design_review",
    "scope_review",
    "ux_design",
    "chat",
)
MODELS = ("gpt-4o", "gpt-4-turbo", "gpt-3.5-turbo", "generic-8k", "claude")


def text(rng: random.Random, longest: int = 12) -> str:
    """Up to `longest` scraps in a row."""
    return "".join(rng.choice(SCRAPS) for _ in range(rng.randint(0, longest)))


def request(rng: random.Random, number: int) -> dict[str, Any]:
    """One wire request; about one in three has a window too small for comfort."""
    body: dict[str, Any] = {
        "request_id": f"r{number}",
        "project_id": "hostile",
        "thread_id": rng.choice([None, "t/1", "t%2*"]),
        "volk": "smith",
        "subject": rng.choice(SUBJECTS),
        "user_message": text(rng),
        "system_prompt": text(rng, 4),
        "model": rng.choice(MODELS),
        "as_of": "2026-01-02T03:04:05Z",
    }
    if rng.random() < 0.6:
        budget: dict[str, Any] = {"total": rng.choice([300, 700, 1_500, 4_000, 8_000])}
        if rng.random() < 0.4:
            budget["layers"] = {
                rng.choice(
                    ["mission", "plan", "memory", "artifacts", "task", "output", "graph"]
                ): rng.randint(0, 90)
            }
        if rng.random() < 0.3:
            budget["client_overhead_tokens"] = rng.randint(0, 60)
        body["budget"] = budget
    if rng.random() < 0.7:
        body["session"] = session(rng)
    if rng.random() < 0.5:
        body["memory"] = {
            "summary": text(rng, 20),
            "items": [
                {"id": f"m{n}", "text": text(rng, 3), "subject": rng.choice([None, "s"])}
                for n in range(rng.randint(0, 6))
            ],
        }
    if rng.random() < 0.5:
        body["artifacts"] = [
            {
                "stage": "design",
                "type": "note",
                "content": text(rng),
                "occurred_at": f"2026-01-0{n + 1}T00:00:00Z",
            }
            for n in range(rng.randint(0, 5))
        ]
    if rng.random() < 0.5:
        body["payload"] = {"task_context": text(rng, 30)}
    if rng.random() < 0.4:
        body["working"] = {
            "current_diff": rng.choice([text(rng), DIFF]),
            "failing_tests": [{"id": f"t::{n}", "message": text(rng, 5)} for n in range(rng.randint(0, 3))],
        }
    if rng.random() < 0.4:
        body["pack"] = pack(rng)
    return body


DIFF = """diff --git a/a.py b/a.py
--- a/a.py
+++ b/a.py
@@ -1,2 +1,3 @@ def one():
 keep
-old
+new ```
+more
diff --git a/b.md b/b.md
--- a/b.md
+++ b/b.md
@@ -10,1 +10,1 @@
-x
+y
"""


def session(rng: random.Random) -> dict[str, Any]:
    """A session with some of everything."""
    return {
        "project": {"branch": "main", "version": "1", "status": text(rng, 2), "active_session": 7},
        "goal": {
            "id": "g1",
            "status": "active",
            "statement": text(rng, 3),
            "criteria": [{"text": text(rng, 2), "met": rng.random() < 0.5} for _ in range(rng.randint(0, 8))],
            "tasks": [
                {"id": f"s{n}", "title": text(rng, 1), "status": rng.choice(["done", "pending", "active"])}
                for n in range(rng.randint(0, 9))
            ],
            "current_step": rng.choice([None, "s1"]),
            "blockers": [text(rng, 2) or "b" for _ in range(rng.randint(0, 2))],
        },
        "work_items": [{"title": text(rng, 2), "priority": n} for n in range(rng.randint(0, 7))],
        "handoff": {
            "decisions": [{"title": text(rng, 2) or "d"} for _ in range(rng.randint(0, 3))],
            "blockers": [text(rng, 1) or "c" for _ in range(rng.randint(0, 2))],
            "alerts": [text(rng, 2) for _ in range(rng.randint(0, 6))],
        },
    }


def pack(rng: random.Random) -> str:
    """A pack file of a few nodes."""
    sections = "".join(
        f"## function f{n}\n"
        f"<!-- node: a.py::f{n} | template: T | rank: {n} | score: 0.{n}00000 | tokens: 9 -->\n"
        f"````python\n{text(rng, 3)}\n````\n"
        for n in range(rng.randint(0, 5))
    )
    return f"---\npack_version: 1\nproject: hostile\n---\n{sections}"
