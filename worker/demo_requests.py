"""The demo's requests: real ones, about this project's own source."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any, Final

from worker.budget.tokens import counter_for

PROJECT: Final = "demo"
HANG_MARK: Final = "(the memory source hangs for this one)"

GOAL: Final[dict[str, Any]] = {
    "id": "g-spine",
    "status": "active",
    "statement": "Every request ends in exactly one budgeted bundle or one rejection with a code.",
    "criteria": [
        {"text": "The recount of the joined messages equals the ledger", "met": True},
        {"text": "A source that hangs degrades its own layer only", "met": False},
        {"text": "A redelivered request gets the same bytes", "met": False},
    ],
    "tasks": [
        {"id": "1", "title": "Count tokens as the target model does", "status": "done"},
        {"id": "2", "title": "Trim at natural boundaries", "status": "done"},
        {
            "id": "3",
            "title": "Make trimming keep list items whole",
            "status": "active",
            "goal": "A trimmed list never ends in half an item",
            "actions": ["Find the item boundary before the crossing", "Prefer it to a sentence boundary"],
            "files": ["worker/budget/trimming.py"],
            "verify": ["The property tests of trimming pass", "The trim benchmark stays below 2x"],
            "expected": "Lists in trimmed layers end at an item",
            "depends_on": ["2"],
        },
        {"id": "4", "title": "Measure the effect on recall", "status": "pending"},
        {"id": "5", "title": "Write it up under Decisions", "status": "pending"},
    ],
    "current_step": "3",
    "blockers": ["Nobody has measured trimming of Korean text yet"],
}
SESSION: Final[dict[str, Any]] = {
    "project": {
        "branch": "main",
        "version": "0.1.0",
        "status": "building the spine",
        "test_state": "green",
        "active_session": 12,
    },
    "goal": GOAL,
    "work_items": [
        {"title": "Publish the default split per model", "priority": "high", "state": "pending"},
        {"title": "Show the effect of safety factors", "priority": "low", "state": "pending"},
    ],
    "handoff": {
        "decisions": [
            {
                "id": "D-3",
                "title": "Count the joined text, never the sum of parts",
                "text": "BPE merges across seams.",
            },
            {"id": "D-7", "title": "The outcome is stored before it is published"},
        ],
        "active_work": ["Trimming at list items"],
        "key_files": ["worker/assembly.py", "worker/budget/trimming.py", "worker/kafka/dispatch.py"],
        "commands": ["make check"],
        "alerts": ["Prefix counts are not monotone: verify the string that is returned"],
    },
}
MEMORY: Final[dict[str, Any]] = {
    "summary": (
        "The trimming function was rewritten to count windows instead of the whole text. "
        "Reviewers asked for proof that no result is ever over budget; the property tests give it."
    ),
    "items": [
        {
            "id": "m1",
            "subject": "trimming",
            "text": "Trimming a 10 MB log took 40 s when every prefix was counted anew.",
            "occurred_at": "2026-01-10T09:00:00Z",
        },
        {
            "id": "m2",
            "subject": "fences",
            "text": "A cut inside a code fence swallowed the next layer until fences were balanced.",
            "occurred_at": "2026-01-11T09:00:00Z",
        },
        {
            "id": "m3",
            "subject": "offsets",
            "text": "Committing the position skipped unfinished neighbours.",
            "occurred_at": "2026-01-12T09:00:00Z",
        },
    ],
}
ARTIFACTS: Final[list[dict[str, Any]]] = [
    {
        "stage": "design",
        "type": "design_note",
        "path": "docs/trimming.md",
        "occurred_at": "2026-01-09T10:00:00Z",
        "content": "Boundaries in order: paragraph, sentence, word, grapheme. The result is a prefix, "
        "plus at most one closing fence line. Counting stops just past the budget.",
    },
    {
        "stage_alias": "implement",
        "artifact_type": "patch",
        "timestamp": "2026-01-10T12:00:00Z",
        "content": {"files": ["worker/budget/trimming.py"], "summary": "windowed counting"},
    },
]
DIFF: Final = """diff --git a/worker/budget/trimming.py b/worker/budget/trimming.py
--- a/worker/budget/trimming.py
+++ b/worker/budget/trimming.py
@@ -10,3 +10,4 @@ def trim_to_budget(text, budget_tokens, counter, hard_limit=True):
     if budget_tokens <= 0:
-        return text
+        # a budget of nothing holds nothing
+        return ""
"""


def demo_requests(root: Path) -> list[tuple[str, dict[str, Any] | bytes]]:
    """What the demo publishes, with a line on what each shows. `root` is the source tree."""
    pack = inline_pack(
        root,
        {
            "worker/budget/allocation.py": ("plan_budget",),
            "worker/planning.py": ("plan_request",),
            "worker/fusing.py": ("fuse",),
            "worker/sealing.py": ("layer_reports",),
            "worker/fusion/sections.py": ("compose", "admit_text"),
        },
    )
    rich = {"session": SESSION, "memory": MEMORY, "artifacts": ARTIFACTS, "pack": pack}
    touched = {
        "files_created": ["worker/budget/trimming.py", "worker/budget/fences.py"],
        "task_context": "Lists are the most common content of the plan and mission layers.",
    }
    log_excerpt = "\n".join(
        f"2026-01-12T09:{n // 60:02}:{n % 60:02}Z worker.assembled tokens={n * 37}" for n in range(900)
    )
    return [
        (
            "every inline source at once",
            _request(
                "implement", "smith", "Make trim_to_budget keep list items whole.", payload=touched, **rich
            ),
        ),
        (
            "a fix: diff and failing tests are pinned",
            _request(
                "fix_issues",
                "medic",
                "Fix the failing trim tests.\nThey fail since the last change.",
                model="gpt-4-turbo",
                working={
                    "current_diff": DIFF,
                    "failing_tests": [
                        {
                            "id": "tests/unit/budget/test_trimming.py::test_zero",
                            "message": "AssertionError: assert 'x' == ''",
                        }
                    ],
                },
                payload=touched,
                session=SESSION,
            ),
        ),
        (
            "a review of real files",
            _request(
                "review_and_test",
                "critic",
                "Review how bundles are assembled.",
                model="gpt-4.1",
                budget={"total": 200_000},
                payload={"files_created": ["worker/assembly.py", "worker/fusion/packer.py"]},
            ),
        ),
        (
            "a private tokenizer: counted with a safety factor",
            _request(
                "design_review", "architect", "Is the outcome stored early enough?", model="claude", **rich
            ),
        ),
        (
            "far more material than window: trimmed, and said so",
            _request(
                "scope_review",
                "planner",
                "What is left to do?",
                model="gpt-3.5-turbo",
                budget={"total": 4_000},
                payload={"task_context": log_excerpt},
                **rich,
            ),
        ),
        (
            "a tiny window counted in bytes: pins stay",
            _request(
                "ux_design",
                "painter",
                "Sketch the usage report.",
                model="generic-8k",
                session=SESSION,
                memory=MEMORY,
            ),
        ),
        (
            "a chat: nothing is injected",
            _request("chat", "guide", "What does this project do?", model="gpt-4o"),
        ),
        (
            "a path that leads out of the root: refused",
            _request(
                "implement",
                "smith",
                "Read the shadow file.",
                payload={"files_created": ["../../etc/shadow", "worker/errors.py"]},
            ),
        ),
        (
            "a source that hangs: the bundle comes in time",
            _request(
                "implement",
                "smith",
                f"Explain the dispatcher {HANG_MARK}.",
                layer_timeouts_ms={"memory": 300},
                session=SESSION,
                memory=MEMORY,
            ),
        ),
        (
            "over budget: the system prompt alone",
            _request(
                "implement",
                "smith",
                "Do it.",
                model="gpt-3.5-turbo",
                budget={"total": 2_000},
                system_prompt="You follow every rule below. " * 400,
            ),
        ),
        ("a model that the table does not have", _request("implement", "smith", "Do it.", model="gpt-99")),
        (
            "not JSON: a rejection, and a dead letter",
            b'{"request_id": "demo-12", ',
        ),
    ]


def _request(subject: str, volk: str, message: str, **more: Any) -> dict[str, Any]:
    return {
        "project_id": PROJECT,
        "thread_id": "demo-thread",
        "volk": volk,
        "subject": subject,
        "user_message": message,
        "system_prompt": f"You are {volk}, one agent of a team. Cite what you use.",
        # A demonstration should show what there is, on a busy machine too.
        "deadline_ms": 6_000,
        "layer_timeouts_ms": {"graph": 4_000, "semantic": 4_000, "task": 5_000},
        **more,
    }


def inline_pack(root: Path, functions: dict[str, tuple[str, ...]]) -> str:
    """A pack file of real functions, best first: front matter, then one section a node."""
    counter = counter_for("o200k_base")
    sections: list[str] = []
    for path, names in functions.items():
        source = (root / path).read_text()
        found = {node.name: node for node in ast.parse(source).body if isinstance(node, ast.FunctionDef)}
        for name in names:
            body = ast.get_source_segment(source, found[name]) or ""
            rank = len(sections) + 1
            mark = f"node: {path}::{name} | template: IMPLEMENT | rank: {rank} | score: {1 - rank / 20:.6f}"
            tokens = counter.count(body)
            sections.append(
                f"## function {name}\n<!-- {mark} | tokens: {tokens} -->\n````python\n{body}\n````\n"
            )
    return f"---\npack_version: 1\nproject: {PROJECT}\n---\n" + "\n".join(sections)
