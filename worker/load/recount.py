"""Counting anew, and by another way than the worker: tiktoken as it comes, its own loader and hash check.

Nothing of `worker.budget` is used here: a defect there must not hide itself.
"""

from __future__ import annotations

import gzip
import math
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
_loading = threading.Lock()


def recount(text: str, *, encoding: str, safety_factor: str) -> int | None:
    """Tokens of the text with the factor, rounded up; None where this encoding, or text, is not counted here.

    `file:` tokenizers are not, and neither is a run of white space that overflows tiktoken's stack.
    Raises ValueError where the packaged vocabulary is not the published one.
    """
    if encoding == "bytes":
        tokens = len(text.encode())
    elif encoding in _PACKAGED:
        published = _encoding(encoding)
        try:
            tokens = len(published.encode(text, disallowed_special=()))
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
    """Have tiktoken's own constructor work, with the packaged file in the place of what it would fetch.

    Its cache is passed by too: who filled that is not known. Nothing of the process's environment is touched,
    which other threads read and replace. Raises ValueError for a file that is not the published one.
    """
    located = metadata.distribution("bpe-openai").locate_file(f"bpe_openai/data/{name}.tiktoken.gz")
    data = gzip.decompress(Path(str(located)).read_bytes())

    def packaged(blobpath: str, expected_hash: str) -> bytes:
        if not tiktoken.load.check_hash(data, expected_hash):
            raise ValueError(f"the packaged vocabulary {name} is not what {blobpath} holds")
        return data

    read_file_cached = tiktoken.load.read_file_cached
    tiktoken.load.read_file_cached = packaged
    try:
        yield
    finally:
        tiktoken.load.read_file_cached = read_file_cached
