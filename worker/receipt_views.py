"""How explanations look to a person in a terminal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from worker.explaining.difference import Change, Difference, FirstByte, FragmentChange, shown_nodes
from worker.explaining.replay import Verdict
from worker.explaining.supposing import Supposed
from worker.explaining.view import Explanation, FragmentView, LayerView
from worker.named_rows import Named, print_named

_BAR_CELLS: Final = 20
_FIRST_CHANGES: Final = 20
_STYLES: Final = {
    "kept": "green",
    "reduced": "yellow",
    "cut": "yellow",
    "dropped": "red",
    "merged": "cyan",
    "capped": "red",
}


def print_explanation(explanation: Explanation, console: Console, *, all_lines: bool = False) -> None:
    """Head, one table a layer, and how to ask further. Long lists are cut unless `all_lines`."""
    e = explanation
    console.print(
        f"[bold]{escape(e.request_id)}[/bold] of {e.project_id}: {e.status}, for {escape(e.volk)} to"
        f" {escape(e.subject)} ({e.task_type})",
        soft_wrap=True,
    )
    spent = "" if e.spent_tokens is None else f"{e.spent_tokens:,} of {e.total_tokens:,} tokens; "
    masked = f"; {e.masked_secrets} credentials masked" if e.masked_secrets else ""
    console.print(
        f"{spent}{e.considered:,} fragments considered, {e.kept:,} shown, {e.dropped:,} not{masked}",
        soft_wrap=True,
    )
    console.print(
        f"strategy {' + '.join(e.strategies)}; model {escape(e.model)} ({e.encoding}); as of {e.as_of}",
        soft_wrap=True,
    )
    for failure in e.failures:
        console.print(f"a strategy failed, and layered stepped in: {escape(failure)}", style="red")
    console.print(
        f"receipt {e.receipt_id}; settings {e.settings_digest}; code {e.code_version}; capture {e.capture}\n",
        style="dim",
        soft_wrap=True,
    )
    for layer in e.layers:
        _print_layer(layer, console, max_lines=None if all_lines else 12)


def _print_layer(layer: LayerView, console: Console, *, max_lines: int | None) -> None:
    console.print(_layer_title(layer), soft_wrap=True)
    rows = [*layer.shown, *layer.left_out]
    if not rows and not layer.rest:
        return
    lines = [_row(row) for row in _cut(rows, max_lines)]
    hidden = len(rows) - len(lines)
    if hidden:
        lines.append(Named(cells=("", "", "", "", "", ""), name=f"and {hidden:,} more (--all)"))
    lines += [
        Named(
            cells=(rest.fate, "", "", "", "", rest.why),
            name=f"{rest.count:,} more",
            style=_STYLES[rest.fate],
        )
        for rest in layer.rest
    ]
    print_named(console, ("fate", "tokens", "of", "depth", "score", "why"), lines, right=range(1, 5))
    console.print()


def _layer_title(layer: LayerView) -> Text:
    reason = f", {layer.reason}" if layer.reason else ""
    title = Text(f"{layer.layer:10}", style="bold")
    if layer.tokens is not None and layer.budget_tokens is not None:
        share = layer.tokens / layer.budget_tokens if layer.budget_tokens else 0.0
        filled = min(_BAR_CELLS, round(share * _BAR_CELLS)) or int(layer.tokens > 0)
        title.append("█" * filled + "░" * (_BAR_CELLS - filled), style="blue")
        title.append(
            f" {layer.tokens:,} of {layer.budget_tokens:,} tokens (reserved {layer.reserved_tokens:,})"
        )
    title.append(f"  {layer.status or 'unknown'}{reason}", style="dim")
    return title


def _cut(rows: Sequence[FragmentView], max_lines: int | None) -> Sequence[FragmentView]:
    """Some of each kind where there are too many: the best shown and the best left out."""
    if max_lines is None or len(rows) <= max_lines:
        return rows
    shown = [row for row in rows if row.is_shown]
    left_out = [row for row in rows if not row.is_shown]
    half = max_lines // 2
    take = max(half, max_lines - len(left_out))
    return [*shown[:take], *left_out[: max_lines - min(len(shown), take)]]


def _row(row: FragmentView) -> Named:
    masked = f" [{row.masked} masked]" if row.masked else ""
    by = f" ({', '.join(row.strategies)})" if row.strategies else ""
    return Named(
        cells=(
            row.fate,
            "" if row.tokens is None else f"{row.tokens:,}",
            "" if row.whole_tokens is None else f"{row.whole_tokens:,}",
            "" if row.depth is None else str(row.depth),
            "" if row.score is None else f"{row.score:.3f}",
            _plain(row.why + by),
        ),
        name=_plain(row.node) + masked,
        style=_STYLES[row.fate],
    )


def _plain(text: str) -> str:
    """Without what a terminal would act on."""
    return "".join(character if character.isprintable() else "�" for character in text)


def print_verdict(verdict: Verdict, console: Console) -> None:
    """One or two lines."""
    if verdict.code_version != verdict.code_version_now:
        console.print(
            f"made by code {verdict.code_version}, checked with {verdict.code_version_now}: another code may"
            " make another bundle",
            style="yellow",
            soft_wrap=True,
        )
    if verdict.outcome == "same":
        console.print("verified: made again from its capture, byte for byte the same", style="green")
    else:
        console.print(f"{verdict.outcome}: {verdict.detail}", style="red", markup=False, soft_wrap=True)


def print_difference(found: Difference, console: Console, *, all_lines: bool = False) -> None:
    """Causes, then effects, then the first differing byte. Long lists are cut unless `all_lines`."""
    if found.is_same_prompt:
        console.print("the prompts are the same, byte for byte", style="green")
    for title, changes in (("inputs", found.inputs), ("request", found.request), ("sources", found.sources)):
        if changes:
            console.print(_change_table(title, found, changes))
    if found.request_note:
        console.print(found.request_note, style="yellow", markup=False, soft_wrap=True)
    if found.fragments:
        _print_fragments(found.fragments, console, all_lines=all_lines)
    if found.first_byte is not None:
        _print_first_byte(found.first_byte, console)


def _change_table(title: str, found: Difference, changes: Sequence[Change]) -> Table:
    table = Table(title=title, title_justify="left", box=SIMPLE_HEAD, pad_edge=False, show_edge=False)
    table.add_column("what", no_wrap=True)
    table.add_column(Text(f"first: {_plain(found.first)}"), overflow="fold")
    table.add_column(Text(f"second: {_plain(found.second)}"), overflow="fold")
    for change in changes:
        table.add_row(
            Text(change.name), Text(_plain(change.before or "–")), Text(_plain(change.after or "–"))
        )
    return table


def _print_fragments(changes: Sequence[FragmentChange], console: Console, *, all_lines: bool) -> None:
    came, went = shown_nodes(changes)
    otherwise = len(changes) - came - went
    console.print(f"fragments: {came:,} came in, {went:,} went out, {otherwise:,} shown otherwise")
    lines = [_changed(change) for change in (changes if all_lines else changes[:_FIRST_CHANGES])]
    hidden = len(changes) - len(lines)
    if hidden:
        lines.append(Named(cells=("", "", ""), name=f"… {hidden:,} more, --all"))
    print_named(console, ("", "first", "second"), lines)


def _changed(change: FragmentChange) -> Named:
    mark, style = "~", "yellow"
    if change.is_shown_before != change.is_shown_after:
        mark, style = ("+", "green") if change.is_shown_after else ("-", "red")
    return Named(
        cells=(mark, _plain(change.before or "not there"), _plain(change.after or "not there")),
        name=f"{change.layer} {_plain(change.node)}",
        style=style,
    )


def _print_first_byte(first: FirstByte, console: Console) -> None:
    console.print(
        f"the first differing byte is byte {first.offset_bytes:,} of the {first.role} message,"
        f" in {first.layer}",
        soft_wrap=True,
    )
    for name, text in (("first", first.before), ("second", first.after)):
        shown = _plain(text.replace("\n", "⏎"))
        console.print(Text(f"  {name:6} …{shown}…"), soft_wrap=True)


def print_supposed(supposed: Supposed, console: Console, *, all_lines: bool = False) -> None:
    """Budgets, fragments, and what the next thousands bring. Long lists are cut unless `all_lines`."""
    console.print(
        f"total {supposed.total_before:,} → {supposed.total_after:,} tokens,"
        f" spent {supposed.spent_before:,} → {supposed.spent_after:,}"
    )
    if supposed.layers:
        table = Table(box=SIMPLE_HEAD, pad_edge=False, show_edge=False)
        for name in ("layer", "budget", "", "spent", ""):
            table.add_column(name, justify="left" if name == "layer" else "right")
        for layer in supposed.layers:
            table.add_row(
                layer.layer,
                f"{layer.budget_before:,}",
                f"{layer.budget_after:,}",
                f"{layer.tokens_before:,}",
                f"{layer.tokens_after:,}",
            )
        console.print(table)
    if supposed.fragments:
        _print_fragments(supposed.fragments, console, all_lines=all_lines)
    else:
        console.print("no fragment would be shown otherwise")
    for line in _worth_lines(supposed):
        console.print(Text(line), soft_wrap=True)
    console.print(
        "the sources gave what they gave for the budget of that time; asked for more, they might give more",
        style="dim",
        soft_wrap=True,
    )


def _worth_lines(supposed: Supposed) -> Iterator[str]:
    for worth in supposed.worth:
        yield f"up to {worth.total_tokens:,}: " + ("nothing more" if not worth.arrivals else "")
        for arrival in worth.arrivals:
            deeper = (
                ""
                if arrival.depth_before is None
                else f" (depth {arrival.depth_before} → {arrival.depth_after})"
            )
            spent = f"{arrival.score:.3f}  +{arrival.tokens:,} tokens"
            yield f"  {spent}  {arrival.layer} {_plain(arrival.node)}{deeper}"
    if supposed.worth_end:
        yield f"no further: {_plain(supposed.worth_end)}"
    yield from supposed.unknown
