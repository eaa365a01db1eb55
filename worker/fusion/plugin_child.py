"""The process of one plug-in strategy: jobs come in on standard input, answers go out, one line each.

What a plug-in prints goes to standard error. In a worker that leads nowhere, since it may quote a prompt;
where none is sent it is shown, and so is why a plug-in cannot be made. The process can be ended at any time;
it ends by itself with its input, and where a job takes longer than anybody waits for it.
"""

from __future__ import annotations

import os
import resource
import signal
import sys
import traceback
from collections.abc import Callable
from contextlib import suppress
from importlib.metadata import EntryPoint
from typing import IO, Final, cast

from worker.fusion.plugin_wire import decode_job, encode_answer, encode_error, encode_hello
from worker.fusion.protocols import ContextStrategy
from worker.fusion.strategies.registry import check_capabilities

GROUP: Final = "context_worker.strategies"
"""The entry point group in which plug-ins are found."""

MAX_MEMORY_BYTES: Final = 2 << 30
_GRACE_SECONDS: Final = 1.0
"""Past the time that a job may take, until this process ends itself: mostly it was ended long before."""


def load(name: str, target: str) -> ContextStrategy:
    """The strategy that an entry point names, made where it names a class.

    Raises whatever loading it raises, and ValueError where it is not fit.
    """
    found: object = EntryPoint(name=name, value=target, group=GROUP).load()
    strategy = cast("ContextStrategy", cast("Callable[[], object]", found)() if callable(found) else found)
    if strategy.name != name:
        raise ValueError(f"the strategy calls itself {strategy.name!r}, not {name!r}")
    check_capabilities(strategy)
    return strategy


def serve(strategy: ContextStrategy, jobs: IO[bytes], answers: IO[bytes], *, job_seconds: float) -> None:
    """Answer jobs until there are no more."""
    for line in jobs:
        signal.setitimer(signal.ITIMER_REAL, job_seconds + _GRACE_SECONDS)
        answers.write(_answer(strategy, line))
        answers.flush()
        signal.setitimer(signal.ITIMER_REAL, 0)


def _answer(strategy: ContextStrategy, line: bytes) -> bytes:
    try:
        job = decode_job(line)
        confidence = float(strategy.can_handle(job.frame, job.backends))
        proposed = (
            strategy.assemble(job.frame, job.backends, job.budget_tokens, job.plan_context)
            if confidence > 0
            else ()
        )
        return encode_answer(confidence, proposed)
    except Exception as error:  # noqa: BLE001 - whatever it is, the worker goes on without it
        return encode_error(error)


def _limit() -> None:
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    _, most = resource.getrlimit(resource.RLIMIT_AS)
    allowed = MAX_MEMORY_BYTES if most == resource.RLIM_INFINITY else min(most, MAX_MEMORY_BYTES)
    resource.setrlimit(resource.RLIMIT_AS, (allowed, most))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def main(name: str, target: str, job_seconds: float) -> None:
    """Serve on standard input and output."""
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    # Also what is printed below Python must not get among the answers.
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    # Opened on a pipe, it would keep back what it has, and this process mostly ends by being killed.
    sys.stdout = sys.stderr
    _limit()
    with suppress(BrokenPipeError):
        try:
            strategy = load(name, target)
            hello = encode_hello(strategy.capabilities, strategy.explain())
        except Exception as error:  # noqa: BLE001 - the worker says so and goes on without it
            traceback.print_exc()
            answers.write(encode_error(error))
            answers.flush()
            return
        answers.write(hello)
        answers.flush()
        serve(strategy, sys.stdin.buffer, answers, job_seconds=job_seconds)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], float(sys.argv[3]))
