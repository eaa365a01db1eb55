"""What every command shares: data goes to standard output, talk to standard error, an error is one line."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Annotated, Final, NoReturn

import typer
from rich.console import Console

from worker.logs import configure_logs

if TYPE_CHECKING:
    from pathlib import Path

    from worker.wiring import Settings

_UNBROKEN_COLUMNS: Final = 10_000
talk = Console(stderr=True, highlight=False)
ProjectOption = Annotated[str, typer.Option("--project", help="The project's id.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON for programs.")]


REJECTED: Final = 4
"""Exit code of a command whose request was refused: 1 is any other failure, 2 a wrong call, 3 a bad
deploy."""


def page_console() -> Console:
    """Standard output for a person; into a file or a pipe as wide as its longest line, so nothing wraps."""
    console = Console(highlight=False)
    return console if console.is_terminal else Console(highlight=False, width=_UNBROKEN_COLUMNS)


def fail(message: str, *, code: int = 1) -> NoReturn:
    """Say what is wrong in one line on standard error, and exit."""
    talk.print(f"context-worker: {message}", style="red", markup=False, soft_wrap=True)
    raise SystemExit(code)


def fail_reading(path: Path | str, error: OSError) -> NoReturn:
    """Say that a file cannot be read, and why; then exit."""
    fail(f"cannot read {path}: {error.strerror or error}")


def load_settings(*, is_service: bool = False) -> Settings:
    """The settings from the environment, or one clear line on what is wrong with them.

    A command that does one thing speaks for itself, so only warnings and errors are logged beside it.
    """
    from worker.wiring_settings import read_settings  # noqa: PLC0415  # `--help` needs none

    try:
        settings = read_settings()
    except ValueError as error:
        fail(str(error))
    if not is_service:
        # What the client library says of a broker that is away, a command says in one line.
        logging.getLogger("aiokafka").setLevel(logging.CRITICAL)
    level = settings.log_level if is_service or settings.log_level == "error" else "warning"
    configure_logs(level=level, log_format=settings.log_format)
    return settings


def check_project(project: str) -> None:
    """End with one line where that is no project id."""
    from pydantic import TypeAdapter, ValidationError  # noqa: PLC0415  # loads only where it is used

    from schemas.wire import ProjectId  # noqa: PLC0415  # loads only where it is used

    try:
        TypeAdapter[str](ProjectId).validate_python(project)
    except ValidationError:
        fail(f"{project!r} is no project id: letters, digits, dot, underscore and dash, at most 128")
