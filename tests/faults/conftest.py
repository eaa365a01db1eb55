"""Judging a fault by its row, and the table of all rows at the end."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import pytest
from rich.console import Console

from tests.faults.sizes import SIZES
from tests.faults.table import Row, as_property, from_property, render
from tests.support.modes import mode as mode  # noqa: PLC0414 - fixtures of the tests below
from tests.support.modes import services_at as services_at  # noqa: PLC0414 - as above
from tests.support.modes import topics as topics  # noqa: PLC0414 - as above

_PROPERTY = "fault"


@pytest.fixture
def judge(record_property: Callable[[str, object], None]) -> Callable[[Row], None]:
    """Puts the row into the table, and fails the test where something in it must not be."""

    def judged(row: Row) -> None:
        record_property(_PROPERTY, as_property(row))
        assert row.breaches == []

    return judged


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "/faults/" in item.nodeid:
            item.add_marker(pytest.mark.timeout(SIZES.timeout_seconds))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    rows = [
        from_property(cast("dict[str, Any]", value))
        for reports in terminalreporter.stats.values()
        for report in reports
        if isinstance(report, pytest.TestReport) and report.when == "call"
        for name, value in report.user_properties
        if name == _PROPERTY and isinstance(value, dict)
    ]
    if rows:
        terminalreporter.section("faults")
        console = Console(width=180)
        with console.capture() as captured:
            console.print(render(rows))
        terminalreporter.write(captured.get())
