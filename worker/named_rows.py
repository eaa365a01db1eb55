"""Rows that end in a name: never broken, so that it can be copied and searched for."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Final

from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

_GAP: Final = "  "
_INDENT: Final = "    "


@dataclass(frozen=True, slots=True, kw_only=True)
class Named:
    """One row: short cells, the first of them in `style`, and a name of any length."""

    cells: tuple[str, ...]
    name: str
    style: str = "dim"


def print_named(
    console: Console, headings: Sequence[str], rows: Sequence[Named], *, right: Collection[int] = ()
) -> None:
    """Columns as wide as their widest cell, those numbered in `right` aligned there, the names last.

    Where not all rows fit the console's width, names stand on lines of their own below their cells. No line
    is wrapped here, and none ends in spaces. O(rows).
    """
    head = Named(cells=tuple(headings), name="what")
    widths = [
        max(map(cell_len, column)) for column in zip(*[row.cells for row in (head, *rows)], strict=True)
    ]
    before = sum(widths) + len(_GAP) * len(widths)
    fits = before + max([cell_len(row.name) for row in rows], default=0) <= console.width
    console.print(Text(_line(head, widths, right, fits=fits)), style="dim", soft_wrap=True)
    for row in rows:
        line = Text(_line(row, widths, right, fits=fits))
        if not row.cells[0]:
            line.stylize(row.style)
        line.stylize(row.style, 0, len(row.cells[0]))
        console.print(line, soft_wrap=True)


def _line(row: Named, widths: Sequence[int], right: Collection[int], *, fits: bool) -> str:
    padded: list[str] = []
    for number, (cell, width) in enumerate(zip(row.cells, widths, strict=True)):
        space = " " * (width - cell_len(cell))
        padded.append(space + cell if number in right else cell + space)
    cells = _GAP.join(padded)
    if fits:
        return cells + _GAP + row.name
    return f"{cells.rstrip()}\n{_INDENT}{row.name}" if cells.strip() else _INDENT + row.name
