"""What a person sees of an explanation: numbers that agree, names that can be copied, lists that end."""

from __future__ import annotations

import asyncio
import io
from dataclasses import replace
from itertools import cycle, islice
from typing import Any

import pytest
from rich.console import Console

from tests.support.explaining import crowded, policy, stored_of
from worker.budget.tokens import counter_for
from worker.explaining.difference import difference
from worker.explaining.page import supposed_page
from worker.explaining.stored import Stored
from worker.explaining.supposing import Supposition, suppose, unknown_of
from worker.explaining.view import explain
from worker.receipt_views import print_difference, print_explanation, print_supposed
from worker.terminal import page_console

CLAUDE = ("claude", "o200k_base", "1.35")


@pytest.fixture(scope="module")
def one() -> Stored:
    return asyncio.run(stored_of(crowded()))


@pytest.mark.parametrize(("model", "encoding", "factor"), [("gpt-4o", "o200k_base", "1"), CLAUDE])
def test_what_is_shown_whole_takes_as_much_as_all_of_it(model: str, encoding: str, factor: str) -> None:
    made = asyncio.run(stored_of(crowded(model=model, budget={"total": 1_200, "layers": {"output": 100}})))
    rows = [row for layer in explain(made).layers for row in layer.shown if row.fate == "kept"]
    alone = counter_for(encoding, safety_factor=factor)
    assert any(row.tokens != alone.count(row.text or "") for row in rows), "nothing that could disagree"
    assert [(row.node, row.tokens) for row in rows] == [(row.node, row.whole_tokens) for row in rows]


def screen(print_it: Any, value: Any, width: int, **more: Any) -> str:
    console = Console(width=width, file=io.StringIO())
    print_it(value, console, **more)
    return console.file.getvalue()  # type: ignore[attr-defined]  # as made above


@pytest.mark.parametrize("width", [40, 80, 200, 10_000])
def test_no_name_is_broken_however_narrow_the_screen_is(one: Stored, width: int) -> None:
    explanation = explain(one)
    names = [row.node for layer in explanation.layers for row in layer.fragments]
    lines = screen(print_explanation, explanation, width, all_lines=True).splitlines()
    assert [name for name in names if not any(name in line for line in lines)] == []
    assert [line for line in lines if line != line.rstrip()] == []


def test_a_long_difference_ends_after_its_first_lines_unless_all_is_asked_for(one: Stored) -> None:
    other = asyncio.run(stored_of(crowded(memory=None, budget={"total": 500})))
    found = difference(one, other)
    found = replace(found, fragments=tuple(islice(cycle(found.fragments), 45)))
    short = screen(print_difference, found, 10_000)
    whole = screen(print_difference, found, 10_000, all_lines=True)
    assert "… 25 more, --all" in short
    assert "--all" not in whole
    assert whole.count("\n") == short.count("\n") + 25 - 1


def test_what_is_no_terminal_is_as_wide_as_its_longest_line(monkeypatch: pytest.MonkeyPatch) -> None:
    written = io.StringIO()
    monkeypatch.setattr("sys.stdout", written)
    monkeypatch.setenv("COLUMNS", "40")
    page_console().print("word " * 100)
    assert written.getvalue().count("\n") == 1


def test_what_layers_that_failed_would_have_given_is_called_unknown(one: Stored) -> None:
    told = suppose(one.capture(), policy(), Supposition(total_tokens=900), steps=0)
    assert told.unknown == ()
    more = {"graph": ("failed", "timeout"), "semantic": ("failed", "timeout"), "ast": ("partial", "error")}
    source = one.record.sources[0]
    sources = [
        source.model_copy(update={"layer": layer, "status": status, "reason": reason})
        for layer, (status, reason) in more.items()
    ]
    unknown = unknown_of(one.record.model_copy(update={"sources": (*one.record.sources, *sources)}))
    assert unknown == (
        "graph, semantic failed (timeout): what they would have given is unknown",
        "ast gave only a part (error): what they would have given is unknown",
    )
    told = replace(told, unknown=unknown)
    lines = screen(print_supposed, told, 10_000).splitlines()
    assert set(unknown) <= set(lines)
    page = supposed_page(told, Supposition(total_tokens=900), explanation=explain(one))
    assert all(f"<p>{line}.</p>" in page for line in unknown)
