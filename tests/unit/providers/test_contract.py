"""What every source owes, whatever the request: a new one adds a line to PROVIDERS."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from schemas.session import Decision
from tests.support.hash_seeds import outputs
from tests.unit.providers.frames import BUDGET, BYTES, IMPLEMENT, SCOPE, frame, texts
from worker.code.sources import SourceRoots
from worker.ports import Fragment, LayerBudget, LayerContribution, Provider, Subject
from worker.providers.artifacts import ArtifactsProvider, render_artifact_digest
from worker.providers.ast import AstProvider
from worker.providers.contribution import layer_text
from worker.providers.graph import GraphProvider
from worker.providers.memory import MemoryProvider
from worker.providers.mission import MissionProvider, render_mission_context
from worker.providers.plan import PlanProvider, render_plan_context
from worker.providers.semantic import SemanticProvider
from worker.providers.task import TaskProvider

PROVIDERS: list[Callable[[], Provider]] = [
    MissionProvider,
    PlanProvider,
    MemoryProvider,
    ArtifactsProvider,
    GraphProvider,
    lambda: AstProvider(SourceRoots({})),
    SemanticProvider,
    TaskProvider,
]
GATED = Subject(name="chat", inject=False, semantic=False, task_type="DOCUMENT")

# --- Requests ----------------------------------------------------------------------------------------

_SCRAPS = (
    "word ",
    "Two sentences. Here! ",
    "retry ",
    "\n",
    "\r\n",
    " " * 90,
    "<|endoftext|>",
    "\x00",
    "\ud800",
    "e\u0301",
    "👩‍👩‍👧‍👦",
    "漢字",
    "```python\n",
    "~~~\n",
    "## Function f\n",
    "<!-- node: a.py::f | template: BUILD | rank: 1 | score: 0.500000 | tokens: 3 -->\n",
    "--- a/x\n+++ b/x\n@@ -1 +1 @@\n-a\n+b\n",
    "x" * 400,
)
_text = st.lists(st.sampled_from(_SCRAPS), max_size=5).map("".join)
_id = st.sampled_from(["a", "b", "c#2", "c", "src/a b.py::f", "日本"])
_time = st.none() | st.integers(1, 9).map(lambda day: f"2026-01-0{day}T00:00:00Z")
_status = st.sampled_from(["done", "pending", "active", "skipped", "deferred", "odd"])


def _some(**fields: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries({}, optional=fields)


def _list(of: st.SearchStrategy[Any], longest: int = 7) -> st.SearchStrategy[list[Any]]:
    return st.lists(of, max_size=longest)


_step = st.fixed_dictionaries(
    {"title": _text, "status": _status},
    optional={
        "id": _id,
        "goal": _text,
        "actions": _list(_text, 3),
        "depends_on": _list(_id, 2),
        "summary": _text,
    },
)
_decision = st.fixed_dictionaries(
    {"id": _id, "title": _text}, optional={"text": _text, "applies_to": _list(_id, 2)}
)
_blocker = st.fixed_dictionaries({"id": _id, "text": _text})
_session = _some(
    project=_some(branch=_text, status=_text, active_session=_text | st.integers()),
    goal=st.fixed_dictionaries(
        {"statement": _text},
        optional={
            "id": _id,
            "status": _text,
            "criteria": _list(st.fixed_dictionaries({"text": _text, "met": st.booleans()})),
            "tasks": _list(_step),
            "current_step": _id,
            "blockers": _list(_blocker),
        },
    ),
    work_items=_list(
        st.fixed_dictionaries({"title": _text, "state": _status}, optional={"id": _id, "notes": _text})
    ),
    handoff=_some(
        decisions=_list(_decision, 13), blockers=_list(_blocker), alerts=_list(_text), key_files=_list(_text)
    ),
)
_requests = _some(
    user_message=_text,
    session=_session,
    plan=st.fixed_dictionaries({"plan_id": _id, "steps": _list(_step)}, optional={"current_step": _id}),
    memory=_some(
        summary=_text,
        items=_list(
            st.fixed_dictionaries({"id": _id, "text": _text}, optional={"subject": _id, "occurred_at": _time})
        ),
    ),
    artifacts=_list(
        st.fixed_dictionaries(
            {"id": _id, "stage": _text, "type": _text, "content": _text, "occurred_at": _time}
        ),
        13,
    ),
    pack=st.lists(st.sampled_from(_SCRAPS), max_size=9).map("".join),
    payload=_some(task_context=_text | st.lists(_text | st.integers() | st.none(), max_size=3)),
    working=_some(
        current_diff=_text,
        failing_tests=_list(st.fixed_dictionaries({"id": _id}, optional={"message": st.none() | _text})),
    ),
    must_cite=_list(_id, 2),
)


def provide(
    make: Callable[[], Provider], request: dict[str, Any], subject: Subject = IMPLEMENT, tokens: int = 4_000
) -> LayerContribution:
    budget = LayerBudget(tokens=tokens, counter=BYTES)
    return asyncio.run(_provide(make(), request, subject, budget))


async def _provide(
    provider: Provider, request: dict[str, Any], subject: Subject, budget: LayerBudget
) -> LayerContribution:
    return await provider.provide(frame(subject, **request), SCOPE, budget)


every_provider = pytest.mark.parametrize("make", PROVIDERS)
# To make up a request takes longer than any source does over it: a property asks all sources with each.
examples = settings(suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])

# --- Claims ------------------------------------------------------------------------------------------


@examples
@given(request=_requests)
def test_the_same_request_gives_the_same_contribution(request: dict[str, Any]) -> None:
    renamed = request | {"request_id": "another", "deadline_ms": 7, "layer_timeouts_ms": {"plan": 1}}
    for make in PROVIDERS:
        contribution = provide(make, request)
        assert provide(make, request) == contribution
        assert provide(make, renamed) == contribution


def _check_fragment(fragment: Fragment) -> None:
    assert fragment.renderings
    depths = [rendering.depth for rendering in fragment.renderings]
    assert depths == sorted(set(depths), reverse=True)
    assert all(0 <= depth <= 9 for depth in depths)
    shown = [rendering.text for rendering in fragment.renderings]
    assert len(set(shown)) == len(shown)
    for text in (*shown, fragment.node, fragment.group, *(p.location for p in fragment.provenance)):
        text.encode()
    assert all(text and not text.endswith(("\n", "\r")) for text in shown)
    assert "\n" not in fragment.group
    assert 0 <= fragment.relevance <= 1
    assert fragment.rank >= 0
    assert fragment.provenance
    assert len(fragment.metadata) <= 64


@examples
@given(request=_requests, tokens=st.integers(0, 3_000))
def test_fragments_are_sound(request: dict[str, Any], tokens: int) -> None:
    for make in PROVIDERS:
        contribution = provide(make, request, tokens=tokens)
        assert all(f.layer == contribution.layer == make().layer for f in contribution.fragments)
        _check_fragments(contribution.fragments)


def _check_fragments(fragments: Sequence[Fragment]) -> None:
    for fragment in fragments:
        _check_fragment(fragment)
    positions = [fragment.position for fragment in fragments]
    assert positions == sorted(set(positions))
    assert len({fragment.node for fragment in fragments}) == len(fragments)
    assert len({fragment.key for fragment in fragments}) == len(fragments)


@examples
@given(request=_requests, subject=st.sampled_from([IMPLEMENT, GATED]))
def test_status_reason_and_content_agree(request: dict[str, Any], subject: Subject) -> None:
    for make in PROVIDERS:
        _check_status(provide(make, request, subject))


def _check_status(contribution: LayerContribution) -> None:
    if contribution.status == "ok":
        assert contribution.fragments
        assert contribution.reason is None
        assert contribution.heading.startswith("# ")
    else:
        assert contribution.status in {"empty", "off"}
        assert contribution.reason in {"no_data", "below_heading", "subject_gated", "not_configured"}
        assert not contribution.fragments


@every_provider
@pytest.mark.parametrize("subject", [IMPLEMENT, GATED], ids=["open", "gated"])
def test_an_empty_request_is_answered_with_a_reason(make: Callable[[], Provider], subject: Subject) -> None:
    contribution = provide(make, {}, subject)
    assert contribution.status in {"empty", "off"}
    assert contribution.reason is not None
    assert contribution.fragments == ()


@examples
@given(request=_requests)
def test_a_gated_subject_takes_nothing_away_that_stands_in_the_request(request: dict[str, Any]) -> None:
    for make in PROVIDERS:
        contribution = provide(make, request)
        if contribution.status != "off":
            assert provide(make, request, GATED) == contribution


@examples
@given(request=_requests)
def test_what_must_never_be_evicted_is_pinned(request: dict[str, Any]) -> None:
    mission = _pins(provide(MissionProvider, request))
    session = frame(**request).request.session
    if session is not None and session.goal is not None:
        assert any(floor.startswith("Goal") for floor in mission)
        assert _all_stand_in(mission, [blocker.id for blocker in session.goal.blockers])
    if session is not None and session.handoff is not None:
        assert _all_stand_in(mission, [b.id for b in session.handoff.blockers])
        assert _all_stand_in(mission, _titled(session.handoff.decisions[-10:]))
    working = frame(**request).request.working
    if working is not None:
        task = _pins(provide(TaskProvider, request))
        assert _all_stand_in(task, [test.id for test in working.failing_tests])
        assert bool((working.current_diff or "").strip()) == any(
            "diff://" in n for n in _pinned_nodes(request)
        )


def _pins(contribution: LayerContribution) -> list[str]:
    return [f.renderings[-1].text for f in contribution.fragments if f.is_pinned]


def _pinned_nodes(request: dict[str, Any]) -> list[str]:
    return [f.node for f in provide(TaskProvider, request).fragments if f.is_pinned]


def _titled(decisions: Sequence[Decision]) -> list[str]:
    return [f"{decision.id}: {' '.join(decision.title.split())[:40]}".rstrip() for decision in decisions]


def _all_stand_in(floors: list[str], expected: list[str]) -> bool:
    shown = "\n".join(floors)
    return all(
        part.encode("utf-16", "surrogatepass").decode("utf-16", "replace") in shown for part in expected
    )


@examples
@given(request=_requests)
def test_the_fragments_in_order_read_as_the_plain_functions_do(request: dict[str, Any]) -> None:
    given_request = frame(**request).request
    session = given_request.session
    assert layer_text(provide(PlanProvider, {"session": request.get("session")})) == render_plan_context(
        session
    )
    assert layer_text(
        provide(MissionProvider, {"session": request.get("session")})
    ) == render_mission_context(session)

    class Store:
        def all(self) -> Sequence[object]:
            return given_request.artifacts

    assert layer_text(provide(ArtifactsProvider, request)) == render_artifact_digest(Store())


@pytest.mark.timeout(180)
def test_neither_hash_seed_nor_process_changes_a_contribution() -> None:
    program = Path(__file__).with_name("print_contributions.py")
    digests = outputs([str(program)])
    assert len(digests) == 1
    assert len(digests.pop()) == 65


async def test_a_source_leaves_the_request_as_it_is() -> None:
    request = frame(
        session={"goal": {"statement": "g", "tasks": [{"title": "t"}]}, "handoff": {"decisions": ["d"]}},
        memory={"items": [{"id": "m", "text": "t"}]},
        payload={"task_context": {"b": 1, "a": [1.0]}},
    )
    before = request.request.model_dump_json()
    for make in PROVIDERS:
        await make().provide(request, SCOPE, BUDGET)
    assert request.request.model_dump_json() == before
    assert texts(await TaskProvider().provide(request, SCOPE, BUDGET))
