"""Counting anew, and by another way than the worker: tiktoken as it comes, its own loader and hash check.

Nothing of `worker.budget` is used here: a defect there must not hide itself.
"""

from __future__ import annotations

import gzip
import math
import os
import threading
from collections.abc import Generator
from contextlib import contextmanager
from fractions import Fraction
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Final

import tiktoken
import tiktoken.load

_PACKAGED: Final = frozenset({"o200k_base", "cl100k_base"})
_CACHE_FOLDER: Final = "TIKTOKEN_CACHE_DIR"
_loading = threading.Lock()


def recount(text: str, *, encoding: str, safety_factor: str) -> int | None:
    """Tokens of the text with the factor, rounded up; None where this encoding, or text, is not counted here.

    `file:` tokenizers are not, and neither is a run of white space that overflows tiktoken's stack.
    """
    if encoding == "bytes":
        tokens = len(text.encode())
    elif encoding in _PACKAGED:
        try:
            tokens = len(_encoding(encoding).encode(text, disallowed_special=()))
        except ValueError:
            return None
    else:
        return None
    return math.ceil(tokens * Fraction(safety_factor))


@cache
def _encoding(name: str) -> tiktoken.Encoding:
    with _loading, _packaged_instead_of_download(name):
        return tiktoken.get_encoding(name)


@contextmanager
def _packaged_instead_of_download(name: str) -> Generator[None]:
    """Have tiktoken's own constructor work, with the packaged file in the place of what it would fetch."""
    located = metadata.distribution("bpe-openai").locate_file(f"bpe_openai/data/{name}.tiktoken.gz")
    data = gzip.decompress(Path(str(located)).read_bytes())
    read_file, cache_folder = tiktoken.load.read_file, os.environ.get(_CACHE_FOLDER)
    tiktoken.load.read_file = lambda blobpath: data  # noqa: ARG005  # pyright: ignore[reportUnknownLambdaType]  its signature
    os.environ[_CACHE_FOLDER] = ""  # the cache is looked at first, and who filled it is not known
    try:
        yield
    finally:
        tiktoken.load.read_file = read_file
        if cache_folder is None:
            del os.environ[_CACHE_FOLDER]
        else:
            os.environ[_CACHE_FOLDER] = cache_folder
