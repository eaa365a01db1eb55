"""What a page shows of a usage log, beyond the totals."""

from __future__ import annotations

from datetime import UTC, datetime
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.usage_records import usage_records
from worker.explaining.usage_page import usage_page
from worker.usage.picture import picture_of

RECORD: dict[str, Any] = {
    "timestamp": "2026-01-01T00:00:30Z",
    "outcome": "complete",
    "usage": {"total": 100, "spent": 40, "layers": {"graph": {"budget": 60, "spent": 40}}},
    "reserved": {"graph": 50},
    "statuses": {"graph": {"status": "trimmed"}, "ast": {"status": "nonsense"}, "x": {"status": "ok"}},
    "timings_ms": {"total": 2.5, "unknown": 1},
    "counts": {"fragments_considered": 9, "fragments_kept": 6, "fragments_dropped": 3},
    "cache": {"hits": 1, "misses": 2},
    "reusable_prefix_tokens": 30,
    "masked_secrets": 4,
}
LATE = {"timestamp": "2026-01-01T00:02:00+00:00", "outcome": "rejected"}


def test_a_picture_holds_every_part_of_the_records() -> None:
    picture = picture_of([RECORD, LATE])
    assert picture.reserved == {"graph": 50}
    assert picture.statuses == {
        "graph": {"ok": 0, "trimmed": 1, "partial": 0, "failed": 0, "empty": 0, "off": 0}
    }
    assert picture.fragments == {"considered": 9, "kept": 6, "dropped": 3}
    assert (picture.reusable_tokens, picture.reusable_of_tokens) == (30, 40)
    assert (picture.cache_hits, picture.cache_misses, picture.masked_secrets) == (1, 2, 4)
    (times,) = picture.times.values()
    assert picture.times.keys() == {"total"}
    assert (times.calls, times.p50) == (1, pytest.approx(2.5, rel=0.001))
    assert times.p50 == times.p95 == times.longest
    assert [(span.begins.minute, span.calls, span.spent) for span in picture.spans] == [
        (0, 1, 40),
        (1, 0, 0),
        (2, 1, 0),
    ]
    assert picture.span_seconds == 60


def test_what_answers_cited_is_a_part_of_the_page_and_no_call() -> None:
    cited = {"cited_tokens": 30, "tokens": 120}
    use = {
        "kind": "answer_use",
        "timestamp": "2026-01-01T00:00:40Z",
        "used": {"layers": {"graph": cited}, "sources": {"<pack>": cited}},
    }
    picture = picture_of([RECORD, use])
    assert picture.totals.total_calls == 1
    assert [span.calls for span in picture.spans] == [1]
    page = usage_page(picture)
    assert "What answers cited" in page
    assert "&lt;pack&gt;" in page
    assert "25%" in page
    assert "What answers cited" not in usage_page(picture_of([RECORD]))


def test_a_long_time_is_shown_in_longer_stretches_and_loses_no_call() -> None:
    records = usage_records(500)
    picture = picture_of(records, max_spans=10)
    assert 5 <= len(picture.spans) <= 10
    assert sum(span.calls for span in picture.spans) == 500
    assert sum(span.spent for span in picture.spans) == picture.totals.total_spent
    begins = [span.begins for span in picture.spans]
    steps = {(later - sooner).total_seconds() for sooner, later in pairwise(begins)}
    assert steps == {picture.span_seconds}
    assert begins[0] <= datetime(2026, 11, 2, 8, tzinfo=UTC)


def test_years_between_two_records_take_no_memory() -> None:
    ends = [{**LATE, "timestamp": f"{year}-01-01T00:00:00Z"} for year in (1971, 2999, 1971, 2026)]
    picture = picture_of(ends)
    assert len(picture.spans) <= 60
    assert sum(span.calls for span in picture.spans) == 4


@pytest.mark.parametrize(
    "timestamp",
    ["", "soon", "2026-13-01T00:00:00Z", "0001-01-01T00:00:00+14:00", "9999-12-31T23:59:59-14:00", 7, None],
)
def test_a_record_without_a_time_counts_and_stands_in_no_stretch(timestamp: object) -> None:
    picture = picture_of([{**RECORD, "timestamp": timestamp}])
    assert picture.spans == ()
    assert picture.totals.total_calls == 1
    assert "What contexts cost" in usage_page(picture)


junk = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)


def spoil(name: str, value: Any) -> dict[str, Any]:
    return {**RECORD, name: value}


spoilt = st.builds(spoil, st.sampled_from(sorted(RECORD)), junk)


@given(st.lists(spoilt, max_size=4))
@settings(max_examples=40)
def test_whatever_stands_in_a_log_gives_a_page(records: list[dict[str, Any]]) -> None:
    assert usage_page(picture_of(records)).startswith("<!doctype html>")


@given(st.permutations(usage_records(12)))
@settings(max_examples=10)
def test_the_order_of_the_records_changes_no_byte_of_the_page(records: list[dict[str, Any]]) -> None:
    assert usage_page(picture_of(records)) == usage_page(picture_of(usage_records(12)))


def test_an_empty_log_gives_a_page_that_says_so() -> None:
    assert "The usage log holds no records." in usage_page(picture_of([]))
