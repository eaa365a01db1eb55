"""The shop whose tools are called, filled once a file and opened for each test."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from pathlib import Path

import pytest

from tests.support.tooling import Shop, fill, open_shop


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where it lies."""
    made = tmp_path_factory.mktemp("shop")
    asyncio.run(fill(made))
    return made


@pytest.fixture
async def shop(folder: Path) -> AsyncGenerator[Shop]:
    """Open until the test ends."""
    async with open_shop(folder) as opened:
        yield opened
