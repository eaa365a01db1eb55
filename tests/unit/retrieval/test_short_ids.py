from __future__ import annotations

import asyncio
import json
import threading
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from schemas.citations import LETTERS, CitationKind
from tests.support.tooling import LONG, Shop, open_shop
from worker.citations.labels import digits_of
from worker.ports import OutcomeKey, OutcomeRecord, Scope
from worker.retrieval import short_ids
from worker.retrieval.short_ids import short_in

CHARGE, CHECKOUT = "src/shop.py::charge_order", "src/shop.py::checkout"


def short_of(kind: CitationKind, own_id: str, *, thread: str | None = "t1", digits: int = 6) -> str:
    scope = Scope(project_id="shop", thread_id=thread)
    return f"{LETTERS[kind]}:{digits_of(scope, kind, own_id)[:digits]}"


async def shows(
    shop: Shop,
    request_id: str,
    items: dict[str, str],
    *,
    thread: str | None = "t1",
    generation: int = 0,
    kind: str = "bundle",
) -> None:
    """Store a bundle of that thread whose manifest says what these short ids are."""
    manifest = [{"short": short, "id": own_id} for short, own_id in items.items()]
    body: dict[str, Any] = {"kind": kind, "thread_id": thread, "citations": {"items": manifest}}
    record = OutcomeRecord(
        request_digest="0" * 64,
        as_of=datetime(2026, 1, 1, tzinfo=UTC),
        reply=json.dumps(body).encode(),
        usage=None,
    )
    await shop.outcomes.put_if_absent(
        OutcomeKey(project_id="shop", request_id=request_id, generation=generation), record
    )


@pytest.mark.parametrize(
    ("kind", "own_id", "tool"),
    [
        ("function", CHARGE, "get_code"),
        ("class", "src/shop.py::Ledger", "skeleton"),
        ("module", "src/shop.py::<module>", "symbols"),
        ("requirement", "REQ-1", "get_requirements"),
    ],
)
@pytest.mark.parametrize("form", ["{}", "[{}]", "[{}!]", " {} "])
async def test_a_short_id_of_the_thread_says_what_the_own_id_says(
    shop: Shop, kind: CitationKind, own_id: str, tool: str, form: str
) -> None:
    answer = await shop.call(tool, entity_id=form.format(short_of(kind, own_id)))
    assert answer.error is None
    assert answer == await shop.call(tool, entity_id=own_id)


async def test_more_digits_are_read_as_well_and_context_takes_short_ids_too(shop: Shop) -> None:
    by_short = await shop.call("get_context", entity=short_of("function", CHARGE, digits=12))
    assert by_short == await shop.call("get_context", entity=CHARGE)


async def test_a_short_id_of_another_thread_is_unknown_and_what_is_near_can_be_called(shop: Shop) -> None:
    answer = await shop.call("get_code", entity_id=short_of("function", CHARGE, thread="t2"))
    assert answer.error is not None
    assert answer.error.code == "not_found"
    for near in answer.error.near:
        assert (await shop.call("get_code", entity_id=near)).error is None


@pytest.mark.parametrize("place", range(2, 8))
async def test_a_slip_of_one_digit_is_answered_with_what_was_meant(shop: Shop, place: int) -> None:
    short = short_of("function", CHARGE)
    slipped = short[:place] + str((int(short[place]) + 1) % 10) + short[place + 1 :]
    answer = await shop.call("get_code", entity_id=slipped)
    assert answer.error is not None
    assert answer.error.code == "not_found"
    assert CHARGE in answer.error.near


async def test_the_bundle_of_the_request_says_what_a_short_id_means(shop: Shop) -> None:
    short = short_of("function", CHARGE)
    await shows(shop, "r1", {short: CHECKOUT})
    by_request = await shop.call("get_code", request_id="r1", entity_id=short)
    assert by_request == await shop.call("get_code", entity_id=CHECKOUT)


@pytest.mark.parametrize("generations", [(0, 1), (0, 1, 2), (1,)])
async def test_of_a_request_that_was_driven_again_the_newest_bundle_says_it(
    shop: Shop, generations: tuple[int, ...]
) -> None:
    """The first may have been a rejection, or be forgotten."""
    short, own = short_of("function", CHARGE), f"again-{len(generations)}-{generations[0]}"
    for generation in generations[:-1]:
        await shows(shop, own, {}, generation=generation, kind="rejection" if not generation else "bundle")
    await shows(shop, own, {short: CHECKOUT}, generation=generations[-1])
    by_request = await shop.call("get_code", request_id=own, entity_id=short)
    assert by_request == await shop.call("get_code", entity_id=CHECKOUT)


async def test_a_bundle_is_not_read_on_the_event_loop(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    threads: list[int] = []

    def watched(body: bytes) -> object:
        threads.append(threading.get_ident())
        return json.loads(body)

    monkeypatch.setattr(short_ids, "from_json", watched)
    short = short_of("function", CHARGE)
    await shows(shop, "read", {short: CHECKOUT})
    assert (await shop.call("get_code", request_id="read", entity_id=short)).error is None
    assert len(threads) == 1
    assert threading.get_ident() not in threads


@pytest.mark.parametrize("thread", ["t2", None])
async def test_a_bundle_of_another_thread_says_nothing(shop: Shop, thread: str | None) -> None:
    short = short_of("function", CHARGE)
    await shows(shop, f"other-{thread}", {short: CHECKOUT}, thread=thread)
    answer = await shop.call("get_code", request_id=f"other-{thread}", entity_id=short)
    assert answer == await shop.call("get_code", entity_id=CHARGE)


async def test_a_request_without_a_bundle_is_as_good_as_none(shop: Shop) -> None:
    answer = await shop.call("get_code", request_id="never", entity_id=short_of("function", CHARGE))
    assert answer == await shop.call("get_code", entity_id=CHARGE)


async def test_an_artifact_is_found_by_its_short_id_in_its_thread(shop: Shop) -> None:
    answer = await shop.call("get_artifact", artifact_id=short_of("artifact", "design-1"), budget=9_000)
    assert answer.content is not None
    assert LONG in answer.content
    foreign = await shop.call("get_artifact", artifact_id=short_of("artifact", "design-1", thread="t2"))
    assert foreign.error is not None
    assert foreign.error.code == "not_found"


@settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(st.from_regex(r"\[?[a-z]:[0-9]{5,19}!?\]?", fullmatch=True))
def test_whatever_looks_like_a_short_id_is_answered(folder: Path, text: str) -> None:
    async def ask() -> None:
        async with open_shop(folder) as shop:
            answer = await shop.call("get_code", entity_id=text)
            assert answer.error is not None
            assert answer.error.code == "not_found"

    asyncio.run(ask())


@pytest.mark.parametrize("text", ["f:12345", "x:123456", "f:123456x", "ff:123456", "f:" + "1" * 19])
def test_other_texts_are_no_short_ids(text: str) -> None:
    assert short_in(text) is None
