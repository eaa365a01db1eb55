"""What a request is about by its own words: the files it names, what it must cite, names in its message."""

from __future__ import annotations

import posixpath
import re
from typing import Final

from schemas.request import AssemblyRequest

MAX_PATHS: Final = 400
SEARCHED_CHARS: Final = 20_000
"""Of the message: whoever sends more sends material, and does not name things."""
_GOES_BEFORE: Final = re.compile(r"[\w./-]")
_GOES_ON: Final = re.compile(r"[\w/-]|\.\w")


def payload_paths(request: AssemblyRequest) -> tuple[str, ...]:
    """The payload's files, relative to the project's root, each once, in their order."""
    payload = request.payload
    folder = payload.project_dir or ""
    folder = "" if folder.startswith("/") else folder
    paths = (posixpath.normpath(posixpath.join(folder, path)) for path in payload.files_created[:MAX_PATHS])
    return tuple(dict.fromkeys(path for path in paths if is_relative(path)))


def is_relative(path: str) -> bool:
    """Whether the path stays below where it starts."""
    return path not in {"", "."} and not path.startswith(("/", "../")) and path != ".."


def targets_of(request: AssemblyRequest) -> frozenset[str]:
    """Ids and paths that the request names: what must be cited; its files, as given and from the root."""
    return frozenset((*request.must_cite, *request.payload.files_created, *payload_paths(request)))


def is_named(name: str, message: str) -> bool:
    """Whether the name stands in the message's beginning as such: not as a part of a longer name or path."""
    end_chars = min(len(message), SEARCHED_CHARS)
    start = message.find(name, 0, end_chars) if name else -1
    while start >= 0:
        end = start + len(name)
        # `./a.py` is `a.py`.
        before, after = message[max(0, start - 3) : start].removesuffix("./")[-1:], message[end : end + 2]
        if not _GOES_BEFORE.match(before) and not _GOES_ON.match(after):
            return True
        start = message.find(name, start + 1, end_chars)
    return False
