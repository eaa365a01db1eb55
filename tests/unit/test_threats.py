"""The README's table of threats names tests that there are."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).resolve().parents[2]
_TEST: Final = re.compile(r"`(tests/[\w/]+\.py)::(test_\w+)`")


def rows() -> list[str]:
    text = (ROOT / "README.md").read_text()
    section = text.split("\n## Threats, and what holds them\n")[1].split("\n## ")[0]
    # Without the heading and the line below it.
    return [line for line in section.splitlines() if line.startswith("|")][2:]


@cache
def defined_in(file: str) -> frozenset[str]:
    tree = ast.parse((ROOT / file).read_text())
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef)
    return frozenset(node.name for node in ast.walk(tree) if isinstance(node, kinds))


@pytest.mark.parametrize("row", rows(), ids=lambda row: row.split("|")[1].strip()[:40])
def test_each_threat_names_what_holds_it_and_tests_that_there_are(row: str) -> None:
    _, threat, holds, shown, _ = row.split("|")
    named = _TEST.findall(shown)
    assert threat.strip()
    assert holds.strip()
    assert named
    assert not [f"{file}::{test}" for file, test in named if test not in defined_in(file)]
    # Nothing else stands in the column: a misspelt name would else be passed over.
    assert _TEST.sub("", shown).strip(" ,") == ""


def test_the_table_is_there() -> None:
    assert len(rows()) >= 15
