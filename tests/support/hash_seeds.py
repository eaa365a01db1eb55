"""The same program in processes of their own, under two hash seeds."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path

from tests.support.nursery import nursery

SEEDS = ("0", "4242")


def outputs(arguments: Sequence[str]) -> set[bytes]:
    """What `python <arguments>` prints under each seed; one element where the seed changes nothing."""
    found: set[bytes] = set()
    for seed in SEEDS:
        with tempfile.NamedTemporaryFile() as log:
            code = nursery(seed).run(arguments, Path(log.name))
            output = log.read()
        assert code == 0, output.decode(errors="replace")
        found.add(output)
    return found
