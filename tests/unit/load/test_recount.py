"""The recount uses the published vocabularies, and nothing that other threads change."""

from __future__ import annotations

import gzip
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from unittest import mock

import pytest
import tiktoken.load
import tiktoken.registry

from worker.load import recount as module
from worker.load.recount import recount


@pytest.fixture(autouse=True)
def _read_anew(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Neither tiktoken nor the recount still knows a vocabulary from before, or keeps one from here."""
    kept = module._encoding  # pyright: ignore[reportPrivateUsage]  what is kept is what has to go
    monkeypatch.setattr(tiktoken.registry, "ENCODINGS", {})
    kept.cache_clear()
    yield
    kept.cache_clear()


def test_a_process_whose_environment_is_replaced_meanwhile_counts_as_ever() -> None:
    """Whole environments are put aside and restored by others while the vocabulary is being read."""
    original, own = tiktoken.load.read_file_cached, dict(os.environ)
    with ThreadPoolExecutor(2) as threads:
        counted = [
            threads.submit(recount, "three short words", encoding=name, safety_factor="1")
            for name in ("o200k_base", "cl100k_base", "o200k_base")
        ]
        while not all(count.done() for count in counted):
            with mock.patch.dict(os.environ, {"TIKTOKEN_CACHE_DIR": "nowhere"}, clear=True):
                pass
    assert [count.result() for count in counted] == [3, 3, 3]
    assert tiktoken.load.read_file_cached is original
    assert dict(os.environ) == own


def test_a_packaged_vocabulary_that_is_not_the_published_one_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    altered = tmp_path / "altered.gz"
    altered.write_bytes(gzip.compress(b"YQ== 0\n"))

    distribution = mock.Mock(**{"locate_file.return_value": altered})
    monkeypatch.setattr(module.metadata, "distribution", mock.Mock(return_value=distribution))
    with pytest.raises(ValueError, match="o200k_base is not what"):
        recount("words", encoding="o200k_base", safety_factor="1")
