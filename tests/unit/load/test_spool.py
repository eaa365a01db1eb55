from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor

from worker.load.observations import Letter, Seen, Sent
from worker.load.rewriting import Asked, RequestKey
from worker.load.spool import LetterNote, SeenNote, SentNote, Spool, Where, key_digest

KEY = RequestKey(project_id="shop", request_id="run:r1", generation=0)


def sent(offset: int, key: RequestKey | None = KEY, *, otherwise: str = "") -> SentNote:
    asked = Asked(model="m", encoding="bytes", total_tokens=9, client_overhead_tokens=1)
    note = Sent(partition=2, offset=offset, asked=asked, message_chars=3, message_sha256="ab")
    return SentNote(digest=key_digest(key, otherwise=otherwise), key=key, sent=note)


def seen(
    body: bytes,
    place: Where = "reply",
    key: RequestKey | None = KEY,
    *,
    kind: str = "bundle",
    otherwise: str = "",
) -> SeenNote:
    return SeenNote(digest=key_digest(key, otherwise=otherwise), key=key, place=place, kind=kind, body=body)


def letter(content: bytes) -> LetterNote:
    return LetterNote(letter=Letter(partition=2, offset=5, code="invalid_json"), content=content)


async def test_what_belongs_together_comes_back_together_and_repeats_are_counted():
    with Spool() as spool:
        for note in (sent(5), seen(b"a"), seen(b"u", "usage"), seen(b"a", "earlier")):
            spool.note(note)
        await spool.flush()
        for note in (
            seen(b"a"),
            seen(b"b"),
            seen(b"a", kind="rejection"),
            letter(b"x"),
            letter(b"x"),
            letter(b"y"),
        ):
            spool.note(note)
        await spool.flush()
        (case,) = spool.cases()
    assert case.key == KEY
    assert case.sent == (sent(5).sent,)
    assert sorted((item.body, item.copies, item.kind) for item in case.replies) == [
        (b"a", 1, "rejection"),
        (b"a", 2, "bundle"),
        (b"b", 1, "bundle"),
    ]
    assert case.usages == (Seen(body=b"u", kind="bundle"),)
    assert case.earlier == (Seen(body=b"a", kind="bundle"),)
    assert sorted(item.copies for item in case.letters) == [1, 2]


async def test_a_flush_that_is_cancelled_loses_nothing_whether_it_has_begun_or_not():
    with ThreadPoolExecutor(1) as only_thread, Spool() as spool:
        asyncio.get_running_loop().set_default_executor(only_thread)
        is_over = threading.Event()
        only_thread.submit(is_over.wait, 60)
        flushing: list[asyncio.Task[None]] = []
        for number in range(3):
            spool.note(sent(number))
            flushing.append(asyncio.create_task(spool.flush()))
            await asyncio.sleep(0)
        for flush in flushing:
            flush.cancel()
        await asyncio.gather(*flushing, return_exceptions=True)
        is_over.set()
        await spool.flush()
        (case,) = spool.cases()
    assert [one.offset for one in case.sent] == [0, 1, 2]


async def test_a_record_without_ids_is_joined_by_what_else_it_has():
    with Spool() as spool:
        spool.note(sent(1, None, otherwise="run:1"))
        spool.note(sent(2, None, otherwise="run:2"))
        spool.note(seen(b"a", key=None, otherwise="run:2"))
        await spool.flush()
        cases = {case.sent[0].offset: case for case in spool.cases()}
    assert [item.body for item in cases[2].replies] == [b"a"]
    assert cases[1].replies == ()
    assert cases[1].key is None


async def test_generations_and_projects_are_kept_apart_and_an_answer_to_nobody_is_a_case():
    keys = [
        KEY,
        RequestKey(project_id="shop", request_id="run:r1", generation=1),
        RequestKey(project_id="shop\nrun", request_id="r1", generation=0),
    ]
    with Spool() as spool:
        for key in keys:
            spool.note(seen(b"a", key=key))
        await spool.flush()
        cases = list(spool.cases())
    assert [case.key for case in cases] == [keys[0], keys[1], keys[2]]
    assert all(not case.sent and len(case.replies) == 1 for case in cases)


async def test_a_bundle_that_was_fetched_comes_with_its_case():
    with Spool() as spool:
        spool.note(seen(b'{"digest": "d1"}', kind="bundle_ref"))
        spool.note(seen(b'{"digest": "d2"}', kind="bundle_ref"))
        await spool.flush()
        assert sorted(spool.references()) == [b'{"digest": "d1"}', b'{"digest": "d2"}']
        spool.add_fetched("d1", b"bundle")
        spool.add_fetched("d2", "it answered 404")
        (case,) = spool.cases()
    assert case.fetched == {"d1": b"bundle", "d2": "it answered 404"}


async def test_numbers_that_no_database_holds_are_left_out():
    with Spool() as spool:
        huge = Sent(
            partition=0, offset=0, asked=Asked(total_tokens=10**30), message_chars=None, message_sha256=None
        )
        spool.note(SentNote(digest=b"k", key=None, sent=huge))
        await spool.flush()
        (case,) = spool.cases()
    assert case.sent[0].asked.total_tokens is None
