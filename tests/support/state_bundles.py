"""Bundles made from stored state alone, by a worker that has read nothing of it yet."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from schemas.bundle import to_wire
from tests.support.assembling import assemble, settings, wire_request
from tests.support.state_events import record
from worker.providers.states import ThreadStates
from worker.providers.threads import SourceThreads
from worker.state.records import StateRecord
from worker.state.store import StateStore
from worker.telemetry import Telemetry
from worker.wiring import build_assembler

LAYERS: Final = ("mission", "plan", "memory", "artifacts", "task")
PATIENT_MS: Final = 30_000

_STEPS: Final = [{"id": str(n), "title": f"Step {n}", "actions": ["do it"]} for n in range(1, 6)]

STORY: Final[tuple[StateRecord, ...]] = (
    record("e01", "session_opened", {"session_id": "s", "title": "Deadlines"}, at=1),
    record("e02", "project_updated", {"branch": "main", "version": "1.2"}, at=2, thread=None),
    record("e03", "goal_set", {"id": "g", "statement": "Calls end in time 🙂"}, at=3),
    record("e04", "goal_updated", {"id": "g", "criteria": [{"text": "none hangs", "met": False}]}, at=4),
    record("e05", "work_item", {"id": "w", "title": "Cap retries", "priority": "P1"}, at=5),
    record("e06", "plan_set", {"plan_id": "p", "steps": _STEPS}, at=6),
    record("e07", "step_advanced", {"plan_id": "p", "step_id": "1", "summary": "It is done."}, at=7),
    record("e08", "decision", {"id": "d1", "title": "Deadlines are absolute"}, at=8),
    record("e09", "decision", {"id": "d2", "title": "Retries are capped"}, at=8, thread=None),
    record("e10", "hand_off", {"decisions": ["No queue"], "blockers": ["A token is missing"]}, at=9),
    *(
        record(f"m{n:02}", "memory", {"id": f"m{n}", "text": f"Fact {n} of the deadline."}, at=10 + n)
        for n in range(12)
    ),
    *(
        record(f"t{n:02}", "message", {"role": "user", "content": f"We decided on {n} retries."}, at=30 + n)
        for n in range(12)
    ),
    record(
        "e20", "artifact", {"id": "a", "stage": "design", "type": "doc", "content": "line\n" * 2_000}, at=50
    ),
    record("e21", "test_result", {"test_id": "t", "status": "failed", "message": "boom"}, at=51),
    record("e22", "gateway_event", {"name": "POST /pay", "status": "failed"}, at=52),
    record("e23", "tool_call", {"tool": "edit", "files": ["worker/errors.py"]}, at=53),
)
"""Something in every group of a thread, and of its project."""


async def bundle_bytes(store: StateStore, project_id: str, *, thread_id: str = "t1") -> bytes:
    """One bundle by a worker of its own; every layer that state fills is there, else this fails."""
    states = ThreadStates(store, SourceThreads(), max_bytes=1_000_000)
    request = wire_request(
        project_id=project_id,
        thread_id=thread_id,
        as_of="2026-03-01T13:00:00Z",
        deadline_ms=2 * PATIENT_MS,
        layer_timeouts_ms=dict.fromkeys(LAYERS, PATIENT_MS),
    )
    try:
        bundle = (await assemble(request, build_assembler(settings(), Telemetry(), None, states))).bundle
    finally:
        await states.close()
    assert bundle.layers is not None
    shown = {layer: bundle.layers[layer].status for layer in LAYERS}
    assert set(shown.values()) <= {"ok", "trimmed"}, shown
    return to_wire(bundle)


async def tell(store: StateStore, project_id: str, events: Sequence[StateRecord] = STORY) -> None:
    """Apply events in two batches, the later one first."""
    half = len(events) // 2
    for some in (events[half:], events[:half]):
        await store.apply(project_id, some)
