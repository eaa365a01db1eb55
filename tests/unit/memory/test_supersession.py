from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from schemas.session import MemoryItem
from tests.unit.memory.facts import fact, facts
from worker.memory.supersession import by_id, current, history, micros_of, subject_key


def ids(items: list[MemoryItem]) -> list[str]:
    return [item.id for item in items]


def test_the_newest_fact_on_a_subject_holds_and_the_others_are_its_history() -> None:
    items = [
        fact("m1", "port is 80", "port", 1),
        fact("m3", "port is 443", "port", 3),
        fact("m2", "port is 8080", "port", 2),
        fact("m4", "undated", "port"),
        fact("m5", "free"),
        fact("m6", "free too"),
    ]
    assert ids(current(items)) == ["m3", "m5", "m6"]
    assert ids(history(items, "port")) == ["m3", "m2", "m1", "m4"]


def test_equal_times_are_decided_by_id() -> None:
    items = [fact("b", "x", "s", 1), fact("a", "y", "s", 1), fact("é", "z", "t", 1), fact("z", "z", "t", 1)]
    assert ids(current(items)) == ["b", "é"]


@pytest.mark.parametrize("other", ["rate limits", "Rate  Limits", " rate\tlimits ", "ＲＡＴＥ limits"])
def test_a_subject_is_folded(other: str) -> None:
    items = [fact("m1", "old", "Rate limits", 1), fact("m2", "new", other, 2)]
    assert ids(current(items)) == ["m2"]
    assert ids(history(items, "RATE LIMITS")) == ["m2", "m1"]


@pytest.mark.parametrize("subject", [None, "", " \n"])
def test_without_a_subject_a_fact_stands_alone(subject: str | None) -> None:
    items = [fact("m1", "old", subject, 1), fact("m2", "new", subject, 2)]
    assert ids(current(items)) == ["m1", "m2"]
    assert history(items, subject or "") == []


@pytest.mark.parametrize("one", ["rate_limits", "rate-limits", "ratelimits"])
def test_subjects_that_are_spelt_as_other_names_are_others(one: str) -> None:
    assert subject_key(one) != subject_key("rate limits")


@pytest.mark.parametrize("text", ["", " \n", "\u3000"])
def test_a_blank_fact_supersedes_nothing(text: str) -> None:
    items = [fact("m1", "port is 80", "port", 1), fact("m2", text, "port", 2)]
    assert ids(current(items)) == ids(history(items, "port")) == ["m1"]


def test_of_one_id_the_latest_stands_for_all() -> None:
    items = [fact("m", "old", "port", 1), fact("m", "new", "host", 2), fact("m", "older", "port")]
    assert current(items) == [items[1]]
    assert history(items, "port") == []


def test_times_are_exact_and_a_naive_one_is_utc() -> None:
    aware = datetime(9999, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC)
    assert micros_of(aware) == micros_of(aware.replace(tzinfo=None)) == 315_537_897_599_999_999
    assert micros_of(aware.astimezone(timezone(timedelta(hours=-2)))) == micros_of(aware)
    assert micros_of(None) < micros_of(datetime.min) == 0  # noqa: DTZ901 - naive on purpose


@settings(max_examples=40)
@given(facts, st.integers(0, 2**32))
def test_what_holds_depends_on_the_set_alone(items: list[MemoryItem], seed: int) -> None:
    shuffled = random.Random(seed).sample(items, len(items))
    assert current(items) == current([*shuffled, *shuffled])
    assert history(items, "s") == history(shuffled, "s")


@settings(max_examples=40)
@given(facts)
def test_every_fact_holds_or_is_history(items: list[MemoryItem]) -> None:
    held = current(items)
    assert current(held) == held
    subjects = [key for item in held if (key := subject_key(item.subject))]
    assert len(subjects) == len(set(subjects))
    kept: dict[str, Any] = {item.id: item for item in held}
    for subject in subjects:
        told = history(items, subject)
        assert told[0] == kept[told[0].id]
        kept |= {item.id: item for item in told}
    assert sorted(kept) == ids(by_id(items))
