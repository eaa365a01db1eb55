"""The packaged tiktoken vocabularies, loaded without network and checked against tiktoken's hashes.

tiktoken downloads its vocabularies on first use. The `bpe-openai` distribution carries the same
files, so an `Encoding` is built from those: patterns, special tokens and expected SHA-256 come from
tiktoken's own constructor functions, run with a loader that reads the packaged file.
"""

from __future__ import annotations

import binascii
import gzip
import hashlib
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from types import FunctionType
from typing import Any, Final, cast

import numpy as np
import tiktoken
from numpy.typing import NDArray
from tiktoken_ext import (  # pyright: ignore[reportMissingTypeStubs]  # a namespace package without stubs
    openai_public,
)

PACKAGED: Final = ("o200k_base", "cl100k_base")
"""Names of the vocabularies at hand."""

_lock = threading.Lock()
_loaded: dict[str, Vocabulary] = {}


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """A tiktoken encoding, the length in bytes of each token by its id `(n_vocab,)`, and the tokens."""

    encoding: tiktoken.Encoding
    token_bytes: NDArray[np.int64]
    longest_token_bytes: int
    sorted_tokens: Sequence[bytes]


def load_vocabulary(name: str) -> Vocabulary:
    """The packaged vocabulary `name`, read once per process (0.3 to 0.8 s), safe from any thread.

    Raises ValueError on a name that is not packaged and on data whose SHA-256 is not tiktoken's.
    """
    if name not in PACKAGED:
        raise ValueError(f"unknown vocabulary {name!r}; packaged: {', '.join(PACKAGED)}")
    with _lock:
        if name not in _loaded:
            _loaded[name] = _build(name)
        return _loaded[name]


def _build(name: str) -> Vocabulary:
    ranks: dict[bytes, int] = {}

    def load_packaged(_url: str, expected_hash: str) -> dict[bytes, int]:
        ranks.update(_read_ranks(name, expected_sha256=expected_hash))
        return ranks

    constructor = cast("FunctionType", getattr(openai_public, name))
    # The constructor's code with another loader in its globals: tiktoken's module stays as it is.
    offline = FunctionType(
        constructor.__code__, {**constructor.__globals__, "load_tiktoken_bpe": load_packaged}
    )
    encoding = tiktoken.Encoding(**cast("dict[str, Any]", offline()))
    token_bytes = np.zeros(encoding.n_vocab, dtype=np.int64)
    token_bytes[np.fromiter(ranks.values(), np.int64)] = np.fromiter(map(len, ranks), np.int64)
    # tiktoken has them in order already, though it does not say so: sorting them anew takes as long as half
    # of all the rest, making sure of it a tenth of that.
    tokens = encoding.token_byte_values()
    tokens.sort()
    return Vocabulary(encoding, token_bytes, int(token_bytes.max()), tokens)


def _read_ranks(name: str, *, expected_sha256: str) -> dict[bytes, int]:
    # Located through the metadata: importing the package would load its 74 MB of compiled code.
    located = metadata.distribution("bpe-openai").locate_file(f"bpe_openai/data/{name}.tiktoken.gz")
    data = gzip.decompress(Path(str(located)).read_bytes())
    if hashlib.sha256(data).hexdigest() != expected_sha256:
        raise ValueError(f"the packaged vocabulary {name} is not the one that tiktoken expects")
    fields = data.split()
    return dict(zip(map(binascii.a2b_base64, fields[::2]), map(int, fields[1::2]), strict=True))
