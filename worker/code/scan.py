"""The files of a source tree that an index is made of, and what was left out by which rule.

Folders are opened one below the other without following links, so nothing outside the root is ever seen; a
link, device or socket is counted and left alone. The result depends on the tree alone: entries are met in
the order of their names, whatever order the file system has.

Reads block: call from a thread.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from worker.code.ignore import IGNORE_FILES, IgnoreRules
from worker.code.skipping import (
    FORCED,
    Skipped,
    SkipRule,
    is_usable_name,
    skip_content,
    skip_folder,
    skip_name,
    skip_size,
)
from worker.code.sources import MAX_COMPONENTS, SourceFile, SourceTree
from worker.errors import Unavailable

MAX_FILE_BYTES: Final = 1_000_000
_MAX_IGNORE_BYTES: Final = 1_000_000
_FOLDER_FLAGS: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC


@dataclass(frozen=True, slots=True, kw_only=True)
class FileStamp:
    """What tells, without reading it, that a file is the same as before."""

    size_bytes: int
    modified_ns: int
    changed_ns: int
    inode: int

    @property
    def written_ns(self) -> int:
        """When content or name last changed, as far as is known."""
        return max(self.modified_ns, self.changed_ns)


@dataclass(frozen=True, slots=True, kw_only=True)
class ScannedFile:
    """A file to be indexed. `content` is None where its stamp says that it is the known one."""

    path: str
    sha256: str
    size_bytes: int
    stamp: FileStamp | None
    """None where only a `!` line lets the file in, so that each scan has to look at it again."""
    content: bytes | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Scan:
    """The files in order of path, and how many entries each rule left out (a folder counts as one)."""

    files: tuple[ScannedFile, ...]
    skipped: Mapping[SkipRule, int]
    skipped_paths: tuple[tuple[str, SkipRule], ...]
    """Path and rule of what was left out, in order of path; of very many not all."""


KnownFiles = Callable[[str, FileStamp], str | None]
"""The hex digest of a file's content, where path and stamp are those of a file that was read before."""


def _knows_nothing(_path: str, _stamp: FileStamp) -> str | None:
    return None


def scan_tree(
    root: Path, *, max_file_bytes: int = MAX_FILE_BYTES, known: KnownFiles = _knows_nothing
) -> Scan:
    """What is below `root`, which may itself be a link. O(entries), and one read of each file not known.

    Raises Unavailable where the root cannot be opened.
    """
    skipped = Skipped()
    files: list[ScannedFile] = []
    try:
        base = os.open(root, _FOLDER_FLAGS)
    except OSError as error:
        raise Unavailable(f"{root} cannot be opened: {os.strerror(error.errno or 0)}") from error
    with SourceTree(base, max_bytes=max_file_bytes) as tree:
        walk = _Walk(skipped, max_file_bytes=max_file_bytes)
        for path, found in walk.files(base):
            is_wanted = path in walk.wanted
            stamp = None if is_wanted else _stamp(found)
            digest = known(path, stamp) if stamp else None
            if digest is not None:
                files.append(
                    ScannedFile(path=path, sha256=digest, size_bytes=found.st_size, stamp=stamp, content=None)
                )
                continue
            source = tree.read(path)
            if not isinstance(source, SourceFile):
                skipped.add(path, "unreadable")
                continue
            rule = skip_content(path, source.content)
            if rule is not None and not is_wanted:
                skipped.add(path, rule)
                continue
            files.append(
                ScannedFile(
                    path=path,
                    sha256=source.sha256.hex(),
                    size_bytes=len(source.content),
                    stamp=stamp,
                    content=source.content,
                )
            )
    files.sort(key=lambda file: file.path)
    return Scan(files=tuple(files), skipped=skipped.counts(), skipped_paths=skipped.paths())


class _Walk:
    """One walk over the folders of a tree."""

    def __init__(self, skipped: Skipped, *, max_file_bytes: int) -> None:
        self._skipped = skipped
        self._max_file_bytes = max_file_bytes
        self.wanted: set[str] = set()
        """Files that a `!` line of `.contextignore` names, or that stand in such a folder."""

    def files(self, base: int) -> Iterator[tuple[str, os.stat_result]]:
        """The files that no name, size or ignore file leaves out; parents before what is in them."""
        yield from self._folder(os.dup(base), "", IgnoreRules(), is_wanted=False)

    def _folder(
        self, folder: int, prefix: str, rules: IgnoreRules, *, is_wanted: bool
    ) -> Iterator[tuple[str, os.stat_result]]:
        """Close `folder` when done. Recursion is bounded by `MAX_COMPONENTS`."""
        try:
            names = sorted(os.listdir(folder))
            texts = {name: _ignore_text(name, folder) for name in IGNORE_FILES if name in names}
            rules = rules.within(prefix.removesuffix("/"), texts)
            for name in names:
                yield from self._entry(name, folder, prefix, rules, names, is_wanted=is_wanted)
        except OSError:
            self._skipped.add(prefix or ".", "unreadable")
        finally:
            os.close(folder)

    def _entry(
        self, name: str, folder: int, prefix: str, rules: IgnoreRules, names: list[str], *, is_wanted: bool
    ) -> Iterator[tuple[str, os.stat_result]]:
        path = prefix + name
        if not is_usable_name(name):
            self._skipped.add(path, "name")
            return
        try:
            found = os.stat(name, dir_fd=folder, follow_symlinks=False)
        except FileNotFoundError:
            return
        except OSError:
            self._skipped.add(path, "unreadable")
            return
        is_folder = stat.S_ISDIR(found.st_mode)
        rule = _kind_rule(found)
        verdict = rules.verdict(path, is_folder=is_folder)
        if rule is None and verdict == "left_out":
            rule = "ignore_file"
        is_wanted = is_wanted or verdict == "wanted"
        if rule is not None:
            self._skipped.add(path, rule)
        elif is_folder:
            yield from self._below(name, folder, path, rules, names, is_wanted=is_wanted)
        else:
            rule = skip_name(name) or skip_size(
                path, size_bytes=found.st_size, max_file_bytes=self._max_file_bytes
            )
            if rule is not None and not is_wanted:
                self._skipped.add(path, rule)
                return
            if is_wanted:
                self.wanted.add(path)
            yield path, found

    def _below(
        self, name: str, folder: int, path: str, rules: IgnoreRules, names: list[str], *, is_wanted: bool
    ) -> Iterator[tuple[str, os.stat_result]]:
        if path.count("/") + 2 > MAX_COMPONENTS:
            self._skipped.add(path, "nested_too_deeply")
            return
        try:
            below = os.open(name, _FOLDER_FLAGS | os.O_NOFOLLOW, dir_fd=folder)
        except OSError:
            self._skipped.add(path, "unreadable")
            return
        rule = skip_folder(name, beside=names, inside=_listing(below))
        if rule is not None and (rule in FORCED or not is_wanted):
            os.close(below)
            self._skipped.add(path, rule)
            return
        yield from self._folder(below, f"{path}/", rules, is_wanted=is_wanted)


def _stamp(found: os.stat_result) -> FileStamp:
    return FileStamp(
        size_bytes=found.st_size,
        modified_ns=found.st_mtime_ns,
        changed_ns=found.st_ctime_ns,
        inode=found.st_ino,
    )


def _kind_rule(found: os.stat_result) -> SkipRule | None:
    if stat.S_ISLNK(found.st_mode):
        return "symbolic_link"
    return None if stat.S_ISDIR(found.st_mode) or stat.S_ISREG(found.st_mode) else "not_a_file"


def _listing(folder: int) -> list[str]:
    try:
        return os.listdir(folder)
    except OSError:
        return []


def _ignore_text(name: str, folder: int) -> str:
    """The text of an ignore file; empty where it cannot be read or is no file."""
    try:
        descriptor = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
    except OSError:
        return ""
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            return ""
        return os.read(descriptor, _MAX_IGNORE_BYTES).decode("utf-8", "replace")
    except OSError:
        return ""
    finally:
        os.close(descriptor)
