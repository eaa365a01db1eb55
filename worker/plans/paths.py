"""Paths of files in a text, without suffixes of lines."""

from __future__ import annotations

import re
from typing import Final

from worker.code.documents.decision_words import FILE_SUFFIXES, cut_lines

_TICKED: Final = re.compile(r"(?<!`)`(?P<code>[^`\n]{1,300})`(?!`)")
_BARE: Final = re.compile(r"[^\s,;()\[\]<>\"'*|`]+")
_LINES: Final = re.compile(r"(?::\d{1,7}(?:[-–,:]\d{1,7})*|#L\d{1,7}(?:-L?\d{1,7})?)\Z")
_PATH: Final = re.compile(r"[\w@.+~-]*(?:/[\w@.+()\[\]{}~-]+)*/?\Z")
_SUFFIX: Final = re.compile(r"\.[A-Za-z][A-Za-z0-9]{0,9}\Z")
_SUFFIXES: Final = FILE_SUFFIXES | frozenset(
    ["bash", "cjs", "csv", "graphql", "ipynb", "kts", "mdx", "mjs", "prisma"]
)
_NAMES: Final = frozenset({"Dockerfile", "Makefile", "Jenkinsfile", "Procfile", "CODEOWNERS"})


def paths_in(text: str) -> tuple[str, ...]:
    """The paths that a text names, each once and in order. O(n).

    In back-ticks a name with a known suffix, or folders, are enough; outside them a path has a folder and a
    suffix, since "read/write" and "Node.js" are words.
    """
    found: list[tuple[int, str]] = []
    for match in _TICKED.finditer(text):
        path = path_of(match["code"])
        if path:
            found.append((match.start(), path))
    bare = _TICKED.sub(lambda match: " " * len(match[0]), text) if "`" in text else text
    if "/" in bare:
        for match in _BARE.finditer(bare):
            path = _cut(match[0].rstrip(".:!?"))
            if "/" in path and "://" not in path and _SUFFIX.search(path) and _PATH.match(path):
                found.append((match.start(), path))
    return tuple(dict.fromkeys(path for _, path in sorted(found)))


def path_of(code: str) -> str:
    """The path that a code span, or an entry of a list of files, is; empty where it is none."""
    path = _cut(code.strip())
    if not path or path.startswith("//") or "://" in path or not _PATH.match(path):
        return ""
    suffix = _SUFFIX.search(path)
    if suffix and (suffix[0][1:].lower() in _SUFFIXES or "/" in path):
        return path
    if path in _NAMES or (path.startswith(".") and "/" not in path and len(path) > 2):  # noqa: PLR2004 (`..` is no file)
        return path
    return path if "/" in path.strip("/") else ""


def listed_paths(text: str) -> tuple[str, ...]:
    """The paths of a field that lists files, where a bare name with a known suffix counts as well."""
    found = list(paths_in(text))
    bare = _TICKED.sub(" ", text)
    for part in re.split(r"[,;]|\s+and\s+|\s", bare):
        path = path_of(part.strip("*_()[]:"))
        if path and path not in found:
            found.append(path)
    return tuple(found)


def _cut(path: str) -> str:
    return _LINES.sub("", cut_lines(path))
