"""The same program in processes of their own, under several hash seeds."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

ROOT = Path(__file__).parents[2]


def outputs(arguments: Sequence[str], *, seeds: Iterable[str]) -> set[bytes]:
    """What `python <arguments>` prints under each seed; one element where the seed changes nothing."""
    return {
        subprocess.run(
            [sys.executable, *arguments],
            cwd=ROOT,
            env=os.environ | {"PYTHONHASHSEED": seed, "PYTHONPATH": str(ROOT)},
            check=True,
            capture_output=True,
            timeout=50,
        ).stdout
        for seed in seeds
    }
