"""What the worker does whose put of an outcome won: count it, and write its usage line."""

from __future__ import annotations

from typing import Protocol

from schemas.codes import Outcome
from schemas.usage import UsageEvent
from worker.telemetry import Telemetry


class UsageLog(Protocol):
    """Where usage events go as lines."""

    def append(self, line: bytes) -> None:
        """Take one event, without its line break, and return at once; what is lost is told elsewhere."""
        ...


class Conclusions:
    """Counts and logs outcomes; one per worker."""

    def __init__(self, telemetry: Telemetry, usage_log: UsageLog) -> None:
        """Count there, write here."""
        self._telemetry = telemetry
        self._usage_log = usage_log

    def add(
        self, outcome: Outcome, *, code: str = "", bundle: UsageEvent | None = None, line: bytes | None
    ) -> None:
        """Take down one outcome; `bundle` is the usage event of one, `line` what is logged of any.

        The event itself is on the usage topic; a full disk is no reason to stop answering.
        """
        self._telemetry.outcomes.labels(outcome, code).inc()
        if bundle is not None:
            self._telemetry.count_bundle(bundle)
        if line is not None:
            self.add_line(line)

    def add_line(self, line: bytes) -> None:
        """Write a line of the usage log, as far as that can be done."""
        self._usage_log.append(line)

    def add_bundle(self, usage: UsageEvent, line: bytes) -> None:
        """Take down a bundle that no request asked for, but an answer."""
        self.add(usage.outcome, bundle=usage, line=line)
