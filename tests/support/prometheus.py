"""A real Prometheus that reads one worker."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import yaml


@asynccontextmanager
async def prometheus(program: Path, home: Path, *, target: str) -> AsyncGenerator[str]:
    """Its address. It scrapes twice a second."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
    config = home / "prometheus.yml"
    scrape = {"job_name": "context-worker", "static_configs": [{"targets": [target]}]}
    config.write_text(yaml.safe_dump({"global": {"scrape_interval": "500ms"}, "scrape_configs": [scrape]}))
    with (home / "prometheus.log").open("w") as log:
        process = await asyncio.create_subprocess_exec(
            program,
            f"--config.file={config}",
            f"--storage.tsdb.path={home / 'tsdb'}",
            f"--web.listen-address=127.0.0.1:{port}",
            stdout=log,
            stderr=log,
        )
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        process.kill()
        await process.wait()
