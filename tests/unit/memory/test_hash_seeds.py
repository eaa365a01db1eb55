from __future__ import annotations

import pytest

from tests.support.hash_seeds import outputs


@pytest.mark.timeout(180)
def test_memory_gives_the_same_bytes_under_every_hash_seed() -> None:
    assert len(outputs(["tests/unit/memory/print_memory.py"])) == 1
