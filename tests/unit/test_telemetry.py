"""What the counters begin with is what their callers count."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from worker.telemetry import Telemetry

KAFKA = Path(__file__).parents[2] / "worker" / "kafka"
CHANGES = {
    "reply": ("other_topic", "shortened"),
    "_reply": ("other_topic",),
    "_reply_shorter": ("shortened",),
    "beside": ("left_out",),
    "_publish_if_it_fits": ("left_out",),
}
"""What may be counted under the `kind` that a call of these says."""


def altered() -> set[tuple[str, str]]:
    """Kind and change wherever something is published, as the source spells them."""
    found: set[tuple[str, str]] = set()
    for path in KAFKA.glob("*.py"):
        for function in ast.walk(ast.parse(path.read_text())):
            if isinstance(function, ast.AsyncFunctionDef | ast.FunctionDef):
                found.update(altered_in(function))
    return found


def altered_in(function: ast.AST) -> Iterator[tuple[str, str]]:
    for call in ast.walk(function):
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute):
            name = call.func.attr
            if name == "_note" or "altered_publications" in ast.unparse(call.func):
                # Where it passes a `kind` on, the calls that have said it are found below.
                literal = [text for argument in call.args for text in spelled(argument)]
                kinds, changes = literal[:-1], literal[-1:]
            else:
                kinds, changes = kinds_of(call, function), CHANGES.get(name, ())
            yield from ((kind, change) for kind in kinds for change in changes)


def kinds_of(call: ast.Call, function: ast.AST) -> list[str]:
    """What it passes as `kind`: literally, or by a name that the function gives a value; else nothing."""
    (kind,) = [one.value for one in call.keywords if one.arg == "kind"] or [None]
    if isinstance(kind, ast.Name):
        values = [
            one.value
            for one in ast.walk(function)
            if isinstance(one, ast.Assign) and ast.unparse(one.targets[0]) == kind.id
        ]
        return [text for value in values for text in spelled(value)]
    return spelled(kind)


def spelled(value: ast.expr | None) -> list[str]:
    """The texts that an expression may come to."""
    if isinstance(value, ast.IfExp):
        return spelled(value.body) + spelled(value.orelse)
    return [value.value] if isinstance(value, ast.Constant) and isinstance(value.value, str) else []


def test_every_altered_publication_is_counted_from_nothing() -> None:
    (family,) = Telemetry().altered_publications.collect()
    begun = {
        (sample.labels["kind"], sample.labels["change"])
        for sample in family.samples
        if sample.name.endswith("_total")
    }
    assert {("tool_result", "shortened"), ("usage", "left_out"), ("reply", "other_key")} <= altered()
    assert begun == altered()
