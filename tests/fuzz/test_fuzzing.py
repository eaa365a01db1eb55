"""The parsers keep their promises on every seed, and on what a short run guided by coverage makes of them.

`make fuzz` runs longer. What it finds becomes a seed.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import pytest

from tests.fuzz import targets
from tests.fuzz.targets import TARGETS

ROOT: Final = Path(__file__).resolve().parents[2]
SEEDS: Final = Path(__file__).with_name("corpus")
RUNS: Final = 400
"""Inputs to try for each target, its seeds among them: the same ones each time, so that no run is luck."""


def seeds(target: str) -> list[bytes]:
    return [path.read_bytes() for path in sorted((SEEDS / target).iterdir())]


@pytest.mark.parametrize("target", TARGETS)
def test_every_seed_keeps_the_promises_and_none_is_large(target: str) -> None:
    inputs = seeds(target)
    assert len(inputs) >= 15
    for data in inputs:
        assert len(data) <= 4_096
        TARGETS[target](data)


def _another_id(real: Callable[..., Any]) -> Callable[..., Any]:
    def read(data: bytes) -> tuple[str | None, str | None]:
        return ("another" if real(data)[0] else None, None)

    return read


def _uncut(_real: Callable[..., Any]) -> Callable[..., Any]:
    def trim(text: str, *_: object) -> str:
        return text

    return trim


def _without_the_last(real: Callable[..., Any]) -> Callable[..., Any]:
    def parse(text: str, *, project_id: str) -> Any:
        pack = real(text, project_id=project_id)
        return replace(pack, sections=pack.sections[:-1])

    return parse


def _twice_the_steps(real: Callable[..., Any]) -> Callable[..., Any]:
    def read(path: str | None, text: str, **more: Any) -> Any:
        document = real(path, text, **more)
        return replace(document, steps=document.steps * 2)

    return read


BROKEN: Final[dict[str, tuple[str, Callable[[Callable[..., Any]], Callable[..., Any]]]]] = {
    "decode": ("read_ids", _another_id),
    "pack": ("parse_pack", _without_the_last),
    "plan": ("read_plan", _twice_the_steps),
    "trim": ("trim_to_budget", _uncut),
}


@pytest.mark.parametrize("target", TARGETS)
def test_a_parser_that_breaks_its_promise_is_noticed(target: str, monkeypatch: pytest.MonkeyPatch) -> None:
    name, broken = BROKEN[target]
    monkeypatch.setattr(targets, name, broken(getattr(targets, name)))
    noticed = 0
    for data in seeds(target):
        try:
            TARGETS[target](data)
        except AssertionError:
            noticed += 1
    assert noticed


def test_a_short_run_guided_by_coverage_breaks_no_promise(tmp_path: Path) -> None:
    done = subprocess.run(
        [
            *(sys.executable, "-m", "tests.fuzz.run", "--runs", str(RUNS), "--seconds", "5", "--seed", "1"),
            *("--found", tmp_path / "found", "--artifacts", tmp_path),
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4_000:]
    # Each target was reached, and its code was instrumented: else nothing would be guided.
    assert done.stderr.count("cov: ") >= len(TARGETS)
    assert done.stderr.count("Done ") == len(TARGETS)
