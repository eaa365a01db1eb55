from __future__ import annotations

from tests.support.hash_seeds import outputs


def test_memory_gives_the_same_bytes_under_every_hash_seed() -> None:
    assert len(outputs(["tests/unit/memory/print_memory.py"], seeds=["0", "1"])) == 1
