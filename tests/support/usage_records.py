"""Usage records with something in every part that a report shows."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from random import Random
from typing import Any, Final

from schemas.codes import LAYERS

BEGINS = datetime(2026, 11, 2, 8, tzinfo=UTC)
BUDGETS = dict(zip(LAYERS, (2, 1.5, 1.5, 3, 3, 9, 2, 4, 1.5, 1.5, 3), strict=True))
WORK = (
    ("smith", "implement", 6),
    ("scout", "fix_issues", 3),
    ("judge", "review_and_test", 2),
    ("weaver", "ux_design", 1),
)
_SOURCES: Final = {
    "session": "mission",
    "plan": "plan",
    "memory": "memory",
    "artifact": "artifacts",
    "pack": "graph",
    "ast": "ast",
    "code": "semantic",
}
"""Which layer each source fills here."""


def usage_records(count: int, *, volks: Sequence[str] = (), seed: int = 7) -> list[dict[str, Any]]:
    """A day of them, with an hour in which the graph was away; `volks` also stand among the names."""
    draw = Random(seed)
    work = [*WORK, *[(volk, volk, 1) for volk in volks]]
    return [
        _record(draw, BEGINS + timedelta(seconds=86_400 * number / count), work, 24 * number / count)
        for number in range(count)
    ]


def _record(draw: Random, at: datetime, work: list[tuple[str, str, int]], hour: float) -> dict[str, Any]:
    volk, subject, _ = draw.choices(work, [weight for *_, weight in work])[0]
    who = {"timestamp": f"{at:%Y-%m-%dT%H:%M:%S}Z", "volk_alias": volk, "subject": subject}
    if draw.random() < 0.03:
        code = draw.choices(["budget_too_small", "invalid_json", "unknown_model"], [5, 2, 1])[0]
        return {**who, "outcome": "rejected", "code": code}
    is_away = draw.random() < (0.6 if 10 <= hour < 11.5 else 0.02)
    budgets = {layer: int(1_000 * budget) for layer, budget in BUDGETS.items()}
    spent = {layer: int(budget * draw.betavariate(4, 2)) for layer, budget in budgets.items()}
    statuses: dict[str, Any] = {layer: {"status": "ok"} for layer in LAYERS if layer != "output"}
    statuses["memory" if draw.random() < 0.4 else "graph"] = {"status": "trimmed"}
    statuses["task"] = {"status": "empty", "reason": "no_data"}
    if subject == "ux_design":
        statuses["semantic"] = {"status": "off", "reason": "subject_gated"}
    if is_away:
        statuses["graph"] = {"status": "failed", "reason": draw.choice(["timeout", "graph_unavailable"])}
    for layer in (
        "output",
        *[layer for layer, one in statuses.items() if one["status"] in {"failed", "empty", "off"}],
    ):
        spent[layer] = 0
    considered = draw.randint(40, 160)
    dropped = draw.randint(0, considered // 2)
    analyse, gather, fuse = (
        draw.lognormvariate(-0.6, 0.3),
        draw.lognormvariate(1.8, 0.5),
        draw.lognormvariate(1.2, 0.4),
    )
    total = sum(spent.values())
    return {
        **who,
        "outcome": "degraded" if is_away else "complete",
        "usage": {
            "total": sum(budgets.values()),
            "spent": total,
            "layers": {
                layer: {"budget": budget + (900 if layer == "graph" else -90), "spent": spent[layer]}
                for layer, budget in budgets.items()
            },
        },
        "reserved": budgets,
        "overhead": {"client": 0, "framing": 16, "preamble": 90},
        "statuses": statuses,
        "timings_ms": {"analyse": analyse, "gather": gather, "fuse": fuse, "total": analyse + gather + fuse},
        "exact": True,
        "counts": {
            "fragments_considered": considered,
            "fragments_kept": considered - dropped,
            "fragments_dropped": dropped,
        },
        "cache": {"hits": int(draw.random() < 0.6), "misses": int(draw.random() < 0.4)},
        "reusable_prefix_tokens": int(total * draw.uniform(0.3, 0.8)),
        "masked_secrets": int(draw.random() < 0.01),
        "tokens_by_source": {source: spent[layer] for source, layer in _SOURCES.items()},
    }
