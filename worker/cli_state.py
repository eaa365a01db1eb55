"""The command that shows what is known of a thread."""

from __future__ import annotations

import asyncio
import sys
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from schemas.times import parse_time
from worker.terminal import ProjectOption, check_project, fail, load_settings

if TYPE_CHECKING:
    from worker.wiring import Settings


def session(
    project: ProjectOption,
    thread: Annotated[
        str | None,
        typer.Option("--thread", help="The thread; only the project as a whole where absent."),
    ] = None,
    template: Annotated[
        Path | None,
        typer.Option(help="A Jinja2 template of your own; `--show-template` prints the built-in one."),
    ] = None,
    show_template: Annotated[
        bool, typer.Option("--show-template", help="Print the built-in template and end.")
    ] = False,
    as_of: Annotated[
        str | None, typer.Option(help="The instant at which failures are judged, RFC 3339; now where absent.")
    ] = None,
) -> None:
    """Show what is known of a thread as one Markdown document: goal, plan, decisions, memory, artifacts.

    For people; a prompt holds what its layers have room for. Exits 1 where nothing is known.

    Example: `context-worker session --project shop --thread t-1`
    """
    from jinja2 import TemplateError  # noqa: PLC0415  # loads only where it is used

    from worker.providers.session_document import built_in_template  # noqa: PLC0415  # as above

    if show_template:
        sys.stdout.write(built_in_template())
        return
    check_project(project)
    try:
        instant = None if as_of is None else _instant(as_of)
        own = None if template is None else template.read_text(encoding="utf-8")
        text = asyncio.run(_document(load_settings(), project, thread, own, instant))
    except TemplateError as error:
        fail(f"the template: {error}")
    if text is None:
        named = f"project {project!r}" if thread is None else f"thread {thread!r} of project {project!r}"
        fail(f"nothing is known of {named}")
    sys.stdout.write(text)


def _instant(text: str) -> datetime:
    """The instant, or the end with one line that names the option."""
    try:
        return parse_time(text)[0]
    except ValueError as error:
        fail(f"--as-of {text!r}: {error}")


async def _document(
    settings: Settings, project_id: str, thread_id: str | None, template: str | None, as_of: datetime | None
) -> str | None:
    from worker.wiring_state import session_document  # noqa: PLC0415  # as above

    return await session_document(settings, project_id, thread_id, template=template, as_of=as_of)
