"""One table at the end of a run: what was measured, what is to be reached, and the command that gives it.

A benchmark fails on wrong results alone, never on time; the table says `missed` where a target is. Its lines
are Markdown, as they stand in the README.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Protocol

import pytest

from tests.conftest import TESTS
from worker.heap import settle_heap


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One measured value, its bounds where it has any, and the file that measures it."""

    what: str
    value: float
    unit: str
    at_most: float | None
    at_least: float | None
    file: str

    @property
    def is_missed(self) -> bool:
        """Whether it lies outside its bounds."""
        above = self.at_most is not None and self.value > self.at_most
        return above or (self.at_least is not None and self.value < self.at_least)

    def row(self) -> str:
        """The figure as a line of a Markdown table."""
        bound = ""
        if self.at_most is not None:
            bound = f"≤ {spelled(self.at_most)} {self.unit}"
        elif self.at_least is not None:
            bound = f"≥ {spelled(self.at_least)} {self.unit}"
        missed = " (missed)" if self.is_missed else ""
        command = f"`pytest -m bench -s {self.file}`"
        return f"| {self.what} | {spelled(self.value)} {self.unit}{missed} | {bound.strip()} | {command} |"


class Report(Protocol):
    """Takes one figure down for the table."""

    def __call__(
        self,
        what: str,
        value: float,
        unit: str = "",
        *,
        at_most: float | None = None,
        at_least: float | None = None,
    ) -> None:
        """`what` it is, in words; the bounds are in the same unit."""
        ...


FIGURES = pytest.StashKey[list[Figure]]()


def spelled(value: float) -> str:
    """With as many digits as mean something."""
    if value >= 100:  # from there on fractions are noise
        return f"{value:,.0f}"
    return f"{value:.1f}" if value >= 10 else f"{value:.2f}".rstrip("0").rstrip(".")


def pytest_configure(config: pytest.Config) -> None:
    """Have a place for the figures of this run."""
    config.stash[FIGURES] = []


@pytest.fixture
def report(request: pytest.FixtureRequest) -> Report:
    """Takes figures down for the table at the end of the run."""
    file = request.path.relative_to(TESTS.parent).as_posix()

    def take(
        what: str,
        value: float,
        unit: str = "",
        *,
        at_most: float | None = None,
        at_least: float | None = None,
    ) -> None:
        figure = Figure(what=what, value=value, unit=unit, at_most=at_most, at_least=at_least, file=file)
        request.config.stash[FIGURES].append(figure)

    return take


@pytest.fixture(autouse=True)
def settled_heap() -> Iterator[None]:
    """The collector as a worker has it, whatever earlier benchmarks of the run left in the heap.

    One process runs them all, so passes over what they left would be measured with the code. A worker
    freezes its heap before the first request and pays for none of that.
    """
    thresholds = gc.get_threshold()
    settle_heap()
    yield
    gc.set_threshold(*thresholds)
    gc.unfreeze()


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, exitstatus: int, config: pytest.Config
) -> None:
    """Print the table, where anything was measured."""
    del exitstatus
    figures = config.stash[FIGURES]
    if not figures:
        return
    write: Callable[[str], None] = terminalreporter.write_line
    write("")
    write("| what | reached | to reach | command |")
    write("|---|---|---|---|")
    for figure in figures:
        write(figure.row())
