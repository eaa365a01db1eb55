"""What a PromQL expression reads: enough of the language to name every metric, matcher and grouping label.

Whether it is valid PromQL is for Prometheus to say; what this does not know counts as a metric.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_STRING = re.compile(r'"(?:[^"\\]|\\.)*"')
_GROUPING = re.compile(r"\b(by|without|on|ignoring|group_left|group_right)\s*\(([^()]*)\)")
_SELECTOR = re.compile(r"([a-zA-Z_:][\w:]*)\s*(\{[^{}]*\})?(\s*\[[^\]]*\])?")
_MATCHER = re.compile(r'\s*([a-zA-Z_]\w*)\s*(=~|!~|!=|=)\s*("(?:[^"\\]|\\.)*")\s*(?:,|$)')
_AGGREGATIONS = {"sum", "max", "min", "count"}
_FUNCTIONS = {"rate", "increase", "absent", "histogram_quantile", "clamp_min", "vector", "time"}
_WORDS = _AGGREGATIONS | _FUNCTIONS | {"and", "or", "unless", "bool"}


@dataclass(frozen=True)
class Selector:
    """One metric as it is read, and its matchers: label, operator, value."""

    metric: str
    matchers: tuple[tuple[str, str, str], ...]

    def __str__(self) -> str:
        return self.metric + "{" + ", ".join(f'{n}{o}"{v}"' for n, o, v in self.matchers) + "}"


def selectors(expression: str) -> list[Selector]:
    """Every metric that the expression reads. Raises ValueError on a matcher that cannot be read."""
    plain = _GROUPING.sub(" ", expression)
    found: list[Selector] = []
    for match in _SELECTOR.finditer(_without_numbers(plain)):
        name, braces, _ = match.groups()
        if name in _WORDS:
            continue
        found.append(Selector(name, _matchers((braces or "{}")[1:-1])))
    return found


def grouping_labels(expression: str) -> set[str]:
    """The labels that it groups or joins by."""
    lists = [labels for _, labels in _GROUPING.findall(_STRING.sub('""', expression))]
    return {label.strip() for labels in lists for label in labels.split(",") if label.strip()}


def _matchers(text: str) -> tuple[tuple[str, str, str], ...]:
    found: list[tuple[str, str, str]] = []
    at = 0
    while text[at:].strip():
        match = _MATCHER.match(text, at)
        if match is None:
            raise ValueError(f"no matcher: {text[at:]!r}")
        found.append((match[1], match[2], match[3][1:-1]))
        at = match.end()
    return tuple(found)


def _without_numbers(text: str) -> str:
    """Durations and exponents look like names."""
    return re.sub(r"(?<![\w:\"])\d[\w.]*(?:-\d+)?", " ", text)
