"""Which code decides what a prompt holds: a receipt names its digest, and no pack outlives it in a cache."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import Final

from schemas.wire import canonical_json, sha256_hex

PACKAGES: Final = (
    "schemas",
    "worker.budget",
    "worker.citations",
    "worker.code",
    "worker.fusion",
    "worker.graph",
    "worker.memory",
    "worker.plans",
    "worker.providers",
    "worker.receipts",
    "worker.state",
)
MODULES: Final = ("assembly.py", "fusing.py", "planning.py", "ports.py", "sealing.py", "targets.py")
"""Of the package `worker` itself."""
_SUFFIXES: Final = (".py", ".pl", ".j2")


@lru_cache(maxsize=1)
def code_version() -> str:
    """A digest of those files, sixteen hexadecimal digits; some milliseconds, once."""
    return sha256_hex(canonical_json([[name, sha256_hex(file.read_bytes())] for name, file in deciding()]))[
        :16
    ]


def deciding() -> list[tuple[str, Traversable]]:
    """The files, by their paths, which begin with a package's name."""
    found = [(f"worker/{name}", files("worker") / name) for name in MODULES]
    for package in PACKAGES:
        found += _sources(files(package), package.replace(".", "/"))
    return sorted(found, key=lambda entry: entry[0])


def _sources(folder: Traversable, path: str) -> Iterator[tuple[str, Traversable]]:
    for item in folder.iterdir():
        name = f"{path}/{item.name}"
        if item.is_dir():
            yield from _sources(item, name)
        elif item.name.endswith(_SUFFIXES):
            yield name, item
