"""Remembered facts for the tests of memory."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from hypothesis import strategies as st

from schemas.session import MemoryItem

START = datetime(2026, 1, 1, tzinfo=UTC)


def fact(item_id: str, text: str, subject: str | None = None, day: int | None = None) -> MemoryItem:
    occurred_at = None if day is None else START + timedelta(days=day - 1)
    return MemoryItem(id=item_id, text=text, subject=subject, occurred_at=occurred_at)


one_fact = st.builds(
    fact,
    st.sampled_from(["a", "b", "c", "d", "é", "m1", "m10"]),
    st.sampled_from(["retry the client", "port is 80", "", " \n", "漢字", "retries, retries", "the of"]),
    st.sampled_from([None, "", "s", "S ", "t"]),
    st.sampled_from([None, 1, 2, 3]),
)
facts = st.lists(one_fact, max_size=10)
