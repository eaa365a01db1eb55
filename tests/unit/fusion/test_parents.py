"""A child starts from what its parent's bundle showed: bodies in its focus, signatures elsewhere."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from schemas.bundle import ContextBundle
from schemas.fragments import FragmentProvenance
from tests.support.assembling import assembler, wire_request
from tests.support.assembling import settings as worker_settings
from tests.support.fixed_sources import assembler_over
from worker.assembly import Assembled, Assembler, ParentLate
from worker.budget.tokens import BytesCounter
from worker.errors import NotSupported, UnknownModel
from worker.explaining import parents
from worker.explaining.parents import StoredParents
from worker.explaining.replay import fuse_again
from worker.fusing import fuse_and_seal
from worker.fusion.compressor import FocusSkeletonCompressor
from worker.fusion.protocols import Placed
from worker.outcomes import bundle_outcome, rejection_outcome
from worker.planning import ContentPolicy
from worker.ports import Fragment, OutcomeKey, Rendering, Scope
from worker.receipts.capture import Capture, read_capture
from worker.sealing import SealedBundle
from worker.stores.sqlite import SqliteOutcomeStore
from worker.telemetry import Telemetry
from worker.turns import AT_ONCE, Turns
from worker.wiring import build_assembler, content_policy, utc_now

COUNTER = BytesCounter()
LONG_SECONDS = 60
PACK = """---
pack_version: 1
project: p
---
## Function retry
<!-- node: client.py::retry | template: IMPLEMENT | rank: 1 | score: 0.900000 | tokens: 20 -->
```python
def retry(deadline: float) -> None:
    attempts = 3
    while attempts and deadline > 0:
        attempt(deadline)
```
## Function attempt
<!-- node: wire.py::attempt | template: IMPLEMENT | rank: 2 | score: 0.800000 | tokens: 20 -->
```python
def attempt(deadline: float) -> bool:
    socket = connect(deadline, port=443)
    return socket.send(b"ping") > 0
```
"""
FACT = {"id": "m1", "text": "The retry loop once outlived its deadline by a minute in production."}


@pytest.fixture
def store(tmp_path: Path) -> SqliteOutcomeStore:
    return SqliteOutcomeStore(tmp_path / "outcomes.db", keep_seconds=7_200, forget_seconds=172_800)


CHILD_PACK = """---
pack_version: 1
project: p
---
## Function close
<!-- node: wire.py::close | template: IMPLEMENT | rank: 1 | score: 0.900000 | tokens: 20 -->
```python
def close() -> None:
    socket.close()
```
"""


@pytest.fixture
def using(store: SqliteOutcomeStore) -> Assembler:
    return build_assembler(worker_settings(), Telemetry(), outcomes=store)


async def keep(
    store: SqliteOutcomeStore, using: Assembler, *, generation: int = 0, **more: object
) -> Assembled:
    """Assemble a parent and store it as the worker does."""
    fields = {"thread_id": "t1", "pack": PACK, "memory": {"items": [FACT]}, **more}
    request = wire_request(**fields)
    assert request.as_of is not None
    made = await using.assemble(request, as_of=request.as_of)
    record = bundle_outcome(
        made.bundle,
        made.usage,
        made.trail,
        request_digest="d" * 64,
        as_of=request.as_of,
        max_record_bytes=1_000_000,
        max_capture_bytes=1_000_000,
        public_url="http://localhost",
    )
    key = OutcomeKey(project_id=request.project_id, request_id="r1", generation=generation)
    await store.put_if_absent(key, record)
    return made


async def refuse(store: SqliteOutcomeStore) -> None:
    """Store that the parent was refused."""
    key = OutcomeKey(project_id="p", request_id="r1")
    rejection = rejection_outcome(
        UnknownModel("m", known=()), key=key, request_digest="d" * 64, as_of=utc_now(), timestamp=utc_now()
    )
    await store.put_if_absent(key, rejection)


async def child(using: Assembler, *focus: str, **more: object) -> Assembled:
    fields = {"request_id": "c1", "thread_id": "t1", "parent": {"request_id": "r1", "focus": list(focus)}}
    timely = {"pack": CHILD_PACK, "include": ["messages", "layers", "parts"], "deadline_ms": 60_000}
    request = wire_request(**{**fields, **timely, **more})
    assert request.as_of is not None
    return await using.assemble(request, as_of=request.as_of)


def parts_of(bundle: ContextBundle) -> dict[str, str]:
    return {str(layer): text for layer, text in (bundle.parts or {}).items()}


async def test_bodies_stay_whole_in_the_focus_and_are_signatures_elsewhere(
    store: SqliteOutcomeStore, using: Assembler
) -> None:
    await keep(store, using)
    parts = parts_of((await child(using, "client.py")).bundle)
    assert "while attempts and deadline > 0:" in parts["graph"]
    assert "def attempt(deadline: float) -> bool:\n    …" in parts["graph"]
    assert "port=443" not in parts["graph"]
    assert "def close()" in parts["graph"]
    assert FACT["text"] in parts["memory"]


async def test_what_the_child_has_itself_is_not_inherited_again(
    store: SqliteOutcomeStore, using: Assembler
) -> None:
    await keep(store, using)
    parts = parts_of((await child(using, pack=PACK, memory={"items": [FACT]})).bundle)
    assert parts["graph"].count("def attempt") == 1
    assert "port=443" in parts["graph"]
    assert parts["memory"].count(FACT["text"]) == 1


async def test_a_childs_bundle_is_made_again_from_its_own_capture(
    store: SqliteOutcomeStore, using: Assembler
) -> None:
    await keep(store, using)
    made = await child(using, "retry")
    capture = read_capture(made.trail.capture(max_bytes=1_000_000), project_id="p", request_id="c1")
    policy = content_policy(worker_settings())
    assert fuse_again(capture, policy).bundle == made.bundle == fuse_and_seal(made.trail.fusing).bundle


async def test_a_parent_that_is_no_ones_anothers_or_gone_is_refused_in_the_same_words(
    store: SqliteOutcomeStore, using: Assembler, tmp_path: Path
) -> None:
    await keep(store, using)
    now = [0.0]
    fleeting = SqliteOutcomeStore(
        tmp_path / "fleeting.db", keep_seconds=60, forget_seconds=6_000, clock=lambda: now[0]
    )
    await keep(fleeting, using)
    now[0] = 120.0
    refused: list[str] = []
    for assembler_, more in (
        (using, {"parent": {"request_id": "nobody"}}),
        (using, {"project_id": "hostile", "pack": None}),
        (using, {"thread_id": "t2"}),
        (using, {"thread_id": None}),
        (build_assembler(worker_settings(), Telemetry(), outcomes=fleeting), {}),
    ):
        with pytest.raises(NotSupported) as caught:
            await child(assembler_, **more)
        refused.append(caught.value.message)
    assert len(set(refused)) == 1
    await fleeting.close()


async def test_a_parent_that_was_refused_has_no_context(store: SqliteOutcomeStore, using: Assembler) -> None:
    await refuse(store)
    with pytest.raises(NotSupported):
        await child(using)


async def test_a_parent_that_was_refused_and_redriven_is_the_bundle_that_came_of_it(
    store: SqliteOutcomeStore, using: Assembler
) -> None:
    await refuse(store)
    await keep(store, using, generation=1)
    assert FACT["text"] in parts_of((await child(using)).bundle)["memory"]


async def test_whoever_keeps_no_bundles_says_so() -> None:
    with pytest.raises(NotSupported, match="keeps no bundles"):
        await child(assembler())


async def test_a_parent_without_a_thread_is_the_whole_projects(
    store: SqliteOutcomeStore, using: Assembler
) -> None:
    await keep(store, using, thread_id=None)
    assert await StoredParents(store, content_policy(worker_settings())).read(
        Scope(project_id="p", thread_id="t9"), "r1", wait_seconds=LONG_SECONDS
    )


class Late:
    """Has parents, and none of them in time."""

    async def read(self, scope: Scope, request_id: str, *, wait_seconds: float) -> list[Placed]:
        raise ParentLate("parent", reason="not made again in time")


OWN = Fragment(
    layer="memory",
    node="m1",
    renderings=(Rendering(depth=9, text="alpha"),),
    provenance=(FragmentProvenance(resource_uri="u:m1"),),
    position=0,
)


async def test_a_child_whose_parent_is_late_goes_on_without_it_and_says_so() -> None:
    made = await child(assembler_over([OWN], parents=Late()), pack=None)
    layers = made.bundle.layers
    assert layers is not None
    said = {str(layer): (one.status, one.reason) for layer, one in layers.items() if one.reason is not None}
    assert said["memory"] == ("partial", "section_error")
    assert {said[layer] for layer in ("artifacts", "graph", "ast", "semantic")} == {("failed", "timeout")}
    assert {said[layer] for layer in ("mission", "plan", "task")} == {("empty", "no_data")}
    assert made.bundle.status == "degraded"
    assert "alpha" in parts_of(made.bundle)["memory"]
    capture = read_capture(made.trail.capture(max_bytes=1_000_000), project_id="p", request_id="c1")
    assert fuse_again(capture, content_policy(worker_settings())).bundle == made.bundle


async def test_what_a_childs_sources_gave_before_stays_where_its_parent_is_late_this_time() -> None:
    first = (await child(assembler_over([OWN], parents=Asked()), pack=None)).trail.fusing
    again = await assembler_over([], parents=Late()).assemble_again(
        first.frame, kept=first.admitted, asked=frozenset({"memory"}), generation=0
    )
    layers = again.bundle.layers
    assert layers is not None
    said = {str(layer): (one.status, one.reason) for layer, one in layers.items() if one.status == "partial"}
    assert said == {"memory": ("partial", "section_error")}
    assert layers["graph"].reason == "no_data"
    assert "alpha" in parts_of(again.bundle)["memory"]


async def test_parents_that_nobody_waits_for_any_longer_keep_their_places_until_they_are_made(
    store: SqliteOutcomeStore, using: Assembler, monkeypatch: pytest.MonkeyPatch
) -> None:
    await keep(store, using)
    reading = StoredParents(store, content_policy(worker_settings()))
    scope = Scope(project_id="p", thread_id="t1")
    begun, is_over = threading.Semaphore(0), threading.Event()
    made: list[Capture] = []

    def hold(capture: Capture, policy: ContentPolicy) -> SealedBundle:
        made.append(capture)
        begun.release()
        is_over.wait(LONG_SECONDS)
        return fuse_again(capture, policy)

    monkeypatch.setattr(parents, "fuse_again", hold)
    monkeypatch.setattr(parents, "TURNS", Turns(at_once=9))
    try:
        for _ in range(AT_ONCE):
            with pytest.raises(ParentLate):
                await reading.read(scope, "r1", wait_seconds=0.01)
            await asyncio.to_thread(begun.acquire, timeout=LONG_SECONDS)
        with pytest.raises(ParentLate):
            await reading.read(scope, "r1", wait_seconds=0.01)
    finally:
        is_over.set()
    assert await reading.read(scope, "r1", wait_seconds=LONG_SECONDS)
    assert len(made) == AT_ONCE + 1


async def test_a_parent_is_made_again_in_turn_and_waits_for_it_no_longer_than_it_may_take(
    store: SqliteOutcomeStore, using: Assembler, monkeypatch: pytest.MonkeyPatch
) -> None:
    await keep(store, using)
    turns = Turns(at_once=1, patience_seconds=LONG_SECONDS)
    monkeypatch.setattr(parents, "TURNS", turns)
    begun, is_over, reached = threading.Event(), threading.Event(), threading.Event()

    def hold() -> None:
        begun.set()
        is_over.wait(LONG_SECONDS)

    def reach(capture: Capture, policy: ContentPolicy) -> SealedBundle:
        reached.set()
        return fuse_again(capture, policy)

    monkeypatch.setattr(parents, "fuse_again", reach)
    holder = asyncio.create_task(asyncio.to_thread(turns.run, hold))
    await asyncio.to_thread(begun.wait, LONG_SECONDS)
    try:
        made = await child(using, deadline_ms=100)
        assert made.bundle.status == "degraded"
        assert not reached.is_set()
    finally:
        is_over.set()
        await holder


class Asked:
    """Has nothing of any parent, and keeps how long it was given."""

    def __init__(self) -> None:
        self.wait_seconds: list[float] = []

    async def read(self, scope: Scope, request_id: str, *, wait_seconds: float) -> list[Placed]:
        del scope, request_id
        self.wait_seconds.append(wait_seconds)
        return []


async def test_a_parent_leaves_its_childs_sources_half_of_the_deadline() -> None:
    asked = Asked()
    await child(assembler_over([], parents=asked), deadline_ms=60_000)
    assert [0 < seconds <= 30 for seconds in asked.wait_seconds] == [True]


async def test_what_a_parent_took_stands_beside_the_other_timings(
    store: SqliteOutcomeStore, using: Assembler
) -> None:
    alone, heir = (await keep(store, using)).usage.timings_ms, (await child(using)).usage.timings_ms
    assert alone is not None
    assert heir is not None
    assert heir.keys() - alone.keys() == {"parent"}
    assert sum(heir.values()) == pytest.approx(2 * heir["total"], abs=0.01)


placements = st.lists(
    st.tuples(st.text("ab \n", min_size=1, max_size=60), st.booleans(), st.floats(0, 1)), max_size=12
)


@settings(max_examples=40)
@given(placements, st.integers(-5, 400))
def test_a_skeleton_is_within_its_budget_whatever_the_order(
    drawn: list[tuple[str, bool, float]], budget: int
) -> None:
    parent = [
        Placed(
            fragment=Fragment(
                layer="graph",
                node=f"n{n}",
                renderings=(
                    Rendering(
                        depth=9, text=f"```python\ndef f{n}(a):\n    {text!r}\n```" if is_code else text
                    ),
                    Rendering(depth=0, text=f"f{n}"),
                ),
                provenance=(FragmentProvenance(resource_uri=f"u{n}", location=f"a/{n % 3}.py::f{n}"),),
                position=n,
            ),
            score=round(score, 6),
            depth=9,
            text=f"```python\ndef f{n}(a):\n    {text!r}\n```" if is_code else text,
            rule="fits",
        )
        for n, (text, is_code, score) in enumerate(drawn)
    ]
    kept = FocusSkeletonCompressor(COUNTER).compress(parent, ["a/1.py", " f4 "], budget)
    assert sum(COUNTER.count(f.renderings[0].text + "\n") for f in kept) <= max(0, budget)
    assert not any(f.is_pinned or f.absorbed for f in kept)
    shuffled = parent[::-1]
    assert FocusSkeletonCompressor(COUNTER).compress(shuffled, ["a/1.py", " f4 "], budget) == kept
