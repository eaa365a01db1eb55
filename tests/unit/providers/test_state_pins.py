"""What a thread's state must never let a prompt lose, and what the use of things says of them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from schemas.session import Decision, HandoffData, Plan, PlanFile, SessionContext
from tests.support.state_events import START, record
from tests.unit.providers.frames import BUDGET, frame, pins, texts
from worker.budget.tokens import counter_for
from worker.memory.index import MemoryIndex
from worker.ports import Fragment, Scope
from worker.providers.artifacts import ArtifactsProvider
from worker.providers.kept import Kept
from worker.providers.memory import MemoryProvider
from worker.providers.mission import MissionProvider, build_mission
from worker.providers.plan import PlanProvider, build_plan, read_steps
from worker.providers.states import ThreadStates
from worker.providers.task import TaskProvider
from worker.providers.threads import SourceThreads
from worker.stores.sqlite_state import SqliteStateStore

SCOPE = Scope(project_id="p", thread_id="t1")
DAY = 86_400


@pytest.fixture
async def store(tmp_path: Path) -> AsyncGenerator[SqliteStateStore]:
    opened = SqliteStateStore(tmp_path / "state.db")
    yield opened
    await opened.close()


@pytest.fixture
async def states(store: SqliteStateStore) -> AsyncGenerator[ThreadStates]:
    opened = ThreadStates(store, SourceThreads(), max_bytes=10_000_000)
    yield opened
    await opened.close()


async def tell(store: SqliteStateStore, *events: tuple[str, dict[str, Any]], at: int = 0) -> None:
    told = [record(f"{kind}-{at + n}", kind, body, at=at + n) for n, (kind, body) in enumerate(events)]
    await store.apply("p", told)


# --- Pins --------------------------------------------------------------------------------------------


async def test_who_sends_the_diff_alone_still_sees_the_tests_that_fail(
    store: SqliteStateStore, states: ThreadStates
) -> None:
    await tell(store, ("test_result", {"test_id": "t", "status": "failed", "message": "boom"}))
    request = frame(thread_id="t1", working={"current_diff": "--- a/a.py\n+++ b/a.py\n@@ -1 +1 @@\n-a\n+b\n"})
    shown = pins(await TaskProvider(states=states).provide(request, SCOPE, BUDGET))
    assert any(floor.startswith("- a.py") for floor in shown)
    assert "- t: boom" in shown


async def test_that_more_tests_fail_than_are_named_is_pinned_too(
    store: SqliteStateStore, states: ThreadStates
) -> None:
    await tell(store, *(("test_result", {"test_id": f"t{n}", "status": "failed"}) for n in range(25)))
    layer = await TaskProvider(states=states).provide(frame(thread_id="t1"), SCOPE, BUDGET)
    assert pins(layer)[-1] == "- and 5 more"
    assert len(pins(layer)) == 21
    assert layer.capped == 5


async def test_decisions_of_hand_offs_long_replaced_are_shown(
    store: SqliteStateStore, states: ThreadStates
) -> None:
    await tell(store, *(("hand_off", {"decisions": [f"number {n}"]}) for n in range(12)))
    shown = texts(await MissionProvider(states).provide(frame(thread_id="t1"), SCOPE, BUDGET))
    assert [line.rpartition(": ")[2] for line in shown] == [f"number {n}" for n in range(2, 12)]


def decided(applies_to: str, message: str, *, given: frozenset[str] = frozenset()) -> bool:
    old = Decision(id="old", title="old", applies_to=(applies_to,))
    newer = tuple(Decision(id=f"d{n}", title="new") for n in range(10))
    session = SessionContext(handoff=HandoffData(decisions=(old, *newer)))
    return "- old: old" in texts(build_mission(session, must_show=given, message=message))


@pytest.mark.parametrize(
    ("applies_to", "message"),
    [
        ("client/retry.py", "Mend client/retry.py."),
        ("client/retry.py", "`client/retry.py::Retry.next` hangs"),
        ("client/retry.py:10-20", "See client/retry.py:12"),
        ("REQ-7", "Does REQ-7 hold? REQ-70 does."),
        ("REQ-7", "REQ-70 and REQ-7"),
        ("client.py::retry", "why does client.py::retry loop"),
        ("ключ.py", "В ключ.py ошибка"),
    ],
)
def test_an_old_decision_on_what_the_message_names_is_pinned(applies_to: str, message: str) -> None:
    assert decided(applies_to, message)


@pytest.mark.parametrize(
    ("applies_to", "message"),
    [
        ("retry.py", "Mend client/retry.py."),
        ("client/retry.py", "Mend client/retry.pyx and xclient/retry.py and client/retry.py.orig"),
        ("REQ-7", "REQ-70, XREQ-7"),
        ("", "anything"),
        (":12", "anything:12"),
        ("client.py::retry", "client.py::retry_all"),
    ],
)
def test_an_old_decision_on_something_else_is_not(applies_to: str, message: str) -> None:
    assert not decided(applies_to, message)


def test_a_decision_on_a_file_holds_for_what_stands_in_it() -> None:
    assert decided("a.py", "", given=frozenset({"a.py::f"}))
    assert not decided("a.py", "", given=frozenset({"a.pyi::f"}))


@pytest.mark.parametrize("status", ["blocked", "review"])
async def test_a_plan_file_whose_open_steps_all_wait_still_has_a_current_one(
    store: SqliteStateStore, states: ThreadStates, status: str
) -> None:
    text = f"# Plan\n\n| ID | Task | Status |\n|---|---|---|\n| 1 | Store | done |\n| 2 | Sync | {status} |\n"
    await tell(store, ("plan_set", {"plan_id": "p", "path": "PLAN.md", "text": text}))
    [floor] = pins(await PlanProvider(states).provide(frame(thread_id="t1"), SCOPE, BUDGET))
    assert floor == f"2 Sync ({status})"


def test_of_two_current_steps_the_first_is_shown_in_full_and_the_other_comes_next() -> None:
    steps = [{"id": str(n), "title": "x", "status": "active" if n in {2, 4} else "pending"} for n in range(6)]
    layer = build_plan(Plan.model_validate({"plan_id": "p", "steps": steps}), None)
    assert pins(layer) == ["2 x (active)"]


# --- The files of a plan -----------------------------------------------------------------------------

BACKLOG = {
    f"backlog/tasks/back-{n} - T{n}.md": f"---\nid: BACK-{n}\ntitle: T{n}\nstatus: {status}\n---\n"
    for n, status in ((1, "Done"), (2, "In Progress"), (3, "To Do"))
}
GSD = {
    ".planning/STATE.md": "# State\n\n## Current Position\n\nPhase: 2 of 2\nPlan: 1 of 2\n",
    ".planning/ROADMAP.md": "# Roadmap\n\n- [ ] **Phase 1: Store**\n- [ ] **Phase 2: Sync**\n",
}
MASTER = {
    ".taskmaster/tasks/tasks.json": '{"master": {"tasks": [{"id": 1, "title": "Old", "status": "pending"}]},'
    ' "next": {"tasks": [{"id": 7, "title": "New", "status": "pending"}]}}',
    ".taskmaster/state.json": '{"currentTag": "next"}',
}
OPENSPEC = {
    "openspec/changes/x/tasks.md": "## 1. Parser\n- [x] 1.1 Read\n- [ ] 1.2 Test\n",
    "openspec/changes/x/proposal.md": "## Why\nRetries never end.\n\n## What Changes\n- all\n",
}


@pytest.mark.parametrize(
    ("files", "current", "told"),
    [
        (BACKLOG, "BACK-2 T2 (active)", "Progress: 1/3 done"),
        (GSD, "Phase 2 Sync (pending)", "Progress: 1/2 done"),
        (MASTER, "7 New (pending)", "Progress: 0/1 done"),
        (OPENSPEC, "1.2 Test (pending)", "Goal: Retries never end."),
    ],
)
async def test_a_plan_of_several_files_is_read_with_all_of_them(
    store: SqliteStateStore,
    states: ThreadStates,
    files: dict[str, str],
    current: str,
    told: str,
) -> None:
    (path, text), *others = files.items()
    body = {"plan_id": "p", "path": path, "text": text, "files": [{"path": p, "text": t} for p, t in others]}
    await tell(store, ("plan_set", body))
    stored = await PlanProvider(states).provide(frame(thread_id="t1"), SCOPE, BUDGET)
    assert pins(stored) == [current]
    assert told in texts(stored)
    inline = await PlanProvider().provide(frame(plan=body), SCOPE, BUDGET)
    assert texts(inline) == texts(stored)
    assert pins(build_plan(Plan(plan_id="p", path=path, text=text), None)) != [current] or files is OPENSPEC


def test_files_without_a_text_are_refused() -> None:
    with pytest.raises(ValueError, match="belong to a `text`"):
        Plan(plan_id="p", files=(PlanFile(path="a", text="b"),))


def test_a_file_that_was_read_is_not_read_again_and_its_neighbours_count() -> None:
    plan = Plan(plan_id="p", path="PLAN.md", text="- [ ] 1. A\n")
    assert read_steps(plan) is read_steps(plan.model_copy())
    other = plan.model_copy(update={"files": (PlanFile(path="x", text="y"),)})
    assert read_steps(other) is not read_steps(plan)


def test_what_is_kept_is_bounded_and_what_was_used_last_stays() -> None:
    kept = Kept[str, int](10)
    for number, name in enumerate("abc"):
        kept.put(name, number, size_bytes=4)
        kept.get("a")
    assert [kept.get(name) for name in "abc"] == [0, None, 2]
    kept.put("a", 7, size_bytes=90)
    assert [kept.get(name) for name in "abc"] == [7, None, None]
    kept.forget(lambda name: name == "a")
    kept.put("b", 1, size_bytes=10)
    assert [kept.get(name) for name in "abc"] == [None, 1, None]


# --- Use and age -------------------------------------------------------------------------------------


def tiers(fragments: tuple[Fragment, ...]) -> dict[str, str]:
    return {fragment.node.rpartition("/")[2]: fragment.storage_tier for fragment in fragments}


async def test_what_events_refer_to_is_hot_and_what_nobody_did_for_a_month_is_cold(
    store: SqliteStateStore, states: ThreadStates
) -> None:
    facts = [("memory", {"id": name, "text": f"Fact {name}."}) for name in ("used", "unused")]
    made = [
        ("artifact", {"id": name, "stage": "s", "type": "t", "content": "c"})
        for name in ("used-a", "unused-a")
    ]
    await tell(store, *facts, *made, at=-40 * DAY)
    await tell(store, ("memory", {"id": "middle", "text": "Fact middle."}), at=-5 * DAY)
    await tell(store, ("memory", {"id": "new", "text": "Fact new."}), at=-3_600)
    refers = {"role": "user", "content": "As we know.", "refers_to": ["used", "used-a"]}
    await tell(store, ("message", refers), at=-60)
    request = replace(frame(thread_id="t1", user_message="Fact?"), as_of=START)
    for _ in range(2):  # to read a thing is no use of it
        memory = await MemoryProvider(states).provide(request, SCOPE, BUDGET)
        artifacts = await ArtifactsProvider(states).provide(request, SCOPE, BUDGET)
        shown = tiers((*memory.fragments, *artifacts.fragments))
        shown.pop("summary")
        assert shown == {
            "used": "hot",
            "unused": "cold",
            "middle": "warm",
            "new": "hot",
            "used-a": "hot",
            "unused-a": "cold",
        }


# --- One reading, one story --------------------------------------------------------------------------


async def test_a_reading_keeps_its_facts_while_others_read_newer_and_older_ones(
    store: SqliteStateStore, states: ThreadStates
) -> None:
    counter = counter_for("o200k_base")
    readings = [await states.read(SCOPE)]
    for number in range(4):
        await tell(store, ("memory", {"id": "m", "text": f"Version {number}.", "subject": "s"}), at=number)
        await tell(store, ("memory", {"id": f"n{number}", "text": "Another."}), at=100 + number)
        readings.append(await states.read(SCOPE))

    def seen(number: int) -> list[str]:
        recalled = readings[number].memories.recall("version", budget_tokens=500, counter=counter)
        return sorted(found.item.text for found in recalled.items)

    wanted = [[], *(["Another."] * (n + 1) + [f"Version {n}."] for n in range(4))]
    found = await asyncio.gather(*(asyncio.to_thread(seen, n) for n in (4, 0, 2, 3, 1, 4, 2)))
    assert found == [wanted[n] for n in (4, 0, 2, 3, 1, 4, 2)]
    assert [reading.memories.count for reading in readings] == [len(texts) for texts in wanted]
    fresh = MemoryIndex(readings[3].memories.current())
    assert len(fresh) == 4


@pytest.mark.parametrize(
    ("path", "text", "current"),
    [
        (
            "specs/001-x/tasks.md",
            (
                "- [x] T031 Sign (SKIPPED: no key)\n- [ ] T047 Dark — DEFERRED\n- [x] ~~T002 Vendor~~\n"
                "- [ ] T002 **CHANGED**: by hand\n\n## Notes\n- [P] tasks = different files\n"
            ),
            "T002#2 CHANGED: by hand (pending)",
        ),
        (
            ".kiro/specs/x/tasks.md",
            "- [x] 3. Sync\n  - [ ]* 3.4 Test\n- [ ] 4. Docs\n- [-] 12. Move\n",
            "12 Move (active)",
        ),
        ("openspec/changes/x/tasks.md", "---\nstatus: complete\n---\n### 1.1 a\n### 1.2 b\n", None),
        ("PLAN.md", "- [ ] 1. a\n```\n- [/] 2. b\n- [/] 3. c\n", "2 b (active)"),
        ("PLAN.md", "- [ ] 1. Phase — DEFERRED\n  - [ ] 1.1 child\n- [ ] 2. b\n", "2 b (pending)"),
        (
            ".taskmaster/tasks/tasks.json",
            (
                '{"tasks": [{"id": 5, "title": "", "status": "active", "subtasks": [{"id": 1, "title": "a",'
                ' "status": "done"}, {"id": 2, "title": "b", "status": "pending", "dependencies": ["9"]}]}]}'
            ),
            "5.2 b (pending)",
        ),
    ],
)
def test_awkward_plan_files_show_the_step_that_their_format_means(
    path: str, text: str, current: str | None
) -> None:
    floors = pins(build_plan(Plan(plan_id="p", path=path, text=text), None))
    assert [floor.split("\n")[0] for floor in floors] == ([] if current is None else [current])
