"""What spans and pushed metrics have in common: who sends them, to whom, and what they say of an error."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol, runtime_checkable
from uuid import UUID

from opentelemetry import trace
from opentelemetry.trace import SpanContext, StatusCode
from opentelemetry.util.types import AttributeValue

from worker import semconv

SCOPE: Final = "context-worker"
"""Both the service's and the instrumentation's name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """A collector that takes OTLP over HTTP."""

    url: str
    """Its base, as `http://127.0.0.1:4318`."""
    token: str | None = None
    """A bearer token."""
    ca_file: Path | None = None
    """CA certificates; the system's where absent."""
    timeout_seconds: float = 30.0
    """For one message, all tries included."""


def resource_of(*, version: str) -> Mapping[str, str]:
    """Who sends: service, version, and a name that no other process has."""
    return {
        semconv.SERVICE_NAME: SCOPE,
        semconv.SERVICE_VERSION: version,
        semconv.SERVICE_INSTANCE_ID: str(UUID(bytes=os.urandom(16), version=4)),
    }


def mark_error(span: trace.Span, error: BaseException) -> None:
    """Say on the span that it failed, and of what kind the error is: a refusal's code, else its type.

    Never its message, which may quote a prompt.
    """
    span.set_attribute(semconv.ERROR_TYPE, error_type(error))
    span.set_status(StatusCode.ERROR)


def error_type(error: BaseException) -> str:
    """A refusal's code, else the type of the error."""
    code: object = getattr(error, "code", None)
    return code if isinstance(code, str) else type(error).__name__


@runtime_checkable
class EndedSpans(Protocol):
    """A tracer provider that takes spans of what is over already."""

    def add_ended(
        self,
        name: str,
        *,
        parent: SpanContext,
        started_ns: int,
        ended_ns: int,
        attributes: Mapping[str, AttributeValue],
        is_error: bool,
    ) -> None:
        """Record a child of a span that is recorded; times in nanoseconds since the epoch."""
        ...
