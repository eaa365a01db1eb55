"""Prints which kernels numpy's libraries run with here, and a digest of packs; run under several."""

from __future__ import annotations

import ctypes
import json
from pathlib import Path

import numpy as np

from tests.unit.graph.print_pack import digest


def blas_kernel() -> str:
    """What OpenBLAS calls the processor that it takes this one for; empty where numpy carries no OpenBLAS."""
    libraries = Path(np.__file__).parents[1] / "numpy.libs"
    for path in sorted(libraries.glob("*openblas*")):
        core_name = ctypes.CDLL(str(path)).scipy_openblas_get_corename64_
        core_name.restype = ctypes.c_char_p
        return core_name().decode()
    return ""


def multiply() -> str:
    """A product as that kernel forms it, to the last bit: what rounding is there for."""
    numbers = np.random.default_rng(5).random((120, 120)) - 0.5
    return (numbers @ numbers).tobytes().hex()[:4_000]


if __name__ == "__main__":
    print(json.dumps({"kernel": blas_kernel(), "product": multiply(), "packs": digest("bytes")}))  # noqa: T201 - the test reads it
