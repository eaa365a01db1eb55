"""How the garbage collector treats a process that loads much once and then serves requests for days."""

from __future__ import annotations

import gc
from typing import Final

_ALLOCATIONS: Final = 20_000
"""Before the youngest generation is looked through; a request makes some thousands of objects."""


def settle_heap() -> None:
    """Take what was loaded at start out of the collector's sight, and let it look less often.

    Hardly anything that is made for a request is part of a cycle, and what was loaded never goes away:
    looking it all through again and again is time lost.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(_ALLOCATIONS, 20, 20)
