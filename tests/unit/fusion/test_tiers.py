from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from tests.support.assembling import assemble, wire_request
from tests.support.assembling import settings as worker_settings
from tests.support.state_events import START, record
from worker.fusion.tiers import ContextTierService, TierRetention
from worker.providers.states import ThreadStates
from worker.providers.threads import SourceThreads
from worker.settings import Content
from worker.stores.sqlite_state import SqliteStateStore
from worker.telemetry import Telemetry
from worker.wiring import build_assembler

NOW = datetime(2026, 3, 31, 12, tzinfo=UTC)
SERVICE = ContextTierService(TierRetention(hot=timedelta(hours=6), warm=timedelta(days=10)))
RANK = {"hot": 0, "warm": 1, "cold": 2}
instants = st.datetimes(datetime(2025, 1, 1), datetime(2027, 1, 1), timezones=st.just(UTC))  # noqa: DTZ001 - bounds are naive by contract


def test_age_demotes_from_hot_to_warm_to_cold_at_the_ages_that_were_set() -> None:
    ages = (
        timedelta(hours=6),
        timedelta(hours=6, seconds=1),
        timedelta(days=10),
        timedelta(days=10, seconds=1),
    )
    assert [SERVICE.tier(told_at=NOW - age, as_of=NOW) for age in ages] == ["hot", "warm", "warm", "cold"]


def test_an_event_that_refers_to_it_promotes_a_thing_again() -> None:
    told = NOW - timedelta(days=300)
    used = (NOW - timedelta(days=3), NOW - timedelta(hours=1))
    assert [SERVICE.tier(told_at=told, used_at=used[:n], as_of=NOW) for n in range(3)] == [
        "cold",
        "warm",
        "hot",
    ]


def test_what_nobody_dated_is_warm_until_something_refers_to_it() -> None:
    assert SERVICE.tier(told_at=None, as_of=NOW) == "warm"
    assert SERVICE.tier(told_at=None, used_at=(NOW,), as_of=NOW) == "hot"


def test_times_are_compared_as_instants() -> None:
    there = timezone(timedelta(hours=14))
    told = (NOW - timedelta(hours=5)).astimezone(there)
    assert SERVICE.tier(told_at=told, as_of=NOW) == "hot"
    assert SERVICE.tier(told_at=told.astimezone(UTC).replace(tzinfo=None), as_of=NOW) == "hot"


@settings(max_examples=40)
@given(instants, st.lists(instants, max_size=4), instants, st.timedeltas(timedelta(), timedelta(days=400)))
def test_use_never_demotes_and_age_never_promotes(
    told: datetime, used: list[datetime], as_of: datetime, later: timedelta
) -> None:
    tiers = [RANK[SERVICE.tier(told_at=told, used_at=used[:n], as_of=as_of)] for n in range(len(used) + 1)]
    assert tiers == sorted(tiers, reverse=True)
    assert RANK[SERVICE.tier(told_at=told, used_at=used, as_of=as_of + later)] >= tiers[-1]
    assert SERVICE.tier(told_at=told, used_at=reversed(used), as_of=as_of) == SERVICE.tier(
        told_at=told, used_at=used, as_of=as_of
    )


def test_a_retention_that_contradicts_itself_is_refused() -> None:
    with pytest.raises(ValueError, match="warm for 1 day"):
        TierRetention(hot=timedelta(days=2), warm=timedelta(days=1))


# --- Of what is stored -------------------------------------------------------------------------------


async def test_stored_things_move_between_tiers_as_the_retention_says_and_tiered_shows_the_hot_ones(
    tmp_path: Path,
) -> None:
    store = SqliteStateStore(tmp_path / "state.db")
    service = ContextTierService(TierRetention(hot=timedelta(hours=1), warm=timedelta(days=2)))
    states = ThreadStates(store, SourceThreads(), max_bytes=1_000_000, tiers=service)
    facts = [f"Fact {letter} about the retry of the gateway. {letter * 300}" for letter in "abc"]
    told = [
        record(f"e{n}", "memory", {"id": f"m{n}", "text": text}, at=-86_400 * (9 - n))
        for n, text in enumerate(facts)
    ]
    said = {"role": "user", "content": "We retry the gateway.", "refers_to": ["m0"]}
    await store.apply("p", [*told, record("said", "message", said, at=-86_400)])
    using = build_assembler(worker_settings(), Telemetry(), None, states)

    async def tiers(strategy: str, as_of: datetime, *, memory_tokens: int = 3_000) -> dict[str, str]:
        request = wire_request(
            thread_id="t1",
            user_message="Retry the gateway",
            strategy=strategy,
            encoding="bytes",
            budget={"total": memory_tokens + 500, "layers": {"memory": memory_tokens, "output": 10}},
            include=["payload"],
            as_of=as_of.isoformat(),
            deadline_ms=20_000,
            layer_timeouts_ms={"memory": 20_000},
        )
        payload = (await assemble(request, using)).bundle.payload
        assert payload is not None
        return {
            fragment.uko_node.rpartition("/")[2]: fragment.tier
            for fragment in payload.fragments
            if fragment.token_count > 100 or fragment.uko_node.endswith("summary")
        }

    try:
        at_once = START - timedelta(seconds=86_400)
        assert await tiers("layered", at_once) == {"summary": "hot", "m0": "hot", "m1": "cold", "m2": "cold"}
        assert await tiers("layered", START) == {"summary": "warm", "m0": "warm", "m1": "cold", "m2": "cold"}
        later = START + timedelta(days=5)
        assert set((await tiers("layered", later)).values()) == {"cold"}
        assert "m0" in await tiers("tiered", START, memory_tokens=700)
        assert "m0" not in await tiers("layered", START, memory_tokens=700)
    finally:
        await states.close()
        await store.close()


def test_settings_set_the_retention_and_refuse_one_that_contradicts_itself() -> None:
    assert Content().hot_hours == 24
    assert Content().warm_days == 30
    with pytest.raises(ValidationError, match="hot_hours 49 is longer than warm_days 2"):
        Content(hot_hours=49, warm_days=2)
