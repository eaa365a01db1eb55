"""The relevance rules on SWI-Prolog: a child process, spoken to over a Unix socket.

The library for it blocks, so a thread of its own does the talking, one refinement after the other. A process
that died, does not answer in time, or was killed is replaced at the next refinement; between two attempts to
start one lies a pause, so that a machine without Prolog does not try for every request.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import tempfile
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
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
        max_inferences: int = MAX_INFERENCES,
        now: Callable[[], float] = monotonic,
    ) -> None:
        """Start nothing yet: the first refinement does. `now` is a monotonic clock."""
        self._executable = executable
        self._timeout_seconds = timeout_seconds
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
        query = f"relevance:refine({numbered.term}, {self._max_inferences}, tiers(Core, Related), Denied)"
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
        return numbered.refinement(core=found["Core"], related=found["Related"], undecided=found["Denied"])

    def _running(self) -> _Process:
        if self._process is not None and not self._process.is_broken:
            return self._process
        self._end()
        if self._now() < self._not_before:
            raise RelevanceUnavailable("SWI-Prolog could not be started a moment ago")
        try:
            self._process = _Process(self._executable, timeout_seconds=self._timeout_seconds)
        except (PrologError, PrologLaunchError, OSError) as error:
            self._not_before = self._now() + RETRY_SECONDS
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

    def __init__(self, executable: str, *, timeout_seconds: float) -> None:
        """Start it. Raises PrologError, PrologLaunchError, OSError."""
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
        try:
            self._server.start()
            self._thread = PrologThread(self._server)
            with as_file(files("worker.graph") / "relevance.pl") as rules:
                self._thread.query(f"use_module('{_quoted(rules)}')", query_timeout_seconds=10)
        except BaseException:
            self.end()
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
        overdue = threading.Event()
        watchdog = threading.Timer(self._timeout_seconds + GRACE_SECONDS, self._kill, (overdue,))
        watchdog.daemon = True
        watchdog.start()
        try:
            return cast("object", self._thread.query(query, query_timeout_seconds=self._timeout_seconds))
        except (PrologConnectionFailedError, OSError) as error:
            self.is_broken = True
            if overdue.is_set():
                raise RelevanceUnavailable("SWI-Prolog did not answer in time") from error
            raise ProcessGone(f"SWI-Prolog has ended: {type(error).__name__}") from error
        except (PrologError, ValueError) as error:
            self.is_broken = True
            raise RelevanceUnavailable(f"SWI-Prolog does not answer: {type(error).__name__}") from error
        finally:
            watchdog.cancel()

    def _kill(self, overdue: threading.Event) -> None:
        overdue.set()
        os.kill(self.id, signal.SIGKILL)

    def end(self) -> None:
        """Kill the process and take its socket away."""
        self._server.stop(kill=True)
        shutil.rmtree(self._folder, ignore_errors=True)


def _quoted(path: Path) -> str:
    return str(path).replace("\\", "\\\\").replace("'", "\\'")
