"""How log lines look. One call at start; everything else calls `structlog.get_logger()`."""

from __future__ import annotations

import logging
import sys
from typing import Literal
from urllib.parse import urlsplit, urlunsplit

import structlog


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


def configure_logs(*, level: str, log_format: Literal["console", "json"]) -> None:
    """Write lines of at least `level` to standard error, so that standard output stays data.

    The libraries' own loggers (aiokafka, faststream) go the same way, from warning up.
    """
    renderer: structlog.types.Processor = (
        structlog.processors.JSONRenderer()
        if log_format == "json"
        else structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty())
    )
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.getLevelNamesMapping()[level.upper()]),
        # Asked for each logger: standard error may be another file by then.
        logger_factory=lambda *_: structlog.WriteLogger(sys.stderr),
        cache_logger_on_first_use=False,
    )
    logging.basicConfig(
        stream=sys.stderr, level=logging.WARNING, format="%(levelname)s %(name)s %(message)s", force=True
    )
