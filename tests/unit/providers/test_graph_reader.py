"""Questions to the graph: answered once, kept, and honest about what could not be had."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncGenerator
from dataclasses import replace
from pathlib import Path
from typing import Any
from weakref import ref

import pytest
import pytest_asyncio

from schemas.fragments import RelevanceTier
from tests.unit.providers.frames import BUDGET, BYTES, IMPLEMENT, SCOPE, frame, texts
from worker.budget.tokens import counter_for
from worker.code.indexing import IndexOptions, index_files
from worker.errors import GraphBehind, RelevanceUnavailable, StoreUnavailable
from worker.graph.answers import PART_LINE
from worker.graph.model import NodeRef
from worker.graph.question import GraphPolicy
from worker.graph.relevance import Refinement, RelevanceFacts
from worker.graph.snapshot import Snapshot
from worker.ports import LayerBudget, LayerContribution, RequestFrame, Subject, TokenCounter
from worker.providers.contribution import layer_text
from worker.providers.graph import GraphProvider
from worker.providers.graph_reader import GraphReader
from worker.providers.semantic import SemanticProvider, render_semantic_context
from worker.providers.snapshots import Snapshots
from worker.providers.states import ThreadStates
from worker.providers.task import TaskProvider
from worker.providers.threads import SourceThreads
from worker.retrieval.found import ToolFailed
from worker.retrieval.short_ids import ShortIds
from worker.state.store import Heads
from worker.stores.memory_packs import MemoryPackCache
from worker.stores.sqlite import SqliteOutcomeStore
from worker.stores.sqlite_graph import SqliteGraphStore
from worker.stores.sqlite_state import SqliteStateStore
from worker.telemetry import Telemetry

POLICY = GraphPolicy(ranking="graph", relevance="off", settings_digest="s", code_version="1")
PLAIN = IndexOptions(with_history=False)
BUDGETS = replace(BUDGET, graph_tokens=BUDGET.tokens)
FILES: dict[str, bytes | None] = {
    "net.py": (
        b"def retry(deadline):\n    # @traces REQ-9\n    return send(deadline)\ndef send(d):\n    return d\n"
    ),
    "log.py": b"def rotate(deadline):\n    return 'deadline'\n",
    "test_net.py": b"from net import retry\n\ndef test_retry():\n    assert retry(1) == 1\n",
    "broken.py": b"\x00",
}
ASKED: dict[str, Any] = {"user_message": "`retry` ignores its deadline"}
TEST = Subject(name="review_and_test", inject=True, semantic=True, task_type="TEST")
REVIEW = Subject(name="design_review", inject=True, semantic=True, task_type="REVIEW")
CHAT = Subject(name="chat", inject=False, semantic=False, task_type="DOCUMENT")


def asked_for(subject: Subject, **fields: Any) -> RequestFrame:
    return replace(frame(subject, **fields), task_type=subject.task_type)


class CountedCache(MemoryPackCache):
    """The real cache, which can be away, and says what it was given."""

    is_away = False

    def __init__(self, *, max_bytes: int) -> None:
        super().__init__(max_bytes=max_bytes)
        self.keys: set[str] = set()

    async def get(self, project_id: str, key: str) -> bytes | None:
        if self.is_away:
            raise StoreUnavailable("redis", "away")
        return await super().get(project_id, key)

    async def put(self, project_id: str, key: str, value: bytes) -> None:
        if self.is_away:
            raise StoreUnavailable("redis", "away")
        self.keys.add(key)
        await super().put(project_id, key, value)


class Rules:
    """Makes one node core, or is away."""

    def __init__(self, core: NodeRef | None, *, undecided: int = 0) -> None:
        self.core = core
        self.undecided = undecided
        self.asked: list[RelevanceFacts] = []

    async def refine(self, facts: RelevanceFacts) -> Refinement:
        self.asked.append(facts)
        if self.core is None:
            raise RelevanceUnavailable("no engine here")
        tiers: dict[NodeRef, RelevanceTier] = dict.fromkeys(facts.hops, "peripheral")
        return Refinement(tiers={**tiers, self.core: "core"}, undecided_owners=self.undecided)

    async def check(self) -> None: ...

    async def close(self) -> None: ...


class Graph:
    """A store with an indexed project, and a reader above it."""

    def __init__(
        self,
        path: Path,
        rules: Rules | None = None,
        *,
        max_bytes: int = 100_000_000,
        states: ThreadStates | None = None,
    ) -> None:
        self.store = SqliteGraphStore(path)
        self.cache = CountedCache(max_bytes=1_000_000)
        self.telemetry = Telemetry()
        self.snapshots = Snapshots(self.store, SourceThreads(), max_bytes=max_bytes)
        self.reader = GraphReader(
            self.snapshots,
            cache=self.cache,
            relevance=rules,
            policy=POLICY,
            threads=SourceThreads(),
            telemetry=self.telemetry,
            states=states,
        )

    def asked(self, result: str) -> float:
        value = self.telemetry.registry.get_sample_value("context_pack_cache_total", {"result": result})
        return value or 0.0

    async def close(self) -> None:
        await self.reader.close()
        await self.snapshots.close()
        await self.store.close()


@pytest_asyncio.fixture
async def graph(tmp_path: Path) -> AsyncGenerator[Graph]:
    made = Graph(tmp_path / "graph.db")
    await index_files(made.store, SCOPE.project_id, FILES, options=PLAIN)
    yield made
    await made.close()


async def test_the_graph_layer_shows_the_pack(graph: Graph) -> None:
    layer = await GraphProvider(graph.reader).provide(frame(**ASKED), SCOPE, BUDGETS)
    assert layer.status == "ok"
    assert layer.fragments[0].metadata["citable"] == "true"
    assert any("def retry(deadline)" in text for text in texts(layer))
    assert layer.measures is not None
    assert not layer.measures.is_cache_hit


async def test_what_words_found_reads_as_the_plain_function_does(graph: Graph) -> None:
    # A pack without room shows nothing, so that the layer holds all that was found.
    layer = await SemanticProvider(graph.reader).provide(
        frame(**ASKED), SCOPE, replace(BUDGET, graph_tokens=1)
    )
    snapshot = await graph.snapshots.latest(SCOPE.project_id, roots=())
    text = render_semantic_context(ASKED["user_message"], snapshot=snapshot, subject=IMPLEMENT)
    assert text == layer_text(layer)
    assert text.startswith("# FOUND BY WORDS\n## ")
    for max_lines, shown in ((6, "log.py::rotate"), (5, "")):
        named = render_semantic_context(
            "x", ["src/log.py"], snapshot=snapshot, subject=IMPLEMENT, max_lines=max_lines
        )
        assert shown in named
        assert len(named.splitlines()) <= max_lines
    assert render_semantic_context("retry", snapshot=None, subject=IMPLEMENT) == ""
    assert render_semantic_context("retry", snapshot=snapshot, subject=CHAT) == ""


@pytest.mark.parametrize("ranking", ["graph", "hop"])
async def test_passages_are_found_by_words_and_by_names_of_files_whatever_the_ranking(
    graph: Graph, ranking: str
) -> None:
    async def found(subject: Subject = IMPLEMENT, **asked: Any) -> list[str]:
        budget = replace(BUDGET, graph_tokens=1)
        request = frame(subject, ranking=ranking, **asked)
        layer = await SemanticProvider(graph.reader).provide(request, SCOPE, budget)
        return [fragment.provenance[0].location or "" for fragment in layer.fragments]

    assert "log.py::rotate" in await found(user_message="what the deadline means")
    assert await found(user_message="nothing of it") == []
    # The file itself need not be there: its name is a word like others.
    for path in ("src/rotate.py", "rotate.txt"):
        named = await found(user_message="nothing of it", payload={"files_created": [path]})
        assert named == ["log.py::rotate"]
    assert await found(user_message="x", payload={"files_created": ["rotate/x.py"]}) == []
    assert await found(CHAT, user_message="what the deadline means") == []


async def test_names_of_the_payloads_files_change_no_order_of_the_pack(graph: Graph) -> None:
    async def shown(*paths: str) -> list[str]:
        asked = frame(**ASKED, payload={"files_created": list(paths)})
        return texts(await GraphProvider(graph.reader).provide(asked, SCOPE, BUDGETS))

    assert (await shown("src/rotate.py"))[:-1] == await shown()


async def test_layers_of_one_request_ask_once_and_the_next_request_is_a_hit(graph: Graph) -> None:
    layers = [GraphProvider(graph.reader), SemanticProvider(graph.reader), TaskProvider(graph.reader)]
    asked = asked_for(TEST, **ASKED)
    await asyncio.gather(*(layer.provide(asked, SCOPE, BUDGETS) for layer in layers))
    assert (graph.asked("miss"), graph.asked("hit")) == (1, 0)
    first = await GraphProvider(graph.reader).provide(asked, SCOPE, BUDGETS)
    assert graph.asked("hit") == 1
    assert first.measures is not None
    assert first.measures.is_cache_hit


async def test_a_hit_and_a_miss_give_the_same_layers(graph: Graph) -> None:
    for subject in (IMPLEMENT, TEST, REVIEW):
        for provider in (
            GraphProvider(graph.reader),
            SemanticProvider(graph.reader),
            TaskProvider(graph.reader),
        ):
            request = asked_for(subject, user_message=f"`retry` {provider.layer} {subject.name}")
            miss = await provider.provide(request, SCOPE, BUDGETS)
            hit = await provider.provide(request, SCOPE, BUDGETS)
            assert replace(hit, measures=None) == replace(miss, measures=None)


async def test_a_sync_that_moves_the_version_is_seen_by_the_next_request(graph: Graph) -> None:
    provider = GraphProvider(graph.reader)
    await provider.provide(frame(**ASKED), SCOPE, BUDGETS)
    changed: dict[str, bytes | None] = {"net.py": b"def retry(deadline):\n    return 'mended'\n"}
    await index_files(graph.store, SCOPE.project_id, changed, options=PLAIN)
    after = await provider.provide(frame(**ASKED, after={"graph_version": 2}), SCOPE, BUDGETS)
    assert any("mended" in text for text in texts(after))


async def test_a_version_that_does_not_come_fails_the_layer_in_time(graph: Graph) -> None:
    asked = frame(**ASKED, after={"graph_version": 9}, layer_timeouts_ms={"graph": 50})
    with pytest.raises(GraphBehind):
        await GraphProvider(graph.reader).provide(asked, SCOPE, BUDGETS)


async def test_a_kept_answer_that_is_damaged_is_a_miss(graph: Graph) -> None:
    provider = GraphProvider(graph.reader)
    whole = await provider.provide(frame(**ASKED), SCOPE, BUDGETS)
    (key,) = graph.cache.keys
    for damaged in (b"", b"3:{", b'3:{"snapshot_id":', b"2:{", b"\xff" * 9, b"null"):
        await graph.cache.put(SCOPE.project_id, key, damaged)
        again = await provider.provide(frame(**ASKED), SCOPE, BUDGETS)
        assert replace(again, measures=None) == replace(whole, measures=None)
    assert (graph.asked("damaged"), graph.asked("hit")) == (2, 0)  # the others are of another version


async def test_models_of_one_encoding_share_no_answer_where_their_factors_differ(graph: Graph) -> None:
    provider = GraphProvider(graph.reader)
    exact, scaled = (counter_for("o200k_base", safety_factor=factor) for factor in ("1", "1.35"))
    alone: dict[TokenCounter, LayerContribution] = {}
    for counter in (exact, scaled, scaled, exact):
        budget = LayerBudget(tokens=300, counter=counter, graph_tokens=300)
        layer = replace(await provider.provide(frame(**ASKED), SCOPE, budget), measures=None)
        assert alone.setdefault(counter, layer) == layer
        assert counter.count("".join(texts(layer))) <= 300
    assert graph.asked("miss") == 2


async def test_a_state_that_cannot_be_read_is_said_where_it_would_have_been_asked(tmp_path: Path) -> None:
    class Away(SqliteStateStore):
        async def heads(self, *args: object, **more: object) -> Heads:
            raise StoreUnavailable("state")

    graph = Graph(
        tmp_path / "graph.db", states=ThreadStates(Away(tmp_path / "s.db"), SourceThreads(), max_bytes=1)
    )
    await index_files(graph.store, SCOPE.project_id, FILES, options=PLAIN)
    for provider in (GraphProvider(graph.reader), SemanticProvider(graph.reader)):
        layer = await provider.provide(frame(**ASKED), SCOPE, BUDGETS)
        if layer.fragments:
            assert (layer.status, layer.reason) == ("partial", "section_error")
    await graph.close()


async def test_a_cache_that_is_away_is_read_around(graph: Graph) -> None:
    graph.cache.is_away = True
    layer = await GraphProvider(graph.reader).provide(frame(**ASKED), SCOPE, BUDGETS)
    assert layer.status == "ok"
    assert graph.asked("unavailable") == 1


async def test_a_project_that_was_never_indexed_has_no_layers(tmp_path: Path) -> None:
    empty = Graph(tmp_path / "other.db")
    for provider in (GraphProvider(empty.reader), SemanticProvider(empty.reader)):
        layer = await provider.provide(frame(**ASKED), SCOPE, BUDGETS)
        assert (layer.status, layer.reason) == ("off", "not_configured")
    await empty.close()


async def test_a_gated_subject_never_asks(graph: Graph) -> None:
    for provider in (GraphProvider(graph.reader), SemanticProvider(graph.reader), TaskProvider(graph.reader)):
        await provider.provide(frame(CHAT, **ASKED), SCOPE, BUDGETS)
    assert graph.asked("miss") == 0


async def test_files_of_interest_that_are_not_indexed_make_the_layer_partial(graph: Graph) -> None:
    asked = frame(**ASKED, payload={"files_created": ["net.py", "broken.py", "new.py"]})
    layer = await GraphProvider(graph.reader).provide(asked, SCOPE, BUDGETS)
    assert (layer.status, layer.reason) == ("partial", "not_indexed")
    assert texts(layer)[-1] == "Not indexed, or not wholly: broken.py, new.py"


async def test_semantic_shows_what_words_found_and_the_pack_lacks(graph: Graph) -> None:
    small = LayerBudget(tokens=1_000, counter=BYTES, graph_tokens=700)
    asked = frame(user_message="deadline retry send rotate")
    pack = "\n".join(texts(await GraphProvider(graph.reader).provide(asked, SCOPE, small)))
    layer = await SemanticProvider(graph.reader).provide(asked, SCOPE, small)
    assert layer.fragments
    assert not [
        f.provenance[0].location for f in layer.fragments if f"node: {f.provenance[0].location} " in pack
    ]


async def test_work_on_tests_is_told_what_covers_and_a_review_what_is_open(graph: Graph) -> None:
    covering = await TaskProvider(graph.reader).provide(asked_for(TEST, **ASKED), SCOPE, BUDGETS)
    assert texts(covering) == ["- test_net.py::test_retry exercises net.py::retry"]
    open_traces = await TaskProvider(graph.reader).provide(asked_for(REVIEW, **ASKED), SCOPE, BUDGETS)
    assert texts(open_traces) == ["- REQ-9, traced by net.py::retry: no document defines it"]


async def test_what_the_request_says_is_shown_though_the_graph_is_away(tmp_path: Path) -> None:
    away = Graph(tmp_path)  # a folder is no database
    asked = asked_for(TEST, **ASKED, payload={"task_context": "Mind the deadline."})
    layer = await TaskProvider(away.reader).provide(asked, SCOPE, BUDGETS)
    assert (layer.status, layer.reason, texts(layer)) == ("partial", "section_error", ["Mind the deadline."])
    with pytest.raises(StoreUnavailable):
        await TaskProvider(away.reader).provide(asked_for(TEST, **ASKED), SCOPE, BUDGETS)
    with pytest.raises(StoreUnavailable):
        await GraphProvider(away.reader).provide(frame(**ASKED), SCOPE, BUDGETS)
    await away.close()


async def test_rules_reorder_the_pack_and_their_counts_are_measured(tmp_path: Path) -> None:
    rules = Rules(NodeRef("Function", "log.py::rotate"))
    graph = Graph(tmp_path / "graph.db", rules)
    await index_files(graph.store, SCOPE.project_id, FILES, options=PLAIN)
    layer = await GraphProvider(graph.reader).provide(frame(**ASKED, relevance="prolog"), SCOPE, BUDGETS)
    assert "def rotate" in texts(layer)[0]
    assert layer.measures is not None
    assert layer.measures.tiers is not None
    assert layer.measures.tiers["core"] == 1
    await GraphProvider(graph.reader).provide(frame(**ASKED), SCOPE, BUDGETS)
    assert len(rules.asked) == 1
    await graph.close()


@pytest.mark.parametrize("rules", [Rules(None), None], ids=["away", "none"])
async def test_rules_that_cannot_be_asked_leave_the_plain_order_and_are_not_remembered(
    tmp_path: Path, rules: Rules | None
) -> None:
    graph = Graph(tmp_path / "graph.db", rules)
    await index_files(graph.store, SCOPE.project_id, FILES, options=PLAIN)
    provider = GraphProvider(graph.reader)
    plain = await provider.provide(frame(**ASKED), SCOPE, BUDGETS)
    for _ in range(2):
        layer = await provider.provide(frame(**ASKED, relevance="prolog"), SCOPE, BUDGETS)
        assert (layer.status, layer.reason) == ("partial", "relevance_unavailable")
        assert texts(layer) == texts(plain)
        assert layer.measures is not None
        assert not layer.measures.is_cache_hit
    await graph.close()


async def test_two_projects_with_the_same_files_never_see_each_other(graph: Graph) -> None:
    other = replace(SCOPE, project_id="other")
    files = {
        path: content and content.replace(b"return", b"return 'theirs' or") for path, content in FILES.items()
    }
    await index_files(graph.store, "other", files, options=PLAIN)
    provider = GraphProvider(graph.reader)
    mine = texts(await provider.provide(frame(**ASKED), SCOPE, BUDGETS))
    theirs = texts(await provider.provide(frame(**ASKED), other, BUDGETS))
    assert "theirs" not in "".join(mine)
    assert "theirs" in "".join(theirs)


async def test_of_a_graph_too_large_to_hold_no_question_changes_the_answer_to_another(tmp_path: Path) -> None:
    files: dict[str, bytes | None] = {
        f"m{n}.py": f"def run{n}(deadline):\n    return {'x' * (40 * n)}\n".encode() for n in range(1, 9)
    }

    async def ask(graph: Graph, number: int) -> list[str]:
        asked = frame(user_message=f"`run{number}` in m{number}.py is late")
        return texts(await GraphProvider(graph.reader).provide(asked, SCOPE, BUDGETS))

    fresh = Graph(tmp_path / "graph.db", max_bytes=100)
    await index_files(fresh.store, SCOPE.project_id, files, options=PLAIN)
    alone = await ask(fresh, 3)
    assert any("def run3(" in text for text in alone)
    # That it is a part is said, by either layer that shows some of it.
    assert alone[-1] == PART_LINE
    asked = frame(user_message="`run3` in m3.py is late")
    for provider, tokens in ((GraphProvider(fresh.reader), 9_000), (SemanticProvider(fresh.reader), 1)):
        layer = await provider.provide(asked, SCOPE, replace(BUDGETS, graph_tokens=tokens))
        assert layer.fragments
        assert (layer.status, layer.reason) == ("partial", "section_error")
    used = Graph(tmp_path / "graph.db", max_bytes=100)
    for number in (8, 1, 5):
        await ask(used, number)
    assert await ask(used, 3) == alone
    # A worker that holds the whole graph answers anew, though it shares the cache.
    whole = Graph(tmp_path / "graph.db")
    whole.reader = GraphReader(
        whole.snapshots,
        cache=used.cache,
        relevance=None,
        policy=POLICY,
        threads=SourceThreads(),
        telemetry=whole.telemetry,
    )
    await ask(whole, 3)
    assert (whole.asked("hit"), whole.asked("miss")) == (0, 1)
    for graph in (fresh, used, whole):
        await graph.close()


async def test_what_the_bound_lets_go_is_kept_alive_by_nobody(tmp_path: Path) -> None:
    probe = Graph(tmp_path / "graph.db")
    scopes = [replace(SCOPE, project_id=name) for name in ("first", "second")]
    for scope in scopes:
        await index_files(probe.store, scope.project_id, FILES, options=PLAIN)
    size = await probe.snapshots.latest("first", roots=())
    assert size is not None
    graph = Graph(tmp_path / "graph.db", max_bytes=int(1.5 * size.size_bytes))
    short_ids = ShortIds(SqliteOutcomeStore(tmp_path / "o.db", keep_seconds=60, forget_seconds=60))
    held: list[ref[Snapshot]] = []
    for scope in scopes:
        await GraphProvider(graph.reader).provide(frame(**ASKED), scope, BUDGETS)
        snapshot = await graph.snapshots.latest(scope.project_id, roots=())
        assert snapshot is not None
        with pytest.raises(ToolFailed):
            short_ids.in_graph(snapshot, scope, "f:000000")
        held.append(ref(snapshot))
        del snapshot
    gc.collect()
    assert [one() is None for one in held] == [True, False]
    for one in (probe, graph):
        await one.close()


async def test_a_review_without_words_of_its_own_that_the_graph_keeps_waiting_has_timed_out(
    graph: Graph, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def never(*_: object, **__: object) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(graph.reader, "answer", never)
    late = asked_for(REVIEW, **ASKED, layer_timeouts_ms={"task": 20})
    layer = await TaskProvider(graph.reader).provide(late, SCOPE, BUDGETS)
    assert (layer.status, layer.reason) == ("failed", "timeout")


async def test_owners_that_the_rules_cannot_decide_are_counted(tmp_path: Path) -> None:
    rules = Rules(NodeRef("Function", "log.py::rotate"), undecided=3)
    graph = Graph(tmp_path / "graph.db", rules)
    await index_files(graph.store, SCOPE.project_id, FILES, options=PLAIN)
    await GraphProvider(graph.reader).provide(frame(**ASKED, relevance="prolog"), SCOPE, BUDGETS)
    assert graph.telemetry.registry.get_sample_value("context_undecided_owners_total") == 3
    await graph.close()
