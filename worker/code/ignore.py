"""Which files a working tree says to leave alone: `.gitignore` as git reads it, and `.contextignore`.

Both are read in every folder, the second as if it stood below the first, so that it can also take back what
the first leaves out. Of the lines that match the last one counts, and those of a folder further in come after
those further out. Below a folder that is left out nothing is looked at, so nothing there can be taken back.
What a host adds for itself (`.git/info/exclude`, a user's own file) is not read: the same checkout gives
the same files everywhere.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal

from pathspec import GitIgnoreSpec

IGNORE_FILES: Final = (".gitignore", ".contextignore")
"""In the order in which they are read."""

Verdict = Literal["left_out", "wanted", "unsaid"]
"""`wanted` is what a `!` line of `.contextignore` names: it stands above the rules of this program, too."""


@dataclass(frozen=True, slots=True)
class _Lines:
    """The patterns of one folder, and where those of `.contextignore` begin."""

    folder: str
    """With `/` at its end, but for the root's."""
    spec: GitIgnoreSpec
    context_start: int


@dataclass(frozen=True, slots=True)
class IgnoreRules:
    """What holds in one folder, with all that is said above it. Immutable."""

    _lines: tuple[_Lines, ...] = ()

    def within(self, folder: str, files: Mapping[str, str]) -> IgnoreRules:
        """The rules inside `folder` (relative to the root, "" for the root itself).

        `files` holds the text of those of `IGNORE_FILES` that are there.
        """
        lines: list[str] = []
        starts: list[int] = []
        for name in IGNORE_FILES:
            starts.append(len(lines))
            lines += _valid(files.get(name, ""))
        if not lines:
            return self
        prefix = f"{folder}/" if folder else ""
        found = _Lines(prefix, GitIgnoreSpec.from_lines(lines), starts[1])
        return IgnoreRules((*self._lines, found))

    def verdict(self, path: str, *, is_folder: bool) -> Verdict:
        """What is said of the path, relative to the root. O(patterns)."""
        named = f"{path}/" if is_folder else path
        for lines in reversed(self._lines):
            result = lines.spec.check_file(named[len(lines.folder) :])
            if result.include is not None and result.index is not None:
                if result.include:
                    return "left_out"
                return "wanted" if result.index >= lines.context_start else "unsaid"
        return "unsaid"


def _valid(text: str) -> list[str]:
    """The lines, without those that are no pattern: git passes over them as well."""
    lines: list[str] = []
    for line in text.removeprefix("\ufeff").replace("\r\n", "\n").split("\n"):
        if not line.strip() or line.startswith("#"):
            # The library drops some of these, which would shift the numbers of the rest.
            continue
        try:
            GitIgnoreSpec.from_lines([line])
        except ValueError:
            continue
        lines.append(line)
    return lines
