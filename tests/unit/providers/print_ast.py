"""Prints one digest of the AST layer of this project's own source; run under several hash seeds."""

from __future__ import annotations

import asyncio
import hashlib
from pathlib import Path

from tests.unit.providers.frames import BUDGET, SCOPE, frame
from worker.code.sources import SourceRoots
from worker.providers.ast import AstProvider

PROJECT = Path(__file__).parents[3]


async def digest() -> str:
    """SHA-256 of the contribution."""
    files = sorted(str(path.relative_to(PROJECT)) for path in (PROJECT / "worker" / "code").glob("*.py"))
    provider = AstProvider(SourceRoots({SCOPE.project_id: (PROJECT,)}))
    contribution = await provider.provide(frame(payload={"files_created": files}), SCOPE, BUDGET)
    return hashlib.sha256(repr(contribution).encode()).hexdigest()


if __name__ == "__main__":
    print(asyncio.run(digest()))  # noqa: T201 - the test reads it
