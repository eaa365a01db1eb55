"""The cold store of state: what every product that keeps it must do."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from datetime import timedelta
from itertools import count, pairwise
from random import Random
from uuid import uuid4

import pytest
import pytest_asyncio
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.support.state_events import HOSTILE_IDS, START, expected, held, record, records
from worker.state.records import StateRecord, microseconds
from worker.state.store import Place, StateStore
from worker.stores.neo4j_link import Neo4jLink
from worker.stores.neo4j_state import Neo4jStateStore
from worker.stores.redis_state import HotStateStore
from worker.stores.sqlite_state import SqliteStateStore

pytestmark = pytest.mark.asyncio(loop_scope="module")

THREADS = ("t1", "t2", "")
_projects = count()
_RUN = f"t{uuid4().hex[:12]}"


@pytest_asyncio.fixture(
    scope="module",
    loop_scope="module",
    params=["sqlite", *(pytest.param(name, marks=pytest.mark.services) for name in ("neo4j", "hot"))],
)
async def store(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> AsyncGenerator[StateStore]:
    cold: StateStore
    if request.param == "neo4j":
        user, password = request.getfixturevalue("neo4j_auth")
        link = Neo4jLink(request.getfixturevalue("neo4j_url"), user=user, password=password, retry_seconds=20)
        cold = Neo4jStateStore(link, timeout_seconds=20)
    else:
        cold = SqliteStateStore(tmp_path_factory.mktemp("state") / "state.db")
    opened = cold if request.param != "hot" else patient_hot(cold, request.getfixturevalue("redis_url"))
    yield opened
    for project_id in await opened.projects():
        if project_id.startswith(_RUN):
            await opened.purge(project_id)
    await opened.close()


def patient_hot(cold: StateStore, url: str) -> HotStateStore:
    """The server is not what is slow on a machine that is busy."""
    return HotStateStore(
        cold,
        url,
        keep_seconds=600,
        key_prefix=_RUN,
        connect_timeout_seconds=5,
        timeout_seconds=5,
        on_result=lambda result, count: None,
    )


def new_project() -> str:
    """A server outlives a run."""
    return f"{_RUN}-{next(_projects)}"


@pytest.fixture
def project() -> str:
    return new_project()


async def apply(store: StateStore, project: str, *events: StateRecord) -> None:
    await store.apply(project, events)


# --- A function of the set of events -----------------------------------------------------------------


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    events=st.lists(records(), min_size=1, max_size=25),
    order=st.randoms(use_true_random=False),
    cuts=st.lists(st.integers(1, 24), max_size=4),
)
async def test_order_batches_and_repeats_change_nothing(
    store: StateStore, events: list[StateRecord], order: Random, cuts: list[int]
) -> None:
    shuffled = [*events, *events[: len(events) // 2]]
    order.shuffle(shuffled)
    one, other = new_project(), new_project()
    await store.apply(one, events)
    edges = [0, *sorted(cuts), len(shuffled)]
    for start, end in pairwise(edges):
        if shuffled[start:end]:
            await store.apply(other, shuffled[start:end])
    wanted = expected(events)
    assert await held(store, one, *THREADS) == wanted
    assert await held(store, other, *THREADS) == wanted
    heads = await store.heads(other, THREADS, event_ids=[event.event_id for event in events])
    assert not heads.missing


async def test_two_writers_at_once_end_alike(store: StateStore, project: str) -> None:
    events = [
        record(f"e{number}", "goal_updated", {"id": "g", "statement": f"version {number}"}, at=number)
        for number in range(1, 40)
    ]
    events.insert(0, record("e0", "goal_set", {"id": "g", "statement": "version 0"}, at=0))
    halves = (events[::2], list(reversed(events[1::2])), events[::3])
    writers = [store.apply(project, half[at : at + 4]) for half in halves for at in range(0, len(half), 4)]
    await asyncio.gather(*writers)
    assert await held(store, project, "t1") == expected(events)


async def test_a_repeat_is_counted_and_moves_no_head(store: StateStore, project: str) -> None:
    one = record("e1", "memory", {"id": "m", "text": "first"}, at=1)
    assert (await store.apply(project, [one])).new == 1
    before = await store.heads(project, THREADS)
    again = await store.apply(project, [one, one])
    assert (again.new, again.repeated, again.conflicting, again.touched) == (0, 2, 0, frozenset())
    assert await store.heads(project, THREADS) == before


async def test_one_id_with_two_bodies_is_the_smaller_digest_whoever_comes_first(
    store: StateStore, project: str
) -> None:
    events = [record("e1", "memory", {"id": "m", "text": text}, at=1) for text in ("one", "two", "three")]
    other = f"{project}x"
    assert (await store.apply(project, events)).conflicting == 2
    for event in reversed(events):
        await store.apply(other, [event])
    assert await held(store, project, "t1") == await held(store, other, "t1") == expected(events)


async def test_a_missing_time_is_the_smallest_record_timestamp_that_was_seen(
    store: StateStore, project: str
) -> None:
    timeless = {"id": "m", "text": "no time"}
    late, early = (record("e1", "memory", timeless, at=None, received=t) for t in (100, 5))
    between = record("e2", "memory", {"id": "m", "text": "between"}, at=50)
    await apply(store, project, late, between)
    first = await held(store, project, "t1")
    await apply(store, project, early)
    assert b"no time" in first[Place("t1", "memory")]
    assert b"between" in (await held(store, project, "t1"))[Place("t1", "memory")]


async def test_a_late_event_never_brings_a_finished_plan_back(store: StateStore, project: str) -> None:
    plan = {"plan_id": "p", "steps": [{"id": "1", "title": "one"}]}
    await apply(
        store,
        project,
        record("e1", "plan_set", plan, at=1),
        record("e2", "step_advanced", {"plan_id": "p", "step_id": "1", "plan_status": "completed"}, at=5),
    )
    done = await held(store, project, "t1")
    await apply(
        store,
        project,
        record("e3", "plan_set", plan, at=9),
        record("e4", "step_advanced", {"plan_id": "p", "step_id": "1", "status": "active"}, at=7),
    )
    assert await held(store, project, "t1") == done
    await apply(
        store, project, record("e0", "plan_set", {**plan, "status": "cancelled"}, at=3)
    )  # it ended earlier than was known
    assert b'"ended_as":"cancelled"' in (await held(store, project, "t1"))[Place("t1", "plan")]


# --- Reading -----------------------------------------------------------------------------------------


async def test_heads_move_for_what_reads_differently_and_nothing_else(
    store: StateStore, project: str
) -> None:
    await apply(store, project, record("e1", "memory", {"id": "m", "text": "a"}, at=1))
    before = (await store.heads(project, THREADS)).versions
    await apply(store, project, record("e2", "goal_set", {"id": "g", "statement": "s"}, at=2))
    after = (await store.heads(project, THREADS)).versions
    assert after[Place("t1", "memory")] == before[Place("t1", "memory")]
    assert set(after) == {Place("t1", "memory"), Place("t1", "session")}
    await apply(store, project, record("e3", "goal_set", {"id": "g", "statement": "s2"}, at=3))
    assert (await store.heads(project, THREADS)).versions[Place("t1", "session")] > after[
        Place("t1", "session")
    ]


async def test_events_that_were_not_applied_are_missing(store: StateStore, project: str) -> None:
    await apply(store, project, record("e1", "memory", {"id": "m", "text": "a"}))
    heads = await store.heads(project, ["t1"], event_ids=["e1", "e2", "e3"])
    assert heads.missing == {"e2", "e3"}
    assert (await store.heads("nobody", ["t1"], event_ids=["e1"])).missing == {"e1"}


async def test_two_projects_with_the_same_threads_and_ids_share_nothing(
    store: StateStore, project: str
) -> None:
    other = f"{project}x"
    await apply(store, project, record("e1", "memory", {"id": "m", "text": "mine"}))
    await apply(store, other, record("e1", "memory", {"id": "m", "text": "theirs"}))
    assert b"mine" in (await held(store, project, *THREADS))[Place("t1", "memory")]
    assert b"theirs" in (await held(store, other, *THREADS))[Place("t1", "memory")]
    await store.purge(project)
    assert await held(store, project, *THREADS) == {}
    assert b"theirs" in (await held(store, other, *THREADS))[Place("t1", "memory")]


@pytest.mark.parametrize("hostile", HOSTILE_IDS)
async def test_ids_of_any_kind_keep_things_apart(store: StateStore, project: str, hostile: str) -> None:
    await apply(
        store,
        project,
        record(hostile, "memory", {"id": hostile, "text": "odd"}, thread=hostile),
        record("e2", "memory", {"id": "m", "text": "plain"}),
    )
    found = await held(store, project, hostile, "t1")
    assert b"odd" in found[Place(hostile, "memory")]
    assert b"odd" not in found[Place("t1", "memory")]
    assert not (await store.heads(project, [hostile], event_ids=[hostile])).missing


async def test_a_long_content_is_had_by_its_digest_in_its_project_alone(
    store: StateStore, project: str
) -> None:
    content = "line 🙂\n" * 1_000_000
    event = record("e1", "artifact", {"id": "a", "stage": "s", "type": "t", "content": content})
    await apply(store, project, event)
    ((digest, _),) = event.contents.items()
    assert await store.content(project, digest) == content
    assert await store.content("nobody", digest) is None
    assert len((await held(store, project, "t1"))[Place("t1", "artifacts")]) < 10_000


# --- Forgetting --------------------------------------------------------------------------------------


@settings(max_examples=10, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(events=st.lists(records(), min_size=1, max_size=20), before=st.integers(0, 22))
async def test_compaction_forgets_events_and_not_what_they_came_to(
    store: StateStore, events: list[StateRecord], before: int
) -> None:
    project = new_project()
    await store.apply(project, events)
    wanted = await held(store, project, *THREADS)
    before_us = microseconds_at(before)
    merged = {event.event_id: event for event in events}
    gone = await store.compact(project, before_us=before_us)
    assert gone <= len(merged)
    things = {event.entity for event in merged.values()}
    assert len(merged) - gone >= len(things)
    assert await store.compact(project, before_us=before_us) == 0
    assert await held(store, project, *THREADS) == wanted
    later = record("later", "memory", {"id": "x", "text": "after"}, at=23)
    await store.apply(project, [later])
    assert await held(store, project, *THREADS) == expected([*events, later])


async def test_an_event_from_before_a_compaction_is_late_and_changes_nothing(
    store: StateStore, project: str
) -> None:
    for number in range(3):
        body = {"id": "g", "statement": f"version {number}"}
        await apply(store, project, record(f"e{number}", "goal_set", body, at=number))
    assert await store.compact(project, before_us=microseconds_at(10)) == 2
    wanted = await held(store, project, "t1")
    late = record("late", "goal_set", {"id": "g", "statement": "too late", "status": "done"}, at=1)
    assert (await store.apply(project, [late])).late == 1
    assert await held(store, project, "t1") == wanted
    assert not (await store.heads(project, ["t1"], event_ids=["late"])).missing


async def test_the_last_event_about_a_thing_is_known_however_old_it_is(
    store: StateStore, project: str
) -> None:
    events = [
        *(record(f"g{n}", "goal_set", {"id": "g", "statement": f"version {n}"}, at=n) for n in range(3)),
        *(record(f"m{n}", "message", {"role": "user", "content": f"Fact {n}."}, at=n) for n in range(3)),
        *(record(f"t{n}", "tool_call", {"tool": "edit"}, at=n) for n in range(3)),
    ]
    await apply(store, project, *events)
    wanted = await held(store, project, "t1")
    ids = [event.event_id for event in events]
    for at in (10, 20):
        assert await store.compact(project, before_us=microseconds_at(at)) == (6 if at == 10 else 0)
        heads = await store.heads(project, ["t1"], event_ids=ids)
        assert heads.missing == {one for one in ids if not one.endswith("2")}
    again = await store.apply(project, [event for event in events if event.event_id.endswith("2")])
    assert (again.repeated, again.new, again.late) == (3, 0, 0)
    assert await held(store, project, "t1") == wanted
    # Superseded, it is the next to be forgotten.
    await apply(store, project, record("g3", "goal_set", {"id": "g", "statement": "version 3"}, at=15))
    assert await store.compact(project, before_us=microseconds_at(20)) == 1
    assert (await store.heads(project, ["t1"], event_ids=["g2", "g3"])).missing == {"g2"}


async def test_contents_that_nothing_names_any_more_are_forgotten_with_the_events_that_brought_them(
    store: StateStore, project: str
) -> None:
    def made(event_id: str, artifact: str, text: str, *, at: float, thread: str | None = "t1") -> StateRecord:
        body = {"id": artifact, "stage": "s", "type": "t", "content": text * 3_000}
        return record(event_id, "artifact", body, at=at, thread=thread)

    first, second, last = (made(f"e{n}", "a", text, at=n) for n, text in enumerate("xyz"))
    others = [made("e3", "b", "y", at=0), made("e4", "a", "x", at=0, thread=None)]
    told = [first, second, last, *others]
    digests = {text: next(iter(one.contents)) for one, text in zip((first, second, last), "xyz", strict=True)}

    async def known() -> set[str]:
        return {text for text, digest in digests.items() if await store.content(project, digest) is not None}

    await apply(store, project, *told)
    wanted = await held(store, project, *THREADS)
    assert await store.compact(project, before_us=microseconds_at(0)) == 0
    assert await known() == set("xyz")
    assert await store.compact(project, before_us=microseconds_at(10)) == 2
    # Another artifact of the thread names the one, another thread the other.
    assert await known() == set("xyz")
    assert await held(store, project, *THREADS) == wanted
    await apply(store, project, made("e5", "b", "z", at=11), made("e6", "a", "z", at=11, thread=None))
    assert await store.compact(project, before_us=microseconds_at(20)) == 2
    assert await known() == {"z"}
    # Whoever tells it again brings it along.
    await apply(store, project, made("e7", "c", "x", at=12))
    assert await store.compact(project, before_us=microseconds_at(20)) == 0
    assert await known() == {"x", "z"}


async def test_purging_a_thread_leaves_the_others_and_the_project(store: StateStore, project: str) -> None:
    content = "x" * 5_000
    for thread in ("t1", "t2", None):
        body = {"id": "a", "stage": "s", "type": "t", "content": content}
        await apply(store, project, record(f"e{thread}", "artifact", body, thread=thread))
    ((digest, _),) = record("e", "artifact", body).contents.items()
    assert await store.purge(project, thread_id="t1") == 1
    assert set(await held(store, project, *THREADS)) == {Place("t2", "artifacts"), Place("", "artifacts")}
    assert await store.content(project, digest) == content
    assert await store.purge(project) == 2
    assert await held(store, project, *THREADS) == {}
    assert await store.content(project, digest) is None
    assert project not in await store.projects()


async def test_a_purged_project_begins_anew_at_later_versions(store: StateStore, project: str) -> None:
    event = record("e1", "memory", {"id": "m", "text": "a"})
    await apply(store, project, event)
    before = (await store.heads(project, ["t1"])).versions[Place("t1", "memory")]
    await store.purge(project)
    assert (await store.heads(project, ["t1"], event_ids=["e1"])).missing == {"e1"}
    await apply(store, project, event)
    assert (await store.heads(project, ["t1"])).versions[Place("t1", "memory")] > before


def microseconds_at(seconds: float) -> int:
    return microseconds(START + timedelta(seconds=seconds))
