"""How log lines look. One call at start; everything else calls `structlog.get_logger()`."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable
from typing import Literal
from urllib.parse import urlsplit, urlunsplit

import structlog
from opentelemetry import trace


def mask_url(url: str) -> str:
    """The URL as a person may see it: of user, password and query only that there are some."""
    try:
        parts = urlsplit(url)
    except ValueError:  # nobody can say which part of it is the secret
        return "***"
    credentials, at, host = parts.netloc.rpartition("@")
    user, colon, _ = credentials.partition(":")
    masked = f"{user}:***" if colon else "***" if at else ""
    return urlunsplit(parts._replace(netloc=f"{masked}{at}{host}", query="***" if parts.query else ""))


class Sparingly(logging.Filter):
    """Lets the same message through once in a while, and says how often it was left out since.

    aiokafka logs each of its tries, and while a broker is away it tries dozens of times a second. The same
    means: of one logger, at one level, from one template, whatever its arguments.
    """

    def __init__(
        self,
        *,
        every_seconds: float = 10.0,
        clock: Callable[[], float] = time.monotonic,
        remembered: int = 512,
    ) -> None:
        """`clock` gives seconds. Of more templates than `remembered` the one seen first is forgotten."""
        super().__init__()
        self._every_seconds = every_seconds
        self._clock = clock
        self._remembered = remembered
        self._passed_at: dict[tuple[str, int, str], float] = {}
        self._left_out: dict[tuple[str, int, str], int] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether to write the record; adds to its text how many like it were not written."""
        key = (record.name, record.levelno, str(record.msg))
        now = self._clock()
        passed_at = self._passed_at.get(key)
        if passed_at is not None and now - passed_at < self._every_seconds:
            self._left_out[key] = self._left_out.get(key, 0) + 1
            return False
        if passed_at is None and len(self._passed_at) >= self._remembered:
            oldest = next(iter(self._passed_at))
            del self._passed_at[oldest]
            self._left_out.pop(oldest, None)
        self._passed_at[key] = now
        if left_out := self._left_out.pop(key, 0):
            record.msg, record.args = f"{record.getMessage()} (and {left_out} more like it)", ()
        return True


def with_trace(_logger: object, _method: str, event: structlog.types.EventDict) -> structlog.types.EventDict:
    """The line with the ids of the current span, where there is one: the worker's own, else the caller's."""
    span = trace.get_current_span().get_span_context()
    if span.is_valid:
        event["trace_id"] = trace.format_trace_id(span.trace_id)
        event["span_id"] = trace.format_span_id(span.span_id)
    return event


def bind_ids(project_id: str | None, **own_id: str | None) -> None:
    """Put whose record it is on each line from now on: of this task, and of what it starts.

    Each record is worked on in a task of its own, with which this ends; no ids stay of a record before.
    `own_id` is by what the record is known, under the name that its body gives it; ids that could not be read
    are left out.
    """
    structlog.contextvars.clear_contextvars()
    ids = {"project_id": project_id, **own_id}
    structlog.contextvars.bind_contextvars(
        **{name: value for name, value in ids.items() if value is not None}
    )


def configure_logs(*, level: str, log_format: Literal["console", "json"]) -> None:
    """Write lines of at least `level` to standard error, so that standard output stays data.

    The libraries' own loggers (aiokafka, faststream) go the same way in the same format, from warning up,
    each message once in ten seconds.
    """
    renderer: structlog.types.Processor = (
        structlog.processors.JSONRenderer()
        if log_format == "json"
        else structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty())
    )
    shared: list[structlog.types.Processor] = [
        with_trace,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.format_exc_info,
    ]
    structlog.configure(
        processors=[structlog.contextvars.merge_contextvars, *shared, renderer],
        wrapper_class=structlog.make_filtering_bound_logger(logging.getLevelNamesMapping()[level.upper()]),
        # Asked for each logger: standard error may be another file by then.
        logger_factory=lambda *_: structlog.WriteLogger(sys.stderr),
        cache_logger_on_first_use=False,
    )
    libraries = logging.StreamHandler(sys.stderr)
    libraries.addFilter(Sparingly())
    libraries.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            # Without a record's ids: a client that one record caused to be made serves the others, too.
            foreign_pre_chain=[structlog.stdlib.add_logger_name, *shared],
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, renderer],
        )
    )
    logging.basicConfig(handlers=[libraries], level=logging.WARNING, force=True)
