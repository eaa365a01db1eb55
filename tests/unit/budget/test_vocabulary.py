from __future__ import annotations

import gzip
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import numpy as np
import pytest

from worker.budget import vocabulary
from worker.budget.vocabulary import load_vocabulary

# From OpenAI's own documentation of tiktoken and its cookbook.
KNOWN_IDS = [
    ("cl100k_base", "hello world", [15339, 1917]),
    ("cl100k_base", "tiktoken is great!", [83, 1609, 5963, 374, 2294, 0]),
    ("cl100k_base", "antidisestablishmentarianism", [519, 85342, 34500, 479, 8997, 2191]),
    ("cl100k_base", "2 + 2 = 4", [17, 489, 220, 17, 284, 220, 19]),
    ("cl100k_base", "お誕生日おめでとう", [33334, 45918, 243, 21990, 9080, 33334, 62004, 16556, 78699]),
    ("o200k_base", "hello world", [24912, 2375]),
    ("o200k_base", "tiktoken is great!", [83, 8251, 2488, 382, 2212, 0]),
    ("o200k_base", "antidisestablishmentarianism", [493, 129901, 376, 160388, 21203, 2367]),
    ("o200k_base", "2 + 2 = 4", [17, 659, 220, 17, 314, 220, 19]),
    ("o200k_base", "お誕生日おめでとう", [8930, 9697, 243, 128225, 8930, 17693, 4344, 48669]),
]

OFFLINE = """
import sys

def refuse(event, args):
    if event.startswith("socket.") or event == "urllib.Request":
        raise RuntimeError(f"network used: {event} {args}")

sys.addaudithook(refuse)
from worker.budget.tokens import counter_for
print([counter_for(name).count("hello world, <|endoftext|>") for name in ("o200k_base", "cl100k_base")])
print(sorted({"requests", "bpe_openai", "blobfile"} & set(sys.modules)))
"""


@pytest.mark.parametrize(("name", "text", "ids"), KNOWN_IDS)
def test_known_texts_get_the_ids_that_tiktoken_documents(name: str, text: str, ids: list[int]) -> None:
    assert load_vocabulary(name).encoding.encode(text) == ids


def test_counting_opens_no_socket_and_imports_no_downloader(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", OFFLINE],
        env={"TIKTOKEN_CACHE_DIR": str(tmp_path), "PYTHONPATH": str(Path(__file__).parents[3])},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stderr == ""
    assert done.stdout == "[10, 9]\n[]\n"
    assert list(tmp_path.iterdir()) == []


def test_every_ordinary_token_has_its_length_in_bytes() -> None:
    loaded = load_vocabulary("cl100k_base")
    assert loaded.encoding.n_vocab == 100_277
    assert loaded.token_bytes[[0, 15339, 1917]].tolist() == [1, 5, 6]
    assert loaded.longest_token_bytes == 128


def test_a_vocabulary_is_read_once() -> None:
    assert load_vocabulary("cl100k_base") is load_vocabulary("cl100k_base")


def test_a_name_that_is_not_packaged_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ValueError, match="unknown vocabulary 'p50k_base'; packaged: o200k_base, cl100k_base"):
        load_vocabulary("p50k_base")


def test_data_with_another_hash_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = tmp_path / "bpe_openai" / "data" / "cl100k_base.tiktoken.gz"
    data.parent.mkdir(parents=True)
    data.write_bytes(gzip.compress(b"IQ== 0\n"))

    class Elsewhere(metadata.PathDistribution):
        def locate_file(self, path: object) -> Path:  # pyright: ignore[reportIncompatibleMethodOverride]  # a wider stub type
            return tmp_path / str(path)

    def elsewhere(_name: str) -> Elsewhere:
        return Elsewhere(tmp_path)

    monkeypatch.setattr(vocabulary.metadata, "distribution", elsewhere)
    monkeypatch.setattr(vocabulary, "_loaded", {})
    with pytest.raises(ValueError, match="cl100k_base is not the one that tiktoken expects"):
        load_vocabulary("cl100k_base")


def test_the_tokens_are_all_there_in_order() -> None:
    loaded = load_vocabulary("cl100k_base")
    tokens = list(loaded.sorted_tokens)
    assert tokens == sorted(set(tokens))
    assert len(tokens) == np.count_nonzero(loaded.token_bytes)
