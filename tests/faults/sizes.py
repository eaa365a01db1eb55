"""How large the faults are: small enough for every run of the tests, or as long as operations take."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Final

VARIABLE: Final = "CONTEXT_FAULTS"


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """One form of the suite; all code is the same."""

    storm_workers: int
    storm_requests: int
    storm_blows: int
    """Workers that are told to stop or killed, and replaced, one after the other."""
    storm_rate: float
    """Requests a second, as everywhere below."""
    load_requests: int
    """Under one fault that takes a moment."""
    load_rate: float
    outage_seconds: float
    """Of everything that the worker talks to."""
    hole_requests: int
    """While one source, or the outcome store, answers nothing."""
    hole_rate: float
    soak_seconds: float
    soak_rate: float
    soak_warming_seconds: float
    """Caches fill, and what is loaded at the first use is loaded, before memory is held to be flat."""
    kills_every_provider: bool
    """Else one stands for the eight, which reach their points in one line."""
    modes: tuple[str, ...]
    """In which a fault is brought about that has little to do with stores and brokers."""
    timeout_seconds: float
    """Of one test, on a crowded machine."""


SHORT: Final = Sizes(
    storm_workers=3,
    storm_requests=160,
    storm_blows=3,
    storm_rate=30.0,
    load_requests=80,
    load_rate=30.0,
    outage_seconds=8.0,
    hole_requests=8,
    hole_rate=4.0,
    soak_seconds=20.0,
    soak_rate=10.0,
    soak_warming_seconds=5.0,
    kills_every_provider=False,
    modes=("services",),
    timeout_seconds=700.0,
)
LONG: Final = Sizes(
    storm_workers=8,
    storm_requests=10_000,
    storm_blows=24,
    storm_rate=40.0,
    load_requests=2_000,
    load_rate=40.0,
    outage_seconds=70.0,
    hole_requests=200,
    hole_rate=20.0,
    soak_seconds=1_800.0,
    soak_rate=20.0,
    soak_warming_seconds=300.0,
    kills_every_provider=True,
    modes=("embedded", "services"),
    timeout_seconds=3_600.0,
)


def _chosen() -> Sizes:
    forms = {"": SHORT, "short": SHORT, "long": LONG}
    name = os.environ.get(VARIABLE, "")
    if name not in forms:
        msg = f"{VARIABLE} is short or long, not {name!r}"
        raise ValueError(msg)
    return forms[name]


SIZES: Final = _chosen()
