"""An audit that could not be carried out is never taken for one that found nothing."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from typing import Any

import pytest

PATH = Path(__file__).resolve().parents[2] / "infra" / "audit.py"


@pytest.fixture
def audit() -> Any:
    spec = importlib.util.spec_from_file_location("audit", PATH)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["audit"] = module
    spec.loader.exec_module(module)
    yield module
    del sys.modules["audit"]


CLEAN: dict[str, Any] = {"name": "a", "version": "1", "vulns": []}
SKIPPED: dict[str, Any] = {
    "name": "b",
    "skip_reason": "Dependency not found on PyPI and could not be audited",
}
FLAWED: dict[str, Any] = {"name": "c", "version": "2", "vulns": [{"id": "PYSEC-1", "fix_versions": ["3"]}]}


@pytest.mark.parametrize(
    ("dependencies", "code", "said"),
    [
        ([CLEAN, CLEAN], 0, ["audit carried out: 2 of 2 packages looked up, 0 advisories"]),
        ([CLEAN, SKIPPED], 3, ["audit NOT CARRIED OUT: 1 of 2 packages looked up, 0 advisories"]),
        (
            [FLAWED, SKIPPED],
            1,
            ["c 2: PYSEC-1, mended in 3", "audit carried out: 1 of 2 packages looked up, 1 advisories"],
        ),
        ([], 3, ["audit NOT CARRIED OUT: 0 of 0 packages looked up, 0 advisories"]),
    ],
)
def test_what_was_not_looked_up_is_no_success(
    audit: Any, dependencies: list[dict[str, Any]], code: int, said: list[str]
) -> None:
    found = audit.read_answer(json.dumps({"dependencies": dependencies, "fixes": []}), locked=9)
    assert (found.exit_code, list(found.lines())) == (code, said)


@pytest.mark.parametrize("text", ["", "Traceback", "[]", "{}", '{"dependencies": null}'])
def test_an_answer_that_cannot_be_read_looked_nothing_up(audit: Any, text: str) -> None:
    found = audit.read_answer(text, locked=7)
    assert found.exit_code == 3
    assert list(found.lines()) == ["audit NOT CARRIED OUT: 0 of 7 packages looked up, 0 advisories"]
