"""Every store contract runs on every product that implements it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.contract.backends import Backend, RedisBackend, SqliteBackend


@pytest.fixture(params=["sqlite", pytest.param("redis", marks=pytest.mark.services)])
def backend(request: pytest.FixtureRequest, tmp_path: Path, namespace: str) -> Backend:
    """The product under test, empty."""
    if request.param == "sqlite":
        return SqliteBackend(tmp_path / "var" / "outcomes.db")
    url: str = request.getfixturevalue("redis_url")
    return RedisBackend(url, namespace)
