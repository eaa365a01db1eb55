"""What git remembers of a working tree: its latest commits, and the files that each touched.

Asked of the git program, with everything that a repository's own settings could run switched off. A tree
without git, or a machine without the program, has no history, and says why.

Blocks: call from a thread.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from worker.children import without_settings

MAX_COMMITS: Final = 1_500
MAX_FILES_A_COMMIT: Final = 30
"""A commit that touches more says little of any of them: it gives a time to its files, and no edges."""

MAX_MESSAGE_CHARS: Final = 2_000
MAX_OUTPUT_BYTES: Final = 64_000_000
TIMEOUT_SECONDS: Final = 20.0

_HASH: Final = re.compile(rb"[0-9a-f]{40,64}\Z")
_FORMAT: Final = "%x01%H%x02%ct%x02%B%x03"
_SETTINGS: Final = (
    *("-c", "core.quotepath=off", "-c", "log.showSignature=false", "-c", "core.fsmonitor=false"),
    *("-c", "diff.external=", "-c", "diff.renames=false", "-c", "core.hooksPath=/dev/null"),
    # Whose the folder is does not matter to a program that runs nothing of what it finds there.
    *(
        "-c",
        "safe.directory=*",
        "-c",
        "protocol.allow=never",
        "-c",
        "core.attributesFile=/dev/null",
        "-c",
        "log.follow=false",
    ),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Commit:
    """One commit that touched something below the root. `paths` are relative to it, sorted."""

    hash: str
    committed_at: str
    """RFC 3339, UTC, to the second."""
    message: str
    paths: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class History:
    """Commits, the latest first; `reason` says why there are none, where git could not be asked."""

    head: str = ""
    commits: tuple[Commit, ...] = ()
    reason: str = ""


def read_head(root: Path) -> str:
    """The hash of HEAD and where in the repository `root` lies; empty without a history. O(1)."""
    output = _git(root, "rev-parse", "HEAD", "--show-prefix")
    lines = output.decode("utf-8", "replace").split("\n") if output is not None else []
    return ":".join(lines[:2]) if lines and lines[0] else ""


def read_history(root: Path, *, head: str = "") -> History:
    """The latest `MAX_COMMITS` ancestors of HEAD, as far as they touched files below `root`.

    Merges count by what they changed themselves: nothing, as a rule. `head` is what `read_head` gave.
    """
    head = head or read_head(root)
    if not head:
        return History(reason="no git history")
    output = _git(
        root,
        *("log", f"--max-count={MAX_COMMITS}", "-z", "--name-only", "--relative", "--no-renames"),
        *("--no-ext-diff", "--no-textconv", "--no-color", "--no-mailmap", f"--format={_FORMAT}"),
        head.split(":", 1)[0],
    )
    if output is None:
        return History(reason="git log failed")
    return History(head=head, commits=_parse(output))


def updates(history: History) -> Mapping[str, tuple[str, int]]:
    """By path: when its last known commit was made, and how many there are."""
    latest: dict[str, str] = {}
    counts: defaultdict[str, int] = defaultdict(int)
    for commit in history.commits:
        for path in commit.paths:
            latest[path] = max(latest.get(path, ""), commit.committed_at)
            counts[path] += 1
    return {path: (latest[path], counts[path]) for path in latest}


def _parse(output: bytes) -> tuple[Commit, ...]:
    commits: list[Commit] = []
    for record in output.split(b"\x01")[1:]:
        head, _, names = record.partition(b"\x03")
        fields = head.split(b"\x02", 2)
        paths = _paths(names)
        # A message may hold the marks, too: what does not look like a commit is none.
        if len(fields) == 3 and paths and _HASH.match(fields[0]):  # noqa: PLR2004 - hash, time, message
            commits.append(
                Commit(
                    hash=fields[0].decode("ascii", "replace"),
                    committed_at=_time(fields[1]),
                    message=_message(fields[2]),
                    paths=paths,
                )
            )
    return tuple(commits)


def _paths(names: bytes) -> tuple[str, ...]:
    found: set[str] = set()
    for name in names.split(b"\0"):
        try:
            found.add(name.strip(b"\n").decode())
        except UnicodeDecodeError:
            continue
    return tuple(sorted(found - {""}))


def _time(seconds: bytes) -> str:
    try:
        return datetime.fromtimestamp(int(seconds), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    except (ValueError, OverflowError, OSError):
        return "1970-01-01T00:00:00Z"


def _message(raw: bytes) -> str:
    text = raw.decode("utf-8", "replace").replace("\0", "").strip()
    return text[:MAX_MESSAGE_CHARS]


def _git(root: Path, *arguments: str) -> bytes | None:
    """What the git program prints; None where it is not there, fails, or says too much."""
    program = shutil.which("git")
    if program is None:
        return None
    environment = {
        name: value for name, value in without_settings(os.environ).items() if not name.startswith("GIT_")
    }
    environment |= {
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_CONFIG_GLOBAL": os.devnull,
        "GIT_OPTIONAL_LOCKS": "0",
        "GIT_NO_LAZY_FETCH": "1",
        "GIT_TERMINAL_PROMPT": "0",
        "LC_ALL": "C",
    }
    try:
        done = subprocess.run(  # noqa: S603 - a fixed program; the root is passed as one argument
            [program, "-C", str(root), *_SETTINGS, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=environment,
            timeout=TIMEOUT_SECONDS,
            check=False,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout if done.returncode == 0 and len(done.stdout) <= MAX_OUTPUT_BYTES else None
