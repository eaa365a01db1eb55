"""What a person sees of an explanation: numbers that agree, names that can be copied, lists that end."""

from __future__ import annotations

import asyncio

import pytest

from tests.support.explaining import crowded, stored_of
from worker.explaining.stored import Stored
from worker.explaining.view import explain


@pytest.fixture(scope="module")
def one() -> Stored:
    return asyncio.run(stored_of(crowded()))


def test_what_is_shown_whole_takes_as_much_as_all_of_it(one: Stored) -> None:
    rows = [row for layer in explain(one).layers for row in layer.shown if row.fate == "kept"]
    assert rows
    assert [(row.node, row.tokens) for row in rows] == [(row.node, row.whole_tokens) for row in rows]
