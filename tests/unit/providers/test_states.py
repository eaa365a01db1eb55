from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from schemas.bundle import ContextBundle
from tests.support.assembling import settings, wire_request
from tests.support.state_events import HOSTILE_IDS, START, record
from tests.unit.providers.frames import SCOPE, frame
from worker.assembly import Assembler
from worker.errors import StoreUnavailable
from worker.providers.states import StateReading, ThreadStates
from worker.providers.threads import SourceThreads
from worker.state.store import Heads, Place, StoredGroup
from worker.stores.sqlite_state import SqliteStateStore
from worker.telemetry import Telemetry
from worker.wiring import build_assembler

PLAN_TEXT = """# Implementation Plan

- [x] 1. Storage layer
- [ ] 2. Retry with a deadline
  - Keep the first error
- [ ] 3. Docs
"""


@dataclass
class Watched(SqliteStateStore):
    """The embedded store, its questions counted; away where the test says so."""

    path: Path
    asked: list[str] = field(default_factory=list[str])
    is_away: bool = False
    was_asked: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        super().__init__(self.path)

    async def heads(
        self, project_id: str, thread_ids: Sequence[str], *, event_ids: Sequence[str] = ()
    ) -> Heads:
        self.asked.append("heads")
        self.was_asked.set()
        if self.is_away:
            raise StoreUnavailable("state")
        return await super().heads(project_id, thread_ids, event_ids=event_ids)

    async def groups(self, project_id: str, versions: Mapping[Place, int]) -> Mapping[Place, StoredGroup]:
        self.asked.append("groups")
        return await super().groups(project_id, versions)


@pytest.fixture
async def store(tmp_path: Path) -> AsyncGenerator[Watched]:
    opened = Watched(tmp_path / "state.db")
    yield opened
    await opened.close()


@pytest.fixture
async def states(store: Watched) -> AsyncGenerator[ThreadStates]:
    opened = ThreadStates(store, SourceThreads(), max_bytes=10_000_000)
    yield opened
    await opened.close()


@pytest.fixture
def assembler(states: ThreadStates) -> Assembler:
    return build_assembler(settings(), Telemetry(), None, states)


async def tell(store: SqliteStateStore, *events: tuple[str, dict[str, Any]], **more: Any) -> None:
    """Publish events, a second apart."""
    project = more.pop("project", "p")
    first = more.pop("at", 0)
    suffix = "" if more.get("thread", "t1") == "t1" else f"-{more['thread']}"
    await store.apply(
        project,
        [
            record(f"{kind}-{first + number}{suffix}", kind, body, at=first + number, **more)
            for number, (kind, body) in enumerate(events)
        ],
    )


async def ask(assembler: Assembler, **more: Any) -> ContextBundle:
    fields = {"thread_id": "t1", "layer_timeouts_ms": dict.fromkeys(LAYERS, 5_000), "deadline_ms": 9_000}
    request = wire_request(**{**fields, **more})
    return (await assembler.assemble(request, as_of=START)).bundle


LAYERS = ("mission", "plan", "memory", "artifacts", "task")


def text_of(bundle: ContextBundle) -> str:
    assert bundle.messages is not None
    return bundle.messages[-1].content


def statuses(bundle: ContextBundle) -> dict[str, str]:
    assert bundle.layers is not None
    return {name: bundle.layers[name].status for name in LAYERS}


STEPS = [{"title": "one", "status": "done"}, {"title": "two"}]
STORY = (
    ("project_updated", {"branch": "main", "test_state": "2 failing"}),
    ("session_opened", {"session_id": "s-1", "title": "Design"}),
    ("goal_set", {"id": "g", "statement": "Requests end in time", "blockers": ["no staging"]}),
    ("work_item", {"id": "w", "title": "Tidy the client", "priority": "P2"}),
    ("hand_off", {"decisions": ["Deadlines are absolute"], "key_files": ["client.py"]}),
    ("plan_set", {"plan_id": "plan", "path": ".kiro/specs/x/tasks.md", "text": PLAN_TEXT}),
    ("memory", {"id": "m1", "subject": "retries", "text": "Retries are capped at three."}),
    ("memory", {"id": "m2", "subject": "retries", "text": "Retries are capped at five."}),
    ("message", {"role": "user", "content": "We decided to keep the first error of all retries."}),
    ("artifact", {"id": "a", "stage": "design", "type": "doc", "content": "The deadline travels along."}),
    ("test_result", {"test_id": "test_deadline", "status": "failed", "message": "assert 3 < 2"}),
)


async def test_a_request_with_ids_alone_knows_what_its_thread_has_told(
    store: Watched, assembler: Assembler
) -> None:
    await tell(store, *STORY)
    bundle = await ask(assembler, user_message="How many retries are there?")
    assert statuses(bundle) == dict.fromkeys(LAYERS, "ok")
    text = text_of(bundle)
    for told in (
        "Project: branch main · tests: 2 failing",
        "Active session: Design",
        "Requests end in time",
        "no staging",
        "[P2] Tidy the client",
        "Deadlines are absolute",
        "client.py",
        "2 Retry with a deadline",
        "Keep the first error",
        "Retries are capped at five.",
        "We decided to keep the first error of all retries.",
        "The deadline travels along.",
        "test_deadline: assert 3 < 2",
    ):
        assert told in text
    assert "capped at three" not in text  # superseded


async def test_what_the_request_brings_wins_kind_by_kind(store: Watched, assembler: Assembler) -> None:
    await tell(store, *STORY)
    bundle = await ask(
        assembler,
        session={"goal": {"statement": "Another goal"}},
        memory={"items": [{"id": "x", "text": "Another fact."}]},
    )
    text = text_of(bundle)
    assert "Another goal" in text
    assert "Requests end in time" not in text
    assert "Another fact." in text
    assert "capped at five" not in text
    assert "2 Retry with a deadline" in text
    assert "The deadline travels along." in text


async def test_all_layers_of_a_request_share_one_reading_and_one_that_has_not_moved_is_not_read_again(
    store: Watched, assembler: Assembler
) -> None:
    await tell(store, *STORY)
    first = await ask(assembler)
    assert store.asked == ["heads", "groups"]
    again = await ask(assembler)
    assert store.asked == ["heads", "groups", "heads"]
    assert text_of(again) == text_of(first)
    await tell(store, ("goal_updated", {"id": "g", "statement": "Requests end"}), at=50)
    assert "Requests end\n" in text_of(await ask(assembler))
    assert store.asked[3:] == ["heads", "groups"]


async def test_a_request_that_brings_everything_reads_nothing(store: Watched, assembler: Assembler) -> None:
    await tell(store, *STORY)
    await ask(
        assembler,
        session={},
        plan={"plan_id": "p", "steps": [{"title": "one"}]},
        memory={},
        artifacts=[{"id": "a", "stage": "s", "type": "t", "content": "c"}],
        working={"failing_tests": [{"id": "t"}]},
    )
    assert store.asked == []


async def test_a_kept_reading_is_that_of_a_new_reader(store: Watched, assembler: Assembler) -> None:
    for number, event in enumerate(STORY):
        await tell(store, event, at=number)
        kept = await ask(assembler, user_message="retries and deadlines")
        fresh_states = ThreadStates(store, SourceThreads(), max_bytes=1)
        fresh = build_assembler(settings(), Telemetry(), None, fresh_states)
        assert text_of(await ask(fresh, user_message="retries and deadlines")) == text_of(kept)
        await fresh_states.close()


async def test_what_belongs_to_the_project_is_seen_by_every_thread_and_the_threads_own_first(
    store: Watched, assembler: Assembler
) -> None:
    await tell(store, ("goal_set", {"id": "g", "statement": "For all"}), thread=None)
    await tell(store, ("goal_set", {"id": "g", "statement": "For one"}), thread="t2")
    assert "For all" in text_of(await ask(assembler, thread_id="t1"))
    assert "For one" in text_of(await ask(assembler, thread_id="t2"))
    assert "For all" in text_of(await ask(assembler, thread_id=None))


@pytest.mark.parametrize("hostile", HOSTILE_IDS)
async def test_no_thread_and_no_project_sees_another(
    store: Watched, assembler: Assembler, hostile: str
) -> None:
    await tell(store, *STORY, thread=hostile)
    await tell(store, *STORY, thread=hostile, project="other")
    await tell(store, ("goal_set", {"id": "g", "statement": "Mine"}), thread="t1")
    bundle = await ask(assembler, thread_id="t1")
    assert "Mine" in text_of(bundle)
    assert statuses(bundle) == {**dict.fromkeys(LAYERS, "empty"), "mission": "ok"}
    nobody = await ask(assembler, project_id="third", thread_id=hostile)
    assert statuses(nobody) == dict.fromkeys(LAYERS, "empty")


async def test_steps_advance_by_event(store: Watched, assembler: Assembler) -> None:
    await tell(store, *STORY)
    advance = {"plan_id": "plan", "step_id": "2", "summary": "Retries stop at the deadline. Tested."}
    await tell(store, ("step_advanced", advance), at=60)
    text = text_of(await ask(assembler))
    assert "3 Docs (pending)" in text
    assert "2 Retry with a deadline: Retries stop at the deadline." in text.partition("## Recently done")[2]
    await tell(store, ("step_advanced", {"plan_id": "plan", "step_id": "3", "status": "active"}), at=61)
    assert "3 Docs (active)" in text_of(await ask(assembler))


async def test_a_plan_that_has_ended_is_current_no_more_and_can_be_asked_for_by_name(
    store: Watched, assembler: Assembler
) -> None:
    await tell(store, *STORY)
    await tell(store, ("plan_set", {"plan_id": "old", "status": "completed", "steps": STEPS}), at=80)
    assert "2 Retry with a deadline" in text_of(await ask(assembler))
    text = text_of(await ask(assembler, plan_id="old"))
    assert "Progress: 1/2 done" in text
    assert "Current step" not in text
    assert "## Next" not in text


# --- Read your writes --------------------------------------------------------------------------------


async def test_a_layer_waits_for_the_events_that_the_request_wants_to_see(
    store: Watched, states: ThreadStates, assembler: Assembler
) -> None:
    asking = asyncio.create_task(ask(assembler, after={"event_ids": ["goal_set-0"]}))
    await store.was_asked.wait()
    await tell(store, ("goal_set", {"id": "g", "statement": "At last"}))
    states.changed("p")
    assert "At last" in text_of(await asking)


async def test_events_that_another_process_applied_are_found_too(
    store: Watched, assembler: Assembler
) -> None:
    asking = asyncio.create_task(ask(assembler, after={"event_ids": ["goal_set-0"]}))
    await store.was_asked.wait()
    await tell(store, ("goal_set", {"id": "g", "statement": "At last"}))
    assert "At last" in text_of(await asking)


async def test_events_that_do_not_come_leave_the_layers_behind(store: Watched, assembler: Assembler) -> None:
    await tell(store, *STORY)
    bundle = await ask(
        assembler,
        after={"event_ids": ["goal_set-2", "never"]},
        layer_timeouts_ms=dict.fromkeys(LAYERS, 200),
        session={"goal": {"statement": "Inline"}},
        working={"failing_tests": [{"id": "t"}]},
    )
    assert bundle.layers is not None
    reasons = {name: (bundle.layers[name].status, bundle.layers[name].reason) for name in LAYERS}
    behind = ("failed", "state_behind")
    assert reasons == {
        "mission": ("ok", None),  # its state stands in the request
        "plan": behind,
        "memory": behind,
        "artifacts": behind,
        "task": ("ok", None),
    }
    assert bundle.status == "degraded"


async def test_a_store_that_is_away_fails_the_layers_that_need_it_by_name(
    store: Watched, assembler: Assembler
) -> None:
    store.is_away = True
    bundle = await ask(assembler, payload={"task_context": "Mend the retry."})
    assert bundle.layers is not None
    reasons = {name: (bundle.layers[name].status, bundle.layers[name].reason) for name in LAYERS}
    assert reasons == {
        "mission": ("failed", "state_unavailable"),
        "plan": ("failed", "state_unavailable"),
        "memory": ("failed", "memory_unavailable"),
        "artifacts": ("failed", "state_unavailable"),
        "task": ("partial", "section_error"),
    }
    assert "Mend the retry." in text_of(bundle)


# --- Bounds ------------------------------------------------------------------------------------------


async def test_what_is_kept_is_bounded_and_what_was_let_go_is_read_again(store: Watched) -> None:
    small = ThreadStates(store, SourceThreads(), max_bytes=5_000)
    using = build_assembler(settings(), Telemetry(), None, small)
    for thread in ("t1", "t2", "t3"):
        facts = [("memory", {"id": f"m{n}", "text": f"Fact {n} of {thread}. " * 10}) for n in range(10)]
        await tell(store, *facts, thread=thread)
    texts = {thread: text_of(await ask(using, thread_id=thread)) for thread in ("t1", "t2", "t3")}
    store.asked.clear()
    assert {thread: text_of(await ask(using, thread_id=thread)) for thread in texts} == texts
    assert "groups" in store.asked
    await small.close()


async def test_old_failures_are_no_news(store: Watched, assembler: Assembler) -> None:
    await tell(store, ("test_result", {"test_id": "old", "status": "failed"}), at=-8 * 86_400)
    await tell(store, ("test_result", {"test_id": "new", "status": "error"}), at=-6 * 86_400)
    text = text_of(await ask(assembler))
    assert "- new" in text
    assert "- old" not in text


async def test_a_test_that_passes_again_fails_no_more(store: Watched, assembler: Assembler) -> None:
    await tell(store, ("test_result", {"test_id": "t", "status": "failed"}))
    assert "- t" in text_of(await ask(assembler))
    await tell(store, ("test_result", {"test_id": "t", "status": "passed"}), at=5)
    assert statuses(await ask(assembler))["task"] == "empty"


ARCHIVED = "openspec/changes/archive/2026-01-02-x/tasks.md"


async def test_a_plan_file_that_is_archived_has_no_current_step_until_an_event_names_one(
    store: Watched, assembler: Assembler
) -> None:
    text = "## 1. Parser\n- [x] 1.1 Read it\n- [x] 1.2 Test it\n"
    await tell(store, ("plan_set", {"plan_id": "old", "path": ARCHIVED, "text": text}))
    assert "Current step" not in text_of(await ask(assembler))
    await tell(store, ("step_advanced", {"plan_id": "old", "step_id": "1.2", "status": "active"}), at=5)
    assert "1.2 Test it (active)" in text_of(await ask(assembler))


async def test_a_step_with_optional_steps_alone_below_it_is_current_itself(
    store: Watched, assembler: Assembler
) -> None:
    text = "- [x] 1. Store\n- [ ] 2. Sync\n  - [ ]* 2.1 Property test\n- [ ] 3. Docs\n"
    await tell(store, ("plan_set", {"plan_id": "k", "path": ".kiro/specs/x/tasks.md", "text": text}))
    shown = text_of(await ask(assembler))
    assert "2 Sync (pending)" in shown
    assert "Progress: 1/3 done" in shown


async def test_a_plan_file_without_steps_is_shown_by_its_beginning(
    store: Watched, assembler: Assembler
) -> None:
    text = "# Notes\n\n" + "".join(f"Thought number {number}.\n" for number in range(100))
    bundle = await ask(assembler, plan={"plan_id": "n", "path": "notes.md", "text": text})
    assert "Plan: notes.md (no steps found)" in text_of(bundle)
    assert "Thought number 1." in text_of(bundle)
    assert "Thought number 60." not in text_of(bundle)


HAND_OFF = """# Hand-off

## What was done
- The deadline object

## Next steps
1. Stop before an attempt that cannot finish

## Gotchas
- The clock of the test bench jumps

## Decisions
- Deadlines are absolute

## Key files
- `client/retry.py:12`
"""


async def test_a_hand_off_file_is_read_slot_by_slot(store: Watched, assembler: Assembler) -> None:
    body = {"path": "HANDOFF.md", "text": HAND_OFF, "key_files": ["client/deadline.py"]}
    await tell(store, ("hand_off", body))
    text = text_of(await ask(assembler))
    for told in (
        "- Stop before an attempt that cannot finish",
        "The clock of the test bench jumps",
        "Deadlines are absolute",
        "- client/retry.py\n",
        "- client/deadline.py",
    ):
        assert told in text


async def test_a_file_that_is_no_hand_off_is_said_to_be_none(store: Watched, assembler: Assembler) -> None:
    await tell(store, ("hand_off", {"path": "HANDOFF.md", "text": "Just prose.", "blockers": ["no staging"]}))
    text = text_of(await ask(assembler))
    assert "- HANDOFF.md has no section that is known" in text
    assert "no staging" in text


async def test_who_waits_for_events_gets_over_a_store_that_fails_now_and_then(
    store: Watched, assembler: Assembler
) -> None:
    store.is_away = True
    asking = asyncio.create_task(ask(assembler, after={"event_ids": ["goal_set-0"]}))
    await store.was_asked.wait()
    store.is_away = False
    await tell(store, ("goal_set", {"id": "g", "statement": "At last"}))
    assert "At last" in text_of(await asking)


async def test_a_store_that_stays_away_is_no_wait_for_events(store: Watched, assembler: Assembler) -> None:
    store.is_away = True
    bundle = await ask(assembler, after={"event_ids": ["goal_set-0"]})
    assert bundle.layers is not None
    assert bundle.layers["mission"].reason == "state_unavailable"
    assert len(store.asked) == 4


async def test_a_store_that_hangs_holds_up_a_hurried_request_for_less(
    store: Watched, states: ThreadStates, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def hang(*_: object, **__: object) -> Heads:
        await asyncio.Event().wait()
        raise AssertionError

    loop = asyncio.get_running_loop()
    call_later, waits = loop.call_later, list[float]()

    def recorded(delay: float, *args: Any, **more: Any) -> asyncio.TimerHandle:
        waits.append(delay)
        return call_later(delay, *args, **more)

    monkeypatch.setattr(store, "heads", hang)
    monkeypatch.setattr(loop, "call_later", recorded)
    for deadline_ms in (40, 4_000):
        await states.prepare(frame(deadline_ms=deadline_ms), SCOPE)
    assert waits == pytest.approx([0.002, 0.1])


async def test_a_thread_that_has_not_moved_is_read_in_the_requests_own_task(
    store: Watched, states: ThreadStates, monkeypatch: pytest.MonkeyPatch
) -> None:
    await tell(store, *STORY, project=SCOPE.project_id)
    asking: list[asyncio.Task[Any] | None] = []
    heads = store.heads

    async def watched(*args: Any, **more: Any) -> Heads:
        asking.append(asyncio.current_task())
        return await heads(*args, **more)

    monkeypatch.setattr(store, "heads", watched)
    for _ in range(2):
        one = frame()
        await states.prepare(one, SCOPE)
        reading = await states.of(one, SCOPE, layer="mission")
        assert reading.is_anything_known
        assert "read state" not in {task.get_name() for task in asyncio.all_tasks()}
    assert asking == [asyncio.current_task()] * 2


async def test_an_answer_that_comes_after_the_moment_is_asked_for_again_and_reaches_the_layers(
    store: Watched, states: ThreadStates, monkeypatch: pytest.MonkeyPatch
) -> None:
    await tell(store, *STORY, project=SCOPE.project_id)
    heads, first = store.heads, asyncio.Event()

    async def late(*args: Any, **more: Any) -> Heads:
        if not first.is_set():
            first.set()
            await asyncio.Event().wait()
        return await heads(*args, **more)

    monkeypatch.setattr(store, "heads", late)
    one = frame(deadline_ms=40)
    await states.prepare(one, SCOPE)
    assert first.is_set()
    assert (await states.of(one, SCOPE, layer="mission")).is_anything_known


async def test_a_turn_of_the_loop_that_takes_long_loses_no_answer(
    store: Watched, states: ThreadStates, monkeypatch: pytest.MonkeyPatch
) -> None:
    await tell(store, *STORY, project=SCOPE.project_id)
    loop, heads = asyncio.get_running_loop(), store.heads
    waiting: list[asyncio.Future[None]] = []
    known: list[Heads] = []

    async def answered() -> StateReading:
        one = frame(deadline_ms=40)
        await states.prepare(one, SCOPE)
        return await states.of(one, SCOPE, layer="mission")

    def hold_the_loop() -> None:
        # In one turn the moment passes and the answers come.
        time.sleep(0.05)
        for answer in waiting:
            answer.set_result(None)

    async def recorded(*args: Any, **more: Any) -> Heads:
        known.append(await heads(*args, **more))
        return known[-1]

    async def late(*_: Any, **__: Any) -> Heads:
        waiting.append(loop.create_future())
        if len(waiting) == 2:
            loop.call_soon(hold_the_loop)
        await waiting[-1]
        return known[-1]

    monkeypatch.setattr(store, "heads", recorded)
    await answered()
    monkeypatch.setattr(store, "heads", late)
    readings = await asyncio.gather(answered(), answered())
    assert all(reading.is_anything_known for reading in readings)
    assert len(waiting) == 2
