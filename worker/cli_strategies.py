"""The command that shows which strategies requests may name."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from worker.terminal import AsJson, load_settings

if TYPE_CHECKING:
    from worker.wiring import Settings


@dataclass(frozen=True, slots=True, kw_only=True)
class _Line:
    name: str
    kind: str
    is_default: bool
    explanation: str
    capabilities: dict[str, object]
    failure: str | None = None
    error: str | None = None
    """The type of what a plug-in raised that does not answer, where it said so."""


def strategies(*, as_json: AsJson = False) -> None:
    """List the strategies that a request may name as its `strategy`, one or several joined with `+`.

    A plug-in is started and asked; what it prints goes to standard error. Exit code 1 where one does not
    answer.

    Example: `context-worker strategies --json`
    """
    lines = _lines(load_settings())
    if as_json:
        sys.stdout.write(json.dumps([asdict(line) for line in lines], indent=1) + "\n")
    else:
        _print(lines)
    if any(line.failure for line in lines):
        raise SystemExit(1)


def _lines(settings: Settings) -> list[_Line]:
    from worker.fusion.protocols import StrategyFailed  # noqa: PLC0415  # `--help` needs none
    from worker.fusion.strategies.registry import strategy_names  # noqa: PLC0415  # as above
    from worker.wiring import build_plugins, strategy_registry  # noqa: PLC0415  # as above

    registry = strategy_registry(settings)
    defaults = strategy_names(settings.content.strategy)
    lines = [
        _Line(
            name=name,
            kind="built-in",
            is_default=name in defaults,
            explanation=strategy.explain(),
            capabilities=asdict(strategy.capabilities),
        )
        for name, strategy in registry.in_process.items()
    ]
    plugins = build_plugins(settings)
    for name in plugins.names:
        explanation, capabilities, failure, error = "", {}, None, None
        try:
            hello = plugins.greet(name)
        except StrategyFailed as failed:
            failure, error = failed.code, failed.error
        else:
            explanation, capabilities = hello.explanation, asdict(hello.capabilities)
        lines.append(
            _Line(
                name=name,
                kind="plug-in",
                is_default=name in defaults,
                explanation=explanation,
                capabilities=capabilities,
                failure=failure,
                error=error,
            )
        )
    plugins.close()
    return lines


def _print(lines: list[_Line]) -> None:
    from rich.box import SIMPLE_HEAD  # noqa: PLC0415  # `--help` needs none
    from rich.console import Console  # noqa: PLC0415  # as above
    from rich.table import Table  # noqa: PLC0415  # as above
    from rich.text import Text  # noqa: PLC0415  # as above

    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    for title in ("strategy", "kind", "uses", "what it does"):
        table.add_column(title)
    for line in lines:
        uses = [name.removeprefix("uses_") for name, value in line.capabilities.items() if value is True]
        name = f"{line.name} (default)" if line.is_default else line.name
        failure = f"{line.failure} ({line.error})" if line.error else line.failure
        said = line.explanation if line.failure is None else f"does not answer: {failure}"
        table.add_row(*map(Text, (name, line.kind, ", ".join(uses), said)))
    Console(highlight=False).print(table)
