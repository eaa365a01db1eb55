"""Hypothesis strategies for whole requests with hostile text."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from tests.support.hostile import DIFF, MODELS, SCRAPS, SUBJECTS

_characters = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=20)


def texts(max_scraps: int) -> st.SearchStrategy[str]:
    """Known troublemakers and any characters, in a row."""
    return st.lists(st.sampled_from(SCRAPS) | _characters, max_size=max_scraps).map("".join)


def _some(text: st.SearchStrategy[str], most: int) -> st.SearchStrategy[list[str]]:
    return st.lists(text.map(lambda found: found or "x"), max_size=most)


_steps = st.lists(st.tuples(texts(1), st.sampled_from(["done", "pending", "active"])), max_size=7).map(
    lambda found: [
        {"id": f"s{n}", "title": title, "status": status} for n, (title, status) in enumerate(found)
    ]
)
_sessions: st.SearchStrategy[dict[str, Any]] = st.fixed_dictionaries(
    {},
    optional={
        "project": st.fixed_dictionaries({"branch": texts(1), "status": texts(2)}),
        "goal": st.fixed_dictionaries(
            {"statement": texts(3)},
            optional={
                "criteria": st.lists(st.fixed_dictionaries({"text": texts(2)}), max_size=6),
                "tasks": _steps,
                "current_step": st.just("s1"),
                "blockers": _some(texts(2), 2),
            },
        ),
        "work_items": st.lists(st.fixed_dictionaries({"title": texts(2)}), max_size=6),
        "handoff": st.fixed_dictionaries(
            {"decisions": _some(texts(2), 3), "blockers": _some(texts(1), 2), "alerts": _some(texts(2), 4)}
        ),
    },
)
_memories = st.tuples(texts(12), st.lists(texts(3), max_size=5)).map(
    lambda found: {
        "summary": found[0],
        "items": [{"id": f"m{n}", "text": text} for n, text in enumerate(found[1])],
    }
)
_artifacts = st.lists(
    st.fixed_dictionaries({"stage": st.just("design"), "type": st.just("note"), "content": texts(8)}),
    max_size=4,
)
_working = st.fixed_dictionaries(
    {"current_diff": texts(6) | st.just(DIFF)},
    optional={
        "failing_tests": st.lists(
            st.fixed_dictionaries({"id": st.sampled_from(["t::a", "t::b"]), "message": texts(3)}), max_size=3
        )
    },
)


def _pack(bodies: list[str]) -> str:
    sections = "".join(
        f"## function f{n}\n"
        f"<!-- node: a.py::f{n} | template: T | rank: {n} | score: 0.{n}00000 | tokens: 9 -->\n"
        f"````python\n{body}\n````\n"
        for n, body in enumerate(bodies)
    )
    return f"---\npack_version: 1\nproject: hostile\n---\n{sections}"


CONTENT: dict[str, st.SearchStrategy[Any]] = {
    "session": _sessions,
    "memory": _memories,
    "artifacts": _artifacts,
    "payload": texts(16).map(lambda text: {"task_context": text}),
    "working": _working,
    "pack": st.lists(texts(3), max_size=5).map(_pack),
    "thread_id": st.sampled_from(["t/1", "t%2*"]),
}
WINDOWS = st.fixed_dictionaries(
    {"total": st.integers(250, 4_000) | st.sampled_from([300, 700, 1_500, 8_000])},
    optional={
        "client_overhead_tokens": st.integers(0, 60),
        "layers": st.dictionaries(
            st.sampled_from(["mission", "plan", "memory", "artifacts", "task", "output", "graph"]),
            st.integers(0, 80),  # three of them fit the smallest total
            max_size=3,
        ),
    },
)


def requests(
    always: tuple[str, ...], *, models: tuple[str, ...] = MODELS, max_scraps: int = 6, **more: Any
) -> st.SearchStrategy[dict[str, Any]]:
    """Wire requests that hold the named content and perhaps the rest; `more` adds or replaces fields."""
    return st.fixed_dictionaries(
        {
            "request_id": st.just("r"),
            "project_id": st.just("hostile"),
            "volk": st.just("smith"),
            "subject": st.sampled_from(SUBJECTS),
            "user_message": texts(max_scraps),
            "system_prompt": texts(3),
            "model": st.sampled_from(models),
            "as_of": st.just("2026-01-02T03:04:05Z"),
            **{name: CONTENT[name] for name in always},
            **more,
        },
        optional={name: strategy for name, strategy in CONTENT.items() if name not in always},
    )
