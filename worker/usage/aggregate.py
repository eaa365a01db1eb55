"""Totals over usage records: whole, per layer, per volk, per subject, and why contexts degraded."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final, cast

from schemas.codes import LAYERS

UNKNOWN: Final = "unknown"
"""Stands for a volk or subject that a record does not name: it could not be read from the request."""

_MAX_COUNT: Final = 2**53 - 1
"""What JSON readers agree on; a larger number is nothing that was counted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SpendTotals:
    """How many calls, and how many tokens they spent in all."""

    calls: int
    spent: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerTotals:
    """Tokens of one layer over all calls; `calls` counts those that spent any."""

    calls: int
    spent: int
    budget: int


@dataclass(frozen=True, slots=True, kw_only=True)
class UseTotals:
    """Tokens that answered prompts showed, and of these the ones of what their answers cite."""

    cited_tokens: int
    tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class UsageAggregate:
    """What a set of usage records adds up to; the same in whatever order they came.

    Layers stand in prompt order, all else by the larger number, then by name.
    """

    total_calls: int
    total_spent: int
    """Tokens in layers; `total_overhead` holds what belongs to none."""
    total_budget: int
    total_overhead: int
    per_layer: dict[str, LayerTotals]
    per_volk: dict[str, SpendTotals]
    per_subject: dict[str, SpendTotals]
    per_source: dict[str, SpendTotals]
    """Of what was shown, without the headings around it; `calls` are those that showed any."""
    outcomes: dict[str, int]
    rejection_codes: dict[str, int]
    degraded_reasons: dict[str, int]
    """Failed and partial layers, as `<layer>: <reason>`."""
    inexact_calls: int
    """Calls whose token counts are upper bounds."""
    judged_answers: int
    """Answers whose use of their prompt is known; no calls of their own."""
    used_per_layer: dict[str, UseTotals]
    """Of the prompts that were answered, in prompt order."""
    used_per_source: dict[str, UseTotals]


@dataclass(slots=True)
class _Sum:
    calls: int = 0
    spent: int = 0
    budget: int = 0


@dataclass(slots=True)
class _Use:
    cited_tokens: int = 0
    tokens: int = 0

    @property
    def totals(self) -> UseTotals:
        return UseTotals(cited_tokens=self.cited_tokens, tokens=self.tokens)


class _Uses:
    """What answers used, summed."""

    def __init__(self) -> None:
        self.answers = 0
        self.layers: defaultdict[str, _Use] = defaultdict(_Use)
        self.sources: defaultdict[str, _Use] = defaultdict(_Use)

    def add(self, used: Mapping[str, object]) -> None:
        self.answers += 1
        for sums, part in ((self.layers, "layers"), (self.sources, "sources")):
            for name, value in as_mapping(used.get(part)).items():
                entry = as_mapping(value)
                tokens = as_count(entry.get("tokens"))
                sums[name].tokens += tokens
                sums[name].cited_tokens += min(tokens, as_count(entry.get("cited_tokens")))


def aggregate_usage(records: Iterable[Mapping[str, object]]) -> UsageAggregate:
    """Fold records into totals; linear, and memory grows with the names alone.

    Takes usage events, what answers used of their prompts, and the older flat records (`volk`, `subject`,
    `usage` with the layers beside its totals). What is missing or of the wrong type counts as absent: a
    number as 0, a name as `unknown`.
    """
    whole, overhead, inexact, uses = _Sum(), 0, 0, _Uses()
    layers: defaultdict[str, _Sum] = defaultdict(_Sum)
    volks: defaultdict[str, _Sum] = defaultdict(_Sum)
    subjects: defaultdict[str, _Sum] = defaultdict(_Sum)
    sources: defaultdict[str, _Sum] = defaultdict(_Sum)
    outcomes: Counter[str] = Counter()
    codes: Counter[str] = Counter()
    reasons: Counter[str] = Counter()
    for record in records:
        if record.get("kind") == "answer_use":
            uses.add(as_mapping(record.get("used")))
            continue
        usage = as_mapping(record.get("usage"))
        spent_by_layer = dict(_layers(usage))
        spent = as_count(usage.get("spent"), default=sum(spent for _, spent in spent_by_layer.values()))
        for total in (
            whole,
            volks[_name(record.get("volk_alias", record.get("volk")))],
            subjects[_name(record.get("subject"))],
        ):
            total.calls += 1
            total.spent += spent
        whole.budget += as_count(usage.get("total"))
        for name, (budget, layer_spent) in spent_by_layer.items():
            layers[name].calls += layer_spent > 0
            layers[name].spent += layer_spent
            layers[name].budget += budget
        for name, value in as_mapping(record.get("tokens_by_source")).items():
            tokens = as_count(value)
            sources[name].calls += tokens > 0
            sources[name].spent += tokens
        overhead += sum(as_count(tokens) for tokens in as_mapping(record.get("overhead")).values())
        inexact += record.get("exact") is False
        outcomes.update(_names(record.get("outcome")))
        codes.update(_names(record.get("code")))
        reasons.update(_degraded(as_mapping(record.get("statuses"))))
    return UsageAggregate(
        total_calls=whole.calls,
        total_spent=whole.spent,
        total_budget=whole.budget,
        total_overhead=overhead,
        per_layer={
            name: LayerTotals(calls=layers[name].calls, spent=layers[name].spent, budget=layers[name].budget)
            for name in sorted(layers, key=_prompt_order)
        },
        per_volk=_spend(volks),
        per_subject=_spend(subjects),
        per_source=_spend(sources),
        outcomes=_ranked(outcomes),
        rejection_codes=_ranked(codes),
        degraded_reasons=_ranked(reasons),
        inexact_calls=inexact,
        judged_answers=uses.answers,
        used_per_layer={name: uses.layers[name].totals for name in sorted(uses.layers, key=_prompt_order)},
        used_per_source={
            name: use.totals
            for name, use in sorted(uses.sources.items(), key=lambda item: (-item[1].tokens, item[0]))
        },
    )


def _layers(usage: Mapping[str, object]) -> Iterator[tuple[str, tuple[int, int]]]:
    """Name, budget and tokens spent: below `layers`, or beside the totals in the older shape."""
    for name, layer in (as_mapping(usage["layers"]) if "layers" in usage else usage).items():
        entry = as_mapping(layer)
        if entry:
            yield name, (as_count(entry.get("budget")), as_count(entry.get("spent")))


def _degraded(statuses: Mapping[str, object]) -> Iterator[str]:
    for layer, value in statuses.items():
        entry = as_mapping(value)
        if entry.get("status") in {"failed", "partial"}:
            yield f"{layer}: {_name(entry.get('reason'))}"


def as_mapping(value: object) -> Mapping[str, object]:
    """The value where it is a mapping, else an empty one."""
    return cast("Mapping[str, object]", value) if isinstance(value, Mapping) else {}


def as_count(value: object, *, default: int = 0) -> int:
    """The value where it is a number of things, else the default."""
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= _MAX_COUNT:
        return value
    return default


def _name(value: object) -> str:
    return value if isinstance(value, str) and value else UNKNOWN


def _names(value: object) -> list[str]:
    return [value] if isinstance(value, str) and value else []


def _prompt_order(name: str) -> tuple[int, str]:
    return (LAYERS.index(name) if name in LAYERS else len(LAYERS), name)


def _spend(sums: Mapping[str, _Sum]) -> dict[str, SpendTotals]:
    ranked = sorted(sums.items(), key=lambda item: (-item[1].spent, item[0]))
    return {name: SpendTotals(calls=total.calls, spent=total.spent) for name, total in ranked}


def _ranked(counts: Counter[str]) -> dict[str, int]:
    return dict(sorted(counts.items(), key=lambda item: (-item[1], item[0])))
