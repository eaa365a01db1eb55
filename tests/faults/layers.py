"""What layers must say while one source never answers: its own, that it failed; the others, all."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Any

Said = tuple[str, str | None]
"""Status and reason of a layer."""

LEAST_WAITED_SHARE = 0.9
"""Of the deadline, what a layer that ran out of time has waited for; the rest went by before it was asked."""
MOST_LATE_SHARE = 0.1
"""Of the requests, rounded up: where a source that is well may be late, on a machine that others use, too."""


def contradictions(
    harmed: Mapping[str, AbstractSet[Said]],
    full: Sequence[str],
    events: Sequence[Mapping[str, Any]],
    *,
    deadline_ms: int,
    dependent: Sequence[str] = (),
) -> list[str]:
    """What the usage events of such requests say that must not be, in words.

    Each layer of `harmed` says one of what is listed, in every event, and one that ran out of time has had
    it. Each layer of `full` is whole and has spent tokens, in all events but a few. All others have neither
    failed nor miss anything, in all but a few; of `dependent`, which ask a harmed layer first, nothing is
    said.
    """
    found: list[str] = []
    for layer, allowed in harmed.items():
        wrong = Counter(_said(event, layer) for event in events if _said(event, layer) not in allowed)
        found += [f"{layer} is {said} in {count} of {len(events)}" for said, count in wrong.items()]
        hasty = sum(
            _said(event, layer)[1] == "timeout"
            and event["timings_ms"]["total"] < LEAST_WAITED_SHARE * deadline_ms
            for event in events
        )
        found += [f"{layer} has not waited in {hasty}"] if hasty else []
    others = sorted({layer for event in events for layer in event["statuses"]} - {*harmed, *dependent})
    most_late = math.ceil(MOST_LATE_SHARE * len(events))
    for layer in others:
        wanting = Counter(
            _said(event, layer) for event in events if not _is_well(event, layer, is_full=layer in full)
        )
        if wanting.total() > most_late:
            found.append(f"{layer} is {dict(wanting)} of {len(events)}")
    return found


def _said(event: Mapping[str, Any], layer: str) -> Said:
    outcome = event["statuses"][layer]
    return outcome["status"], outcome.get("reason")


def _is_well(event: Mapping[str, Any], layer: str, *, is_full: bool) -> bool:
    status, _ = _said(event, layer)
    if is_full:
        return status in {"ok", "trimmed"} and event["usage"]["layers"][layer]["spent"] > 0
    return status not in {"failed", "partial"}
