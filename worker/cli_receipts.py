"""The commands that answer "why does the prompt hold this?": explain, diff, what-if."""

from __future__ import annotations

import asyncio
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, NoReturn

import typer

from worker.errors import Rejected
from worker.private_files import open_private
from worker.terminal import (
    REJECTED,
    AsJson,
    check_project,
    fail,
    fail_reading,
    load_settings,
    page_console,
    talk,
)

if TYPE_CHECKING:
    from worker.assembly import Assembled
    from worker.explaining.replay import Verdict
    from worker.explaining.stored import Stored
    from worker.wiring import Settings

DIFFERS: Final = 5
"""Exit code of a verification that found another bundle, or parts that do not belong together."""
NO_CAPTURE: Final = 6
"""Exit code where only a capture could answer, and there is none."""
_MOST_DIGITS: Final = 18
"""Of a number of tokens; no window has as many."""

Project = Annotated[str | None, typer.Option("--project", help="The project that the id belongs to.")]
Generation = Annotated[int, typer.Option(help="Raised when a dead letter is redriven.", min=0)]
ReceiptFile = Annotated[
    Path | None,
    typer.Option(
        "--receipt", help="A file of `assemble --receipt-out`, or a bundle that holds its record; no store."
    ),
]
AllLines = Annotated[bool, typer.Option("--all", help="Every line, not only the first ones.")]
HtmlFile = Annotated[
    Path | None, typer.Option("--html", help="Write one self-contained page to this file, and print nothing.")
]


def explain(
    request_id: Annotated[str | None, typer.Argument(metavar="ID", help="The request's id.")] = None,
    project: Project = None,
    generation: Generation = 0,
    receipt: ReceiptFile = None,
    verify: Annotated[
        bool, typer.Option("--verify", help="Make the bundle again from its capture and compare every byte.")
    ] = False,
    all_lines: AllLines = False,
    html: HtmlFile = None,
    as_json: AsJson = False,
) -> None:
    """Say what went into a prompt, what stayed out, and which rule decided.

    Exit code 0; 4 where the request was rejected; 6 where all of it has expired; with `--verify` 5 where the
    bundle differs (a page is written, and says so), and 6 where its capture was not kept.

    Example: `context-worker explain r-17 --project shop --verify`
    """
    from worker.explaining.view import explain as explanation_of  # noqa: PLC0415  # loads only where it is used
    from worker.receipt_views import print_explanation  # noqa: PLC0415  # as above

    settings = load_settings()
    stored = _stored(settings, request_id, project, generation, receipt)
    verdict = _verdict(stored, settings) if verify else None
    if html is not None:
        from worker.explaining.page import explanation_page  # noqa: PLC0415  # loads only where it is used

        _write_page(html, explanation_page(explanation_of(stored), verdict=verdict))
    if verdict is not None:
        _print_verdict(verdict, as_json=as_json)
        return
    if html is not None and not as_json:
        return
    explanation = explanation_of(stored)
    if as_json:
        _write(asdict(explanation))
    else:
        print_explanation(explanation, page_console(), all_lines=all_lines)


def diff(
    first: Annotated[str, typer.Argument(metavar="A", help="A request's id, or a file, as for --receipt.")],
    second: Annotated[str, typer.Argument(metavar="B", help="Another one.")],
    project: Project = None,
    generation: Generation = 0,
    all_lines: AllLines = False,
    html: HtmlFile = None,
    as_json: AsJson = False,
) -> None:
    """Say why two prompts differ: inputs, fragments with their rules, and the first differing byte.

    An argument that ends in `.json` and names a file is read from there, any other from the outcome store.

    Example: `context-worker diff r-17 r-18 --project shop`
    """
    from worker.explaining.difference import difference  # noqa: PLC0415  # loads only where it is used
    from worker.receipt_views import print_difference  # noqa: PLC0415  # as above

    settings = load_settings()
    both = [
        _stored(settings, None, None, 0, Path(name))
        if name.endswith(".json") and (project is None or Path(name).is_file())
        else _stored(settings, name, project, generation, None)
        for name in (first, second)
    ]
    found = difference(*both)
    if html is not None:
        from worker.explaining.page import difference_page  # noqa: PLC0415  # loads only where it is used
        from worker.explaining.view import explain as explanation_of  # noqa: PLC0415  # as above

        _write_page(
            html, difference_page(found, first=explanation_of(both[0]), second=explanation_of(both[1]))
        )
    if as_json:
        _write(asdict(found))
    elif html is None:
        print_difference(found, page_console(), all_lines=all_lines)


def what_if(
    request_id: Annotated[str | None, typer.Argument(metavar="ID", help="The request's id.")] = None,
    project: Project = None,
    generation: Generation = 0,
    receipt: ReceiptFile = None,
    total: Annotated[int | None, typer.Option(help="Another `budget.total`, in tokens.", min=1)] = None,
    layer: Annotated[
        list[str] | None, typer.Option(help="Another reservation, as `graph=4000`; may come again.")
    ] = None,
    strategy: Annotated[
        str | None, typer.Option(help="Another strategy, or several joined with `+`.")
    ] = None,
    steps: Annotated[
        int, typer.Option(help="How many further thousands of tokens to try.", min=0, max=32)
    ] = 3,
    all_lines: AllLines = False,
    html: HtmlFile = None,
    as_json: AsJson = False,
) -> None:
    """Say what another budget or strategy would change, and what the next thousand tokens are worth.

    Made from the capture: the sources are not asked again. Exit code 4 where the worker would refuse, 6 where
    there is no capture.

    Example: `context-worker what-if r-17 --project shop --total 32000`
    """
    from worker.explaining.supposing import Supposition, suppose  # noqa: PLC0415  # loads only where it is used
    from worker.receipt_views import print_supposed  # noqa: PLC0415  # as above
    from worker.receipts.capture import CaptureUnreadable  # noqa: PLC0415  # as above
    from worker.wiring_receipts import explaining_policy  # noqa: PLC0415  # as above

    settings = load_settings()
    supposition = Supposition(total_tokens=total, layers=_layers(layer or []), strategy=strategy)
    stored = _stored(settings, request_id, project, generation, receipt)
    try:
        supposed = suppose(stored.capture(), explaining_policy(settings), supposition, steps=steps)
    except CaptureUnreadable as error:
        fail(f"{error.code}: {error}", code=NO_CAPTURE)
    except Rejected as error:
        fail(f"{error.code}: {error.message}", code=REJECTED)
    if html is not None:
        from worker.explaining.page import supposed_page  # noqa: PLC0415  # loads only where it is used
        from worker.explaining.view import explain as explanation_of  # noqa: PLC0415  # as above

        _write_page(html, supposed_page(supposed, supposition, explanation=explanation_of(stored)))
    if as_json:
        _write(asdict(supposed))
    elif html is None:
        print_supposed(supposed, page_console(), all_lines=all_lines)


def write_receipt(path: Path, assembled: Assembled) -> None:
    """Write what explains a bundle to a file, its capture whole."""
    from schemas.bundle import to_wire  # noqa: PLC0415  # loads only where it is used
    from worker.explaining.stored import write_file  # noqa: PLC0415  # as above

    content = write_file(
        to_wire(assembled.bundle),
        record=assembled.trail.record,
        usage=to_wire(assembled.usage),
        capture=assembled.trail.capture(max_bytes=sys.maxsize),
    )
    with open_private(path, "wb") as file:
        file.write(content)


def _verdict(stored: Stored, settings: Settings) -> Verdict:
    from worker.explaining.replay import verify  # noqa: PLC0415  # loads only where it is used
    from worker.receipts.capture import CaptureUnreadable  # noqa: PLC0415  # as above
    from worker.wiring_receipts import explaining_policy  # noqa: PLC0415  # as above

    try:
        return verify(stored, explaining_policy(settings))
    except CaptureUnreadable as error:
        fail(f"{error.code}: {error}", code=NO_CAPTURE)
    except Rejected as error:
        fail(f"this code refuses what was served: {error.code}: {error.message}", code=DIFFERS)


def _print_verdict(verdict: Verdict, *, as_json: bool) -> None:
    from worker.receipt_views import print_verdict  # noqa: PLC0415  # loads only where it is used

    if as_json:
        _write(asdict(verdict))
    else:
        print_verdict(verdict, page_console())
    if verdict.outcome != "same":
        raise typer.Exit(DIFFERS)


def _write_page(path: Path, page: str) -> None:
    with open_private(path, "w") as file:
        file.write(page)
    talk.print(f"wrote {path}", markup=False, soft_wrap=True)


def _stored(
    settings: Settings, request_id: str | None, project: str | None, generation: int, receipt: Path | None
) -> Stored:
    from worker.explaining.stored import WasRejected, read_file  # noqa: PLC0415  # loads only where it is used
    from worker.ports import OutcomeKey  # noqa: PLC0415  # as above
    from worker.receipts.capture import CaptureUnreadable  # noqa: PLC0415  # as above
    from worker.wiring_receipts import read_stored  # noqa: PLC0415  # as above

    try:
        if receipt is not None:
            if request_id is not None:
                fail("give an id or --receipt, not both")
            return read_file(_bytes_of(receipt))
        if request_id is None:
            fail("give the id of a request, or --receipt FILE")
        if project is None:
            fail("ids belong to a project: give --project")
        check_project(project)
        key = OutcomeKey(project_id=project, request_id=request_id, generation=generation)
        return asyncio.run(read_stored(settings, key))
    except WasRejected as error:
        _fail_rejected(error)
    except CaptureUnreadable as error:
        fail(f"{error.code}: {error}", code=NO_CAPTURE)


def _bytes_of(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        fail_reading(path, error)


def _fail_rejected(error: Any) -> NoReturn:
    details = "".join(f"\n  {name}: {value}" for name, value in sorted(error.rejection.details.items()))
    fail(f"{error}{details}", code=REJECTED)


def _layers(given: list[str]) -> dict[str, int]:
    layers: dict[str, int] = {}
    for item in given:
        name, _, tokens = item.partition("=")
        # Python refuses to read a number of thousands of digits, with an error of its own.
        if not name or not tokens.isascii() or not tokens.isdigit() or len(tokens) > _MOST_DIGITS:
            fail(f"--layer {item!r}: write it as graph=4000")
        layers[name] = int(tokens)
    return layers


def _write(document: dict[str, Any]) -> None:
    import json  # noqa: PLC0415  # loads only where it is used

    sys.stdout.write(json.dumps(document, indent=2, ensure_ascii=False) + "\n")
