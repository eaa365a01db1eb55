"""The task layer: task context, current diff and failing tests, and what the template asks of the graph."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import partial
from typing import Any, Final, cast

from schemas.codes import PartName, TaskType
from schemas.request import layer_timeout_ms
from schemas.session import FailingTest
from worker.budget.utf8 import well_formed
from worker.errors import Unavailable
from worker.graph.answers import GraphAnswer, GraphFact
from worker.ports import LayerBudget, LayerContribution, RequestFrame, Scope
from worker.providers.contribution import ContributionBuilder, no_content
from worker.providers.diff import FileDiff, split_diff
from worker.providers.graph_reader import GraphReader
from worker.providers.offload import run_by_weight
from worker.providers.states import SIGNAL_KEEP, ThreadStates
from worker.providers.text import LINE_CHARS, cut, fenced, first_line, fold
from worker.providers.threads import SourceThreads
from worker.state.view import signals_of

HEADING: Final = "# TASK"
_FAILING_TEST, _DIFF, _CONTEXT, _FACT = 1.0, 0.95, 0.8, 0.6
_CHANGES_DEPTH: Final = 6
"""A diff without the lines that it leaves as they are."""
_WAIT_SHARE: Final = 0.6
"""Of the layer's timeout, what is spent on waiting for the graph; the rest is for what is at hand."""

_MAX_SAFE_INTEGER: Final = 2**53 - 1


class TaskProvider:
    """What the request says about the work at hand, with diff and failing tests pinned; then graph facts."""

    layer: PartName = "task"

    def __init__(
        self,
        reader: GraphReader | None = None,
        states: ThreadStates | None = None,
        *,
        signal_keep: timedelta = SIGNAL_KEEP,
        threads: SourceThreads | None = None,
    ) -> None:
        """Ask `reader`, and `states` for what fails; work on heavy input in these threads, else in its own.

        A test that failed longer ago than `signal_keep` is no longer shown.
        """
        self._reader = reader
        self._states = states
        self._signal_keep = signal_keep
        self._threads = threads or SourceThreads()

    async def provide(self, frame: RequestFrame, scope: Scope, budget: LayerBudget) -> LayerContribution:
        """Context, diff and tests; `empty` where there is nothing.

        For work on tests also those that cover what was selected, for a review its open traces. What the
        request itself says never waits long for the graph or the state: where one does not answer in time the
        layer is `partial`, and `failed` only where it has nothing else. Raises StoreUnavailable,
        StateUnavailable and StateBehind then.
        """
        if self._reader is not None and frame.subject.inject and frame.task_type in _FACTS:
            facts, failing = await asyncio.gather(
                self._facts(self._reader, frame, scope, budget), self._failing_tests(frame, scope)
            )
        else:
            facts, failing = None, await self._failing_tests(frame, scope)
        working, context = frame.request.working, frame.request.payload.task_context
        diff = working.current_diff if working is not None else None
        layer = await self._build(
            context,
            diff,
            FailingTests() if isinstance(failing, Unavailable) else failing,
            None if isinstance(facts, Unavailable) else facts,
        )
        missing = next((one for one in (facts, failing) if isinstance(one, Unavailable)), None)
        if missing is None:
            return layer
        if layer.fragments:
            return replace(layer, status="partial", reason="section_error")
        if isinstance(missing, _Late):
            return LayerContribution(layer=self.layer, status="failed", reason="timeout")
        raise missing

    async def _failing_tests(self, frame: RequestFrame, scope: Scope) -> FailingTests | Unavailable:
        # Who sends the diff alone does not say that no test fails.
        if frame.request.working is not None and frame.request.working.failing_tests:
            return FailingTests(frame.request.working.failing_tests)
        if self._states is None:
            return FailingTests()
        try:
            reading = await self._states.of(frame, scope, layer=self.layer)
        except Unavailable as error:
            return error
        signals = signals_of(*reading.events, as_of=frame.as_of, keep=self._signal_keep)
        return FailingTests(signals.failing_tests, more=signals.more_failing_tests)

    async def _build(
        self, context: object, diff: str | None, failing: FailingTests, facts: FactsSection | None
    ) -> LayerContribution:
        if context is None and diff is None and facts is None and not failing.tests:
            return no_content(self.layer, "no_data")
        build = partial(build_task, context, diff, failing, facts)
        return await run_by_weight(self._threads, build, context, diff, failing.tests)

    @staticmethod
    async def _facts(
        reader: GraphReader, frame: RequestFrame, scope: Scope, budget: LayerBudget
    ) -> FactsSection | Unavailable | None:
        asking = asyncio.ensure_future(
            reader.answer(frame, scope, budget_tokens=budget.graph_tokens, counter=budget.counter)
        )
        wait_seconds = _WAIT_SHARE * layer_timeout_ms(frame.request, "task") / 1_000
        try:
            await asyncio.wait({asking}, timeout=wait_seconds)
        finally:
            asking.cancel()
        if not asking.done() or asking.cancelled():
            return _Late("the graph gave no answer in time")
        error = asking.exception()
        if error is not None:
            if isinstance(error, Unavailable):
                return error
            raise error
        answered = asking.result()
        if answered is None:
            return None
        heading, pick = _FACTS[frame.task_type]
        found = pick(answered.answer)
        return FactsSection(heading, found) if found else None


class _Late(Unavailable):
    """The graph may be there, and was too slow for this layer."""


@dataclass(frozen=True, slots=True)
class FailingTests:
    """Tests that fail now, and how many fail beside them."""

    tests: Sequence[FailingTest] = ()
    more: int = 0


@dataclass(frozen=True, slots=True)
class FactsSection:
    """Lines from the graph below a heading of their own."""

    heading: str
    facts: tuple[GraphFact, ...]


_FACTS: Final[Mapping[TaskType, tuple[str, Callable[[GraphAnswer], tuple[GraphFact, ...]]]]] = {
    "TEST": ("## Tests that cover this", lambda answer: answer.tests),
    "REVIEW": ("## Open traces", lambda answer: answer.open_traces),
}


def build_task(
    context: object,
    diff: str | None,
    failing: FailingTests = FailingTests(),  # noqa: B008  a frozen value
    facts: FactsSection | None = None,
) -> LayerContribution:
    """The sections as fragments: the context is one, the diff one per file, tests and facts one each."""
    block = ContributionBuilder("task", heading=HEADING, resource_type="task")
    block.section("task_context", partial(_write_context, block, context))
    block.section("current_diff", partial(_write_diff, block, diff or ""))
    block.section("failing_tests", partial(_write_tests, block, failing))
    if facts is not None:
        block.section("graph_facts", partial(_write_facts, block, facts))
    return block.finish()


def _write_context(block: ContributionBuilder, context: object) -> None:
    text = context if isinstance(context, str) else _spell(context)
    if text and not text.isspace():
        block.add("task://context", text, group="## Task context", relevance=_CONTEXT, is_divisible=True)


def _spell(value: object) -> str:
    """A JSON value for reading: fenced, indented, keys sorted; a bare number or truth value as it is.

    Two values that the canonical JSON form holds for equal are spelled alike. Empty for nothing.
    """
    if value is None or value in ({}, []):
        return ""
    text = json.dumps(_normal(value), ensure_ascii=False, indent=2, sort_keys=True, allow_nan=False)
    return fenced(well_formed(text), info="json") if isinstance(value, dict | list | tuple) else text


def _normal(value: object) -> object:
    """The value with `1.0` as `1`, which JSON does not tell apart."""
    if isinstance(value, dict):
        return {key: _normal(item) for key, item in cast("dict[str, Any]", value).items()}
    if isinstance(value, list | tuple):
        return [_normal(item) for item in cast("list[Any]", value)]
    if isinstance(value, float) and value.is_integer() and abs(value) <= _MAX_SAFE_INTEGER:
        return int(value)
    return value


def _write_diff(block: ContributionBuilder, diff: str) -> None:
    if not diff or diff.isspace():
        return
    diff = diff.rstrip("\r\n")
    files = split_diff(diff)
    for file in files:
        block.add(
            f"diff://{file.path}",
            f"- {fold(file.stat)}\n{fenced(file.text, info='diff')}",
            brief=_diff_floor(file),
            between=[(_CHANGES_DEPTH, f"- {fold(file.stat)}\n{fenced(_changes(file), info='diff')}")],
            group="## Current diff",
            volatility="step",
            relevance=_DIFF,
            is_pinned=True,
            is_divisible=True,
            location=file.path,
            metadata={"added": str(file.added), "removed": str(file.removed)},
        )
    if not files:
        size = f"({diff.count(chr(10)) + 1} lines, {len(well_formed(diff).encode())} bytes)"
        block.add(
            "diff://current",
            fenced(diff, info="diff"),
            brief=f"- {first_line(diff, max_chars=LINE_CHARS)} {size}",
            group="## Current diff",
            volatility="step",
            relevance=_DIFF,
            is_pinned=True,
            is_divisible=True,
        )


def _changes(file: FileDiff) -> str:
    """Hunk headers and changed lines, without what is the same before and after."""
    lines = file.text.split("\n")
    return "\n".join(line for line in lines if line.startswith(("@@", "+", "-")))


def _diff_floor(file: FileDiff) -> str:
    lines = [f"- {cut(file.stat, max_chars=LINE_CHARS)}"]
    lines += (f"  {cut(hunk, max_chars=LINE_CHARS)}" for hunk in file.hunks)
    return "\n".join(lines)


def _write_tests(block: ContributionBuilder, failing: FailingTests) -> None:
    for test in failing.tests:
        message = (test.message or "").strip("\r\n")
        first = first_line(message, max_chars=LINE_CHARS)
        floor = f"- {test.id}: {first}" if first else f"- {test.id}"
        if "\n" in message:
            whole = f"- {test.id}\n{fenced(message)}"
        else:
            whole = f"- {test.id}: {fold(message)}" if first else floor
        block.add(
            f"test://{test.id}",
            whole,
            brief=floor,
            group="## Failing tests",
            volatility="step",
            relevance=_FAILING_TEST,
            is_pinned=True,
            is_divisible=True,
        )

    if failing.more:
        block.add(
            "test://more",
            f"- and {failing.more} more",
            group="## Failing tests",
            volatility="step",
            relevance=_FAILING_TEST,
            is_pinned=True,
        )
        block.leave_out(failing.more)


def _write_facts(block: ContributionBuilder, facts: FactsSection) -> None:
    for fact in facts.facts:
        block.add(
            f"graph://{fact.node_id}",
            f"- {fold(fact.text)}",
            group=facts.heading,
            relevance=_FACT,
            location=fact.node_id,
        )
