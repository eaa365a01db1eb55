"""From what a parser found to the result: ids, dependencies, the active step, progress."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from schemas.wire import derived_id
from worker.plans.active import ActiveSteps, find_active
from worker.plans.dependencies import StepNames, in_cycles
from worker.plans.drafts import PlanDraft, unique
from worker.plans.results import PlanCriterion, PlanDocument, PlanFormat, PlanNote, PlanStep
from worker.plans.tree import StepTree, build_tree, parents_done_too_early, progress

MAX_EDGES: Final = 200_000
"""Dependencies beyond this are left out: ranges in ranges would multiply."""

_USABLE_ID: Final = re.compile(r"[^\x00-\x1f\x7f-\x9f]{1,200}\Z")


def assemble(plan_format: PlanFormat, draft: PlanDraft) -> PlanDocument:
    """The result. Links by place become links by id. O(steps + dependencies)."""
    notes = list(draft.notes)
    steps = draft.steps
    for criterion in draft.criteria:
        if criterion.step is not None:
            steps[criterion.step].verify.append(criterion.text)
    ids = step_ids(draft, notes)
    dependencies = _resolve(draft, notes)
    tree = build_tree(steps)
    notes += parents_done_too_early(tree)
    if draft.is_closed:
        found = ActiveSteps()
    else:
        found = find_active(tree, dependencies.binding, pointer=draft.pointer, barriers=draft.barriers)
    return PlanDocument(
        format=plan_format,
        title=draft.title,
        goal=draft.goal or None,
        is_closed=draft.is_closed,
        steps=tuple(_step(draft, place, ids, dependencies, tree) for place in range(len(steps))),
        active=ids[found.active] if found.active is not None else None,
        also_active=tuple(ids[place] for place in found.also_active),
        parallel_with=tuple(ids[place] for place in found.parallel_with),
        next=tuple(ids[place] for place in found.next),
        criteria=tuple(
            PlanCriterion(
                text=one.text,
                line=one.line,
                id=one.id,
                met=one.met,
                step=ids[one.step] if one.step is not None else None,
            )
            for one in draft.criteria
        ),
        decisions=draft.decisions,
        progress=progress(tree),
        notes=tuple(sorted(unique_notes(notes), key=lambda note: note.line)),
    )


def unique_notes(notes: Sequence[PlanNote]) -> tuple[PlanNote, ...]:
    """Each note once, in order."""
    return tuple(dict.fromkeys(notes))


def step_ids(draft: PlanDraft, notes: list[PlanNote]) -> list[str]:
    """An id for each step, all different: the printed one, else one of the titles on the way to it.

    The second of a printed id gets `#2` and a note; the second of a derived one `#2` without. A derived id
    stays the same whatever happens to other steps, to marks and to status words.
    """
    taken = {step.printed_id for step in draft.steps if step.printed_id is not None}
    seen: dict[str, int] = {}
    paths: list[tuple[str, ...]] = []
    ids: list[str] = []
    for step in draft.steps:
        above = paths[step.parent] if step.parent is not None else step.group_path
        # Parents are told apart by a digest: a chain of titles would grow with the nesting.
        paths.append((derived_id("", "\n".join((*above, step.printed_id or step.title))),))
        name = step.printed_id
        if name is None or not _USABLE_ID.match(name):
            name = derived_id("s_", "\n".join((*above, step.title)))
        elif name in seen:
            notes.append(PlanNote(kind="duplicate_id", line=step.line, text=name))
        ids.append(_unused(name, seen, taken))
    return ids


def _unused(name: str, seen: dict[str, int], taken: set[str]) -> str:
    count = seen[name] = seen.get(name, 0) + 1
    if count == 1:
        return name
    while f"{name}#{count}" in taken:
        count += 1
    seen[name] = count
    taken.add(f"{name}#{count}")
    return f"{name}#{count}"


@dataclass(frozen=True, slots=True)
class _Dependencies:
    all: Mapping[int, Sequence[int]]
    binding: Mapping[int, Sequence[int]]
    """Without those on a cycle."""
    unresolved: Mapping[int, Sequence[str]]


def _resolve(draft: PlanDraft, notes: list[PlanNote]) -> _Dependencies:
    names = StepNames([step.printed_id for step in draft.steps])
    found: dict[int, list[int]] = {}
    unresolved: defaultdict[int, list[str]] = defaultdict(list)
    edges = 0
    for place, step in enumerate(draft.steps):
        targets: dict[int, None] = {}
        for wanted in step.wanted:
            target = names.find(wanted.id)
            if target is not None and (target != place or wanted.is_sure):
                targets[target] = None
            elif target is None and wanted.is_sure:
                literal = wanted.written or wanted.id
                unresolved[place].append(literal)
                notes.append(PlanNote(kind="unresolved", line=step.line, text=literal))
        edges += len(targets)
        if targets and edges <= MAX_EDGES:
            found[place] = list(targets)
    groups = in_cycles(found)
    notes += _cycle_notes(draft, groups)
    binding = {
        place: [target for target in targets if groups.get(place, -1) != groups.get(target, -2)]
        for place, targets in found.items()
    }
    return _Dependencies(found, binding, unresolved)


def _cycle_notes(draft: PlanDraft, groups: Mapping[int, int]) -> Iterator[PlanNote]:
    members: defaultdict[int, list[int]] = defaultdict(list)
    for place in sorted(groups):
        members[groups[place]].append(place)
    for places in members.values():
        first = draft.steps[places[0]]
        names = ", ".join(draft.steps[place].printed_id or draft.steps[place].title for place in places[:20])
        yield PlanNote(kind="dependency_cycle", line=first.line, text=names)


def _step(
    draft: PlanDraft, place: int, ids: Sequence[str], dependencies: _Dependencies, tree: StepTree
) -> PlanStep:
    step = draft.steps[place]
    return PlanStep(
        id=ids[place],
        printed_id=step.printed_id,
        title=step.title,
        status=tree.status[place],
        raw=step.raw,
        line=step.line,
        parent=ids[step.parent] if step.parent is not None else None,
        group=step.group,
        optional=step.optional,
        parallel=step.parallel,
        depends_on=tuple(ids[target] for target in dependencies.all.get(place, ())),
        unresolved=unique(dependencies.unresolved.get(place, ())),
        requirements=unique(step.requirements),
        requirement_notes=unique(step.requirement_notes),
        files=unique(step.files),
        goal=step.goal or None,
        actions=tuple(step.actions),
        verify=unique(step.verify),
        expected=step.expected or None,
        summary=step.summary or None,
    )
