"""The relevance rules on SWI-Prolog: a child process, spoken to over a Unix socket.

The library for it blocks, so a thread of its own does the talking, one refinement after the other. A process
that died, does not answer in time, or was killed is replaced at the next refinement; between two attempts to
start one lies a pause, so that a machine without Prolog does not try for each request. It is a long one after
a start that hung: nobody else is answered meanwhile.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import tempfile
import threading
from collections.abc import Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib.resources import as_file, files
from pathlib import Path
from time import monotonic
from typing import Any, Final, TypeVar, cast

import structlog
from swiplserver import PrologConnectionFailedError, PrologError, PrologLaunchError, PrologMQI
from swiplserver.prologmqi import PrologThread

from worker.errors import RelevanceUnavailable
from worker.graph.relevance import NumberedFacts, Refinement, RelevanceFacts, number_facts

T = TypeVar("T")

log = structlog.get_logger()

RETRY_SECONDS: Final = 5.0
START_SECONDS: Final = 10.0
"""A start takes a third of a second; what is not there after this is killed."""

HUNG_RETRY_SECONDS: Final = 60.0
GRACE_SECONDS: Final = 0.2
"""How long after its time a process may still answer before it is killed."""

MAX_INFERENCES: Final = 5_000_000
"""About a second of deduction; 200 candidates take some 20,000."""


class ProcessGone(RelevanceUnavailable):
    """The process ended before it answered."""


class SwiPrologRelevance:
    """One Prolog process per worker."""

    def __init__(
        self,
        *,
        executable: str = "swipl",
        timeout_seconds: float = 0.4,
        start_seconds: float = START_SECONDS,
        max_inferences: int = MAX_INFERENCES,
        now: Callable[[], float] = monotonic,
    ) -> None:
        """Start nothing yet: the first refinement does, and waits for that no longer than `start_seconds`.

        `timeout_seconds` is for one refinement. `now` is a monotonic clock.
        """
        self._executable = executable
        self._timeout_seconds = timeout_seconds
        self._start_seconds = start_seconds
        self._max_inferences = max_inferences
        self._now = now
        self._talker = ThreadPoolExecutor(1, thread_name_prefix="relevance")
        self._process: _Process | None = None
        self._not_before = float("-inf")

    async def refine(self, facts: RelevanceFacts) -> Refinement:
        """The tiers that the rules deduce."""
        numbered = number_facts(facts)
        return await self._talk(lambda: self._refine(numbered))

    async def check(self) -> None:
        """Start the process where it does not run, and ask it something."""
        await self._talk(lambda: self._running().ask("true"))

    async def close(self) -> None:
        """End the process."""
        await self._talk(self._end)
        self._talker.shutdown(wait=False)

    @property
    def process_id(self) -> int | None:
        """Of the process that runs, if one does."""
        return self._process.id if self._process else None

    async def _talk(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._talker, work)

    # --- On the talker's thread ------------------------------------------------------------------

    def _refine(self, numbered: NumberedFacts) -> Refinement:
        query = f'relevance:refine("{numbered.term}", {self._max_inferences}, tiers(Core, Related), Denied)'
        was_running = self._process is not None
        try:
            answer = self._running().ask(query)
        except ProcessGone:
            if not was_running:
                raise
            # It died since it was last asked, which is no fault of this question.
            answer = self._running().ask(query)
        if not isinstance(answer, list) or len(cast("list[object]", answer)) != 1:
            raise RelevanceUnavailable("the rules gave no single answer")
        found = cast("list[dict[str, Any]]", answer)[0]
        return numbered.refinement(
            core=_numbers(found["Core"]), related=_numbers(found["Related"]), undecided=found["Denied"]
        )

    def _running(self) -> _Process:
        if self._process is not None and not self._process.is_broken:
            return self._process
        self._end()
        if self._now() < self._not_before:
            raise RelevanceUnavailable("SWI-Prolog could not be started a moment ago")
        try:
            self._process = _Process(
                self._executable, timeout_seconds=self._timeout_seconds, start_seconds=self._start_seconds
            )
        except (PrologError, PrologLaunchError, OSError) as error:
            pause_seconds = HUNG_RETRY_SECONDS if isinstance(error, TimeoutError) else RETRY_SECONDS
            self._not_before = self._now() + pause_seconds
            log.warning("relevance.not_started", error=type(error).__name__)
            raise RelevanceUnavailable(f"SWI-Prolog cannot be started: {type(error).__name__}") from error
        log.info("relevance.started", process_id=self._process.id)
        return self._process

    def _end(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.end()


class _Process:
    """One running Prolog with the rules loaded."""

    def __init__(self, executable: str, *, timeout_seconds: float, start_seconds: float) -> None:
        """Start it. Raises PrologError, PrologLaunchError and OSError, a TimeoutError where it hung."""
        self.is_broken = False
        self._timeout_seconds = timeout_seconds
        found = shutil.which(executable)
        if found is None:
            raise FileNotFoundError(executable)
        # The socket's folder is only ours; its path must stay below 92 bytes.
        self._folder = tempfile.mkdtemp(prefix="relevance-")
        self._server = PrologMQI(
            unix_domain_socket=f"{self._folder}/socket",
            prolog_path=str(Path(found).parent),
            prolog_path_args=["-f", "none", "--no-tty"],
        )
        self._thread = PrologThread(self._server)
        self._watchdog = _Watchdog(self._kill)
        # The library reads what the process says of itself, and would await it for ever.
        with self._watchdog.limit(start_seconds) as limit:
            try:
                self._server.start()
                with as_file(files("worker.graph") / "relevance.pl") as rules:
                    self._thread.query(f"use_module('{_quoted(rules)}')", query_timeout_seconds=start_seconds)
            except BaseException as error:
                self.end()
                if limit.is_exceeded:
                    raise TimeoutError(f"not started within {start_seconds} s") from error
                raise

    @property
    def id(self) -> int:
        """Of the operating system."""
        number = self._server.process_id()
        assert number is not None  # noqa: S101 - the process was started in the constructor
        return number

    def ask(self, query: str) -> object:
        """The answer to a query. Raises RelevanceUnavailable; the process is then not asked again."""
        # Prolog itself keeps the time; this is for one that cannot, whom the library would await for ever.
        with self._watchdog.limit(self._timeout_seconds + GRACE_SECONDS) as limit:
            try:
                return cast("object", self._thread.query(query, query_timeout_seconds=self._timeout_seconds))
            except (PrologConnectionFailedError, OSError, AttributeError) as error:
                self.is_broken = True
                if limit.is_exceeded:
                    raise RelevanceUnavailable("SWI-Prolog did not answer in time") from error
                raise ProcessGone(f"SWI-Prolog has ended: {type(error).__name__}") from error
            except (PrologError, ValueError) as error:
                self.is_broken = True
                raise RelevanceUnavailable(f"SWI-Prolog does not answer: {type(error).__name__}") from error

    def _kill(self) -> None:
        number = self._server.process_id()
        if number is not None:
            with suppress(ProcessLookupError):
                os.kill(number, signal.SIGKILL)
        # From a connection that ended once the question was read, the library goes on reading for ever. This
        # takes its socket away, in whose place it then finds none (hence the AttributeError).
        self._server.connection_failed = True
        self._thread.stop()

    def end(self) -> None:
        """Kill the process and take its socket away."""
        self._server.stop(kill=True)
        self._watchdog.close()
        shutil.rmtree(self._folder, ignore_errors=True)


@dataclass(slots=True)
class _Limit:
    """Until when a piece of work may take, by the monotonic clock, and whether it took longer."""

    due: float
    is_exceeded: bool = False


class _Watchdog:
    """A thread that acts once a piece of work takes longer than it may; of one piece at a time.

    A timer a piece would be a new thread a piece, which costs more than an empty question. This one sleeps
    on when a piece ends in time, and looks for what has begun since when that piece would have been due.
    """

    def __init__(self, act: Callable[[], None]) -> None:
        """`act` is called on the watchdog's own thread, never once the piece has ended."""
        self._act = act
        self._changed = threading.Condition()
        self._limit: _Limit | None = None
        self._wakes_at: float | None = None
        self._is_closed = False
        threading.Thread(target=self._watch, name="relevance-watchdog", daemon=True).start()

    @contextmanager
    def limit(self, seconds: float) -> Generator[_Limit]:
        """Act if this context takes longer, which the limit then says."""
        limit = _Limit(monotonic() + seconds)
        with self._changed:
            self._limit = limit
            if self._wakes_at is None or limit.due < self._wakes_at:
                self._changed.notify()
        try:
            yield limit
        finally:
            with self._changed:
                self._limit = None

    def close(self) -> None:
        """End the thread; idempotent."""
        with self._changed:
            self._is_closed = True
            self._changed.notify()

    def _watch(self) -> None:
        with self._changed:
            while not self._is_closed:
                limit = self._limit
                if limit is None:
                    self._sleep_until(None)
                elif monotonic() < limit.due:
                    self._sleep_until(limit.due)
                else:
                    limit.is_exceeded = True
                    self._limit = None
                    self._act()

    def _sleep_until(self, due: float | None) -> None:
        """Or until something is said to have changed."""
        self._wakes_at = due
        self._changed.wait(None if due is None else due - monotonic())


def _numbers(text: str) -> list[int]:
    return [int(number) for number in text.split(",") if number]


def _quoted(path: Path) -> str:
    return str(path).replace("\\", "\\\\").replace("'", "\\'")
