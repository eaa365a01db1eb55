"""Named points on the path where an operator's drill or a test can make something go wrong for real.

`WORKER_FAILPOINTS="provider.ast=hang@drill; assemble=kill@poison"`: at the point, for a request whose
message holds the text after `@` (any request without one), `hang` swallows cancellation for good, `kill`
sends this process SIGKILL, `raise` raises. Off (the default), a point costs one attribute check.
"""

from __future__ import annotations

import asyncio
import os
import signal
from dataclasses import dataclass
from typing import Final, Literal, get_args

Action = Literal["hang", "kill", "raise"]
POINTS: Final = (
    "decode",
    "assemble",
    "provider.mission",
    "provider.plan",
    "provider.memory",
    "provider.artifacts",
    "provider.graph",
    "provider.ast",
    "provider.semantic",
    "provider.task",
    "outcome.before_store",
    "outcome.after_store",
    "reply.before_usage",
    "usage.before_done",
    "sync.before_index",
    "state.before_store",
    "state.after_store",
    "tool.before_call",
    "tool.before_reply",
    "answer.before_judge",
    "answer.before_retry_store",
    "answer.after_retry_store",
    "answer.before_store",
    "answer.after_store",
    "answer.before_usage",
    "answer.before_escalation",
    "answer.before_done",
)


@dataclass(frozen=True, slots=True)
class Failpoint:
    """What happens at a point, and to whom."""

    action: Action
    match: str


class FailpointError(RuntimeError):
    """Raised at a point whose action is `raise`: an unexpected error, on purpose."""


class Failpoints:
    """The armed points of one worker."""

    def __init__(self, spec: str = "") -> None:
        """Read the specification. Raises ValueError naming the known points and actions."""
        self._armed = dict(_parse(item) for item in spec.split(";") if item.strip())

    async def reach(self, point: str, text: str | bytes = "") -> None:
        """Do what is armed at `point` for a request whose message is `text`; nothing otherwise.

        Bytes are read as UTF-8 here, where it is known that somebody asks for them.
        """
        if not self._armed:
            return
        armed = self._armed.get(point)
        if armed is None:
            return
        message = text.decode("utf-8", "replace") if isinstance(text, bytes) else text
        if armed.match not in message:
            return
        if armed.action == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if armed.action == "raise":
            msg = f"failpoint {point}"
            raise FailpointError(msg)
        await _hang()


async def _hang() -> None:
    """Wait for ever and swallow every cancellation, as a driver stuck in a retry loop does."""
    while True:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            continue


def _parse(item: str) -> tuple[str, Failpoint]:
    point, _, rest = item.strip().partition("=")
    action, _, match = rest.partition("@")
    if point not in POINTS or action not in get_args(Action):
        known = f"points: {', '.join(POINTS)}; actions: {', '.join(get_args(Action))}"
        msg = f"failpoint {item.strip()!r} is not `point=action[@text]`; {known}"
        raise ValueError(msg)
    return point, Failpoint(action=action, match=match)  # pyright: ignore[reportArgumentType]  # checked above
