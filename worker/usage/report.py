"""The usage report: for a person in a terminal of 80 columns, and as JSON for a program."""

from __future__ import annotations

import json
import unicodedata
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from typing import Final

from rich.console import Group, RenderableType
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from worker.usage.aggregate import LayerTotals, SpendTotals, UsageAggregate, UseTotals

_BAR_WIDTH: Final = 24
_NAME_WIDTH: Final = 30
_ROWS: Final = 20
_HALF: Final = 0.5
_FULL: Final = 0.9
_TURNS: Final = frozenset("\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")
"""Bidirectional controls; joiners stay, since emoji and several scripts need them."""


def to_json(aggregate: UsageAggregate) -> str:
    """The totals as one JSON object, fields as in `UsageAggregate`."""
    return json.dumps(asdict(aggregate), ensure_ascii=False, indent=2)


def render_report(aggregate: UsageAggregate) -> RenderableType:
    """Totals, tokens spent per layer, volk, subject and source, what answers used, then what went wrong.

    Spent stands against budget; cited, per layer and source, against what answered prompts showed. Of volks,
    subjects and reasons the 20 largest; the rest in one line. Sections without rows are left out.
    """
    if not aggregate.total_calls and not aggregate.judged_answers:
        return Text("The usage log holds no records.")
    parts: list[RenderableType] = [*_totals(aggregate), _layer_table(aggregate.per_layer)]
    for title, totals in (
        ("Volk", aggregate.per_volk),
        ("Subject", aggregate.per_subject),
        ("Source", aggregate.per_source),
    ):
        if totals:
            parts += ["", _spend_table(title, totals, total_spent=aggregate.total_spent)]
    for title, used in (
        ("Cited in layer", aggregate.used_per_layer),
        ("Cited of", aggregate.used_per_source),
    ):
        if used:
            parts += ["", _use_table(title, used)]
    for title, counts in (
        ("Degraded layer: reason", aggregate.degraded_reasons),
        ("Rejection code", aggregate.rejection_codes),
    ):
        if counts:
            parts += ["", _count_table(title, counts, total_calls=aggregate.total_calls)]
    return Group(*parts)


def _totals(aggregate: UsageAggregate) -> Iterable[RenderableType]:
    outcomes = ", ".join(f"{count:,} {_shown(name)}" for name, count in aggregate.outcomes.items())
    yield Text.assemble(
        ("Context usage", "bold"), f"  {_calls(aggregate.total_calls)}", f": {outcomes}" if outcomes else ""
    )
    yield Text(
        f"{aggregate.total_spent:,} of {aggregate.total_budget:,} tokens spent"
        f" ({_percent(aggregate.total_spent, aggregate.total_budget)}),"
        f" {aggregate.total_overhead:,} tokens of overhead"
    )
    if aggregate.judged_answers:
        answers = (
            "1 answer was" if aggregate.judged_answers == 1 else f"{aggregate.judged_answers:,} answers were"
        )
        yield Text(f"{answers} judged")
    if aggregate.inexact_calls:
        yield Text(f"{_calls(aggregate.inexact_calls)} counted by an upper bound", style="yellow")
    yield ""


def _layer_table(layers: Mapping[str, LayerTotals]) -> Table:
    table = _table("Layer", "Spent", "Budget", "Used")
    for name, layer in layers.items():
        table.add_row(
            _label(name),
            f"{layer.spent:,}",
            f"{layer.budget:,}",
            _percent(layer.spent, layer.budget),
            _bar(layer.spent, layer.budget, is_limit=True),
        )
    return table


def _spend_table(title: str, totals: Mapping[str, SpendTotals], *, total_spent: int) -> Table:
    table = _table(title, "Calls", "Spent", "Share")
    for name, total in list(totals.items())[:_ROWS]:
        table.add_row(
            _label(name),
            f"{total.calls:,}",
            f"{total.spent:,}",
            _percent(total.spent, total_spent),
            _bar(total.spent, total_spent, is_limit=False),
        )
    rest = list(totals.values())[_ROWS:]
    if rest:
        calls, spent = sum(total.calls for total in rest), sum(total.spent for total in rest)
        table.add_row(f"{len(rest):,} more", f"{calls:,}", f"{spent:,}", _percent(spent, total_spent))
    return table


def _use_table(title: str, used: Mapping[str, UseTotals]) -> Table:
    table = _table(title, "Cited", "Shown", "Value")
    for name, use in list(used.items())[:_ROWS]:
        table.add_row(
            _label(name),
            f"{use.cited_tokens:,}",
            f"{use.tokens:,}",
            _percent(use.cited_tokens, use.tokens),
            _bar(use.cited_tokens, use.tokens, is_limit=False),
        )
    return table


def _count_table(title: str, counts: Mapping[str, int], *, total_calls: int) -> Table:
    table = _table(title, "Calls", "Share")
    for name, count in list(counts.items())[:_ROWS]:
        share = _percent(count, total_calls)
        table.add_row(_label(name), f"{count:,}", share, _bar(count, total_calls, is_limit=False))
    rest = list(counts.values())[_ROWS:]
    if rest:
        table.add_row(f"{len(rest):,} more", f"{sum(rest):,}")
    return table


def _table(name: str, *numbers: str) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
    # Where 80 columns are too few, name and bar give way: only columns that may wrap are narrowed.
    table.add_column(name, max_width=_NAME_WIDTH, overflow="ellipsis")
    for number in numbers:
        table.add_column(number, justify="right", no_wrap=True)
    table.add_column("", max_width=_BAR_WIDTH)
    return table


def _bar(part: int, whole: int, *, is_limit: bool) -> RenderableType:
    """`is_limit`: near its end the bar warns, since there a layer starts to lose content."""
    if not whole:
        return ""
    share = min(part / whole, 1.0)
    style = "green" if not is_limit or share < _HALF else "yellow" if share < _FULL else "red"
    return ProgressBar(
        total=1.0, completed=share, width=_BAR_WIDTH, complete_style=style, finished_style=style
    )


def _calls(count: int) -> str:
    return f"{count:,} call" if count == 1 else f"{count:,} calls"


def _percent(part: int, whole: int) -> str:
    return f"{round(100 * part / whole)}%" if whole else "-"


def _label(name: str) -> Text:
    return Text(_shown(name), no_wrap=True, overflow="ellipsis")


def _shown(name: str) -> str:
    """The name without what would move the cursor, turn the text or break the encoding.

    Names come from requests, and the terminal obeys what it is shown.
    """
    return "".join("\N{REPLACEMENT CHARACTER}" if _is_harmful(character) else character for character in name)


def _is_harmful(character: str) -> bool:
    return unicodedata.category(character) in {"Cc", "Cs"} or character in _TURNS
