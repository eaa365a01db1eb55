from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from blockbuster import blockbuster_ctx
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.support.handling import NOW_MS, Bench, broken, open_store
from tests.support.syncing import FIELDS, SHOP, SyncBench, fields, record
from worker.code.syncing import Overtaken
from worker.errors import StoreUnavailable
from worker.graph.model import GraphChange, GraphHead
from worker.kafka.records import Handled
from worker.kafka.sync_received import sync_key
from worker.outcomes import read_refusal
from worker.ports import OutcomeKey, OutcomeRecord
from worker.stores.sqlite_graph import SqliteGraphStore

RESULTS, DEAD, USAGE = "context.sync-results", "context.dead-letters", "context.usage"
KEY = sync_key("shop", "s-1")


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncGenerator[SyncBench]:
    store, graph = open_store(tmp_path / "outcomes.db"), SqliteGraphStore(tmp_path / "graph.db")
    yield SyncBench(stores=Bench(store=store), graph=graph)
    await store.close()
    await graph.close()


async def functions(bench: SyncBench, project_id: str = "shop") -> set[str]:
    loaded = await bench.graph.load(project_id)
    return {node.id for node in loaded[1].nodes if node.label == "Function"} if loaded else set()


def metric(bench: SyncBench, outcome: str, code: str = "") -> float:
    labels = {"outcome": outcome, "code": code}
    return bench.stores.telemetry.registry.get_sample_value("context_syncs_total", labels) or 0.0


# --- A result --------------------------------------------------------------------------------------------


async def test_a_sync_ends_in_one_result_that_tells_the_graph(bench: SyncBench) -> None:
    assert await bench.handler().handle(record()) == Handled()
    (reply,) = bench.stores.on(RESULTS)
    result = json.loads(reply.value)
    head = await bench.graph.head("shop")
    assert head is not None
    assert (result["kind"], result["sync_id"], result["project_id"]) == ("sync_result", "s-1", "shop")
    assert (result["graph_version"], result["snapshot_id"]) == (1, head.snapshot_id)
    assert result["counts"]["files.parsed"] == 1
    assert result["counts"]["nodes.Function"] == 2
    assert result["counts"]["edges.CALLS"] == 1
    assert result["failed"] == []
    assert await functions(bench) == {"src/shop.py::charge", "src/shop.py::pay"}
    assert dict(reply.headers)["context-kind"] == b"sync_result"
    assert reply.key == b"shop"
    assert {item.topic for item in bench.stores.published} == {RESULTS}
    assert bench.stores.lines == []
    assert metric(bench, "indexed") == 1


async def test_what_is_published_is_what_the_store_holds(bench: SyncBench) -> None:
    await bench.handler().handle(record())
    held = await bench.stores.store.get(KEY)
    assert isinstance(held, OutcomeRecord)
    assert (held.reply, held.usage) == (bench.stores.on(RESULTS)[0].value, None)


async def test_a_request_with_the_id_of_a_sync_has_an_outcome_of_its_own(bench: SyncBench) -> None:
    await bench.handler().handle(record())
    assert await bench.stores.store.get(OutcomeKey(project_id="shop", request_id="s-1")) is None


async def test_a_redelivery_publishes_the_same_bytes_and_indexes_nothing(bench: SyncBench) -> None:
    await bench.handler().handle(record())
    await bench.handler().handle(record(fields(sync_id="s-2", files=[{"path": "src/b.py", "content": SHOP}])))
    assert await bench.handler().handle(record(offset=9)) == Handled()
    first, _, again = bench.stores.on(RESULTS)
    assert (first.value, first.key) == (again.value, again.key)
    assert [request.sync_id for request in bench.indexed] == ["s-1", "s-2"]
    assert metric(bench, "repeated") == 1


@pytest.mark.parametrize("step", ["before put", "after put", f"before publish {RESULTS}"])
async def test_an_attempt_that_dies_anywhere_and_its_redelivery_come_to_the_same_result(
    bench: SyncBench, step: str
) -> None:
    class Died(BaseException):
        pass

    def die(name: str) -> None:
        if name == step:
            bench.stores.step = lambda _: None
            raise Died

    bench.stores.step = die
    with pytest.raises(Died):
        await bench.handler().handle(record())
    assert await bench.handler().handle(record()) == Handled()
    (reply,) = bench.values(RESULTS)
    assert (reply["graph_version"], reply["counts"]["nodes.Function"]) == (1, 2)


async def test_the_same_id_with_other_files_is_refused_and_changes_nothing(bench: SyncBench) -> None:
    await bench.handler().handle(record())
    other = record(fields(files=[{"path": "src/shop.py", "content": None}]))
    assert (await bench.handler().handle(other)).code == "request_id_reused"
    reply = bench.values(RESULTS)[1]
    assert (reply["code"], reply["request_id"], reply["project_id"]) == ("request_id_reused", "s-1", "shop")
    assert bench.stores.on(DEAD) == []
    assert len(await functions(bench)) == 2


async def test_a_repeat_may_be_spelled_otherwise(bench: SyncBench) -> None:
    await bench.handler().handle(record())
    spelled = json.dumps({**dict(reversed(FIELDS.items())), "future": 1}, indent=1).encode()
    assert await bench.handler().handle(record(spelled)) == Handled()
    assert len({item.value for item in bench.stores.on(RESULTS)}) == 1


async def test_a_sync_that_changes_nothing_keeps_the_version(bench: SyncBench) -> None:
    await bench.handler().handle(record())
    await bench.handler().handle(record(fields(sync_id="s-2")))
    assert [reply["graph_version"] for reply in bench.values(RESULTS)] == [1, 1]
    assert metric(bench, "unchanged") == 1


async def test_files_that_are_not_named_stay_and_null_deletes(bench: SyncBench) -> None:
    files = [{"path": "a.py", "content": "def a(): ...\n"}, {"path": "b.py", "content": "def b(): ...\n"}]
    await bench.handler().handle(record(fields(files=files)))
    change = [{"path": "a.py", "content": None}, {"path": "c.py", "content": "def c(): ...\n"}]
    await bench.handler().handle(record(fields(sync_id="s-2", files=change)))
    assert await functions(bench) == {"b.py::b", "c.py::c"}


async def test_two_projects_with_the_same_files_have_graphs_of_their_own(bench: SyncBench) -> None:
    await bench.handler().handle(record())
    await bench.handler().handle(record(fields(project_id="bank")))
    gone = fields(sync_id="s-2", project_id="bank", files=[{"path": "b.py", "content": "def b(): ...\n"}])
    await bench.handler().handle(record(gone))
    assert len(await functions(bench)) == 2
    assert await functions(bench, "bank") == {"src/shop.py::charge", "src/shop.py::pay", "b.py::b"}


async def test_the_reply_goes_where_it_was_asked_for(bench: SyncBench) -> None:
    headers = (("reply_to", b"team.replies"), ("correlation_id", b"\xffc"), ("context-kind", b"sync"))
    await bench.handler().handle(record(headers=headers))
    (reply,) = bench.stores.published
    assert reply.topic == "team.replies"
    assert dict(reply.headers)["correlation_id"] == b"\xffc"


async def test_a_higher_generation_is_another_sync(bench: SyncBench) -> None:
    await bench.handler().handle(record())
    other = fields(files=[{"path": "src/shop.py", "content": "def only(): ...\n"}])
    await bench.handler().handle(record(other, headers=(("context-generation", b"1"),)))
    assert await functions(bench) == {"src/shop.py::only"}


# --- Roots ---------------------------------------------------------------------------------------------


@pytest.fixture
def root(tmp_path: Path, bench: SyncBench) -> Path:
    root = tmp_path / "checkout"
    (root / "sub").mkdir(parents=True)
    (root / "top.py").write_text("def top(): ...\n")
    (root / "sub" / "low.py").write_text("def low(): ...\n")
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "secret.py").write_text("def secret(): ...\n")
    (root / "link").symlink_to(tmp_path / "outside")
    bench.roots["shop"] = (root,)
    return root


async def test_without_files_the_projects_own_root_is_indexed(bench: SyncBench, root: Path) -> None:
    await bench.handler().handle(record({"sync_id": "s-1", "project_id": "shop"}))
    assert await functions(bench) == {"top.py::top", "sub/low.py::low"}


@pytest.mark.parametrize("spelling", ["sub", "./sub/", "{root}/sub"])
async def test_a_root_may_be_a_folder_of_the_configured_one(
    bench: SyncBench, root: Path, spelling: str
) -> None:
    body = {"sync_id": "s-1", "project_id": "shop", "root": spelling.format(root=root)}
    await bench.handler().handle(record(body))
    assert await functions(bench) == {"low.py::low"}


@pytest.mark.parametrize(
    "asked", ["..", "../outside", "{root}/../outside", "/", "/proc/self", "link", "absent", "top.py", "a\nb"]
)
async def test_a_root_that_leads_elsewhere_is_refused_and_kept(
    bench: SyncBench, root: Path, asked: str
) -> None:
    body = {"sync_id": "s-1", "project_id": "shop", "root": asked.format(root=root)}
    assert (await bench.handler().handle(record(body))).code == "invalid_request"
    (reply,) = bench.values(RESULTS)
    assert (reply["code"], reply["details"]["errors"][0]["field"]) == ("invalid_request", "root")
    assert len(bench.stores.on(DEAD)) == 1
    assert await bench.graph.head("shop") is None


async def test_a_project_without_roots_must_send_its_files(bench: SyncBench, root: Path) -> None:
    body = {"sync_id": "s-1", "project_id": "bank", "root": str(root)}
    assert (await bench.handler().handle(record(body))).code == "not_supported"
    assert bench.stores.on(DEAD) == []
    assert bench.values(RESULTS)[0]["details"]["field"] == "root"


async def test_a_configured_root_that_is_gone_is_refused_and_holds_nobody_up(
    bench: SyncBench, tmp_path: Path
) -> None:
    bench.roots["shop"] = (tmp_path / "unmounted",)
    body = {"sync_id": "s-1", "project_id": "shop"}
    assert (await bench.handler().handle(record(body))).code == "invalid_request"
    assert str(tmp_path) not in bench.stores.on(RESULTS)[0].value.decode()


# --- Poison --------------------------------------------------------------------------------------------

POISON = [
    (b"", "invalid_json"),
    (b"{", "invalid_json"),
    (b"[]", "invalid_json"),
    (b'{"sync_id": NaN}', "invalid_json"),
    (b'{"sync_id": "s\x00"}', "invalid_encoding"),
    (b'{"sync_id": "s\\u0000"}', "invalid_encoding"),
    (b'{"sync_id": "\\ud800"}', "invalid_encoding"),
    (b'\xff\xfe{"sync_id": 1}', "invalid_encoding"),
    (b"[" * 100_000, "too_large"),
    (b'{"sync_id": "' + b"x" * 200_000 + b'"}', "too_large"),
    (b'{"schema_version": "2.0", "sync_id": "s-1", "project_id": "shop"}', "unsupported_version"),
    (b'{"sync_id": "s-1", "project_id": "shop", "kind": "request"}', "invalid_request"),
    (b'{"sync_id": "a\\nb", "project_id": "shop"}', "invalid_request"),
    (b'{"sync_id": "s-1", "project_id": "a/b"}', "invalid_request"),
    (b'{"sync_id": "s-1"}', "invalid_request"),
    (b'{"sync_id": "s-1", "project_id": "shop", "files": [{"path": "a.py"}]}', "invalid_request"),
    (b'{"sync_id": "s-1", "project_id": "shop", "files": [{"path": 1, "content": ""}]}', "invalid_request"),
]


@pytest.mark.parametrize(("body", "code"), POISON, ids=[f"{n}-{code}" for n, (_, code) in enumerate(POISON)])
async def test_poison_is_kept_whole_and_answered(bench: SyncBench, body: bytes, code: str) -> None:
    headers = (("correlation_id", b"c"), ("own", b"\xff"))
    assert (await bench.handler().handle(record(body, headers=headers))).code == code
    (letter,) = bench.stores.on(DEAD)
    assert (letter.key, letter.value) == (b"shop", body)
    assert dict(letter.headers)["context-dead-code"] == code.encode()
    assert letter.headers[-2:] == headers
    (reply,) = bench.stores.on(RESULTS)
    assert json.loads(reply.value)["code"] == code
    assert dict(reply.headers)["context-kind"] == b"rejection"
    assert bench.indexed == []


@pytest.mark.parametrize(
    "path",
    ["", "/etc/passwd", "../a.py", "a/../b.py", "./a.py", "a//b.py", "a/", "a\nb.py", "a\u2028.py", "."],
)
async def test_a_path_in_another_spelling_than_a_scans_is_refused(bench: SyncBench, path: str) -> None:
    body = fields(files=[{"path": path, "content": "x = 1\n"}])
    assert (await bench.handler().handle(record(body))).code == "invalid_request"
    assert await bench.graph.head("shop") is None


async def test_a_path_that_stands_there_twice_is_refused(bench: SyncBench) -> None:
    body = fields(files=[{"path": "a.py", "content": "x = 1\n"}, {"path": "a.py", "content": None}])
    assert (await bench.handler().handle(record(body))).code == "invalid_request"
    assert bench.values(RESULTS)[0]["details"]["errors"][0]["field"] == "files.1.path"


async def test_files_of_which_none_gives_a_symbol_are_refused_and_the_graph_stays(bench: SyncBench) -> None:
    await bench.handler().handle(record())
    gone = [{"path": "src/shop.py", "content": None}, {"path": "b.py", "content": "\\\n"}]
    outcome = await bench.handler().handle(record(fields(sync_id="s-2", files=gone)))
    assert outcome.code == "invalid_request"
    assert len(await functions(bench)) == 2


async def test_a_rejection_with_both_ids_is_an_outcome_and_repeated_byte_for_byte(bench: SyncBench) -> None:
    body = fields(files=[{"path": "../a", "content": ""}])
    for _ in range(2):
        await bench.handler().handle(record(body))
    assert len({item.value for item in bench.stores.on(RESULTS)}) == 1
    assert len({(item.value, item.headers) for item in bench.stores.on(DEAD)}) == 1
    assert len(bench.indexed) == 1
    held = await bench.stores.store.get(KEY)
    assert isinstance(held, OutcomeRecord)
    assert read_refusal(held).code == "invalid_request"


async def test_another_kind_in_the_header_is_refused(bench: SyncBench) -> None:
    outcome = await bench.handler().handle(record(headers=(("context-kind", b"request"),)))
    assert outcome.code == "invalid_request"
    assert bench.indexed == []


async def test_a_reply_topic_off_the_list_is_answered_on_the_results(bench: SyncBench) -> None:
    outcome = await bench.handler().handle(record(headers=(("reply_to", b"context.requests"),)))
    assert outcome.code == "reply_to_not_allowed"
    assert [item.topic for item in bench.stores.published] == [RESULTS]


async def test_a_sync_older_than_what_is_remembered_is_expired(bench: SyncBench) -> None:
    old = record(timestamp_ms=NOW_MS - int(timedelta(hours=49).total_seconds()) * 1_000)
    assert (await bench.handler().handle(old)).code == "expired"
    assert bench.indexed == []


hostile = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=8,
)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    body=st.fixed_dictionaries(
        {},
        optional={
            "schema_version": hostile,
            "kind": hostile | st.just("sync"),
            "sync_id": hostile | st.just("s"),
            "project_id": hostile | st.just("p"),
            "root": hostile,
            "files": hostile
            | st.lists(
                st.fixed_dictionaries({"path": st.text(max_size=9), "content": st.none() | st.text()}),
                max_size=3,
            ),
        },
    )
)
async def test_whatever_comes_is_answered_once_and_none_is_an_internal_error(
    bench: SyncBench, body: dict[str, Any]
) -> None:
    bench.stores.published.clear()
    outcome = await bench.handler().handle(record(json.dumps(body).encode()))
    assert outcome.code != "internal_error"
    assert len(bench.stores.on(RESULTS)) == 1


# --- Outages and defects -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "error",
    [
        StoreUnavailable("neo4j", "gone"),
        Overtaken("others"),
    ],
    ids=["away", "others are faster"],
)
async def test_a_graph_that_cannot_be_written_now_is_tried_again_and_no_dead_letter(
    bench: SyncBench, error: Exception
) -> None:
    bench.index_error = error
    with pytest.raises(StoreUnavailable):
        await bench.handler().handle(record())
    assert bench.stores.published == []
    bench.index_error = None
    assert await bench.handler().handle(record()) == Handled()


async def test_an_outcome_store_that_is_away_publishes_nothing(bench: SyncBench) -> None:
    def away(step: str) -> None:
        if step == "before put":
            raise StoreUnavailable("redis")

    bench.stores.step = away
    with pytest.raises(StoreUnavailable):
        await bench.handler().handle(record())
    assert bench.stores.published == []


@pytest.mark.parametrize("error", [ZeroDivisionError("x"), MemoryError()])
async def test_a_defect_is_answered_and_kept_with_its_traceback(
    bench: SyncBench, error: BaseException
) -> None:
    bench.index_error = error
    for _ in range(2):
        assert (await bench.handler().handle(record())).code in {"internal_error", None}
    letters = bench.stores.on(DEAD)
    assert len({(letter.value, letter.headers) for letter in letters}) == 1
    assert b"Traceback" in dict(letters[0].headers)["context-dead-traceback"]
    assert b"Traceback" not in bench.stores.on(RESULTS)[0].value
    assert len(bench.indexed) == 1


async def test_an_order_to_stop_is_no_error(bench: SyncBench) -> None:
    bench.index_error = asyncio.CancelledError()
    with pytest.raises(asyncio.CancelledError):
        await bench.handler().handle(record())
    assert bench.stores.published == []


async def test_a_record_that_kills_workers_is_buried_without_being_decoded(bench: SyncBench) -> None:
    assert (await bench.handler().bury(record(), attempts=3)).code == "worker_died"
    (letter,) = bench.stores.on(DEAD)
    assert dict(letter.headers)["context-dead-attempts"] == b"3"
    assert bench.values(RESULTS)[0]["request_id"] == "s-1"
    # It stays what it is, however often it comes.
    assert await bench.handler().handle(record()) == Handled()
    assert bench.values(RESULTS)[1] == bench.values(RESULTS)[0]
    assert bench.indexed == []


async def test_a_result_that_was_stored_before_the_burial_is_what_is_published(bench: SyncBench) -> None:
    await bench.handler().handle(record())
    assert (await bench.handler().bury(record(), attempts=3)).code == "worker_died"
    assert len(bench.stores.on(DEAD)) == 1
    assert len({item.value for item in bench.stores.on(RESULTS)}) == 1


async def test_a_buried_record_without_ids_is_answered_all_the_same(bench: SyncBench) -> None:
    cause = ValueError("x")
    assert (await bench.handler().bury(record(b"\xff"), attempts=3, cause=cause)).code == "internal_error"
    assert bench.values(RESULTS)[0]["request_id"] is None
    assert bench.stores.on(DEAD)[0].value == b"\xff"


async def test_a_defect_of_the_burial_itself_leaves_dead_letter_and_reply(
    bench: SyncBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("worker.kafka.received.read_ids", broken)
    assert await bench.handler().bury(record(), attempts=3) == Handled(code="worker_died")
    (letter,) = bench.stores.on(DEAD)
    assert letter.value == record().value
    assert b"ZeroDivisionError" in dict(letter.headers)["context-dead-traceback"]
    assert bench.values(RESULTS)[0]["code"] == "worker_died"


class Sleeper(SqliteGraphStore):
    """A store on whose threshold a worker falls asleep once."""

    def __init__(self, path: Path, *, place: str) -> None:
        super().__init__(path)
        self._place = place
        self.asleep, self.woken = asyncio.Event(), asyncio.Event()

    async def _pass(self, place: str) -> None:
        if place == self._place and not self.woken.is_set():
            self.asleep.set()
            await self.woken.wait()

    async def head(self, project_id: str) -> GraphHead | None:
        await self._pass("head")
        return await super().head(project_id)

    async def apply(
        self, project_id: str, change: GraphChange, *, snapshot_id: str, expected_version: int
    ) -> GraphHead:
        await self._pass("apply")
        return await super().apply(
            project_id, change, snapshot_id=snapshot_id, expected_version=expected_version
        )


@pytest.mark.parametrize("place", ["head", "apply"])
async def test_a_zombie_that_wakes_up_does_not_undo_what_came_after_its_sync(
    bench: SyncBench, tmp_path: Path, place: str
) -> None:
    sleeper = Sleeper(tmp_path / "graph.db", place=place)
    zombie = SyncBench(stores=bench.stores, graph=sleeper)
    late = asyncio.create_task(zombie.handler().handle(record()))
    await sleeper.asleep.wait()
    await bench.handler().handle(record())
    newer = fields(sync_id="s-2", files=[{"path": "src/shop.py", "content": "def newest(): ...\n"}])
    await bench.handler().handle(record(newer))
    sleeper.woken.set()
    with pytest.raises(StoreUnavailable):
        await late
    assert await functions(bench) == {"src/shop.py::newest"}
    assert await zombie.handler().handle(record()) == Handled()
    first, _, again = bench.stores.on(RESULTS)
    assert first.value == again.value
    assert await functions(bench) == {"src/shop.py::newest"}
    await sleeper.close()


# --- The event loop ------------------------------------------------------------------------------------


async def test_a_sync_does_not_block_the_event_loop(bench: SyncBench) -> None:
    many = [{"path": f"m{n}.py", "content": SHOP.replace("pay", f"pay{n}")} for n in range(300)]
    handler = bench.handler()
    with blockbuster_ctx():
        assert await handler.handle(record(fields(files=many))) == Handled()
