from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from schemas.session import Artifact, MemoryItem
from schemas.times import format_time, parse_time, time_of_number, time_of_record
from schemas.wire import DecodeNotes

MOMENT = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
zones = st.integers(-1_439, 1_439).map(lambda minutes: timezone(timedelta(minutes=minutes)))


@given(st.datetimes(timezones=st.just(UTC)))
def test_what_is_formatted_is_read_back_as_it_was(moment: datetime) -> None:
    assert parse_time(format_time(moment)) == (moment, False)


@given(st.datetimes(datetime(2, 1, 1), datetime(9_998, 1, 1), timezones=zones))  # noqa: DTZ001  # hypothesis wants naive bounds
def test_a_time_of_any_zone_is_written_as_the_instant_in_utc(moment: datetime) -> None:
    assert format_time(moment) == moment.astimezone(UTC).isoformat().replace("+00:00", "Z")


@given(st.datetimes(datetime(2, 1, 1), datetime(9_998, 1, 1), timezones=zones))  # noqa: DTZ001  # hypothesis wants naive bounds
def test_an_offset_is_taken_off(moment: datetime) -> None:
    assert parse_time(moment.isoformat()) == (moment, False)
    assert parse_time(moment.isoformat(" ")) == (moment, False)
    assert parse_time(moment.isoformat("t").lower()) == (moment, False)


@given(st.datetimes())
def test_a_time_without_a_zone_is_utc_and_said_to_lack_one(moment: datetime) -> None:
    assert parse_time(moment.isoformat()) == (moment.replace(tzinfo=UTC), True)


@given(st.text(max_size=40) | st.from_regex(r"[0-9]{4}-[0-9]{2}-[0-9]{2}[Tt ][0-9:.+zZ-]{0,16}"))
def test_any_text_is_a_time_or_a_value_error(text: str) -> None:
    try:
        moment, _ = parse_time(text)
    except ValueError:
        return
    assert moment.utcoffset() == timedelta(0)
    assert text.isascii()
    assert text[4] == text[7] == "-"


@pytest.mark.parametrize(
    ("text", "moment"),
    [
        ("2026-01-02T03:04:05Z", MOMENT),
        ("2026-01-02t03:04:05z", MOMENT),
        ("2026-01-02 03:04:05Z", MOMENT),
        ("2026-01-02T05:34:05+02:30", MOMENT),
        ("2026-01-01T22:04:05-05:00", MOMENT),
        ("2026-01-02T03:04:05-00:00", MOMENT),
        ("2026-01-02T03:04:05.5Z", MOMENT.replace(microsecond=500_000)),
        ("2026-01-02T03:04:05.1234569999999999Z", MOMENT.replace(microsecond=123_456)),
        ("2024-02-29T00:00:00Z", datetime(2024, 2, 29, tzinfo=UTC)),
        ("0001-01-01T00:00:00Z", datetime(1, 1, 1, tzinfo=UTC)),
        ("9999-12-31T23:59:59.999999Z", datetime.max.replace(tzinfo=UTC)),
        ("2016-12-31T23:59:60Z", datetime(2017, 1, 1, tzinfo=UTC)),
        ("2016-12-31T23:59:60.25Z", datetime(2017, 1, 1, 0, 0, 0, 250_000, tzinfo=UTC)),
        ("1990-12-31T15:59:60-08:00", datetime(1991, 1, 1, tzinfo=UTC)),
    ],
)
def test_every_form_that_the_rfc_allows_is_read(text: str, moment: datetime) -> None:
    assert parse_time(text) == (moment, False)


FORM = "not an RFC 3339 time such as 2026-01-02T03:04:05Z"
RANGE = "the time lies outside the years 1 to 9999 in UTC"
LEAP = "a leap second is 23:59:60 UTC on the last day of a month"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", FORM),
        ("2026-01-02", FORM),
        ("1767323045", FORM),
        ("1767323045.5", FORM),
        ("20260102T030405Z", FORM),
        ("2026-W01-5T03:04:05Z", FORM),
        ("2026-01-02T03:04Z", FORM),
        ("2026-01-02T03:04:05.Z", FORM),
        ("2026-01-02T03:04:05,5Z", FORM),
        ("2026-01-02T03:04:05+0200", FORM),
        ("2026-01-02T03:04:05+02", FORM),
        ("2026-01-02T03:04:05 Z", FORM),
        ("2026-01-02T03:04:05Z\n", FORM),
        (" 2026-01-02T03:04:05Z", FORM),
        ("2026-01-02_03:04:05Z", FORM),
        ("+2026-01-02T03:04:05Z", FORM),
        ("12026-01-02T03:04:05Z", FORM),
        ("٢٠٢٦-01-02T03:04:05Z", FORM),
        ("2026-01-02T03:04:05\u22120:00", FORM),
        ("now", FORM),
        ("2026-02-29T00:00:00Z", "no such time: day is out of range for month"),
        ("2026-13-01T00:00:00Z", "no such time: month must be in 1..12"),
        ("2026-01-02T24:00:00Z", "no such time: hour must be in 0..23"),
        ("2026-01-02T03:60:05Z", "no such time: minute must be in 0..59"),
        ("2026-01-02T03:04:61Z", "no such time: second must be in 0..59"),
        ("0000-01-01T00:00:00Z", "no such time: year 0 is out of range"),
        ("2026-01-02T03:04:05+24:00", "no such offset from UTC; the largest is 23:59"),
        ("2026-01-02T03:04:05+00:60", "no such offset from UTC; the largest is 23:59"),
        ("0001-01-01T00:00:00+00:01", RANGE),
        ("9999-12-31T23:59:59-00:01", RANGE),
        ("9999-12-31T23:59:60Z", RANGE),
        ("2026-01-02T03:04:60Z", LEAP),
        ("2026-01-02T23:59:60Z", LEAP),
        ("2016-12-31T23:59:60+01:00", LEAP),
    ],
)
def test_a_time_that_is_none_is_refused_with_what_is_wrong(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=f"^{message.replace('.', '[.]')}$"):
        parse_time(text)
    with pytest.raises(ValidationError, match=message.partition(":")[0]):
        MemoryItem.model_validate({"id": "m", "text": "t", "occurred_at": text})


@pytest.mark.parametrize("value", [0, 1_767_323_045, 1.5, True, [], {"a": 1}, b"2026-01-02T03:04:05Z"])
def test_only_text_is_a_time(value: object) -> None:
    with pytest.raises(ValidationError, match="a time is a string such as 2026-01-02T03:04:05Z"):
        MemoryItem.model_validate({"id": "m", "text": "t", "occurred_at": value})


def test_a_missing_zone_is_counted_once_for_each_time() -> None:
    notes = DecodeNotes()
    for time in ("2026-01-02T03:04:05", "2026-01-02T03:04:05Z", "2026-01-02T03:04:05+01:00"):
        MemoryItem.model_validate({"id": "m", "text": "t", "occurred_at": time}, context=notes)
    assert notes.naive_times == 1


ARTIFACT = {"id": "a", "stage": "s", "type": "t", "content": "c"}


@pytest.mark.parametrize("name", ["timestamp", "created_at"])
@pytest.mark.parametrize("epoch", [1_767_323_045, 1_767_323_045.0, 1_767_323_045_000])
def test_a_foreign_artifact_may_give_its_time_as_a_number(name: str, epoch: float) -> None:
    assert Artifact.model_validate({**ARTIFACT, name: epoch}).occurred_at == MOMENT


@pytest.mark.parametrize(
    "fields", [{"occurred_at": 1_767_323_045}, {"timestamp": True}, {"timestamp": 1e300}]
)
def test_our_own_field_is_no_number_nor_is_a_foreign_one_anything(fields: dict[str, object]) -> None:
    with pytest.raises(ValidationError, match=r"a time is a string|outside the years 1 to 9999"):
        Artifact.model_validate({**ARTIFACT, **fields})


@given(st.integers() | st.just(10**400) | st.floats())
def test_any_number_is_an_instant_or_a_value_error(epoch: float) -> None:
    try:
        moment = time_of_number(epoch)
    except ValueError:
        return
    assert parse_time(format_time(moment)) == (moment, False)


@given(timestamp_ms=st.integers())
def test_the_time_of_a_record_is_in_every_calendar_and_keeps_the_order(timestamp_ms: int) -> None:
    found = time_of_record(timestamp_ms)
    assert datetime(1970, 1, 1, tzinfo=UTC) <= found <= datetime(9999, 12, 31, tzinfo=UTC)
    assert found <= time_of_record(timestamp_ms + 1)
    if 0 <= timestamp_ms < 2**40:
        assert found == datetime.fromtimestamp(0, UTC) + timedelta(milliseconds=timestamp_ms)
