"""Ask the advisory database of the package index about every locked version, and say how far that went.

Exit code 0: all were looked up, nothing is known against any. 1: advisories, each on a line. 3: not all could
be looked up, which is neither good news nor bad; `pip-audit` itself calls that a success.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

LOCK: Final = Path(__file__).resolve().parents[1] / "requirements-dev.lock"
"""Holds what the worker needs as well."""
CLEAN, FOUND, NOT_CARRIED_OUT = 0, 1, 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Audit:
    """What came of it."""

    looked_up: int
    missing: int
    advisories: tuple[str, ...]

    @property
    def exit_code(self) -> int:
        """An advisory outweighs what could not be looked up."""
        if self.advisories:
            return FOUND
        return NOT_CARRIED_OUT if self.missing or not self.looked_up else CLEAN

    def lines(self) -> Iterable[str]:
        """For people, the sum last."""
        yield from self.advisories
        whole = self.looked_up + self.missing
        said = {CLEAN: "carried out", FOUND: "carried out", NOT_CARRIED_OUT: "NOT CARRIED OUT"}
        asked = f"{self.looked_up} of {whole} packages looked up"
        yield f"audit {said[self.exit_code]}: {asked}, {len(self.advisories)} advisories"


def read_answer(text: str, *, locked: int) -> Audit:
    """What `pip-audit --format json` wrote; nothing looked up where it wrote nothing that can be read."""
    try:
        dependencies: list[dict[str, Any]] = list(json.loads(text)["dependencies"])
    except (ValueError, KeyError, TypeError):
        return Audit(looked_up=0, missing=locked, advisories=())
    found = [one for one in dependencies if "skip_reason" not in one]
    advisories = sorted(
        f"{one['name']} {one['version']}: {flaw['id']}, mended in {', '.join(flaw['fix_versions']) or 'none'}"
        for one in found
        for flaw in one["vulns"]
    )
    return Audit(looked_up=len(found), missing=len(dependencies) - len(found), advisories=tuple(advisories))


def main() -> int:
    """Ask, print, and tell by the exit code."""
    locked = sum("==" in line and not line.startswith((" ", "#")) for line in LOCK.read_text().splitlines())
    command = ["pip_audit", "-r", LOCK, "--require-hashes", "--disable-pip", "--format", "json"]
    done = subprocess.run(
        [sys.executable, "-m", *command, "--progress-spinner", "off"],
        capture_output=True,
        text=True,
        check=False,
    )
    audit = read_answer(done.stdout, locked=locked)
    # Where it succeeds without an answer it says that nothing was found, which is not so.
    if done.returncode and not audit.looked_up and done.stderr.strip():
        print(done.stderr.strip().splitlines()[-1])
    for line in audit.lines():
        print(line)
    return audit.exit_code


if __name__ == "__main__":
    sys.exit(main())
