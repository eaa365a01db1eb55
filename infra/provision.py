"""Find what a service needs, or install it, and keep what was downloaded in a cache.

The cache lies outside the checkout. Each thing in it is a folder named by its version and a digest of
its recipe, moved into place when it is whole: a second run finds it at once, and a run that was
interrupted leaves nothing half done.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

_START_POLICY: Final = Path("/usr/sbin/policy-rc.d")
_TAIL_LINES: Final = 15


class ServiceError(Exception):
    """Something the person at the terminal has to know; the message is for them."""


def say(message: str) -> None:
    """Talk goes to standard error; standard output is for data."""
    # One write a line: several services are prepared at once.
    sys.stderr.write(f"{message}\n")


def tail(log: Path) -> str:
    """The last lines of a log, indented, for an error message."""
    lines = log.read_text(errors="replace").splitlines() if log.exists() else []
    return "\n".join(f"    {line}" for line in lines[-_TAIL_LINES:]) or "    (no output)"


def call(
    command: Sequence[str | Path], *, log: Path, cwd: Path | None = None, env: Mapping[str, str] | None = None
) -> None:
    """Run a command with its output appended to `log`. Raises ServiceError with the end of it."""
    with log.open("a") as output:
        result = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            cwd=cwd,
            env={**os.environ, **(env or {})},
            check=False,
        )
    if result.returncode != 0:
        raise ServiceError(f"{Path(command[0]).name} failed ({result.returncode}):\n{tail(log)}")


@contextmanager
def file_lock(path: Path) -> Generator[None]:
    """Hold an exclusive lock on `path` across processes, and say so when that takes a wait."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say(f"waiting for another process that holds {path}")
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def cache_dir() -> Path:
    """Where downloads are kept, shared by all checkouts of this user."""
    root = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    path = Path(root) / "context-worker"
    path.mkdir(parents=True, exist_ok=True)
    return path


def cached(name: str, *, recipe: str, build: Callable[[Path], None]) -> Path:
    """The cached folder of `recipe`; `build` fills an empty one if it is not there yet."""
    digest = hashlib.sha256(recipe.encode()).hexdigest()[:12]
    target = cache_dir() / f"{name}-{digest}"
    if target.exists():
        return target
    with file_lock(cache_dir() / f"{name}.lock"):
        if not target.exists():
            with tempfile.TemporaryDirectory(dir=cache_dir(), prefix=f"{name}.") as temporary:
                folder = Path(temporary) / "new"
                folder.mkdir()
                build(folder)
                folder.rename(target)
    return target


def install_missing(packages_by_program: Mapping[str, str]) -> None:
    """Install the Debian packages whose programs are not on the path. Raises ServiceError."""
    missing = sorted(program for program in packages_by_program if shutil.which(program) is None)
    if not missing:
        return
    packages = sorted({packages_by_program[program] for program in missing})
    what = f"missing: {', '.join(missing)}"
    if shutil.which("apt-get") is None:
        raise ServiceError(f"{what}; install them, or use a container engine with infra/compose.yaml")
    if os.geteuid() != 0:
        raise ServiceError(f"{what}; run as root: apt-get install {' '.join(packages)}")
    say(f"{what}; installing {' '.join(packages)}")
    log = cache_dir() / "apt.log"
    quietly = {"DEBIAN_FRONTEND": "noninteractive"}
    install = ["apt-get", "install", "-y", "-q", "--no-install-recommends", "-o", "DPkg::Lock::Timeout=300"]
    with file_lock(cache_dir() / "apt.lock"), _nothing_starts_itself():
        call(["apt-get", "update", "-q"], log=log, env=quietly)
        call([*install, *packages], log=log, env=quietly)


@contextmanager
def _nothing_starts_itself() -> Generator[None]:
    """Keep Debian from starting redis-server on its default port: the runner starts its own."""
    if _START_POLICY.exists():
        yield
        return
    _START_POLICY.write_text("#!/bin/sh\nexit 101\n")
    _START_POLICY.chmod(0o755)
    try:
        yield
    finally:
        _START_POLICY.unlink()
