"""Many files read at once, in processes of their own: on every core, and out of reach of what they do.

A file that ends its process (a crash in a parser written in C, memory without end) or that takes too long is
`failed`, with the reason, and costs no other file anything. Few files are read in this process, where
starting another would take longer.

Blocks: call from a thread.
"""

from __future__ import annotations

import os
import queue
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import IO, Final, cast

from worker.children import finding_this_package, without_settings
from worker.code.facts_codec import decode_reading, encode_reading
from worker.code.frames import read_frame, write_frame
from worker.code.languages import language_of
from worker.code.reading import FileReaders, FileReading
from worker.code.reading_process import Job, name_readers, read_all
from worker.errors import StoreUnavailable

IN_PROCESS_BYTES: Final = 600_000
"""Sources shorter than this in all take less time than a process takes to start."""

MAX_FILE_SECONDS: Final = 30.0
MAX_START_SECONDS: Final = 60.0
_WHAT: Final = "the process that reads files"
_AHEAD: Final = 8
"""Files that a process is given before it has answered, so that it never waits for us."""

Readings = Mapping[str, tuple[FileReading, bytes]]


def read_files(
    jobs: Sequence[Job],
    readers: FileReaders,
    *,
    processes: int = 0,
    max_file_seconds: float = MAX_FILE_SECONDS,
    max_start_seconds: float = MAX_START_SECONDS,
    on_read: Callable[[int], object] = lambda _: None,
) -> Readings:
    """By path, the reading of each file and that encoded. `on_read` is told how many there are so far.

    `processes` is how many to start at most; 0 means one a core. The result does not depend on it.
    Raises StoreUnavailable where a process is not ready in time, and RuntimeError where it ends at its start.
    """
    size = sum(len(content) for _, content in jobs)
    results: dict[str, tuple[FileReading, bytes]] = {}
    if size <= IN_PROCESS_BYTES and not processes:

        def give(path: str, reading: FileReading, encoded: bytes) -> None:
            results[path] = reading, encoded
            on_read(len(results))

        thread = threading.Thread(target=read_all, args=(jobs, readers, give))
        thread.start()
        thread.join()
        return results
    pool = _Pool(jobs, readers, max_file_seconds=max_file_seconds, max_start_seconds=max_start_seconds)
    count = processes or len(os.sched_getaffinity(0))
    for path, answer in pool.run(min(count, len(jobs))):
        reading = decode_reading(answer)
        if reading is None:
            reading = _failed(path, "its reading could not be read back")
        results[path] = reading, answer
        on_read(len(results))
    return results


def _failed(path: str, reason: str) -> FileReading:
    return FileReading(path=path, language=language_of(path), status="failed", reason=reason)


class _Pool:
    """Processes that share one queue of files."""

    def __init__(
        self,
        jobs: Sequence[Job],
        readers: FileReaders,
        *,
        max_file_seconds: float,
        max_start_seconds: float,
    ) -> None:
        # Long files first, so that none is left alone at the end.
        self._jobs = deque(sorted(jobs, key=lambda job: (-len(job[1]), job[0])))
        self._readers = name_readers(readers)
        self._max_file_seconds = max_file_seconds
        self._max_start_seconds = max_start_seconds
        self._answers: queue.SimpleQueue[tuple[str, bytes] | BaseException | None] = queue.SimpleQueue()

    def run(self, count: int) -> _Answers:
        threads = [threading.Thread(target=self._work, daemon=True) for _ in range(count)]
        for thread in threads:
            thread.start()
        return _Answers(self._answers, count)

    def _work(self) -> None:
        """Drive one process after the other until there are no more files."""
        try:
            while self._jobs:
                self._drive(_Child(self._readers))
        except BaseException as error:  # noqa: BLE001 - raised again where the answers are read
            self._answers.put(error)
        finally:
            self._answers.put(None)

    def _drive(self, child: _Child) -> None:
        """Give files to a process until none are left, or until it is gone."""
        sent: deque[Job] = deque()
        try:
            if child.answer(self._max_start_seconds) is None:
                if child.is_late:
                    # It is slow, not wrong: the machine is crowded, and will not be for ever.
                    raise StoreUnavailable(_WHAT, "it is not ready in time")
                raise RuntimeError(f"{_WHAT} does not start")
            while True:
                while len(sent) < _AHEAD and (job := self._take()):
                    sent.append(job)
                    child.send(job)
                if not sent:
                    return
                answer = child.answer(self._max_file_seconds)
                if answer is None:
                    path = sent.popleft()[0]
                    reason = "took too long to read" if child.is_late else "ended the process that read it"
                    self._answers.put((path, encode_reading(_failed(path, reason))))
                    # The others had no part in it.
                    self._jobs.extendleft(reversed(sent))
                    return
                self._answers.put((sent.popleft()[0], answer))
        finally:
            child.close()

    def _take(self) -> Job | None:
        try:
            return self._jobs.popleft()
        except IndexError:
            return None


class _Answers:
    """Iterates over the answers as they come, until every thread is done."""

    def __init__(
        self, answers: queue.SimpleQueue[tuple[str, bytes] | BaseException | None], open_count: int
    ) -> None:
        self._answers = answers
        self._open = open_count

    def __iter__(self) -> _Answers:
        return self

    def __next__(self) -> tuple[str, bytes]:
        while self._open:
            answer = self._answers.get()
            if answer is None:
                self._open -= 1
            elif isinstance(answer, BaseException):
                raise answer
            else:
                return answer
        raise StopIteration


class _Child:
    """One process that reads files."""

    def __init__(self, readers: str) -> None:
        self._process = subprocess.Popen(  # noqa: S603 - this interpreter, and a module of our own
            [sys.executable, "-m", "worker.code.reading_process", readers],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=finding_this_package(without_settings(os.environ)),
        )
        self._stdin = cast("IO[bytes]", self._process.stdin)
        self._stdout = cast("IO[bytes]", self._process.stdout)
        self._outgoing: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        # A thread of its own, since both ends may wait for the other to read.
        self._writer = threading.Thread(target=self._write, daemon=True)
        self._writer.start()
        self.is_late = False

    def send(self, job: Job) -> None:
        self._outgoing.put(job)

    def _write(self) -> None:
        try:
            while (job := self._outgoing.get()) is not None:
                write_frame(self._stdin, job[0].encode())
                write_frame(self._stdin, job[1])
                self._stdin.flush()
        except OSError:
            # The process is gone, which whoever waits for its answer will see.
            return

    def answer(self, timeout_seconds: float) -> bytes | None:
        """The next answer; None where the process is gone, or had to be ended for taking too long."""
        watch = threading.Timer(timeout_seconds, self._end)
        watch.start()
        try:
            return read_frame(self._stdout)
        finally:
            watch.cancel()

    def _end(self) -> None:
        self.is_late = True
        self._process.kill()

    def close(self) -> None:
        """End the process, at once."""
        self._process.kill()
        self._outgoing.put(None)
        self._writer.join()
        self._process.wait()
        for stream in (self._stdin, self._stdout):
            try:
                stream.close()
            except OSError:  # what was not written yet has nobody to go to
                continue
