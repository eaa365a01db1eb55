"""Rankings and packs on machines whose numeric libraries pick other kernels."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.unit.graph.print_kernels import blas_kernel
from tests.unit.graph.print_pack import digest

ROOT = Path(__file__).parents[3]
X86_FEATURES = "X86_V3 X86_V4 AVX512_ICL AVX512_SPR"
"""What numpy's own loops pick among; a name that this build or processor lacks is passed over."""
MACHINES = (
    {"OPENBLAS_CORETYPE": "Haswell"},
    {"OPENBLAS_CORETYPE": "Prescott", "NPY_DISABLE_CPU_FEATURES": X86_FEATURES},
)


def run_on(machine: dict[str, str]) -> dict[str, str]:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-m", "tests.unit.graph.print_kernels"],
        cwd=ROOT,
        env={**os.environ, **machine},
        capture_output=True,
        text=True,
        check=True,
    )
    return json.loads(done.stdout)


@pytest.mark.timeout(60)
def test_another_kernel_gives_other_bits_and_the_same_packs() -> None:
    with ThreadPoolExecutor(2) as pool:
        seen = [{"packs": digest("bytes")}, *pool.map(run_on, MACHINES)]
    if blas_kernel():
        assert len({machine["kernel"] for machine in seen[1:]}) == 2, "the kernels did not change"
        assert len({machine["product"] for machine in seen[1:]}) == 2, "the kernels agree to the last bit"
    assert len({machine["packs"] for machine in seen}) == 1
