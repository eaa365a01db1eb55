"""A unified diff, taken apart by file: stat, hunk headers, and the part of the text that is each file's.

Reads what git, diff, Subversion and Mercurial write, and what people and models write by hand, where line
counts in hunk headers are often wrong. Nothing of the text is lost: what stands between two files belongs
to the one above, what stands before the first to that.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

_HUNK: Final = re.compile(r"(@@+) ((?:-\d{1,9}(?:,\d{1,9})? )+)\+\d{1,9}(?:,(\d{1,9}))? \1")
_OLD_COUNT: Final = re.compile(r"-\d+(?:,(\d+))? ")
_GIT_HEADER: Final = re.compile(r"diff --(git|cc|combined) (.+)")
_PREFIX: Final = re.compile(r"[abciow12]/")
_OCTAL_OR_ESCAPE: Final = re.compile(r"\\([0-7]{3}|.)")
_ESCAPES: Final = {"n": "\n", "t": "\t", "r": "\r", "a": "\a", "b": "\b", "f": "\f", "v": "\v"}
_NOWHERE: Final = "/dev/null"


@dataclass(frozen=True, slots=True, kw_only=True)
class FileDiff:
    """What a diff says about one file."""

    path: str
    """Where the file is now; where it was, if it was deleted."""
    change: str
    """`new`, `deleted`, `renamed from ...`, `binary`, or empty for an ordinary change."""
    added: int
    removed: int
    hunks: tuple[str, ...]
    """The header lines, each with the context that stands behind its ranges."""
    text: str
    """The file's part of the diff, as it was given, without a trailing newline."""

    @property
    def stat(self) -> str:
        """`path (+added -removed)`, with the kind of change in front of the numbers."""
        change = f"{self.change}, " if self.change else ""
        return f"{self.path} ({change}+{self.added} -{self.removed})"


def split_diff(text: str) -> tuple[FileDiff, ...]:
    """The files of a unified diff in the order of the text; none where it is not one. O(length)."""
    if "@@ " not in text and "diff -" not in text:
        return ()  # most other texts are told by this, without a look at their lines
    return _Scanner(text.split("\n")).scan()


@dataclass(slots=True)
class _OpenFile:
    """What is known of a file while its part is being read, and where that starts."""

    start: int
    git_path: str | None = None
    old_path: str | None = None
    new_path: str | None = None
    renamed_from: str | None = None
    change: str = ""
    hunks: list[str] = field(default_factory=list[str])
    added: int = 0
    removed: int = 0

    @property
    def is_file(self) -> bool:
        """Whether anything shows that this is a file's part, and not prose that looks like its header."""
        return bool(self.hunks or self.git_path or self.change or self.renamed_from)


class _Scanner:
    """Walks over the lines once, by what the line before made of the next one."""

    def __init__(self, lines: Sequence[str]) -> None:
        self._lines = lines
        self._files: list[_OpenFile] = []
        self._file: _OpenFile | None = None
        self._old_left = 0
        self._new_left = 0
        self._marks = 0  # columns of marks in front of a hunk's lines; 0 outside of hunks

    def scan(self) -> tuple[FileDiff, ...]:
        for number, raw in enumerate(self._lines):
            line = raw.removesuffix("\r")
            if self._old_left > 0 or self._new_left > 0:
                if self._is_counted_line(line, number):
                    continue
                self._old_left = self._new_left = 0
            self._read_header(line, number)
        files = [file for file in self._files if file.is_file]
        starts = [0, *(file.start for file in files[1:]), len(self._lines)]
        return tuple(self._finish(file, *starts[n : n + 2]) for n, file in enumerate(files))

    def _is_counted_line(self, line: str, number: int) -> bool:
        """Whether the line belongs to a hunk whose header promised more lines; if so, count it."""
        mark = line[:1]
        # A hunk that promised too much, before the next file: as content these two lines would be its last.
        if mark == "-" and self._new_left + self._old_left > 2 and self._starts_plain_file(number):  # noqa: PLR2004 - one line of each
            return False
        if mark not in {"", " ", "+", "-", "\\"}:
            return False
        if mark != "\\":
            self._old_left -= mark != "+"
            self._new_left -= mark != "-"
            self._count(mark)
        return True

    def _read_header(self, line: str, number: int) -> None:
        git = _GIT_HEADER.match(line)
        if git is not None or line.startswith(("Index: ", "diff -")):
            self._open(number)
            if git is not None and self._file is not None:
                self._file.git_path = _git_path(git[1], git[2])
        elif self._starts_plain_file(number):
            # Behind a header of git's or Subversion's, the names belong to the file that it opened.
            if self._file is None or self._file.hunks or self._file.new_path is not None:
                self._open(number)
            self._read_names(line, self._lines[number + 1])
        elif self._file is not None and (hunk := _HUNK.match(line)) is not None:
            self._open_hunk(self._file, line, hunk)
        elif self._file is not None and self._marks and line != "-- ":
            self._count_marks(line)
        elif self._file is not None:
            _read_extended_header(self._file, line)

    def _starts_plain_file(self, number: int) -> bool:
        lines = self._lines
        return (
            lines[number].startswith("--- ")
            and number + 2 < len(lines)
            and lines[number + 1].startswith("+++ ")
            and lines[number + 2].startswith("@@")
        )

    def _read_names(self, old: str, new: str) -> None:
        if self._file is not None:
            self._file.old_path, self._file.new_path = _name(old[4:]), _name(new[4:])
            self._marks = 0

    def _open_hunk(self, file: _OpenFile, line: str, hunk: re.Match[str]) -> None:
        file.hunks.append(line)
        self._marks = len(hunk[1]) - 1
        if self._marks == 1:
            old = _OLD_COUNT.match(hunk[2])
            self._old_left = int(old[1]) if old is not None and old[1] else 1
            self._new_left = int(hunk[3]) if hunk[3] else 1

    def _count_marks(self, line: str) -> None:
        """Count a line that no header promised: of a merge's hunk, or of one with wrong numbers."""
        marks = line[: self._marks]
        if "+" in marks or "-" in marks:
            self._count("+" if "+" in marks else "-")
        elif marks.strip():
            self._marks = 0

    def _count(self, mark: str) -> None:
        if self._file is not None:
            self._file.added += mark == "+"
            self._file.removed += mark == "-"

    def _open(self, number: int) -> None:
        self._file = _OpenFile(start=number)
        self._files.append(self._file)
        self._marks = 0

    def _finish(self, file: _OpenFile, start: int, end: int) -> FileDiff:
        path, change = _path_and_change(file)
        return FileDiff(
            path=path,
            change=change,
            added=file.added,
            removed=file.removed,
            hunks=tuple(file.hunks),
            text="\n".join(self._lines[start:end]).rstrip("\r\n"),
        )


def _read_extended_header(file: _OpenFile, line: str) -> None:
    if line.startswith("rename from "):
        file.renamed_from = _unquote(line.removeprefix("rename from "))
    elif line.startswith(("new file mode", "deleted file mode")):
        file.change = line.split(" ", 1)[0]
    elif line.startswith(("Binary files ", "GIT binary patch")):
        file.change = "binary"


def _path_and_change(file: _OpenFile) -> tuple[str, str]:
    old, new = file.old_path, file.new_path
    if old is None or new is None:
        path, change = file.git_path or "unknown", file.change
    else:
        if all(name == _NOWHERE or _PREFIX.match(name) for name in (old, new)) and (old[:1] != new[:1]):
            old, new = (name if name == _NOWHERE else name[2:] for name in (old, new))
        path = old if new == _NOWHERE else new
        change = "new" if old == _NOWHERE else "deleted" if new == _NOWHERE else file.change
    if file.renamed_from is not None:
        change = f"renamed from {file.renamed_from}"
    return path, change


def _name(field_text: str) -> str:
    """The file name of a `---` or `+++` line: up to the tab before a time, unquoted."""
    name = field_text.removesuffix("\r")
    return _unquote(name) if name.startswith('"') else name.split("\t", 1)[0].rstrip()


def _git_path(kind: str, names: str) -> str:
    """The path of a git header that no `+++` line may follow: a mode change, a rename, a binary file."""
    if kind != "git":
        return _unquote(names)
    if names.endswith('"'):
        return _unquote(names[names.rfind(' "') + 1 :])[2:]
    # `a/x y b/x y`: blanks in the name make the middle the only sure place to split.
    left, right = names[: len(names) // 2], names[len(names) // 2 + 1 :]
    if left[2:] == right[2:]:
        return right[2:]
    return names.rpartition(" b/")[2] or names


def _unquote(name: str) -> str:
    """Git's C-style quoting undone, where each byte beyond ASCII is an octal escape; other names as is."""
    if len(name) < 2 or not (name.startswith('"') and name.endswith('"')):  # noqa: PLR2004 - two quotes
        return name

    def unescape(match: re.Match[str]) -> str:
        escape = match[1]
        return chr(int(escape, 8) & 0xFF) if len(escape) == 3 else _ESCAPES.get(escape, escape)  # noqa: PLR2004 - octal

    unescaped = _OCTAL_OR_ESCAPE.sub(unescape, name[1:-1])
    try:
        # The escapes are bytes; a name that also holds characters beyond them was not written by git.
        return unescaped.encode("latin-1").decode("utf-8", "replace")
    except UnicodeEncodeError:
        return unescaped
