"""Golden bundles do not change with every line of code: what receipts say of code and settings is fixed."""

from __future__ import annotations

import pytest


def _no_settings(_: object) -> str:
    return "5e77" * 4


@pytest.fixture(autouse=True)
def _fixed_versions(monkeypatch: pytest.MonkeyPatch) -> None:  # pyright: ignore[reportUnusedFunction]  # pytest uses it
    monkeypatch.setattr("worker.wiring.code_version", lambda: "c0de" * 4)
    monkeypatch.setattr("worker.wiring.settings_digest", _no_settings)
