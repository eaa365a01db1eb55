"""Golden bundles must not change with every line of code: what a receipt says of code and settings is fixed."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def _fixed_versions(monkeypatch: pytest.MonkeyPatch) -> None:  # pyright: ignore[reportUnusedFunction]  # pytest uses it
    monkeypatch.setattr("worker.wiring.code_version", lambda: "c0de" * 4)
    monkeypatch.setattr("worker.wiring.settings_digest", lambda _: "5e77" * 4)
