"""The mission layer: project state, the active goal, pending work, and what the last session handed over."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import partial
from typing import Final

from schemas.codes import PartName
from schemas.session import Blocker, Decision, Goal, HandoffData, SessionContext, WorkItem, read_step_status
from worker.ports import LayerBudget, LayerContribution, RequestFrame, Scope, Volatility
from worker.providers.contribution import ContributionBuilder, layer_text, no_content
from worker.providers.offload import run_by_weight
from worker.providers.states import ThreadStates
from worker.providers.text import LINE_CHARS, cut, first_sentence, fold
from worker.providers.threads import SourceThreads
from worker.targets import is_named, targets_of

HEADING: Final = "# MISSION CONTEXT"
MAX_LINES: Final = 40
LIST_ITEMS: Final = 5
"""Items per list; pins beyond it are shown at their floor."""
_GIST_DEPTH: Final = 4
"""Title and first sentence."""
PINNED_DECISIONS: Final = 10

# What is dropped first stands last: the line cap cuts from the end, and ranks agree with the order of the
# text. Pins are no part of that.
_GOAL, _BLOCKER, _DECISION = 1.0, 0.95, 0.9
_PROJECT, _SESSION, _CRITERION, _WORK = 0.85, 0.8, 0.75, 0.7
_HANDOFF_LISTS: Final = (
    ("active_work", "## Handed over: active work", 0.45),
    ("key_files", "## Handed over: key files", 0.4),
    ("commands", "## Handed over: commands", 0.35),
    ("alerts", "## Handed over: alerts", 0.3),
)

_CLOSED: Final = frozenset({"done", "skipped"})
_LINES: Final = re.compile(r":\d{1,7}(?:-\d{1,7})?\Z")


class MissionProvider:
    """Session state that stands inline in the request, else what is known of its thread."""

    layer: PartName = "mission"

    def __init__(self, states: ThreadStates | None = None, *, threads: SourceThreads | None = None) -> None:
        """Ask `states`; work on heavy input in these threads, its own where none are given."""
        self._states = states
        self._threads = threads or SourceThreads()

    async def provide(self, frame: RequestFrame, scope: Scope, budget: LayerBudget) -> LayerContribution:
        """The mission block; `empty` without a session. Raises StateUnavailable and StateBehind."""
        del budget  # the block's cap is in lines
        session = frame.request.session
        if session is None and self._states is not None:
            session = (await self._states.of(frame, scope, layer=self.layer)).session
        if session is None:
            return no_content(self.layer, "no_data")
        must_show = targets_of(frame.request)
        message = frame.request.user_message
        build = partial(build_mission, session, must_show=must_show, message=message)
        return await run_by_weight(self._threads, build, session, message)


def render_mission_context(ctx: SessionContext | None, max_lines: int = MAX_LINES) -> str:
    """The mission block as text; empty without a context or content.

    What is not pinned is dropped from the end, the hand-off first, until `max_lines` lines are left, heading
    included. The goal, blockers and the ten newest decisions are pinned: they stay whatever the cap, and
    where they alone take more lines, so does the block.
    """
    return "" if ctx is None else layer_text(build_mission(ctx, max_lines=max_lines))


def build_mission(
    session: SessionContext,
    *,
    max_lines: int = MAX_LINES,
    must_show: frozenset[str] = frozenset(),
    message: str = "",
) -> LayerContribution:
    """The mission block as fragments, one line each.

    A decision is pinned where it is one of the ten newest (the last given is the newest), where `must_show`
    holds its id or something that it applies to, or where the message names something that it applies to.
    """
    block = ContributionBuilder("mission", heading=HEADING, resource_type="session", volatility="thread")
    goal, handoff = session.goal, session.handoff
    block.section("project", partial(_write_project, block, session))
    if goal is not None:
        block.section("goal", partial(_write_goal, block, goal))
        block.section("blockers", partial(_write_blockers, block, goal.blockers, "## Blockers"))
        block.section("criteria", partial(_write_criteria, block, goal))
    block.section("work_items", partial(_write_work_items, block, session.work_items))
    if handoff is not None:
        roots = _Roots(must_show, message)
        block.section("decisions", partial(_write_decisions, block, handoff.decisions, roots))
        # A goal's blocker that was handed over as well is shown once.
        known = {(b.id, b.text) for b in goal.blockers} if goal is not None else set[tuple[str, str]]()
        handed_over = [b for b in handoff.blockers if (b.id, b.text) not in known]
        write = partial(_write_blockers, block, handed_over, "## Handed over: blockers")
        block.section("handoff_blockers", write)
        for field, group, relevance in _HANDOFF_LISTS:
            write = partial(_write_handoff_list, block, handoff, field, group=group, relevance=relevance)
            block.section(field, write)
    return block.finish(max_lines=max_lines)


def _write_project(block: ContributionBuilder, session: SessionContext) -> None:
    project = session.project
    facts = (
        ("branch ", project.branch),
        ("version ", project.version),
        ("", project.status),
        ("tests: ", project.test_state),
    )
    shown = " · ".join(f"{label}{fold(value)}" for label, value in facts if value and not value.isspace())
    if shown:
        line = f"Project: {shown}"
        _add_line(block, "session://project", line, relevance=_PROJECT, volatility="project")
    if project.active_session is not None:
        number = fold(str(project.active_session))
        _add_line(block, f"session://session/{number}", f"Active session: {number}", relevance=_SESSION)


def _write_goal(block: ContributionBuilder, goal: Goal) -> None:
    label = " ".join(word for word in ("Goal", goal.id or "") if word)
    status = f" ({fold(goal.status)})" if goal.status and not goal.status.isspace() else ""
    _add_line(
        block,
        _goal_node(goal),
        f"{label}{status}: {fold(goal.statement)}",
        relevance=_GOAL,
        is_pinned=True,
    )


def _write_blockers(block: ContributionBuilder, blockers: Sequence[Blocker], group: str) -> None:
    for index, blocker in enumerate(blockers):
        line = f"- {blocker.id}: {fold(blocker.text)}"
        _add_line(
            block,
            f"session://blocker/{blocker.id}",
            line if index < LIST_ITEMS else cut(line, max_chars=LINE_CHARS),
            group=group,
            relevance=_BLOCKER,
            is_pinned=True,
            volatility="step",
        )


def _write_criteria(block: ContributionBuilder, goal: Goal) -> None:
    unmet = [(index, c) for index, c in enumerate(goal.criteria, 1) if not c.met and not _is_blank(c.text)]
    for index, criterion in unmet[:LIST_ITEMS]:
        _add_line(
            block,
            f"{_goal_node(goal)}/criterion/{index}",
            f"- {fold(criterion.text)}",
            group="## Unmet criteria",
            relevance=_CRITERION,
        )
    block.leave_out(max(0, len(unmet) - LIST_ITEMS))


def _write_work_items(block: ContributionBuilder, items: Sequence[WorkItem]) -> None:
    pending = [(n, item) for n, item in enumerate(items, 1) if read_step_status(item.state) not in _CLOSED]
    for number, item in pending[:LIST_ITEMS]:
        priority = "" if item.priority is None else f"[{fold(str(item.priority))}] "
        title = f"- {priority}{fold(item.title)}"
        _add_line(
            block,
            f"session://work-item/{item.id or number}",
            title if item.notes is None or _is_blank(item.notes) else f"{title}: {fold(item.notes)}",
            brief=cut(title, max_chars=LINE_CHARS),
            group="## Pending work",
            relevance=_WORK,
            volatility="step",
        )
    block.leave_out(max(0, len(pending) - LIST_ITEMS))


def _write_decisions(block: ContributionBuilder, decisions: Sequence[Decision], roots: _Roots) -> None:
    first_new = len(decisions) - PINNED_DECISIONS
    pinned = [
        (index, decision)
        for index, decision in enumerate(decisions)
        if index >= first_new or decision.id in roots.given or any(map(roots.holds, decision.applies_to))
    ]
    first_whole = len(pinned) - LIST_ITEMS
    for place, (_, decision) in enumerate(pinned):
        floor = cut(f"- {decision.id}: {decision.title}", max_chars=LINE_CHARS)
        whole = f"- {decision.id}: {fold(decision.title)}"
        if decision.text is not None and not _is_blank(decision.text):
            whole = f"{whole}: {fold(decision.text)}"
        _add_line(
            block,
            f"session://decision/{decision.id}",
            whole if place >= first_whole else floor,
            brief=floor,
            between=[(_GIST_DEPTH, f"{floor}: {first_sentence(decision.text or '', max_chars=LINE_CHARS)}")],
            about=decision.id,
            group="## Handed over: decisions",
            relevance=_DECISION,
            rank=len(pinned) - place,
            is_pinned=True,
        )
    block.leave_out(len(decisions) - len(pinned))


class _Roots:
    """What the request is about, by its own words."""

    def __init__(self, given: frozenset[str], message: str) -> None:
        self.given = given
        self._message = message

    def holds(self, target: str) -> bool:
        """Whether something that a decision applies to, or a part of it, is what the request is about."""
        path = _LINES.sub("", target)
        if path in self.given or any(name.startswith(f"{path}::") for name in self.given):
            return True
        return is_named(path, self._message)


def _write_handoff_list(
    block: ContributionBuilder, handoff: HandoffData, field: str, *, group: str, relevance: float
) -> None:
    values: tuple[str, ...] = getattr(handoff, field)
    items = [(number, value) for number, value in enumerate(values, 1) if not _is_blank(value)]
    for number, value in items[:LIST_ITEMS]:
        node = f"session://handoff/{field}/{number}"
        line = f"- {fold(value)}"
        _add_line(block, node, line, group=group, relevance=relevance, volatility="step")
    block.leave_out(max(0, len(items) - LIST_ITEMS))


def _add_line(
    block: ContributionBuilder,
    node: str,
    line: str,
    *,
    relevance: float,
    brief: str | None = None,
    between: Sequence[tuple[int, str]] = (),
    rank: int | None = None,
    group: str = "",
    is_pinned: bool = False,
    about: str = "",
    volatility: Volatility | None = None,
) -> None:
    """Add a line whose short form, and floor if it is pinned, is its start."""
    block.add(
        node,
        line.rstrip(),
        brief=cut(line, max_chars=LINE_CHARS) if brief is None else brief,
        between=between,
        relevance=relevance,
        rank=rank,
        group=group,
        is_pinned=is_pinned,
        is_divisible=len(line) > LINE_CHARS,
        about=about,
        volatility=volatility,
    )


def _goal_node(goal: Goal) -> str:
    return f"session://goal/{goal.id or 'active'}"


def _is_blank(text: str) -> bool:
    return not text or text.isspace()
