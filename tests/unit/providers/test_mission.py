from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from schemas.session import SessionContext
from tests.unit.providers.frames import BUDGET, SCOPE, frame, pins, texts
from worker.providers.contribution import layer_text
from worker.providers.mission import MissionProvider, build_mission, render_mission_context

SESSION: dict[str, Any] = {
    "project": {
        "branch": "main",
        "version": "1.4",
        "status": "green",
        "test_state": "12 passed",
        "active_session": 7,
    },
    "goal": {
        "id": "G-1",
        "status": "active",
        "statement": "Ship\nretries",
        "criteria": [{"text": "No lost call"}, {"text": "Done", "met": True}, {"text": "Documented"}],
        "blockers": [{"id": "B-1", "text": "Vendor has\nnot answered"}],
    },
    "work_items": [
        {"id": "W-1", "title": "Time-outs", "priority": "P1", "notes": "after the release"},
        {"id": "W-2", "title": "Old one", "priority": "P0", "state": "done"},
        {"id": "W-3", "title": "Metrics", "priority": 2, "state": "deferred"},
        {"id": "W-4", "title": "No priority"},
    ],
    "handoff": {
        "decisions": [
            {"id": "D-1", "title": "Back off", "text": "With\njitter"},
            {"id": "D-2", "title": "Cap"},
        ],
        "blockers": [{"id": "B-1", "text": "Vendor has\nnot answered"}, {"id": "B-2", "text": "No staging"}],
        "active_work": ["client.py"],
        "key_files": ["src/net.py"],
        "commands": ["make test"],
        "alerts": ["flaky: test_net"],
    },
}
BLOCK = """# MISSION CONTEXT
Project: branch main · version 1.4 · green · tests: 12 passed
Active session: 7
Goal G-1 (active): Ship retries
## Blockers
- B-1: Vendor has not answered
## Unmet criteria
- No lost call
- Documented
## Pending work
- [P1] Time-outs: after the release
- [2] Metrics
- No priority
## Handed over: decisions
- D-1: Back off: With jitter
- D-2: Cap
## Handed over: blockers
- B-2: No staging
## Handed over: active work
- client.py
## Handed over: key files
- src/net.py
## Handed over: commands
- make test
## Handed over: alerts
- flaky: test_net"""


def session(**fields: Any) -> SessionContext:
    return SessionContext.model_validate(fields)


def test_the_block_says_all_there_is_in_the_order_of_importance() -> None:
    assert render_mission_context(session(**SESSION)) == BLOCK


@pytest.mark.parametrize("context", [None, SessionContext(), session(goal=None, work_items=[], handoff={})])
def test_nothing_to_say_is_an_empty_text(context: SessionContext | None) -> None:
    assert render_mission_context(context) == ""


def test_the_cap_drops_the_hand_off_first_and_spares_pins() -> None:
    text = render_mission_context(session(**SESSION), max_lines=16)
    assert text.split("\n") == [
        "# MISSION CONTEXT",
        "Project: branch main · version 1.4 · green · tests: 12 passed",
        "Active session: 7",
        "Goal G-1 (active): Ship retries",
        "## Blockers",
        "- B-1: Vendor has not answered",
        "## Unmet criteria",
        "- No lost call",
        "- Documented",
        "## Pending work",
        "- [P1] Time-outs: after the release",
        "## Handed over: decisions",
        "- D-1: Back off: With jitter",
        "- D-2: Cap",
        "## Handed over: blockers",
        "- B-2: No staging",
    ]


def test_pins_stay_whatever_the_cap() -> None:
    assert render_mission_context(session(**SESSION), max_lines=0).split("\n") == [
        "# MISSION CONTEXT",
        "Goal G-1 (active): Ship retries",
        "## Blockers",
        "- B-1: Vendor has not answered",
        "## Handed over: decisions",
        "- D-1: Back off: With jitter",
        "- D-2: Cap",
        "## Handed over: blockers",
        "- B-2: No staging",
    ]


def test_lists_hold_five_items_and_what_is_beyond_is_counted() -> None:
    names = [f"item {n}" for n in range(1, 9)]
    contribution = build_mission(
        session(
            goal={"statement": "g", "criteria": [{"text": name} for name in names]},
            work_items=[{"title": name} for name in names],
            handoff=dict.fromkeys(("active_work", "key_files", "commands", "alerts"), names),
        )
    )
    shown = texts(contribution)
    for number in range(1, 9):
        assert shown.count(f"- item {number}") == (6 if number <= 5 else 0)
    assert contribution.capped == 6 * 3


def test_the_ten_newest_decisions_are_pinned_and_the_five_newest_in_full() -> None:
    decisions = [{"id": f"D-{n}", "title": f"title {n}", "text": f"text {n}"} for n in range(1, 13)]
    contribution = build_mission(session(handoff={"decisions": decisions}))
    assert texts(contribution) == [
        *(f"- D-{n}: title {n}" for n in range(3, 8)),
        *(f"- D-{n}: title {n}: text {n}" for n in range(8, 13)),
    ]
    assert pins(contribution) == [f"- D-{n}: title {n}" for n in range(3, 13)]
    assert contribution.capped == 2


@pytest.mark.parametrize("must_show", [{"D-1"}, {"src/net.py"}])
def test_an_old_decision_that_the_request_asks_for_is_pinned(must_show: set[str]) -> None:
    decisions = [{"id": f"D-{n}", "title": f"t{n}"} for n in range(1, 13)]
    decisions[0]["applies_to"] = ["src/net.py", "other"]  # pyright: ignore[reportArgumentType]  # wire shape
    contribution = build_mission(session(handoff={"decisions": decisions}), must_show=frozenset(must_show))
    assert pins(contribution)[0] == "- D-1: t1"
    assert len(pins(contribution)) == 11


async def test_the_request_asks_for_what_it_must_cite_and_for_its_target_files() -> None:
    decisions: list[dict[str, Any]] = [{"id": f"D-{n}", "title": f"t{n}"} for n in range(1, 15)]
    decisions[1]["applies_to"] = ["src/net.py"]
    contribution = await MissionProvider().provide(
        frame(
            session={"handoff": {"decisions": decisions}},
            must_cite=["D-3"],
            payload={"files_created": ["src/net.py"]},
        ),
        SCOPE,
        BUDGET,
    )
    assert pins(contribution)[:3] == ["- D-2: t2", "- D-3: t3", "- D-5: t5"]


def test_every_blocker_is_pinned_and_the_goal_too() -> None:
    blockers = [f"blocker {n}" for n in range(12)]
    contribution = build_mission(
        session(goal={"statement": "ship", "blockers": blockers}, handoff={"blockers": ["another"]})
    )
    assert len(pins(contribution)) == 1 + 12 + 1


def test_a_long_pin_has_one_short_line_as_its_floor() -> None:
    contribution = build_mission(
        session(
            goal={"statement": "word " * 200_000, "blockers": ["b" * 1_000_000]},
            handoff={"decisions": [{"id": "D-1", "title": "t" * 1_000_000, "text": "x"}]},
        )
    )
    assert [len(text) for text in pins(contribution)] == [301, 301, 301]
    assert pins(contribution)[0].startswith("Goal: word word")
    assert all("\n" not in text for text in texts(contribution))


def test_a_bare_string_is_a_decision_or_a_blocker_with_an_id_of_its_own() -> None:
    text = render_mission_context(session(handoff={"decisions": ["Use queues"], "blockers": ["No key"]}))
    assert text.split("\n")[1:] == [
        "## Handed over: decisions",
        "- d_d3e363fe80: Use queues",
        "## Handed over: blockers",
        "- b_e867868d5a: No key",
    ]


def test_blank_items_say_nothing() -> None:
    contribution = build_mission(
        session(
            project={"branch": " ", "status": ""},
            goal={"statement": "g", "criteria": [{"text": " \n"}]},
            handoff={"alerts": ["", " ", "real"], "key_files": ["\t"]},
        )
    )
    assert texts(contribution) == ["Goal: g", "- real"]


def test_what_is_dropped_first_ranks_last() -> None:
    contribution = build_mission(session(**SESSION))
    others = [f for f in contribution.fragments if not f.is_pinned]
    assert others == sorted(others, key=lambda f: (-f.relevance, f.rank))


def test_nodes_are_uris_of_what_the_lines_speak_of() -> None:
    nodes = [f.node for f in build_mission(session(**SESSION)).fragments]
    assert nodes[:9] == [
        "session://project",
        "session://session/7",
        "session://goal/G-1",
        "session://blocker/B-1",
        "session://goal/G-1/criterion/1",
        "session://goal/G-1/criterion/3",
        "session://work-item/W-1",
        "session://work-item/W-3",
        "session://work-item/W-4",
    ]


async def test_the_provider_shows_what_the_function_shows() -> None:
    contribution = await MissionProvider().provide(frame(session=SESSION), SCOPE, BUDGET)
    assert layer_text(contribution) == BLOCK
    assert contribution.status == "ok"


async def test_a_heavy_session_gives_the_same_from_a_thread() -> None:
    heavy = {
        "work_items": [{"title": "x" * 10} for _ in range(10_000)],
        "goal": {"statement": "y" * 1_000_000},
    }
    contribution = await MissionProvider().provide(frame(session=heavy), SCOPE, BUDGET)
    assert contribution == build_mission(session(**heavy))
    assert contribution.capped == 9_995


@settings(max_examples=100)
@given(
    st.fixed_dictionaries(
        {
            "criteria": st.integers(0, 7),
            "work": st.integers(0, 7),
            "blockers": st.integers(0, 7),
            "decisions": st.integers(0, 12),
            "alerts": st.integers(0, 7),
        }
    ),
    st.integers(0, 45),
)
def test_more_lines_never_lose_a_line(counts: dict[str, int], max_lines: int) -> None:
    context = session(
        project={"branch": "main"},
        goal={
            "statement": "g",
            "criteria": [{"text": f"c{n}"} for n in range(counts["criteria"])],
            "blockers": [f"b{n}" for n in range(counts["blockers"])],
        },
        work_items=[{"title": f"w{n}"} for n in range(counts["work"])],
        handoff={
            "decisions": [f"d{n}" for n in range(counts["decisions"])],
            "alerts": [f"a{n}" for n in range(counts["alerts"])],
        },
    )
    fewer = render_mission_context(context, max_lines).split("\n")
    more = render_mission_context(context, max_lines + 1).split("\n")
    assert set(fewer) <= set(more)
    pinned = build_mission(context, max_lines=0)
    assert len(fewer) <= max(max_lines, layer_text(pinned).count("\n") + 1)
