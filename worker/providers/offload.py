"""Where pure work runs: on the event loop while it is small, in a thread when it is not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeVar, cast

from pydantic import BaseModel

from worker.providers.threads import SourceThreads

HEAVY_CHARS: Final = 65_536
"""Texts up to this length are worked on in place: a millisecond or two, less than a thread is worth."""

_ITEM_CHARS: Final = 16
"""What one value costs besides its text, so that ten thousand empty items are heavy too."""

T = TypeVar("T")


async def run_by_weight(threads: SourceThreads, work: Callable[[], T], *inputs: object) -> T:
    """The result of `work`, which is made from `inputs`: in one of `threads` if they are heavy."""
    if is_heavy(*inputs):
        return await threads.compute(work)
    return work()


def is_heavy(*inputs: object) -> bool:
    """Whether the texts inside these models and containers are longer than `HEAVY_CHARS` together.

    Looks at no more values than it needs to know.
    """
    left = HEAVY_CHARS
    waiting: list[object] = list(inputs)
    while waiting and left >= 0:
        value = waiting.pop()
        left -= _ITEM_CHARS
        if value is None:
            continue
        if isinstance(value, str):
            left -= len(value)
        elif isinstance(value, BaseModel):
            waiting.extend(value.__dict__.values())
            waiting.append(value.__pydantic_extra__)
        elif isinstance(value, list | tuple):
            waiting.extend(cast("list[object]", value))
        elif isinstance(value, dict):
            for key, item in cast("dict[object, object]", value).items():
                waiting += (key, item)
    return left < 0
