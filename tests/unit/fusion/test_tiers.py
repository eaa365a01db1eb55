from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from worker.fusion.tiers import ContextTierService, TierRetention

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
