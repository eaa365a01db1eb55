"""SIGKILL at every failpoint of the path: whoever comes next ends what was begun, once.

Kills around the store of an event and within a sync, and what the state and the graph hold then, are tested
where state and syncs are, in `tests/e2e`.
"""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Callable
from dataclasses import replace
from itertools import islice
from pathlib import Path

import pytest

from schemas.answers import AgentAnswer, Verdict
from schemas.bundle import ContextBundle
from schemas.request import AssemblyRequest
from schemas.tools import ToolRequest, ToolResult
from tests.faults.sizes import SIZES
from tests.faults.table import Row, row_of
from tests.support.cluster import Mode, Topics, workers
from tests.support.replaying import load
from worker.client import ContextClient
from worker.failpoints import POINTS
from worker.load.generator import Traffic, generate
from worker.load.report import ReplayReport

pytestmark = pytest.mark.asyncio(loop_scope="session")

Judge = Callable[[Row], None]
BATCH = 6
PINNED = {"session": {"handoff": {"decisions": [{"id": "D-1", "title": "Retries end in time"}]}}}
OF_OTHER_RECORDS = ("sync.", "state.", "tool.", "answer.")
OF_REQUESTS = [
    point
    for point in POINTS
    if not point.startswith(OF_OTHER_RECORDS)
    and (SIZES.kills_every_provider or not point.startswith("provider.") or point == "provider.memory")
]
OF_TOOLS = [point for point in POINTS if point.startswith("tool.")]
OF_ANSWERS = [point for point in POINTS if point.startswith("answer.")]


@pytest.fixture
def quick(mode: Mode) -> Mode:
    """With a short session: each life waits for that of the one before."""
    return replace(mode, session_timeout_ms=2_000)


@pytest.mark.parametrize("mode", SIZES.modes, indirect=True)
async def test_a_kill_at_each_point_of_the_path_still_ends_each_request_once(
    quick: Mode, topics: Topics, judge: Judge, tmp_path: Path
) -> None:
    """Each life is killed by one of its requests, and ends those that the life before it left."""
    records = generate(Traffic(requests=BATCH * len(OF_REQUESTS)))
    began = time.monotonic()
    async with workers(quick, tmp_path) as start:
        loading: list[asyncio.Task[ReplayReport]] = []
        for life, point in enumerate(OF_REQUESTS):
            # Numbers go through all batches, so that no later life is killed by what this one left.
            deadly = f"number {life * BATCH + BATCH // 2})"
            victim = await start(WORKER_FAILPOINTS=f"{point}=kill@{deadly}")
            loading.append(asyncio.create_task(load(quick, tmp_path, islice(records, BATCH))))
            assert await victim.ended() == -signal.SIGKILL, point
        last = await start()
        reports = await asyncio.gather(*loading)
        assert last.process.returncode is None
    judge(row_of(f"SIGKILL at each point, {quick.name}", *reports, began=began, note=" ".join(OF_REQUESTS)))


@pytest.mark.parametrize("mode", ["embedded"], indirect=True)
async def test_a_kill_at_each_point_of_a_tool_call_still_answers_it_once(
    quick: Mode, topics: Topics, judge: Judge, tmp_path: Path
) -> None:
    began = time.monotonic()
    async with workers(quick, tmp_path) as start, client_of(quick) as client:
        calling: list[asyncio.Task[object]] = []
        for point in OF_TOOLS:
            victim = await start(WORKER_FAILPOINTS=f"{point}=kill@{point}")
            call = ToolRequest(call_id=point, project_id="p", tool="search_code", arguments={"query": "a"})
            calling.append(asyncio.create_task(client.call_tool(call, timeout_seconds=300)))
            assert await victim.ended() == -signal.SIGKILL, point
        await start()
        answers = await asyncio.gather(*calling)
    results = {record.value for record in (await topics.read_all("tool-results")).records}
    letters = len((await topics.read_all("dead-letters")).records)
    judge(
        Row(
            fault=f"SIGKILL within tool calls, {quick.name}",
            requests=len(OF_TOOLS),
            lost=sum(not isinstance(answer, ToolResult) for answer in answers),
            doubled=len(results) - len(OF_TOOLS),
            broken=("a dead letter",) * letters,
            seconds=time.monotonic() - began,
            note=" ".join(OF_TOOLS),
        )
    )


@pytest.mark.parametrize("mode", ["embedded"], indirect=True)
async def test_a_kill_at_each_point_of_an_answer_still_judges_it_once(
    quick: Mode, topics: Topics, judge: Judge, tmp_path: Path
) -> None:
    """Each life is killed by one answer that calls for another bundle, and the next one judges it."""
    began = time.monotonic()
    async with workers(quick, tmp_path) as start, client_of(quick) as client:
        judging: list[asyncio.Task[object]] = []
        for point in OF_ANSWERS:
            victim = await start(WORKER_FAILPOINTS=f"{point}=kill@{point}")
            asked = {"request_id": point, "project_id": "p", "volk": "smith", "subject": "implement"}
            request = AssemblyRequest.model_validate({**asked, "user_message": "Do it.", **PINNED})
            assert isinstance(await client.assemble(request, timeout_seconds=300), ContextBundle)
            answer = AgentAnswer(answer_id=point, request_id=point, project_id="p", content="Done.")
            judging.append(asyncio.create_task(client.answer(answer, timeout_seconds=300)))
            assert await victim.ended() == -signal.SIGKILL, point
        await start()
        answers = await asyncio.gather(*judging)
    verdicts = {record.value for record in (await topics.read_all("verdicts")).records}
    letters = len((await topics.read_all("dead-letters")).records)
    judge(
        Row(
            fault=f"SIGKILL within answers, {quick.name}",
            requests=len(OF_ANSWERS),
            lost=sum(not (isinstance(one, Verdict) and one.verdict == "retry") for one in answers),
            doubled=len(verdicts) - len(OF_ANSWERS),
            broken=("a dead letter",) * letters,
            seconds=time.monotonic() - began,
            note=" ".join(OF_ANSWERS),
        )
    )


def client_of(mode: Mode) -> ContextClient:
    return ContextClient([mode.bootstrap], topic_prefix=mode.prefix)
