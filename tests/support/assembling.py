"""An assembler as the worker has it, for tests that need no broker."""

from __future__ import annotations

import asyncio
import hashlib
import json
import random
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import structlog

from schemas.bundle import ContextBundle, to_wire
from schemas.request import AssemblyRequest
from tests.support import hostile
from worker.assembly import Assembled, Assembler
from worker.errors import Rejected
from worker.settings import Content, Settings
from worker.telemetry import Telemetry
from worker.wiring import build_assembler

ROOT = Path(__file__).parents[2]
AS_OF = "2026-01-02T03:04:05Z"


def settings(roots: Mapping[str, tuple[Path, ...]] | None = None) -> Settings:
    return Settings(content=Content(roots=dict(roots or {"hostile": (ROOT,), "p": (ROOT,)})))


def assembler(roots: Mapping[str, tuple[Path, ...]] | None = None) -> Assembler:
    return build_assembler(settings(roots), Telemetry())


def wire_request(**more: Any) -> AssemblyRequest:
    body = {
        "request_id": "r1",
        "project_id": "p",
        "volk": "smith",
        "subject": "implement",
        "user_message": "Do it.",
        "as_of": AS_OF,
        **more,
    }
    return AssemblyRequest.model_validate(body)


async def assemble(request: AssemblyRequest, using: Assembler | None = None) -> Assembled:
    assert request.as_of is not None
    return await (using or assembler()).assemble(request, as_of=request.as_of)


def bundle_of(request: AssemblyRequest, using: Assembler | None = None) -> ContextBundle:
    return asyncio.run(assemble(request, using)).bundle


async def outcome_bytes(request: AssemblyRequest, using: Assembler) -> bytes:
    """The bundle's bytes, or the code that refused it."""
    try:
        return to_wire((await assemble(request, using)).bundle)
    except Rejected as error:
        return f"{error.code} {error.message}".encode()


async def _digest(seed: int, count: int) -> str:
    rng = random.Random(seed)
    using = assembler()
    seen = hashlib.sha256()
    for number in range(count):
        body = hostile.request(rng, number)
        body["payload"] = {
            **body.get("payload", {}),
            "files_created": ["worker/errors.py", "../x", "nowhere.py"],
        }
        body["include"] = ["messages", "layers", "usage", "citations", "parts", "payload", "payload_content"]
        body["layer_timeouts_ms"] = {"ast": 20_000}
        body["deadline_ms"] = 20_000
        seen.update(await outcome_bytes(AssemblyRequest.model_validate(body), using))
    return seen.hexdigest()


if __name__ == "__main__":
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(50))
    sys.stdout.write(json.dumps({"digest": asyncio.run(_digest(7, int(sys.argv[1])))}))
