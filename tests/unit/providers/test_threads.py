from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
import weakref
from contextvars import ContextVar
from functools import partial
from pathlib import Path
from unittest.mock import patch

import pytest

from schemas.codes import PARTS, PartName
from tests.unit.providers.frames import BUDGET, SCOPE, frame
from worker.code.sources import SourceRoots
from worker.ports import LayerBudget, LayerContribution, RequestFrame, Scope
from worker.providers.ast import AstProvider
from worker.providers.gather import Abandonment, gather
from worker.providers.threads import SourceThreads
from worker.telemetry import Telemetry

BUDGETS: dict[PartName, LayerBudget] = dict.fromkeys(PARTS, BUDGET)
GRACE_SECONDS = 20
IDLE_SECONDS = "worker.providers.threads.IDLE_SECONDS"


class Mount:
    """A blocking read that answers only once it is let go."""

    def __init__(self) -> None:
        self.is_back = threading.Event()
        self.has_begun = threading.Event()
        self.reads = 0

    def read(self) -> str:
        self.reads += 1
        self.has_begun.set()
        assert self.is_back.wait(GRACE_SECONDS)
        return "content"


class BlockingSource:
    layer: PartName = "ast"

    def __init__(self, mount: Mount, threads: SourceThreads) -> None:
        self._mount, self._threads = mount, threads

    async def provide(self, frame: RequestFrame, scope: Scope, budget: LayerBudget) -> LayerContribution:
        await self._threads.run(self._mount.read)
        return LayerContribution(layer=self.layer, status="ok")


async def ask(
    source: BlockingSource, abandonment: Abandonment, telemetry: Telemetry
) -> tuple[str, str | None]:
    contributions = await gather(
        [source],
        frame(),
        SCOPE,
        BUDGETS,
        timeouts_seconds={},
        deadline_seconds=0.02,
        telemetry=telemetry,
        abandonment=abandonment,
    )
    return contributions["ast"].status, contributions["ast"].reason


async def until_none_runs(abandonment: Abandonment) -> None:
    async with asyncio.timeout(GRACE_SECONDS):
        while abandonment.running("ast"):  # noqa: ASYNC110 - it answers, it does not call
            await asyncio.sleep(0)


async def test_hung_threads_are_counted_and_capped_and_forgotten_once_they_end() -> None:
    mount, threads = Mount(), SourceThreads()
    abandonment, telemetry = Abandonment(cap=2), Telemetry()
    source = BlockingSource(mount, threads)
    try:
        answers = [await ask(source, abandonment, telemetry) for _ in range(3)]
        assert answers == [("failed", "abandoned")] * 3
        assert (mount.reads, threads.running, abandonment.running("ast")) == (2, 2, 2)
        gauge = telemetry.abandoned_now
        assert gauge._value.get() == 2  # pyright: ignore[reportPrivateUsage, reportUnknownMemberType, reportAttributeAccessIssue]  # the client offers no reader
    finally:
        mount.is_back.set()
    await until_none_runs(abandonment)
    assert await ask(source, abandonment, telemetry) == ("ok", None)


async def test_shared_threads_stay_free_while_a_sources_own_are_blocked() -> None:
    mount, threads = Mount(), SourceThreads(max_threads=64)
    blocked = [asyncio.create_task(threads.run(mount.read)) for _ in range(64)]
    await asyncio.sleep(0)
    async with asyncio.timeout(GRACE_SECONDS):
        # What decoding and fusing do with a body that is too large for the event loop.
        assert await asyncio.to_thread(len, "x" * 100_000) == 100_000
    assert not any(task.done() for task in blocked)
    mount.is_back.set()
    assert await asyncio.gather(*blocked) == ["content"] * 64


async def test_more_work_than_threads_waits_and_withdrawn_work_is_never_begun() -> None:
    mount, threads = Mount(), SourceThreads(max_threads=1)
    first = asyncio.create_task(threads.run(mount.read))
    assert await asyncio.to_thread(mount.has_begun.wait, GRACE_SECONDS)
    begun: list[str] = []
    second = asyncio.create_task(threads.run(partial(begun.append, "second")))
    third = asyncio.create_task(threads.run(partial(begun.append, "third")))
    await asyncio.sleep(0)
    second.cancel()
    with pytest.raises(asyncio.CancelledError):
        await second
    mount.is_back.set()
    await asyncio.gather(first, third)
    assert begun == ["third"]


async def until_all_are_idle(threads: SourceThreads) -> None:
    async with asyncio.timeout(GRACE_SECONDS):
        while threads.running:  # noqa: ASYNC110 - it answers, it does not call
            await asyncio.sleep(0)


async def test_a_thread_that_has_done_its_work_does_the_next() -> None:
    threads = SourceThreads()
    with patch(IDLE_SECONDS, GRACE_SECONDS):
        first = await threads.run(threading.current_thread)
        await until_all_are_idle(threads)
        assert await threads.run(threading.current_thread) is first


async def test_work_that_comes_together_is_done_together_however_many_threads_wait() -> None:
    threads, together = SourceThreads(), threading.Barrier(3)
    await threads.run(threading.current_thread)
    await until_all_are_idle(threads)
    async with asyncio.timeout(GRACE_SECONDS):
        places = await asyncio.gather(*(threads.run(together.wait) for _ in range(3)))
    assert sorted(places) == [0, 1, 2]


def thread_given(held: object) -> threading.Thread:
    del held
    return threading.current_thread()


async def test_a_thread_without_work_ends_and_holds_nothing_of_the_last_meanwhile() -> None:
    class Held:
        pass

    threads, held = SourceThreads(), Held()
    with patch(IDLE_SECONDS, 0.0):
        first = await threads.run(partial(thread_given, held))
        await asyncio.to_thread(first.join, GRACE_SECONDS)
    assert not first.is_alive()
    assert threads.running == 0
    kept = weakref.ref(held)
    with patch(IDLE_SECONDS, GRACE_SECONDS):
        thread = await threads.run(partial(thread_given, held))
        del held
        await until_all_are_idle(threads)
        assert thread.is_alive()
        assert kept() is None


async def test_the_first_cancellation_is_held_until_the_thread_ends_and_the_second_passes() -> None:
    mount, threads, stop = Mount(), SourceThreads(), threading.Event()
    task = asyncio.create_task(threads.run(mount.read, stop=stop))
    assert await asyncio.to_thread(mount.has_begun.wait, GRACE_SECONDS)
    task.cancel()
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert stop.is_set()
    assert not task.done()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert threads.running == 1
    mount.is_back.set()


@pytest.mark.parametrize("error", [ValueError("odd"), SystemExit(3), KeyError()])
async def test_what_the_work_raises_is_raised_here(error: BaseException) -> None:
    def work() -> None:
        raise error

    with pytest.raises(type(error)):
        await SourceThreads().run(work)


async def test_work_that_raises_stop_iteration_does_not_hang_its_task() -> None:
    with pytest.raises(RuntimeError, match="StopIteration"):
        await SourceThreads().run(partial(next, iter(())))


async def test_work_runs_in_a_copy_of_its_callers_context() -> None:
    name = ContextVar("name", default="nobody")
    name.set("smith")
    assert await SourceThreads().run(name.get) == "smith"


async def test_a_source_file_that_blocks_its_reader_is_left_behind(tmp_path: Path) -> None:
    # A pipe without a writer is refused, so the read itself is made to hang, as on a dead mount.
    (tmp_path / "m.py").write_text("def f(): pass\n")
    mount, abandonment = Mount(), Abandonment(cap=1)
    provider = AstProvider(SourceRoots({SCOPE.project_id: (tmp_path,)}))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("worker.providers.ast.read_targets", lambda *_, **__: mount.read())  # pyright: ignore[reportUnknownLambdaType, reportUnknownArgumentType]  # stands in
        contributions = await gather(
            [provider],
            frame(payload={"files_created": ["m.py"]}),
            SCOPE,
            BUDGETS,
            timeouts_seconds={},
            deadline_seconds=0.02,
            telemetry=Telemetry(),
            abandonment=abandonment,
        )
        assert (contributions["ast"].status, contributions["ast"].reason) == ("failed", "abandoned")
        mount.is_back.set()
        await until_none_runs(abandonment)


def test_a_hung_thread_does_not_keep_the_process_from_ending(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    script = (
        "import asyncio, sys\n"
        "from worker.providers.threads import SourceThreads\n"
        "async def main():\n"
        "    task = asyncio.create_task(SourceThreads().run(lambda: open(sys.argv[1]).read()))\n"
        "    await asyncio.wait([task], timeout=0.05)\n"
        "    task.cancel()\n"
        "asyncio.run(main())\n"
        "print('ended')\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, str(pipe)], capture_output=True, text=True, timeout=40, check=True
    )
    assert (done.stdout, done.stderr) == ("ended\n", "")
