"""How the garbage collector treats a process that loads much once and then serves requests for days."""

from __future__ import annotations

import gc
from typing import Final

_ALLOCATIONS_AT_START: Final = 500_000
"""Loading all modules leaves a quarter of a million objects, of which hardly one goes away again."""

_ALLOCATIONS: Final = 20_000
"""Before the youngest generation is looked through; a request makes some thousands of objects."""


def load_freely() -> None:
    """Let the collector rest while a process starts: at its usual pace it takes a fifth of that time.

    It goes on looking, seldom, so that a command that works for long does not grow without bound.
    """
    gc.set_threshold(_ALLOCATIONS_AT_START, 20, 20)


def settle_heap() -> None:
    """Take what was loaded at start out of the collector's sight, and let it look less often.

    Hardly anything that is made for a request is part of a cycle, and what was loaded never goes away:
    looking it all through again and again is time lost.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(_ALLOCATIONS, 20, 20)
