"""Facts of modules from child processes, which can be ended while they parse; a thread cannot.

The parser holds its interpreter's lock from a statement's first character to its last, so a long class that
is parsed in a thread stops every other thread, the event loop's among them. In a process of its own it stops
nobody. There are few of them, started when they are needed, each for one file at a time; one that ended, or
had to be ended, is replaced when the next file comes. They end with this process, however that ends.

Blocks: call from a thread.
"""

from __future__ import annotations

import os
import select
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager, suppress
from typing import IO, Final, cast

import structlog

from worker.children import finding_this_package, without_settings
from worker.code.extracting_process import FAILED
from worker.code.facts import ModuleFacts, ParseProblem
from worker.code.facts_stream import decode_facts
from worker.code.frames import read_frame, write_frame

log = structlog.get_logger()

MAX_PROCESSES: Final = 2
START_SECONDS: Final = 20.0
MAX_ANSWER_BYTES: Final = 64_000_000
"""A file with a longer answer was made to have one, as by a megabyte of name for a thousand methods."""


class Stop(threading.Event):
    """An event that also ends, at once, what somebody would otherwise wait for."""

    def __init__(self) -> None:
        """Not set, with nothing to end."""
        super().__init__()
        self._ending: list[Callable[[], object]] = []
        self._ending_lock = threading.Lock()

    def set(self) -> None:
        """Set the event and call what is to be called, here."""
        with self._ending_lock:
            super().set()
            for end in self._ending:
                end()

    @contextmanager
    def calling(self, end: Callable[[], object]) -> Generator[None]:
        """Have `end` called when the event is set, at once where it is; never after this context.

        It is called on the thread that sets the event, so it must be quick, and may not raise.
        """
        with self._ending_lock:
            self._ending.append(end)
            if self.is_set():
                end()
        try:
            yield
        finally:
            with self._ending_lock:
                self._ending.remove(end)


class ExtractingPool:
    """At most so many processes, shared by all threads. Nothing is started before it is needed."""

    def __init__(self, *, max_processes: int = MAX_PROCESSES) -> None:
        """Start none yet. They end when this is closed, collected, or when the process ends."""
        self._max_processes = max_processes
        self._changed = threading.Condition()
        self._idle: list[_Child] = []
        self._lent = 0
        self._children: set[_Child] = set()
        self.close = weakref.finalize(self, _end_all, self._children)
        """Ends every process, also those that are at work; idempotent."""

    @property
    def process_ids(self) -> list[int]:
        """Of the processes that run now, as far as this process knows, in the order of their ids."""
        return sorted(child.pid for child in self._children.copy())

    def prepare(self) -> None:
        """Have one process ready, so that the first file need not wait for its start. Blocks."""
        with self.lend(Stop()) as extract:
            if extract is None:
                raise AssertionError

    @contextmanager
    def lend(self, stop: Stop) -> Generator[Extract | None]:
        """A process to extract with, once one is free; None where `stop` came before.

        Raises OSError where none can be started.
        """
        if not self._wait_for_turn(stop):
            yield None
            return
        child: _Child | None = None
        try:
            child = self._idle_child() or self._start()
            yield Extract(child, stop)
        finally:
            self._take_back(child)

    def _wait_for_turn(self, stop: Stop) -> bool:
        # Before the lock is taken: `stop` is set with its own lock held, and then asks for this one.
        with stop.calling(self._wake), self._changed:
            self._changed.wait_for(lambda: stop.is_set() or self._lent < self._max_processes)
            if stop.is_set():
                return False
            self._lent += 1
            return True

    def _wake(self) -> None:
        with self._changed:
            self._changed.notify_all()

    def _idle_child(self) -> _Child | None:
        """One that still runs."""
        while True:
            with self._changed:
                if not self._idle:
                    return None
                child = self._idle.pop()
            if child.is_running():
                return child
            self._drop(child)

    def _start(self) -> _Child:
        child = _Child()
        self._children.add(child)
        if not child.wait_until_ready():
            self._drop(child)
            raise OSError("a process that extracts facts does not start")
        return child

    def _take_back(self, child: _Child | None) -> None:
        if child is not None and not child.is_running():
            self._drop(child)
            child = None
        with self._changed:
            if child is not None:
                self._idle.append(child)
            self._lent -= 1
            self._changed.notify()

    def _drop(self, child: _Child) -> None:
        child.end()
        self._children.discard(child)


class Extract:
    """One process, lent to one caller."""

    def __init__(self, child: _Child, stop: Stop) -> None:
        """End the process's work when `stop` is set."""
        self._child = child
        self._stop = stop
        self.is_reliable = True
        """Whether the facts are what any process would give; else they are not to be kept."""

    def __call__(self, path: str, content: bytes) -> ModuleFacts | None:
        """The file's facts, as `extract` gives them at the start of a thread; None where `stop` came before.

        A file that ends its process has no facts, as one that the parser refuses. Raises RuntimeError with
        the traceback where extracting has a bug.
        """
        with self._stop.calling(self._child.kill):
            facts = self._child.extract(path, content)
        if facts is not None:
            return facts
        if self._stop.is_set():
            return None
        log.warning("extract.process_ended", size_bytes=len(content))
        self.is_reliable = False
        return ModuleFacts(
            path=path, line_count=count_lines(content), parse_problem=ParseProblem("too_complex", 0)
        )


class _Child:
    """One process, and its two pipes."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "worker.code.extracting_process"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=finding_this_package(without_settings(os.environ)),
            # What a terminal sends to the worker is the worker's to answer.
            process_group=0,
        )
        self._stdin = cast("IO[bytes]", self._process.stdin)
        self._stdout = cast("IO[bytes]", self._process.stdout)
        self._is_usable = True

    @property
    def pid(self) -> int:
        return self._process.pid

    def is_running(self) -> bool:
        return self._is_usable and self._process.poll() is None

    def wait_until_ready(self) -> bool:
        poll = select.poll()
        poll.register(self._stdout, select.POLLIN)
        return bool(poll.poll(START_SECONDS * 1_000)) and read_frame(self._stdout, max_bytes=0) == b""

    def extract(self, path: str, content: bytes) -> ModuleFacts | None:
        """None where the process is gone, or answers with what is no answer; it is of no use then."""
        try:
            write_frame(self._stdin, path.encode("utf-8", "surrogatepass"))
            write_frame(self._stdin, content)
            self._stdin.flush()
            return decode_facts(self._texts())
        except (OSError, ValueError):
            self._is_usable = False
            return None
        except BaseException:
            self._is_usable = False
            raise

    def _texts(self) -> Iterator[bytes]:
        left = MAX_ANSWER_BYTES
        while text := read_frame(self._stdout, max_bytes=left):
            if text.startswith(FAILED):
                raise RuntimeError(text.removeprefix(FAILED).decode(errors="replace"))
            left -= len(text)
            yield text
        if text is None:
            raise ValueError("the answer has no end")

    def kill(self) -> None:
        """Make the process end; whoever waits for its answer sees that."""
        self._is_usable = False
        self._process.kill()

    def end(self) -> None:
        """End the process, and wait for that."""
        self._process.kill()
        self._process.wait()
        for stream in (self._stdin, self._stdout):
            with suppress(OSError):  # what was not written yet has nobody to go to
                stream.close()


def count_lines(content: bytes) -> int:
    """The lines of a file, the last one with or without its end."""
    return content.count(b"\n") + (bool(content) and not content.endswith(b"\n"))


def _end_all(children: set[_Child]) -> None:
    for child in children.copy():
        child.end()
