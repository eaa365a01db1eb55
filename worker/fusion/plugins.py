"""Plug-in strategies, each in a process of its own that can be ended.

A package offers one under the entry point group `context_worker.strategies`; the settings say which of them
this worker has, so that being installed alone changes nothing. A process is started with the worker, else
when it is first needed. One that takes too long is ended, one that is gone is replaced for the next request;
one that cannot be started is not tried again for a while. What a plug-in says is written down
(`PluginProposal`), and fusing reads that.

Blocks: call from a thread. `worker.providers.proposals` does.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import threading
import weakref
from collections.abc import Generator, Iterable, Mapping
from contextlib import contextmanager, suppress
from importlib.metadata import entry_points
from time import monotonic
from typing import IO, Final, cast

import structlog

from schemas.codes import PartName
from worker.children import finding_this_package, without_settings
from worker.fusion.plugin_child import GROUP
from worker.fusion.plugin_wire import Hello, encode_job, fragments_for, read_answer, read_hello
from worker.fusion.protocols import StrategyFailed
from worker.fusion.strategies.recorded import PluginProposal
from worker.ports import LayerContribution, RequestFrame

log = structlog.get_logger()

START_SECONDS: Final = 20.0
RETRY_SECONDS: Final = 10.0
MAX_ANSWER_BYTES: Final = 32_000_000
_CHUNK_BYTES: Final = 65_536


def find_plugins(names: Iterable[str]) -> dict[str, str]:
    """Where each of these plug-ins is, as `module:attribute`; nothing is imported.

    Raises ValueError naming one that no installed package offers, or that two do.
    """
    offered: dict[str, set[str]] = {}
    for point in entry_points(group=GROUP):
        offered.setdefault(point.name, set()).add(point.value)
    found: dict[str, str] = {}
    for name in names:
        targets = sorted(offered.get(name, ()))
        if len(targets) != 1:
            said = f"several packages offer it: {', '.join(targets)}" if targets else "no package offers it"
            raise ValueError(f"strategy plug-in {name!r}: {said} under the entry points {GROUP}")
        found[name] = targets[0]
    return found


class StrategyPlugins:
    """The plug-ins of one worker. Safe from any thread; each answers one request at a time."""

    def __init__(
        self,
        targets: Mapping[str, str],
        *,
        timeout_seconds: float,
        start_seconds: float = START_SECONDS,
        retry_seconds: float = RETRY_SECONDS,
    ) -> None:
        """Start none yet. `targets` are `module:attribute` by name; a job may take `timeout_seconds`."""
        self._hosts = {
            name: _Host(
                name,
                target,
                timeout_seconds=timeout_seconds,
                start_seconds=start_seconds,
                retry_seconds=retry_seconds,
            )
            for name, target in targets.items()
        }
        self.close = weakref.finalize(self, _close_all, list(self._hosts.values()))
        """Ends every process, also those at work, and starts no more; idempotent."""

    @property
    def names(self) -> tuple[str, ...]:
        """Of the plug-ins, as they were given."""
        return tuple(self._hosts)

    @property
    def process_ids(self) -> list[int]:
        """Of the processes that run now, as far as this one knows, sorted."""
        return sorted(pid for host in self._hosts.values() if (pid := host.process_id) is not None)

    def start(self) -> None:
        """Start those that are not running, and wait for none: the first request finds them ready, mostly."""
        for host in self._hosts.values():
            host.start()

    def ask(
        self,
        name: str,
        frame: RequestFrame,
        contributions: Mapping[PartName, LayerContribution],
        *,
        budget_tokens: int,
        wait_seconds: float,
    ) -> PluginProposal:
        """What the plug-in proposes, within `wait_seconds`; a failure is a proposal that says why.

        Waits its turn, and for a process that is being started; the job itself may take the time that was
        set for jobs. Raises KeyError for a name that is none.
        """
        host = self._hosts[name]
        try:
            return host.propose(
                frame, contributions, budget_tokens=budget_tokens, until=monotonic() + wait_seconds
            )
        except StrategyFailed as failed:
            log.warning("strategy.failed", strategy=name, code=failed.code, error=failed.error)
            return PluginProposal.failed(name, failed.code)

    def greet(self, name: str, *, wait_seconds: float = START_SECONDS) -> Hello:
        """What the plug-in says of itself, and what it prints meanwhile on this standard error.

        A process that is heard is sent no request: whoever asks next starts another. Raises StrategyFailed.
        """
        return self._hosts[name].greet(until=monotonic() + wait_seconds)


class _Host:
    """One plug-in: its process, while there is one."""

    def __init__(
        self,
        name: str,
        target: str,
        *,
        timeout_seconds: float,
        start_seconds: float,
        retry_seconds: float,
    ) -> None:
        self._name = name
        self._target = target
        self._timeout_seconds = timeout_seconds
        self._start_seconds = start_seconds
        self._retry_seconds = retry_seconds
        self._turn = threading.Lock()
        self._child: _Child | None = None
        self._not_before = 0.0
        self._is_closed = False

    @property
    def process_id(self) -> int | None:
        child = self._child
        return None if child is None else child.pid

    def propose(
        self,
        frame: RequestFrame,
        contributions: Mapping[PartName, LayerContribution],
        *,
        budget_tokens: int,
        until: float,
    ) -> PluginProposal:
        """Raises StrategyFailed."""
        with self._taking_turn(until):
            child = self._running()
            hello = self._greeting(child, until)
            fragments = fragments_for(contributions, hello.capabilities)
            sent = frozenset([fragment.key for some in fragments.values() for fragment in some])
            job = encode_job(frame, contributions, fragments, budget_tokens=budget_tokens)
            answer = read_answer(self._answer(child, job, until), sent=sent)
        return PluginProposal(
            name=self._name,
            capabilities=hello.capabilities,
            explanation=hello.explanation,
            confidence=answer.confidence,
            entries=answer.entries,
            clamped_scores=answer.clamped_scores,
        )

    def start(self) -> None:
        with suppress(StrategyFailed), self._taking_turn(monotonic()):
            self._running()

    def greet(self, *, until: float) -> Hello:
        """Raises StrategyFailed."""
        with self._taking_turn(until):
            return self._greeting(self._running(is_heard=True), until)

    @contextmanager
    def _taking_turn(self, until: float) -> Generator[None]:
        if not self._turn.acquire(timeout=max(0.0, until - monotonic())):
            raise StrategyFailed("plugin_timeout")
        try:
            yield
        finally:
            self._turn.release()

    def _running(self, *, is_heard: bool = False) -> _Child:
        if self._child is not None and (self._child.is_heard != is_heard or not self._child.is_running()):
            self._drop(self._child)
        if self._child is None:
            if self._is_closed or monotonic() < self._not_before:
                raise StrategyFailed("plugin_died")
            try:
                self._child = _Child(
                    self._name, self._target, timeout_seconds=self._timeout_seconds, is_heard=is_heard
                )
            except OSError as error:
                self._not_before = monotonic() + self._retry_seconds
                raise StrategyFailed("plugin_died") from error
        return self._child

    def _greeting(self, child: _Child, until: float) -> Hello:
        """Once it is there. A process that is still being started goes on, for the next request."""
        if child.hello is not None:
            return child.hello
        too_late = child.started_at + self._start_seconds
        try:
            child.hello = read_hello(child.exchange(b"", min(until, too_late)))
        except TimeoutError:
            if monotonic() >= too_late:
                self._give_up(child)
            raise StrategyFailed("plugin_timeout") from None
        except EOFError:
            self._give_up(child)
            raise StrategyFailed("plugin_died") from None
        except StrategyFailed:
            self._give_up(child)
            raise
        return child.hello

    def _answer(self, child: _Child, job: bytes, until: float) -> bytes:
        try:
            return child.exchange(job, min(until, monotonic() + self._timeout_seconds))
        except TimeoutError:
            self._drop(child)
            raise StrategyFailed("plugin_timeout") from None
        except EOFError:
            self._drop(child)
            raise StrategyFailed("plugin_died") from None

    def _give_up(self, child: _Child) -> None:
        self._not_before = monotonic() + self._retry_seconds
        self._drop(child)

    def _drop(self, child: _Child) -> None:
        child.end()
        self._child = None

    def close(self) -> None:
        """Whoever waits for an answer meets the end of the process."""
        self._is_closed = True
        child = self._child
        if child is not None:
            child.kill()
        with self._turn:
            if self._child is not None:
                self._drop(self._child)


class _Child:
    """One process and its pipes, neither of which is ever waited for without an end."""

    def __init__(self, name: str, target: str, *, timeout_seconds: float, is_heard: bool) -> None:
        self._process = subprocess.Popen(  # noqa: S603 - this interpreter, and a module of our own
            [sys.executable, "-P", "-m", "worker.fusion.plugin_child", name, target, str(timeout_seconds)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            # What it prints may quote what it is sent.
            stderr=None if is_heard else subprocess.DEVNULL,
            env=finding_this_package(without_settings(os.environ)),
            bufsize=0,
            # What a terminal sends to the worker is the worker's to answer.
            process_group=0,
        )
        self._stdin = cast("IO[bytes]", self._process.stdin).fileno()
        self._stdout = cast("IO[bytes]", self._process.stdout).fileno()
        for descriptor in (self._stdin, self._stdout):
            os.set_blocking(descriptor, False)
        self.is_heard = is_heard
        self.started_at = monotonic()
        self.hello: Hello | None = None

    @property
    def pid(self) -> int:
        return self._process.pid

    def is_running(self) -> bool:
        return self._process.poll() is None

    def exchange(self, line: bytes, until: float) -> bytes:
        """Send the line and return the next one. Raises TimeoutError; EOFError for an end, or no end."""
        unsent = memoryview(line)
        received = bytearray()
        while True:
            poll = select.poll()
            poll.register(self._stdout, select.POLLIN)
            if unsent:
                poll.register(self._stdin, select.POLLOUT)
            left = until - monotonic()
            ready = dict(poll.poll(left * 1_000)) if left > 0 else {}
            if not ready:
                raise TimeoutError
            if self._stdin in ready:
                unsent = unsent[self._write(unsent) :]
            if self._stdout in ready:
                chunk = os.read(self._stdout, _CHUNK_BYTES)
                received += chunk
                if not chunk or len(received) > MAX_ANSWER_BYTES:
                    raise EOFError
                if chunk.endswith(b"\n"):
                    return bytes(received)

    def _write(self, unsent: memoryview) -> int:
        try:
            return os.write(self._stdin, unsent[:_CHUNK_BYTES])
        except BlockingIOError:
            return 0
        except OSError:
            raise EOFError from None

    def kill(self) -> None:
        """With all that it started itself: they are a group of their own."""
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)

    def end(self) -> None:
        """End the process, and wait for that."""
        self.kill()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout):
            with suppress(OSError):  # what was not written yet has nobody to go to
                cast("IO[bytes]", stream).close()


def _close_all(hosts: Iterable[_Host]) -> None:
    for host in hosts:
        host.close()
