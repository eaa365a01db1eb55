from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta, timezone
from enum import Enum
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from schemas.session import Artifact
from tests.unit.providers.frames import BUDGET, SCOPE, frame, texts
from worker.errors import StoreUnavailable
from worker.ports import Scope
from worker.providers.artifacts import (
    ArtifactsProvider,
    build_digest,
    render_artifact_digest,
    view_artifact,
)
from worker.providers.contribution import layer_text


@dataclass
class Store:
    """A store as older runners have it: everything, or by thread."""

    items: list[Any] = field(default_factory=list[Any])

    def all(self) -> list[Any]:
        return self.items

    def by_thread(self, thread_id: str) -> list[Any]:
        return [item for item in self.items if getattr(item, "thread_id", "t1") == thread_id]


def artifact(artifact_id: str, day: int | None = None, content: str = "body") -> Artifact:
    occurred_at = None if day is None else f"2026-01-{day:02}T00:00:00Z"
    return Artifact.model_validate(
        {"id": artifact_id, "stage": "design", "type": "note", "content": content, "occurred_at": occurred_at}
    )


def shown(*artifacts: Artifact, max_items: int = 10) -> list[str]:
    return [
        f.node.removeprefix("artifact://") for f in build_digest(artifacts, max_items=max_items).fragments
    ]


def test_a_digest_has_one_line_per_artifact_in_time_order() -> None:
    store = Store(
        [
            SimpleNamespace(
                stage="implement", type="patch", path="src/net.py", content="def\n  retry", timestamp=2.0
            ),
            SimpleNamespace(stage_alias="design", artifact_type="note", content="Use\tqueues", timestamp=1.0),
        ]
    )
    assert render_artifact_digest(store) == (
        "# PRIOR ARTIFACTS\n- design · note: Use queues\n- implement · patch · src/net.py: def retry"
    )


@pytest.mark.parametrize("store", [None, Store(), object(), SimpleNamespace(all=lambda: None)])
def test_no_store_or_no_artifacts_give_no_text(store: object) -> None:
    assert render_artifact_digest(store) == ""


def test_a_thread_has_its_own_artifacts_where_the_store_can_tell() -> None:
    items = [
        SimpleNamespace(id=name, stage=name, type="t", content="c", thread_id=name) for name in ("a", "b")
    ]
    assert render_artifact_digest(Store(items), "b") == "# PRIOR ARTIFACTS\n- b · t: c"
    assert render_artifact_digest(Store(items)).count("\n") == 2
    only_all = SimpleNamespace(all=lambda: items)
    assert render_artifact_digest(only_all, "b").count("\n") == 2


def test_a_preview_has_two_hundred_characters() -> None:
    line = render_artifact_digest(Store([SimpleNamespace(stage="s", type="t", content="x" * 201)]))
    assert line.endswith("- s · t: " + "x" * 200 + "…")
    line = render_artifact_digest(
        Store([SimpleNamespace(stage="s", type="t", content="x" * 199 + "👩‍👩‍👧‍👦")])
    )
    assert line.endswith("- s · t: " + "x" * 199 + "…")


def test_undated_artifacts_stand_last_as_given() -> None:
    given_order = [artifact("u2"), artifact("d2", 2), artifact("u1"), artifact("d1", 1)]
    assert shown(*given_order) == ["d1", "d2", "u2", "u1"]


def test_equal_times_are_decided_by_id() -> None:
    assert (
        shown(artifact("b", 1), artifact("a", 1)) == shown(artifact("a", 1), artifact("b", 1)) == ["a", "b"]
    )


def test_of_too_many_the_newest_are_kept() -> None:
    dated = [artifact(f"d{n}", n) for n in range(1, 9)]
    undated = [artifact(f"u{n}") for n in range(3)]
    assert shown(*undated, *dated, max_items=4) == ["d5", "d6", "d7", "d8"]
    assert shown(*undated, *dated, max_items=9) == [*(f"d{n}" for n in range(1, 9)), "u2"]
    assert shown(*undated, max_items=2) == ["u1", "u2"]
    assert shown(*dated, max_items=0) == []
    assert build_digest([*undated, *dated], max_items=4).capped == 7


def test_the_newest_rank_first_and_names_are_the_short_rendering() -> None:
    contribution = build_digest([artifact("a", 1), artifact("b", 2), artifact("c", 3)])
    ranked = sorted(contribution.fragments, key=lambda f: (-f.relevance, f.rank))
    assert [f.node for f in ranked] == ["artifact://c", "artifact://b", "artifact://a"]
    assert [r.text for r in ranked[0].renderings] == ["- design · note: body", "- design · note"]
    assert ranked[0].created_at == datetime(2026, 1, 3, tzinfo=UTC)


class Stage(Enum):
    DESIGN = "design"


@pytest.mark.parametrize(
    ("given_time", "expected"),
    [
        (None, None),
        (0, datetime(1970, 1, 1, tzinfo=UTC)),
        (1.5, datetime(1970, 1, 1, 0, 0, 1, 500_000, tzinfo=UTC)),
        (True, None),
        (float("nan"), None),
        (1e300, None),
        ("2026-01-02T03:04:05Z", datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)),
        ("2026-01-02", datetime(2026, 1, 2, tzinfo=UTC)),
        ("yesterday", None),
        (datetime(2026, 1, 2), datetime(2026, 1, 2, tzinfo=UTC)),  # noqa: DTZ001 - naive on purpose
        (datetime(2026, 1, 2, 1, tzinfo=timezone(timedelta(hours=1))), datetime(2026, 1, 2, tzinfo=UTC)),
        (datetime.max.replace(tzinfo=timezone(-timedelta(hours=1))), None),
        (date(2026, 1, 2), datetime(2026, 1, 2, tzinfo=UTC)),
        (object(), None),
    ],
)
def test_times_are_read_in_many_shapes(given_time: object, expected: datetime | None) -> None:
    item = SimpleNamespace(stage="s", type="t", content="c", timestamp=given_time)
    assert view_artifact(item).occurred_at == expected


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ("a\ud800", "a�"),
        (b"caf\xc3\xa9\xff", "café�"),
        ({"b": 1, "a": [Stage.DESIGN, None]}, '{"a": ["design", null], "b": 1}'),
        ((1, 2), "[1, 2]"),
        (None, ""),
        (1.0, "1.0"),
        (date(2026, 1, 2), "2026-01-02"),
    ],
)
def test_content_of_many_kinds_becomes_text(content: object, text: str) -> None:
    assert view_artifact({"stage": "s", "type": "t", "content": content}).content == text


def test_both_shapes_and_mappings_are_read_alike() -> None:
    view = view_artifact(
        {"stage_alias": Stage.DESIGN, "artifact_type": "t", "file_path": "p", "content": "c"}
    )
    assert (view.stage, view.type, view.path, view.content) == ("design", "t", "p", "c")
    assert view == view_artifact(SimpleNamespace(stage="design", type="t", path="p", content="c"))


@pytest.mark.parametrize("odd_id", [None, "", "a\nb", "x" * 300, object])
def test_an_artifact_without_a_usable_id_gets_the_digest_of_the_rest(odd_id: object) -> None:
    item = {"id": odd_id if odd_id is not object else None, "stage": "s", "type": "t", "content": "c"}
    assert view_artifact(item).id == view_artifact({"stage": "s", "type": "t", "content": "c"}).id


@pytest.mark.parametrize("content", [object(), {1, 2}, {"a": object()}, lambda: None])
def test_what_has_no_text_of_its_own_is_refused(content: object) -> None:
    with pytest.raises(TypeError):
        view_artifact({"stage": "s", "type": "t", "content": content})


class Broken:
    """An artifact whose store has closed behind it."""

    @property
    def stage(self) -> str:
        raise ConnectionError


def test_an_artifact_that_cannot_be_read_costs_its_own_line() -> None:
    good = SimpleNamespace(stage="s", type="t", content="c")
    assert (
        render_artifact_digest(Store([good, Broken(), {"content": object()}]))
        == "# PRIOR ARTIFACTS\n- s · t: c"
    )
    assert render_artifact_digest(Store([Broken()])) == ""


# --- The provider ------------------------------------------------------------------------------------


def provider(store: object | None) -> ArtifactsProvider:
    return ArtifactsProvider(store_of=lambda _: store)


async def test_without_artifacts_the_layer_is_empty() -> None:
    for source in (ArtifactsProvider(), provider(None), provider(Store())):
        contribution = await source.provide(frame(), SCOPE, BUDGET)
        assert (contribution.status, contribution.reason) == ("empty", "no_data")


async def test_inline_artifacts_win_over_those_of_a_store() -> None:
    store = Store([SimpleNamespace(stage="stored", type="t", content="c")])
    inline = [{"stage": "inline", "type": "t", "content": "c"}]
    contribution = await provider(store).provide(frame(artifacts=inline), SCOPE, BUDGET)
    assert layer_text(contribution) == "# PRIOR ARTIFACTS\n- inline · t: c"
    contribution = await provider(store).provide(frame(), SCOPE, BUDGET)
    assert layer_text(contribution) == "# PRIOR ARTIFACTS\n- stored · t: c"


async def test_the_store_is_asked_for_by_scope_and_for_the_thread() -> None:
    asked: list[Scope] = []
    items = [SimpleNamespace(stage=name, type="t", content="c", thread_id=name) for name in ("t1", "t2")]

    def store_of(scope: Scope) -> Store:
        asked.append(scope)
        return Store(items)

    contribution = await ArtifactsProvider(store_of=store_of).provide(frame(), SCOPE, BUDGET)
    assert asked == [SCOPE]
    assert texts(contribution) == ["- t1 · t: c"]


@dataclass
class RankingStore(Store):
    digest: Callable[[str, int], str] = lambda thread_id, max_items: f"- best of {thread_id}, {max_items}"

    def render_artifact_digest(self, thread_id: str = "", max_items: int = 10) -> str:
        return self.digest(thread_id, max_items)


async def test_the_stores_own_digest_is_preferred() -> None:
    contribution = await provider(RankingStore()).provide(frame(), SCOPE, BUDGET)
    assert layer_text(contribution) == "# PRIOR ARTIFACTS\n- best of t1, 10"
    headed = RankingStore(digest=lambda thread_id, max_items: "# PRIOR ARTIFACTS\n- one\n")
    assert layer_text(await provider(headed).provide(frame(), SCOPE, BUDGET)) == "# PRIOR ARTIFACTS\n- one"
    silent = RankingStore(
        digest=lambda thread_id, max_items: " \n", items=[SimpleNamespace(stage="s", type="t", content="c")]
    )
    assert (await provider(silent).provide(frame(), SCOPE, BUDGET)).status == "empty"


async def test_where_the_stores_own_digest_fails_the_generic_one_stands_in_and_says_so() -> None:
    def fail(*_: object) -> str:
        raise ConnectionError

    store = RankingStore(digest=fail, items=[SimpleNamespace(stage="s", type="t", content="c")])
    contribution = await provider(store).provide(frame(), SCOPE, BUDGET)
    assert layer_text(contribution) == "# PRIOR ARTIFACTS\n- s · t: c"
    assert (contribution.status, contribution.reason) == ("partial", "section_error")


async def test_a_store_that_fails_altogether_fails_the_layer() -> None:
    def fail() -> list[Any]:
        raise ConnectionError

    contribution = await provider(SimpleNamespace(all=fail)).provide(frame(), SCOPE, BUDGET)
    assert (contribution.status, contribution.reason) == ("failed", "error")


async def test_one_artifact_that_cannot_be_read_makes_the_layer_partial() -> None:
    store = Store([Broken(), SimpleNamespace(stage="s", type="t", content="c")])
    contribution = await provider(store).provide(frame(), Scope(project_id="p", thread_id=None), BUDGET)
    assert (contribution.status, contribution.reason) == ("partial", "section_error")
    assert texts(contribution) == ["- s · t: c"]


async def test_a_refusal_of_the_project_passes() -> None:
    def fail() -> list[Any]:
        raise StoreUnavailable("neo4j")

    with pytest.raises(StoreUnavailable):
        await provider(SimpleNamespace(all=fail)).provide(frame(), SCOPE, BUDGET)


@settings(max_examples=60)
@given(st.permutations([artifact(f"a{n}", n % 3 + 1) for n in range(6)]), st.integers(0, 7))
def test_dated_artifacts_stand_alike_however_they_come(artifacts: list[Artifact], max_items: int) -> None:
    lines = build_digest(artifacts, max_items=max_items)
    assert lines == build_digest(sorted(artifacts, key=lambda a: a.id), max_items=max_items)
    assert len(lines.fragments) == min(6, max_items)


async def test_ten_megabytes_and_ten_thousand_artifacts_take_bounded_time() -> None:
    artifacts = [artifact(f"a{n}", n % 28 + 1) for n in range(10_000)]
    artifacts.append(artifact("big", 28, content=" " * 5_000_000 + "x" * 5_000_000))
    request = frame(artifacts=[a.model_dump() for a in artifacts])
    started = time.process_time()
    contribution = await ArtifactsProvider().provide(request, SCOPE, BUDGET)
    assert time.process_time() - started < 3
    assert contribution.capped == 9_991
    assert max(len(text) for text in texts(contribution)) < 600
