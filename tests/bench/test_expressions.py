"""No text makes an expression of this project run for ever, not even one that is made for it.

Every expression with a text for each of its repeats: more than a minute of processor time, so it stands here.
"""

from __future__ import annotations

import importlib
import pkgutil
import re
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final, cast

import pytest

import schemas
import worker
from tests.support.pumping import pumped

pytestmark = pytest.mark.timeout(1_200)

ROOT: Final = Path(__file__).resolve().parents[2]
METHODS: Final = ("search", "match", "fullmatch", "finditer")
_SCANS: Final = "findall|sub|subn|split"
# A repeat of a repeat multiplies its work with each body, by two or by less: the steps end at the first that
# takes too long, before one that takes for ever. The last finds what grows with a high power.
BODIES: Final = (*range(18, 43, 3), 300)
LONGEST_SECONDS: Final = 0.4
"""Of processor time, for a text of some hundred characters."""
NEVER_IMPORTED: Final = ("__main__", "_child", "_process")
"""They begin to work as they are imported."""


def modules() -> Iterator[str]:
    for package in (schemas, worker):
        for found in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            if not found.name.endswith(NEVER_IMPORTED):
                yield found.name


def expressions() -> Mapping[str, list[tuple[str, re.Pattern[Any]]]]:
    """Every compiled expression at the top of a module, alone or in a table, by module; each once."""
    found: dict[str, list[tuple[str, re.Pattern[Any]]]] = {}
    seen: set[tuple[object, int]] = set()
    for module in modules():
        for name, value in vars(importlib.import_module(module)).items():
            for one in _values(value):
                if isinstance(one, re.Pattern):
                    pattern = cast("re.Pattern[Any]", one)
                    if (pattern.pattern, pattern.flags) not in seen:
                        seen.add((pattern.pattern, pattern.flags))
                        found.setdefault(module, []).append((name, pattern))
    return found


def _values(value: object) -> Iterator[object]:
    if isinstance(value, dict):
        yield from cast("dict[object, object]", value).values()
    elif isinstance(value, list | tuple | frozenset):
        yield from cast("list[object]", value)
    else:
        yield value


def used(name: str, source: str) -> set[str]:
    """The ways in which an expression of that name is used; all where that cannot be seen."""
    ways = set(re.findall(rf"\b{re.escape(name)}\.({'|'.join(METHODS)})\b", source))
    if re.search(rf"\b{re.escape(name)}\.(?:{_SCANS})\b", source):
        ways.add("finditer")
    # What scans for all begins as what scans for one does.
    return ways - ({"search"} if "finditer" in ways else set()) or {"match"}


def cost_seconds(pattern: re.Pattern[Any], text: str, way: str) -> float:
    subject = text.encode("latin-1", "replace") if isinstance(pattern.pattern, bytes) else text
    started = time.process_time()
    result: Any = getattr(pattern, way)(subject)
    if way == "finditer":
        for _ in result:
            pass
    return time.process_time() - started


def slow(pattern: re.Pattern[Any], way: str) -> str | None:
    """A text over which the expression takes too long, twice; None where there is none."""
    for times in BODIES:
        for text in pumped(pattern, times):
            if all(cost_seconds(pattern, text, way) > LONGEST_SECONDS for _ in range(2)):
                return text
    return None


def test_no_expression_takes_long_for_a_text_made_to_defeat_it() -> None:
    source = "\n".join(path.read_text() for package in ("schemas", "worker") for path in _sources(package))
    by_module = expressions()
    assert sum(map(len, by_module.values())) > 300
    late = [
        f"{module}.{name}.{way}: {text[:80]!r}…"
        for module, named in by_module.items()
        for name, pattern in named
        for way in used(name, source)
        if (text := slow(pattern, way)) is not None
    ]
    assert late == []


def _sources(package: str) -> Iterator[Path]:
    yield from sorted((ROOT / package).rglob("*.py"))


@pytest.mark.parametrize("expression", [r"(?:a+)+\Z", r"(?::\d(?:[-:]\d)?)+\Z"])
def test_an_expression_that_can_be_defeated_is_found(expression: str) -> None:
    assert slow(re.compile(expression), "match") is not None
