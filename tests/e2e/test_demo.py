"""The demo as a newcomer runs it: it ends well, shows every outcome, and leaves nothing running."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def children_of(marker: str) -> list[str]:
    """Processes whose environment carries the marker."""
    found: list[str] = []
    for environ in Path("/proc").glob("[0-9]*/environ"):
        try:
            if marker.encode() in environ.read_bytes():
                found.append(environ.parent.name)
        except OSError:
            continue
    return found


@pytest.mark.timeout(180)
def test_the_demo_shows_every_outcome_and_leaves_nothing_running(namespace: str) -> None:
    result = subprocess.run(
        [sys.executable, "-m", "worker", "demo"],
        cwd=ROOT,
        env={**os.environ, "DEMO_MARKER": namespace, "COLUMNS": "100"},
        check=False,
        capture_output=True,
        text=True,
        timeout=150,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    for said in (
        "13/13",
        "complete",
        "degraded",
        "budget_too_small",
        "unknown_model",
        "invalid_json",
        "refused_path",
        "abandoned",
        "the identical bundle, byte for byte",
        "invented_citations",
        "the next bundle: demo-answers~r1",
        "accepted  complied, coverage 1, attempt 2",
        "Cited in layer",
        "usage totals",
        "everything stopped",
    ):
        assert said in result.stdout
    assert result.stderr == ""
    assert children_of(namespace) == []
