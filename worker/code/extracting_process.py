"""The child's side of extracting facts in another process: sources come in on standard input, facts go out.

A job is two frames, path and content. Its answer is the texts of the facts, a frame each, and an empty frame;
or one frame that begins with `!` and says what was raised. Before the first job an empty frame says that the
process is ready. End of input ends it: between jobs by itself, within one by a signal that the kernel sends,
since the parser lets nothing else in this process run.
"""

from __future__ import annotations

import fcntl
import gc
import os
import resource
import select
import signal
import sys
import threading
import traceback
from collections.abc import Generator, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Final

from worker.code.extractor import extract
from worker.code.facts import ModuleFacts
from worker.code.facts_stream import encode_facts
from worker.code.frames import read_frame, write_frame

MAX_SECONDS: Final = 30
"""A job that takes longer ends the process, whether anybody waits for it or not."""

MAX_MEMORY_BYTES: Final = 2 << 30
FAILED: Final = b"!"


def extract_at_thread_start(path: str, content: bytes) -> ModuleFacts:
    """What `extract` gives at the start of a new thread.

    How deep an expression may nest before the parser gives up depends on the depth of the calling stack, and
    a file must read the same wherever it is read. Raises what `extract` raises, which is nothing but bugs.
    """
    facts: list[ModuleFacts] = []
    errors: list[BaseException] = []

    def work() -> None:
        try:
            facts.append(extract(path, content))
        except BaseException as error:  # noqa: BLE001 - raised again where it was called
            errors.append(error)

    thread = threading.Thread(target=work, name="extract", daemon=True)
    thread.start()
    thread.join()
    if errors:
        raise errors[0]
    return facts[0]


def serve(stdin: IO[bytes], stdout: IO[bytes]) -> None:
    """Answer jobs until there are no more."""
    write_frame(stdout, b"")
    stdout.flush()
    while (path := read_frame(stdin)) is not None and (content := read_frame(stdin)) is not None:
        with _ending_with_the_parent(stdin.fileno()):
            for text in _texts(path.decode("utf-8", "surrogatepass"), content):
                write_frame(stdout, text)
            stdout.flush()
        # Only now: who reads this frame may send the next job, which must not look like the parent's end.
        write_frame(stdout, b"")
        stdout.flush()
        gc.collect()


def _texts(path: str, content: bytes) -> Iterator[bytes]:
    try:
        yield from encode_facts(extract_at_thread_start(path, content))
    except MemoryError:
        # No bug: the file is one that ends its process.
        raise
    except Exception:  # noqa: BLE001 - the parent raises it again
        yield FAILED + traceback.format_exc().encode("utf-8", "backslashreplace")


@contextmanager
def _ending_with_the_parent(descriptor: int) -> Generator[None]:
    """Let the kernel end this process where the pipe's other end is closed, or time is up."""
    flags = fcntl.fcntl(descriptor, fcntl.F_GETFL)
    signal.alarm(MAX_SECONDS)
    fcntl.fcntl(descriptor, fcntl.F_SETFL, flags | os.O_ASYNC)
    try:
        # What was closed before the kernel was asked to tell is not told.
        poll = select.poll()
        poll.register(descriptor, 0)
        if poll.poll(0):
            os._exit(0)
        yield
    finally:
        fcntl.fcntl(descriptor, fcntl.F_SETFL, flags)
        signal.alarm(0)


def _prepare(descriptor: int) -> None:
    """Set the limits, and let the signals that end this process do so even while the parser runs."""
    for number in (signal.SIGIO, signal.SIGALRM):
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGIO, signal.SIGALRM})
    fcntl.fcntl(descriptor, fcntl.F_SETOWN, os.getpid())
    _, most = resource.getrlimit(resource.RLIMIT_AS)
    allowed = MAX_MEMORY_BYTES if most == resource.RLIM_INFINITY else min(most, MAX_MEMORY_BYTES)
    resource.setrlimit(resource.RLIMIT_AS, (allowed, most))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with suppress(OSError):
        # Where memory runs out all the same, this process goes first.
        Path("/proc/self/oom_score_adj").write_text("1000", encoding="ascii")
    # What was imported stays; only what a job leaves behind is looked through.
    gc.freeze()


def main() -> None:
    """Serve on standard input and output."""
    stdin, stdout = sys.stdin.buffer, sys.stdout.buffer
    # Whatever prints must not get into the answers.
    sys.stdout = sys.stderr
    _prepare(stdin.fileno())
    with suppress(BrokenPipeError):
        serve(stdin, stdout)


if __name__ == "__main__":
    main()
