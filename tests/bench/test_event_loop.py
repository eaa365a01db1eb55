"""How long the event loop is held up by heavy assemblies, beside one tokenisation of what they become.

Three clocks, for the longest turn of the loop: the wall; what this process computed meanwhile, in whatever
thread, so what may have kept the interpreter's lock from the loop; and what the loop's own thread computed.
The first also holds what other processes took, so the second is the one that counts: to reach are 50 ms.
Each case runs a few times and its least counts, since noise only adds.
"""

from __future__ import annotations

import asyncio
import gc
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from sysconfig import get_path
from typing import Any

import pytest

from schemas.bundle import to_wire
from schemas.sync import SyncRequest
from tests.support.assembling import assemble, assembler, wire_request
from worker.budget.tokens import counter_for
from worker.code.indexing import IndexCache
from worker.code.sources import SourceRoots
from worker.code.syncing import ProjectSyncer
from worker.heap import settle_heap
from worker.settings import Settings
from worker.stores.sqlite_graph import SqliteGraphStore
from worker.wiring_sync import build_syncs

PROSE = "The retry loop ignores the deadline of the payment client, as nobody had asked for one. " * 11_500
DIFF = "".join(
    f"diff --git a/src/m{n}.py b/src/m{n}.py\n--- a/src/m{n}.py\n+++ b/src/m{n}.py\n"
    f"@@ -{n},20 +{n},20 @@ def step_{n}\n" + f"-    return retry({n})\n+    return retry({n + 1})\n" * 20
    for n in range(900)
)
CODE = "def retry(deadline: float) -> None:\n    while time() < deadline:\n        attempt()\n\n" * 4_000
HAN = "重试循环忽略了支付客户端的截止日期请解释原因并修复它" * 8_000
EMOJI = "🚀👩‍💻🔥🧪" * 40_000
SMALL = [{"id": f"m{number}", "text": f"fact {number} about the retry loop"} for number in range(5_000)]
PATIENT = {
    "deadline_ms": 60_000,
    "layer_timeouts_ms": dict.fromkeys(("memory", "task", "artifacts", "ast"), 60_000),
}
ROUNDS = 3
TO_REACH_SECONDS = 0.05
TASK_WINDOW = {"total": 128_000, "layers": {"task": 90_000}}


def sources(text: str) -> dict[str, Any]:
    """About a megabyte of inline sources."""
    return {
        "payload": {"task_context": text},
        "memory": {"summary": text, "items": [{"id": f"m{n}", "text": text[:20_000]} for n in range(5)]},
        "artifacts": [{"id": f"a{n}", "stage": "s", "type": "t", "content": text[:50_000]} for n in range(4)],
        "working": {"current_diff": text[:100_000]},
        "budget": TASK_WINDOW,
    }


def huge_class(methods: int) -> str:
    """One class of so many methods, 62 bytes each: nothing that a parser could take in pieces."""
    texts = (f"    def step_{n}(self, x: int) -> int:\n        return x + {n}\n" for n in range(methods))
    return "class Huge:\n" + "\n".join(texts)


CASES: dict[str, dict[str, Any]] = {
    "prose": sources(PROSE),
    "code": sources(CODE),
    "Han": sources(HAN),
    "emoji": sources(EMOJI),
    "40,000 Han in the message": {"user_message": HAN[:40_000]},
    "40,000 emoji in the message": {"user_message": EMOJI[:40_000]},
    "a diff of 900 files, 1 MB": {"working": {"current_diff": DIFF}, "budget": TASK_WINDOW},
    "5,000 small fragments": {"memory": {"items": SMALL}, "budget": {"total": 128_000}},
    "payload": {**sources(CODE), "include": ["messages", "payload"]},
    "payload of 5,000": {"memory": {"items": SMALL}, "include": ["messages", "payload"]},
    "payload_content": {**sources(CODE), "include": ["messages", "payload_content"]},
    "a class of 4,000 methods": {"payload": {"files_created": ["huge.py"]}},
    "one of 12,000, 0.7 MB": {"payload": {"files_created": ["larger.py"]}},
}


@dataclass(frozen=True, slots=True)
class Hold:
    """Seconds of the longest turn of the loop, by each clock: each at its own worst."""

    wall: float = 0.0
    process: float = 0.0
    """At most the wall's: two cores compute two seconds in one."""
    own: float = 0.0

    def worse(self, other: Hold) -> Hold:
        return Hold(max(self.wall, other.wall), max(self.process, other.process), max(self.own, other.own))

    def better(self, other: Hold) -> Hold:
        return Hold(min(self.wall, other.wall), min(self.process, other.process), min(self.own, other.own))


async def longest_hold(work: asyncio.Task[Any]) -> Hold:
    """The longest time between two turns of the loop until the work is done."""
    worst = Hold()
    while not work.done():
        wall, process, own = time.perf_counter(), time.process_time(), time.thread_time()
        await asyncio.sleep(0)
        own = time.thread_time() - own
        process = time.process_time() - process
        wall = time.perf_counter() - wall
        worst = worst.worse(Hold(wall, min(wall, process), own))
    return worst


async def longest_turn(work: asyncio.Task[Any], monkeypatch: pytest.MonkeyPatch) -> float:
    """Seconds of own CPU that the loop's thread spent in one callback, at the worst, until the work is done.

    Beside `longest_hold` no turn of its own keeps the loop awake, so this is what others wait for.
    """
    worst = 0.0
    run: Callable[[asyncio.Handle], None] = asyncio.Handle._run

    def timed(handle: asyncio.Handle) -> None:
        nonlocal worst
        before = time.thread_time()
        run(handle)
        worst = max(worst, time.thread_time() - before)

    with monkeypatch.context() as patched:
        patched.setattr(asyncio.Handle, "_run", timed)
        await asyncio.wait({work})
    return worst


@pytest.fixture
def settled_heap() -> Iterator[None]:
    """The collector as the worker sets it: else it looks through all that pytest has loaded, for 50 ms."""
    thresholds = gc.get_threshold()
    settle_heap()
    yield
    gc.unfreeze()
    gc.set_threshold(*thresholds)


@pytest.mark.timeout(600)
@pytest.mark.usefixtures("settled_heap")
async def test_the_longest_time_that_the_loop_is_held_up(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "huge.py").write_text(huge_class(4_000))
    (tmp_path / "larger.py").write_text(huge_class(12_000))
    using = assembler(roots={"p": (tmp_path,)})
    counter = counter_for("o200k_base")
    await assemble(wire_request(), using)  # the vocabulary is read at the worker's start, not here
    lines = [f"{'to reach: 50 ms':28} {'tokens':>8} {'wall':>8} {'process':>8} {'own CPU':>8}"]
    for name, more in CASES.items():
        request = wire_request(**{"user_message": "Fix it.", **PATIENT, **more})
        hold, bundle = Hold(math.inf, math.inf, math.inf), None
        for _ in range(ROUNDS):
            task = asyncio.create_task(assemble(request, using))
            hold = hold.better(await longest_hold(task))
            bundle = task.result().bundle
        assert bundle is not None
        assert bundle.messages is not None
        tokens = sum(counter.count(message.content) for message in bundle.messages)
        milliseconds = "".join(f"{seconds * 1e3:6.0f} ms" for seconds in (hold.wall, hold.process, hold.own))
        lines.append(
            f"{name:28} {tokens:8,}{milliseconds}   {'PASS' if hold.process <= TO_REACH_SECONDS else 'over'}"
        )
        assert to_wire(bundle)
    with capsys.disabled():
        print("", *lines, sep="\n")  # noqa: T201


SYNC_LINES = 90_000


def copy_sources(root: Path) -> int:
    """Whole modules of this environment, in order of name, until there are enough lines."""
    lines = 0
    for number, file in enumerate(sorted(Path(get_path("purelib")).rglob("*.py"))):
        text = file.read_bytes()
        (root / f"module_{number}.py").write_bytes(text)
        lines += text.count(b"\n")
        if lines >= SYNC_LINES:
            break
    return lines


async def never() -> bool:
    return False


@pytest.mark.usefixtures("settled_heap")
@pytest.mark.timeout(600)
async def test_the_longest_time_that_a_sync_holds_the_loop_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "root").mkdir()
    lines = copy_sources(tmp_path / "root")
    graph = {"sqlite_path": tmp_path / "graph.db"}
    settings = Settings.model_validate({"graph": graph, "content": {"roots": {"p": [tmp_path / "root"]}}})
    syncs = build_syncs(settings)
    inside = ProjectSyncer(
        SqliteGraphStore(tmp_path / "inside.db"), SourceRoots(settings.content.roots), cache=IndexCache()
    )
    rows = [f"a sync of {lines:,} lines (to reach: 50 ms)   longest turn of the loop, its own CPU"]
    for name, syncer in (("in the worker's own process", inside), ("in a process of its own", syncs)):
        request = SyncRequest(sync_id="s", project_id="p")
        work = asyncio.create_task(syncer.sync(request, is_settled=never))
        turn = await longest_turn(work, monkeypatch)
        assert work.result().is_changed
        rows.append(f"{name:40} {turn * 1e3:6.1f} ms")
    await syncs.close()
    with capsys.disabled():
        print("", *rows, sep="\n")  # noqa: T201
    # A count of work, not of waiting: no load on the machine makes it longer.
    assert turn < 0.05
