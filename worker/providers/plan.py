"""The plan layer: a window on the plan around the current step."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

from schemas.codes import PartName, StepStatus
from schemas.session import Goal, Plan, SessionContext, Step
from worker.plans.reading import read_plan
from worker.plans.wire import to_plan
from worker.ports import LayerBudget, LayerContribution, RequestFrame, Scope
from worker.providers.contribution import ContributionBuilder, layer_text, no_content
from worker.providers.kept import Kept
from worker.providers.offload import run_by_weight
from worker.providers.states import ThreadStates
from worker.providers.text import LINE_CHARS, cut, first_sentence, fold
from worker.providers.threads import SourceThreads
from worker.state.view import StoredPlan

HEADING: Final = "# PLAN WINDOW"
MAX_LINES: Final = 25
_TO_DO_DEPTH: Final = 6
_STEP: Final = {"kind": "step"}
"""Says of a fragment that it is a step, and not something about the plan."""
_HEADING_LINES: Final = 3
RECENT_STEPS: Final = 3
NEXT_STEPS: Final = 2
SENTENCE_CHARS: Final = 200
_QUICK_CHARS: Final = 2_000
"""A plan file up to this length is read on the event loop: about two milliseconds."""

_MAX_KEPT_CHARS: Final = 8_000_000
"""Of plan files that were read; their steps take some ten times as much."""

_NEVER_CURRENT: Final[frozenset[StepStatus]] = frozenset({"done", "skipped", "deferred"})
_CURRENT, _STATEMENT, _PROGRESS, _RECENT, _NEXT, _LINKED = 1.0, 0.9, 0.85, 0.7, 0.6, 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanWindow:
    """Which steps are shown, as positions in document order, and how far the plan is.

    `done`, `skipped` and `total` count the required steps that have no steps below them.
    """

    current: int | None
    recent: tuple[int, ...]
    linked: tuple[int, ...]
    """Older done steps that the current one depends on, directly or through others."""
    upcoming: tuple[int, ...]
    done: int
    skipped: int
    total: int


class PlanProvider:
    """The plan, or the tasks of the goal, that stand inline in the request; else those of its thread.

    A plan wins over the tasks of a goal. The text of a plan file is read as its format asks for.
    """

    layer: PartName = "plan"

    def __init__(self, states: ThreadStates | None = None, *, threads: SourceThreads | None = None) -> None:
        """Ask `states`; work on heavy input in these threads, its own where none are given."""
        self._states = states
        self._threads = threads or SourceThreads()

    async def provide(self, frame: RequestFrame, scope: Scope, budget: LayerBudget) -> LayerContribution:
        """The plan window; `empty` without steps. Raises StateUnavailable and StateBehind."""
        del budget  # the window's cap is in lines
        request = frame.request
        plan, session = request.plan, request.session
        goal = session.goal if session is not None else None
        stored: StoredPlan | None = None
        if plan is None and not (goal is not None and goal.tasks) and self._states is not None:
            reading = await self._states.of(frame, scope, layer=self.layer)
            stored = reading.plan(request.plan_id)
            known = reading.session
            goal = goal if session is not None or known is None else known.goal
        if plan is None and stored is None and goal is None:
            return no_content(self.layer, "no_data")
        document = plan if stored is None else stored.plan
        build = partial(_build, plan, stored, goal)
        if document is not None and _chars_of(document) > _QUICK_CHARS:
            return await self._threads.compute(build)
        return await run_by_weight(self._threads, build, document, goal)


def _build(plan: Plan | None, stored: StoredPlan | None, goal: Goal | None) -> LayerContribution:
    if plan is None and stored is not None:
        found = read_steps(stored.plan)
        is_over = stored.is_ended or (found.is_closed and stored.pointer is None)
        plan = found.plan
        if plan.steps:
            plan = stored.with_steps(plan.steps, current_step=plan.current_step)
        return build_plan(plan, goal or found.goal, has_ended=is_over)
    return build_plan(plan, goal)


def _chars_of(plan: Plan) -> int:
    return len(plan.text or "") + sum(len(file.text) for file in plan.files)


@dataclass(frozen=True, slots=True)
class FoundSteps:
    """A plan as it is shown, and what else its file says."""

    plan: Plan
    is_closed: bool = False
    """Nothing in it is current: it is archived or superseded, whatever single marks say."""
    goal: Goal | None = None
    """What it is for."""


def read_steps(plan: Plan) -> FoundSteps:
    """The plan with the steps that its text holds, and with the text where it holds none.

    A step that the plan names as its current one wins over what the text says. Reading takes a second or more
    a megabyte; what was read last is kept.
    """
    if plan.text is None:
        return FoundSteps(plan)
    key = (plan.plan_id, plan.path, plan.text, tuple((file.path, file.text) for file in plan.files))
    found = _READ.get(key)
    if found is None:
        document = read_plan(plan.path, plan.text, siblings={file.path: file.text for file in plan.files})
        goal = Goal(statement=document.goal) if document.goal else None
        found = FoundSteps(to_plan(document, plan.plan_id, plan.path), document.is_closed, goal)
        _READ.put(key, found, size_bytes=_chars_of(plan))
    if plan.current_step is None:
        return found
    return replace(found, plan=found.plan.model_copy(update={"current_step": plan.current_step}))


_READ: Final = Kept[tuple[str, str | None, str, tuple[tuple[str, str], ...]], FoundSteps](_MAX_KEPT_CHARS)


def render_plan_context(ctx_or_goal: SessionContext | Goal | Plan | None, max_lines: int = MAX_LINES) -> str:
    """The plan window as text; of what is not the current step, what `max_lines` lines have room for.

    The current step is pinned: it stays in full whatever the cap, and where it alone takes more lines, so
    does the window. Empty without a goal or steps, and where the cap has room for the heading alone.
    """
    match ctx_or_goal:
        case Plan() as plan:
            return layer_text(build_plan(plan, None, max_lines=max_lines))
        case SessionContext(goal=goal) | (Goal() as goal):
            return layer_text(build_plan(None, goal, max_lines=max_lines))
        case None:
            return ""


def build_plan(
    plan: Plan | None, goal: Goal | None, *, max_lines: int = MAX_LINES, has_ended: bool = False
) -> LayerContribution:
    """The window as fragments. The steps and their pointer are the plan's, else those of the goal.

    Of a plan file in which no steps are found, the beginning of the text. A plan that has ended has no
    current step, whatever its marks say.
    """
    if plan is not None:
        found = read_steps(plan)
        plan, has_ended, goal = found.plan, has_ended or found.is_closed, goal or found.goal
        steps, pointer, plan_id = plan.steps, plan.current_step, plan.plan_id
    elif goal is not None:
        steps, pointer, plan_id = goal.tasks, goal.current_step, goal.id or "goal"
    else:
        return no_content("plan", "no_data")
    block = ContributionBuilder("plan", heading=HEADING, resource_type="plan", volatility="step")
    root = f"plan://{plan_id}"
    if plan is not None and plan.text is not None:
        block.section("text", partial(_write_text, block, root, plan, max_lines))
        return block.finish(max_lines=max_lines)
    if not steps or max_lines <= 1:
        return no_content("plan", "no_data")
    window = plan_window(steps, pointer)
    if has_ended:
        window = replace(window, current=None, linked=(), upcoming=())
    block.section("overview", partial(_write_overview, block, root, window, plan, goal))
    block.section("current", partial(_write_current, block, root, steps, window))
    block.section("recent", partial(_write_recent, block, root, steps, window))
    block.section("upcoming", partial(_write_upcoming, block, root, steps, window))
    return block.finish(max_lines=max_lines)


def plan_window(steps: Sequence[Step], current_step: str | None) -> PlanWindow:
    """The window on `steps`, which stand in document order. O(steps + dependencies).

    The current step is found by scanning forward from the persisted one, or from the first that is marked
    active where none is persisted, to the first that is not done, and from the end on to what was left open
    before. Deferred steps are never current. A scan passes over optional steps, over steps with steps below
    them (those stand for it), and over what lies below a closed or deferred step. Repeated ids mean the
    first; a parent counts where it stands above its child.
    """
    by_id = _first_of_each_id(steps)
    tree = _Tree(steps, by_id)
    open_ahead = [n for n, step in enumerate(steps) if tree.is_leaf(n) and _may_come_up(step, tree, n)]
    current = _find_current(steps, tree, open_ahead, by_id.get(current_step or ""))
    done = [n for n, step in enumerate(steps) if step.status == "done" and tree.is_leaf(n)]
    recent = tuple(done[-RECENT_STEPS:])
    required = [step for n, step in enumerate(steps) if tree.is_leaf(n) and not step.optional]
    needed = set[int]() if current is None else _dependencies(steps, by_id, current)
    return PlanWindow(
        current=current,
        recent=recent,
        linked=tuple(n for n in sorted(needed) if steps[n].status == "done" and n not in recent),
        upcoming=tuple([n for n in open_ahead if current is not None and n > current][:NEXT_STEPS]),
        done=sum(step.status == "done" for step in required),
        skipped=sum(step.status == "skipped" for step in required),
        total=len(required),
    )


def _first_of_each_id(steps: Sequence[Step]) -> dict[str, int]:
    by_id: dict[str, int] = {}
    for number, step in enumerate(steps):
        if step.id is not None:
            by_id.setdefault(step.id, number)
    return by_id


class _Tree:
    """Which steps have steps below them, and which lie below a closed or deferred one."""

    def __init__(self, steps: Sequence[Step], by_id: Mapping[str, int]) -> None:
        self._parents: set[int] = set()
        self._is_held_back: list[bool] = []
        for number, step in enumerate(steps):
            parent = by_id.get(step.parent) if step.parent is not None else None
            if parent is None or parent >= number:
                self._is_held_back.append(False)
                continue
            if not step.optional:
                # A step with optional steps alone below it stands for itself.
                self._parents.add(parent)
            self._is_held_back.append(self._is_held_back[parent] or steps[parent].status in _NEVER_CURRENT)

    def is_leaf(self, number: int) -> bool:
        return number not in self._parents

    def is_held_back(self, number: int) -> bool:
        return self._is_held_back[number]


def _may_come_up(step: Step, tree: _Tree, number: int) -> bool:
    return step.status not in _NEVER_CURRENT and not step.optional and not tree.is_held_back(number)


def _find_current(
    steps: Sequence[Step], tree: _Tree, open_ahead: Sequence[int], named: int | None
) -> int | None:
    if named is None:
        active = (n for n, step in enumerate(steps) if step.status == "active" and tree.is_leaf(n))
        named = next((n for n in active if not tree.is_held_back(n)), None)
    if named is None:
        return next(iter(open_ahead), None)
    # A step that somebody named is taken even where a scan would pass over it as optional.
    if tree.is_leaf(named) and steps[named].status not in _NEVER_CURRENT:
        return named
    # What was left open before it comes when nothing is left behind it.
    return next((n for n in open_ahead if n > named), next(iter(open_ahead), None))


def _dependencies(steps: Sequence[Step], by_id: Mapping[str, int], start: int) -> set[int]:
    """What `start` depends on, directly or through others; cycles end at what was seen."""
    seen, waiting = {start}, [start]
    while waiting:
        for step_id in steps[waiting.pop()].depends_on:
            number = by_id.get(step_id)
            if number is not None and number not in seen:
                seen.add(number)
                waiting.append(number)
    return seen - {start}


def _write_text(block: ContributionBuilder, root: str, plan: Plan, max_lines: int) -> None:
    lines = [line.rstrip() for line in (plan.text or "").splitlines() if line and not line.isspace()]
    name = cut(f"Plan: {fold(plan.path or plan.plan_id)} (no steps found)", max_chars=LINE_CHARS)
    room = max_lines - _HEADING_LINES
    if room > 0 and lines:
        block.add(root, name, relevance=_STATEMENT)
        block.add(
            f"{root}/text", "\n".join(lines[:room]), group="## Text", relevance=_NEXT, is_divisible=True
        )
        block.leave_out(max(0, len(lines) - room))


def _write_overview(
    block: ContributionBuilder, root: str, window: PlanWindow, plan: Plan | None, goal: Goal | None
) -> None:
    statement = fold(goal.statement) if goal is not None else ""
    if statement:
        line = f"Goal: {statement}"
        block.add(root, line, brief=cut(line, max_chars=LINE_CHARS), relevance=_STATEMENT)
    elif plan is not None:
        path = f" ({fold(plan.path)})" if plan.path else ""
        block.add(root, cut(f"Plan: {plan.plan_id}{path}", max_chars=LINE_CHARS), relevance=_STATEMENT)
    if window.total:
        skipped = f", {window.skipped} skipped" if window.skipped else ""
        line = f"Progress: {window.done}/{window.total} done{skipped}"
        block.add(f"{root}/progress", line, relevance=_PROGRESS)


def _write_current(block: ContributionBuilder, root: str, steps: Sequence[Step], window: PlanWindow) -> None:
    if window.current is None:
        return
    step = steps[window.current]
    block.add(
        _node(root, steps, window.current),
        "\n".join(_whole_step(step)),
        brief="\n".join(_step_floor(step)),
        between=[(_TO_DO_DEPTH, "\n".join(_to_do(step)))],
        group="## Current step",
        relevance=_CURRENT,
        metadata=_STEP,
        is_pinned=True,
        is_divisible=True,
    )


def _whole_step(step: Step) -> list[str]:
    lines = [f"{_label(step)} ({step.status})"]
    if step.goal:
        lines.append(f"Goal: {fold(step.goal)}")
    lines += _listed("Actions:", step.actions)
    lines += _listed("Verification:", step.verify)
    if step.expected:
        lines.append(f"Expected: {fold(step.expected)}")
    lines += (
        f"{name}: {', '.join(fold(value) for value in values)}"
        for name, values in (("Requirements", step.requirements), ("Files", step.files))
        if values
    )
    return lines


def _to_do(step: Step) -> list[str]:
    """What there is to do and how it is checked, in full."""
    lines = [f"{_label(step)} ({step.status})"]
    if step.goal:
        lines.append(f"Goal: {fold(step.goal)}")
    return [*lines, *_listed("Actions:", step.actions), *_listed("Verification:", step.verify)]


def _step_floor(step: Step) -> list[str]:
    """Goal and actions, a line each; the title stands for a goal that is not given."""
    lines = [f"{_label(step)} ({step.status})"]
    if step.goal:
        lines.append(f"Goal: {step.goal}")
    lines += _listed("Actions:", step.actions)
    return [cut(line, max_chars=LINE_CHARS) for line in lines]


def _listed(heading: str, values: Iterable[str]) -> list[str]:
    items = [f"- {folded}" for value in values if (folded := fold(value))]
    return [heading, *items] if items else []


def _write_recent(block: ContributionBuilder, root: str, steps: Sequence[Step], window: PlanWindow) -> None:
    for numbers, group, relevance in (
        (window.linked, "## Done earlier, needed now", _LINKED),
        (window.recent, "## Recently done", _RECENT),
    ):
        shown = numbers[-MAX_LINES:]
        block.leave_out(len(numbers) - len(shown))
        for place, number in enumerate(shown):
            block.add(
                _node(root, steps, number),
                f"- {_in_one_sentence(steps[number])}",
                group=group,
                relevance=relevance,
                rank=len(shown) - place,  # the newest first
                metadata=_STEP,
            )


def _write_upcoming(block: ContributionBuilder, root: str, steps: Sequence[Step], window: PlanWindow) -> None:
    for number in window.upcoming:
        line = cut(f"- {_label(steps[number])}", max_chars=LINE_CHARS)
        block.add(_node(root, steps, number), line, group="## Next", relevance=_NEXT, metadata=_STEP)


def _in_one_sentence(step: Step) -> str:
    label = cut(_label(step), max_chars=SENTENCE_CHARS)
    sentence = first_sentence(step.summary or "", max_chars=SENTENCE_CHARS)
    return f"{label}: {sentence}" if sentence else label


def _label(step: Step) -> str:
    return fold(step.title if step.id is None else f"{step.id} {step.title}")


def _node(root: str, steps: Sequence[Step], number: int) -> str:
    return f"{root}/{steps[number].id or number + 1}"
