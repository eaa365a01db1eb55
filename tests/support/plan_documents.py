"""What is true of every plan that was read, and places at which plans lie."""

from __future__ import annotations

from worker.plans.results import PlanDocument

PATHS = (
    None,
    "PLAN.md",
    ".kiro/specs/f/tasks.md",
    "specs/001-x/tasks.md",
    "openspec/changes/c/tasks.md",
    "openspec/changes/archive/2026-01-01-c/tasks.md",
    "docs/superpowers/plans/2026-01-01-x.md",
    ".planning/ROADMAP.md",
    ".planning/phases/01-a/01-01-PLAN.md",
    "memory-bank/activeContext.md",
    "backlog/tasks/back-1 - x.md",
    "x.json",
)


def check_document(document: PlanDocument, *, is_named: bool = False) -> None:
    """Its parts agree. `is_named` where the text itself may name its current step."""
    ids = [one.id for one in document.steps]
    assert len(set(ids)) == len(ids)
    by_id = {one.id: one for one in document.steps}
    for place, one in enumerate(document.steps):
        assert one.parent is None or ids.index(one.parent) < place
        assert all(other in by_id for other in one.depends_on)
    if document.active is not None:
        active = by_id[document.active]
        assert active.status not in {"done", "skipped", "deferred"}
        assert not active.optional or active.status == "active" or is_named
    for other in (*document.also_active, *document.parallel_with, *document.next):
        assert by_id[other].status not in {"done", "skipped", "deferred"}
    assert 0 <= document.progress.done <= document.progress.closed <= document.progress.total
    lines = [note.line for note in document.notes]
    assert lines == sorted(lines)
    assert document.format != "unknown_format" or (document.notes and not document.steps)
