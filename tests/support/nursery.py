"""A process that has loaded the worker and forks: a `python -m worker run` without five seconds of loading.

What is forked does what the command does, from its first line to the interpreter's end, with an environment
and a log of its own. All that differs from a process of its own making is that they share one hash seed;
where that matters, there is one such process for each seed.
"""

from __future__ import annotations

import asyncio
import ctypes
import fcntl
import json
import os
import runpy
import selectors
import shutil
import signal
import socket
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, partial
from importlib import import_module
from pathlib import Path
from typing import Any, cast

ROOT = Path(__file__).parents[2]
TASKS_EVENT = "tasks"
"""A line of that name in the log says how many tasks the event loop has, whenever SIGUSR1 asks for it."""

_LEASE = b"lease\n"
_UNUSED_SECONDS = 5
"""How long the process waits for the next lease when there is none."""

_END_WITH_PARENT = 1  # PR_SET_PDEATHSIG


class Forked:
    """One worker process, with the part of `asyncio.subprocess.Process` that tests use."""

    def __init__(self, pid: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self._writer = writer
        self._ending = asyncio.create_task(self._watch(reader))

    async def wait(self) -> int:
        """The exit code, or minus the number of the signal that ended it."""
        return await asyncio.shield(self._ending)

    def send_signal(self, number: int) -> None:
        if self.returncode is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    async def _watch(self, reader: asyncio.StreamReader) -> int:
        self.returncode = int(await reader.readline())
        self._writer.close()
        await self._writer.wait_closed()
        return self.returncode


@dataclass(frozen=True, kw_only=True)
class Nursery:
    """Where forks are asked for, and the connection that says that somebody still may."""

    address: Path
    lease: socket.socket

    async def start(
        self, environment: Mapping[str, str], log: Path, arguments: Sequence[str] = ("-m", "worker", "run")
    ) -> Forked:
        """One `python <arguments>`, whose output goes to the end of `log`."""
        await asyncio.to_thread(log.touch)
        reader, writer = await asyncio.open_unix_connection(self.address)
        writer.write(_order(environment, log, arguments))
        return Forked(int(await reader.readline()), reader, writer)

    def run(self, arguments: Sequence[str], log: Path) -> int:
        """The exit code of one `python <arguments>`, whose output goes to `log`; waits for its end."""
        with socket.socket(socket.AF_UNIX) as caller:
            caller.connect(str(self.address))
            caller.sendall(_order(os.environ, log, arguments))
            with caller.makefile("rb") as said:
                said.readline()  # its process id
                return int(said.readline())


def _order(environment: Mapping[str, str], log: Path, arguments: Sequence[str]) -> bytes:
    order = {"environment": dict(environment), "log": str(log), "arguments": list(arguments)}
    return json.dumps(order).encode() + b"\n"


@cache
def nursery(hash_seed: str | None = None) -> Nursery:
    """The one of this run of the tests, whose processes share it; it ends after them, with what it forked."""
    run = os.environ.get("PYTEST_XDIST_TESTRUNUID", str(os.getpid()))
    folder = Path(tempfile.gettempdir()) / f"nursery-{run}-{hash_seed or 'any'}"
    folder.mkdir(mode=0o700, exist_ok=True)
    address = folder / "socket"
    with (folder / "lock").open("wb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        lease = socket.socket(socket.AF_UNIX)
        try:
            lease.connect(str(address))
        except (FileNotFoundError, ConnectionRefusedError):
            address.unlink(missing_ok=True)
            _spawn(address, {} if hash_seed is None else {"PYTHONHASHSEED": hash_seed})
            lease.connect(str(address))
        lease.sendall(_LEASE)
    return Nursery(address=address, lease=lease)


def _spawn(address: Path, environment: Mapping[str, str]) -> None:
    """Start the process that forks, and wait until it has loaded the worker. It may outlive this one."""
    reading, writing = os.pipe()
    os.posix_spawn(
        sys.executable,
        [sys.executable, "-m", "tests.support.nursery", str(address)],
        {**os.environ, **environment, "PYTHONPATH": str(ROOT)},
        file_actions=[
            (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
            (os.POSIX_SPAWN_DUP2, writing, 1),
        ],
    )
    os.close(writing)
    with open(reading, "rb") as said:  # noqa: PTH123 - a descriptor
        assert said.readline() == b"ready\n", "the worker cannot be loaded; standard error says why"


# --- In the process that forks -----------------------------------------------------------------------


class _Forking:
    """Forks for whoever asks, as long as anybody may."""

    def __init__(self, address: Path) -> None:
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(address))
        self._listener.listen(64)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._forks: dict[int, tuple[int, socket.socket]] = {}
        self._leases: set[socket.socket] = set()

    def serve(self) -> Callable[[], None] | None:
        """Returns in each fork, with what that has to do, and where the last lease has ended for good."""
        os.write(1, b"ready\n")
        while True:
            ready = self._selector.select(timeout=None if self._leases else _UNUSED_SECONDS)
            if not ready:
                return None
            for key, _ in ready:
                if key.fileobj is self._listener:
                    order = self._accept()
                    if order is not None:
                        return order
                elif isinstance(key.fileobj, socket.socket):
                    self._selector.unregister(key.fileobj)
                    self._leases.discard(key.fileobj)
                    key.fileobj.close()
                else:
                    assert isinstance(key.fileobj, int)
                    _bury(self._selector, key.fileobj, *self._forks.pop(key.fileobj))

    def _accept(self) -> Callable[[], None] | None:
        caller, _ = self._listener.accept()
        line = caller.makefile("rb").readline()
        if line == _LEASE:
            self._leases.add(caller)
            self._selector.register(caller, selectors.EVENT_READ)
            return None
        pid = os.fork()
        if not pid:
            self._close()
            caller.close()
            return partial(_run, json.loads(line))
        caller.sendall(b"%d\n" % pid)
        ending = os.pidfd_open(pid)
        self._forks[ending] = (pid, caller)
        self._selector.register(ending, selectors.EVENT_READ)
        return None

    def _close(self) -> None:
        """Nothing of all this is the fork's."""
        self._listener.close()
        self._selector.close()
        for lease in self._leases:
            lease.close()
        for ending, (_, caller) in self._forks.items():
            os.close(ending)
            caller.close()


def _bury(selector: selectors.BaseSelector, ending: int, pid: int, caller: socket.socket) -> None:
    """Tell whoever asked for the fork how it ended."""
    selector.unregister(ending)
    os.close(ending)
    _, status = os.waitpid(pid, 0)
    with suppress(OSError):  # its test may be over
        caller.sendall(b"%d\n" % os.waitstatus_to_exitcode(status))
    caller.close()


def _run(order: Mapping[str, Any]) -> None:
    """Be the command."""
    ctypes.CDLL(None).prctl(_END_WITH_PARENT, signal.SIGKILL)
    os.environ.clear()
    os.environ.update(order["environment"])
    log = os.open(order["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    nothing = os.open(os.devnull, os.O_RDONLY)
    for descriptor, place in ((nothing, 0), (log, 1), (log, 2)):
        os.dup2(descriptor, place)
    signal.signal(signal.SIGUSR1, _tell_tasks)
    first, *rest = order["arguments"]
    if first == "-m":
        sys.argv = rest
        runpy.run_module(rest[0], run_name="__main__")
    elif first == "-c":
        sys.argv = [first, *rest[1:]]
        exec(rest[0], {"__name__": "__main__"})  # noqa: S102 - a test's own
    else:
        sys.argv = [first, *rest]
        runpy.run_path(first, run_name="__main__")


def _tell_tasks(*_: object) -> None:
    line = json.dumps({"event": TASKS_EVENT, "count": len(asyncio.all_tasks())})
    os.write(1, f"{line}\n".encode())


def _load_worker() -> None:
    """Have all that a worker loads before its first request: modules, vocabularies, rules.

    Out of the collector's sight: else each fork looks all of it through once more, and copies its memory.
    """
    # The driver of Neo4j loads it where it is there, and 40 MB with it; a deployed worker has none.
    sys.modules["pandas"] = cast("Any", None)
    # And is itself loaded only where it is used, which is in most of the forks.
    from schemas.wire import build_validators  # noqa: PLC0415 - as above
    from worker.fusion import secrets  # noqa: PLC0415 - as above
    from worker.heap import load_freely, settle_heap  # noqa: PLC0415 - as above
    from worker.settings import Settings  # noqa: PLC0415 - as above
    from worker.wiring_worker import load_counters  # noqa: PLC0415 - as above

    load_freely()
    import_module("worker.cli")
    for module in ("neo4j_graph", "neo4j_state", "redis", "redis_packs", "redis_state"):
        import_module(f"worker.stores.{module}")
    load_counters(Settings())
    secrets.prepare()
    build_validators()
    settle_heap()


if __name__ == "__main__":
    os.chdir(ROOT)
    _load_worker()
    place = Path(sys.argv[1])
    forked = _Forking(place).serve()
    if forked is None:
        shutil.rmtree(place.parent)
    else:
        forked()
