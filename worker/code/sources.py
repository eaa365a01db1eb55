"""Source files below configured roots, opened so that no path can lead outside.

A path is walked one component at a time: each directory is opened relative to the one before and without
following a link, and so is the file. What was opened is then what `fstat` judges, so there is no moment
between a check and its use. Every symbolic link below a root is refused, even one that stays inside: the
same checkout must read the same on every host, a link's target would appear under two names, and the
target can always be named itself. A root may itself be a link, since the operator chose it. A hard link
cannot be told from a file.

Reads block: call from a thread. Refusals and absences are values; only a root that cannot be opened raises.
"""

from __future__ import annotations

import errno
import hashlib
import os
import stat
import unicodedata
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Final, Literal, Self, TypeVar

from worker.errors import Unavailable

T = TypeVar("T")

MAX_SOURCE_BYTES: Final = 2_000_000
MAX_COMPONENTS: Final = 64
MAX_PATH_CHARS: Final = 4_096

RefusalReason = Literal[
    "empty path",
    "absolute path",
    "leaves the project",
    "control character",
    "not a file name",
    "nested too deeply",
    "symbolic link",
    "not a regular file",
    "too large",
    "permission denied",
    "cannot be read",
]


@dataclass(frozen=True, slots=True)
class SourceFile:
    """A file's bytes. `path` is relative to the project directory, with `/`, and free of `.` and `..`."""

    path: str
    content: bytes
    sha256: bytes


@dataclass(frozen=True, slots=True)
class Refused:
    """A path that is not read, as it was given, and why. Says nothing of the host."""

    path: str
    reason: RefusalReason


@dataclass(frozen=True, slots=True)
class Missing:
    """A path at which there is nothing (yet)."""

    path: str


class SourceRoots:
    """The directories that each project may read below."""

    def __init__(self, roots: Mapping[str, Sequence[Path]]) -> None:
        """`roots` by project id, the default one first."""
        # Not Path.resolve: a root that is a link keeps its own name, and its target may change.
        self._roots = {
            project: tuple(Path(os.path.abspath(path)) for path in paths)  # noqa: PTH100 - as above
            for project, paths in roots.items()
        }

    def is_configured(self, project_id: str) -> bool:
        """Whether the project has any root."""
        return bool(self._roots.get(project_id))

    def open(
        self, project_id: str, project_dir: str | None, *, max_bytes: int = MAX_SOURCE_BYTES
    ) -> SourceTree | Refused | Missing:
        """The project directory, to be closed by the caller; in it, files over `max_bytes` are refused.

        `project_dir` is absolute and inside a root, or relative to a root (the first below which it
        exists); absent or empty means the first root itself. Raises KeyError for a project without roots,
        Unavailable where a root itself cannot be opened.
        """
        candidates = self._candidates(self._roots[project_id], project_dir or "")
        if isinstance(candidates, Refused):
            return candidates
        outcome: SourceTree | Refused | Missing = Missing(project_dir or "")
        for root, components in candidates:
            outcome = _open_tree(root, components, given=project_dir or "", max_bytes=max_bytes)
            if not isinstance(outcome, Missing):
                break
        return outcome

    def locate(self, project_id: str, project_dir: str | None) -> Path | Refused | Missing:
        """Where `open` finds the project directory, for what walks it without following links itself.

        Raises as `open` does.
        """
        candidates = self._candidates(self._roots[project_id], project_dir or "")
        if isinstance(candidates, Refused):
            return candidates
        outcome: SourceTree | Refused | Missing = Missing(project_dir or "")
        for root, components in candidates:
            outcome = _open_tree(root, components, given=project_dir or "", max_bytes=0)
            if isinstance(outcome, SourceTree):
                outcome.close()
                return root.joinpath(*components)
            if isinstance(outcome, Refused):
                break
        return outcome

    @staticmethod
    def _candidates(roots: Sequence[Path], project_dir: str) -> list[tuple[Path, tuple[str, ...]]] | Refused:
        if not project_dir:
            return [(roots[0], ())]
        components = _components(project_dir.lstrip("/") if project_dir.startswith("/") else project_dir)
        if components == "empty path":
            # "." is the root itself, "/" the file system's.
            components = ()
        if isinstance(components, str):
            return Refused(project_dir, components)
        if not project_dir.startswith("/"):
            return [(root, components) for root in roots]
        inside = [
            (root, components[len(known) :])
            for root in roots
            for known in (root.parts[1:], Path(os.path.realpath(root)).parts[1:])
            if components[: len(known)] == known
        ]
        # Of nested roots the innermost, so that nothing between the two has to be walked.
        inside.sort(key=lambda found: len(found[1]))
        return inside[:1] or Refused(project_dir, "leaves the project")


class SourceTree:
    """One open project directory. Close it, or use it as a context manager."""

    def __init__(self, descriptor: int, *, max_bytes: int) -> None:
        """Own the descriptor of a directory."""
        self._descriptor = descriptor
        self._max_bytes = max_bytes

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Release the directory; idempotent."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)

    def read(self, path: str) -> SourceFile | Refused | Missing:
        """The file at `path`, at most `max_bytes` of it; never waits for a writer or a device."""

        def read_file(name: str, directory: int) -> bytes:
            return _read_regular(name, directory, self._max_bytes)

        content = self._at(path, read_file)
        if not isinstance(content, bytes):
            return content
        return SourceFile(clean_path(path), content, hashlib.sha256(content).digest())

    def look(self, path: str) -> Refused | Missing | None:
        """Whether `path` would be refused for where it leads, whatever its size; nothing is read."""

        def look_at(name: str, directory: int) -> None:
            found = _describe(name, directory)
            if not stat.S_ISDIR(found.st_mode):
                _require_regular(found)

        return self._at(path, look_at)

    def _at(self, path: str, use: Callable[[str, int], T]) -> T | Refused | Missing:
        """What `use` makes of the last name and the directory that it stands in."""
        components = _components(path)
        if isinstance(components, str):
            return Refused(path, components)
        try:
            directory = _walk(self._descriptor, components[:-1])
            try:
                return use(components[-1], directory)
            finally:
                os.close(directory)
        except _Refusal as refusal:
            return Refused(path, refusal.reason)
        except FileNotFoundError:
            return Missing(path)
        except OSError:
            return Refused(path, "cannot be read")


def clean_path(path: str) -> str:
    """The path without empty and `.` components: one spelling for one file. An absolute one is left alone."""
    if path.startswith("/"):
        return path
    return "/".join(part for part in path.split("/") if part not in {"", "."})


class _Refusal(Exception):
    """Carries a reason up to where it becomes a value."""

    def __init__(self, reason: RefusalReason) -> None:
        super().__init__(reason)
        self.reason: RefusalReason = reason


def _components(path: str) -> tuple[str, ...] | RefusalReason:
    """The names in a relative path, or why it cannot be one."""
    if path.startswith("/"):
        return "absolute path"
    if len(path) > MAX_PATH_CHARS:
        return "not a file name"
    # A control character or line separator would break the one line on which a path is shown.
    if not path.isprintable() and any(unicodedata.category(c) in {"Cc", "Zl", "Zp"} for c in path):
        return "control character"
    components = tuple(part for part in path.split("/") if part not in {"", "."})
    if not components:
        return "empty path"
    if ".." in components:
        return "leaves the project"
    if len(components) > MAX_COMPONENTS:
        return "nested too deeply"
    try:
        path.encode()
    except UnicodeEncodeError:
        return "not a file name"
    return components


def _open_tree(
    root: Path, components: tuple[str, ...], *, given: str, max_bytes: int
) -> SourceTree | Refused | Missing:
    try:
        base = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        raise Unavailable(f"a source root cannot be opened: {os.strerror(error.errno or 0)}") from error
    try:
        return SourceTree(_walk(base, components), max_bytes=max_bytes)
    except _Refusal as refusal:
        return Refused(given, refusal.reason)
    except FileNotFoundError:
        return Missing(given)
    finally:
        os.close(base)


def _walk(base: int, components: Sequence[str]) -> int:
    """A new descriptor of the directory below `base`; no component of the way is a link.

    Raises _Refusal and FileNotFoundError.
    """
    current = os.dup(base)
    try:
        for name in components:
            below = _open_no_follow(name, current, os.O_RDONLY | os.O_DIRECTORY)
            os.close(current)
            current = below
    except BaseException:
        os.close(current)
        raise
    return current


def _read_regular(name: str, directory: int, max_bytes: int) -> bytes:
    """The bytes of a regular file. Raises _Refusal and FileNotFoundError."""
    # Opening a FIFO or a device can disturb whoever is at its other end, so one that is seen to be such is
    # not opened at all. Safety does not hang on this look: what counts is `fstat` of what was opened.
    _require_regular(_describe(name, directory))
    descriptor = _open_no_follow(name, directory, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY)
    try:
        found = os.fstat(descriptor)
        _require_regular(found)
        if found.st_size > max_bytes:
            raise _Refusal("too large")
        content = _read_at_most(descriptor, max_bytes)
    except OSError as error:
        raise _Refusal("cannot be read") from error
    finally:
        os.close(descriptor)
    # Files that the kernel makes up claim to be regular and empty.
    if content and found.st_size == 0:
        raise _Refusal("not a regular file")
    return content


def _read_at_most(descriptor: int, max_bytes: int) -> bytes:
    """All there is. Raises _Refusal where that is more than `max_bytes`, and OSError."""
    pieces: list[bytes] = []
    left = max_bytes + 1
    while left > 0 and (piece := os.read(descriptor, min(left, 1 << 20))):
        pieces.append(piece)
        left -= len(piece)
    if left <= 0:
        raise _Refusal("too large")
    return b"".join(pieces)


def _require_regular(found: os.stat_result) -> None:
    if stat.S_ISLNK(found.st_mode):
        raise _Refusal("symbolic link")
    if not stat.S_ISREG(found.st_mode):
        raise _Refusal("not a regular file")


def _open_no_follow(name: str, directory: int, flags: int) -> int:
    """Raises _Refusal and FileNotFoundError."""
    try:
        return os.open(name, flags | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=directory)
    except OSError as error:
        raise _translate(error, name, directory) from error


def _describe(name: str, directory: int) -> os.stat_result:
    """What the name stands for, a link being itself. Raises _Refusal and FileNotFoundError."""
    try:
        return os.stat(name, dir_fd=directory, follow_symlinks=False)
    except OSError as error:
        raise _translate(error, name, directory) from error


def _translate(error: OSError, name: str, directory: int) -> _Refusal | OSError:
    """The refusal that the error amounts to, or FileNotFoundError."""
    match error.errno:
        case errno.ENOENT:
            return error
        case errno.ENOTDIR:
            # Linux says this of a link to a directory, too. The link is not followed either way, this only
            # finds out what to call it; below a plain file there is nothing.
            return _Refusal("symbolic link") if _is_link(name, directory) else FileNotFoundError(name)
        case errno.ELOOP:
            return _Refusal("symbolic link")
        case errno.EACCES | errno.EPERM:
            return _Refusal("permission denied")
        case errno.ENAMETOOLONG | errno.EILSEQ | errno.EINVAL:
            return _Refusal("not a file name")
        case errno.ENXIO | errno.ENODEV:
            return _Refusal("not a regular file")
        case _:
            return _Refusal("cannot be read")


def _is_link(name: str, directory: int) -> bool:
    try:
        return stat.S_ISLNK(os.stat(name, dir_fd=directory, follow_symlinks=False).st_mode)
    except OSError:
        return False
