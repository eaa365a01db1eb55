from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, trainers

from tests.unit.budget.hostile_text import SNIPPETS, check_counting_up_to, hostile_text, lone_surrogates
from worker.budget.file_counter import FileCounter
from worker.budget.utf8 import byte_length


def train(*, byte_level: bool) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE(unk_token=None if byte_level else "<unk>"))
    alphabet: list[str] = []
    if byte_level:
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        alphabet = pre_tokenizers.ByteLevel.alphabet()
    else:
        # Like the older Llama files: spaces rewritten, characters folded, so offsets are approximate.
        tokenizer.normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Strip()])
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    trainer = trainers.BpeTrainer(
        vocab_size=600,
        special_tokens=["<|endoftext|>", "<unk>"],
        initial_alphabet=alphabet,
        show_progress=False,
    )
    tokenizer.train_from_iterator([*SNIPPETS, "the quick brown fox " * 20], trainer)
    return tokenizer


@pytest.fixture(scope="module", params=["byte-level", "folding"])
def tokenizer(request: pytest.FixtureRequest) -> Tokenizer:
    return train(byte_level=request.param == "byte-level")


@pytest.fixture(scope="module")
def counter(tokenizer: Tokenizer, tmp_path_factory: pytest.TempPathFactory) -> FileCounter:
    path = tmp_path_factory.mktemp("tokenizer") / "tokenizer.json"
    tokenizer.enable_truncation(max_length=7)  # pyright: ignore[reportUnknownMemberType]  # untyped keywords
    tokenizer.enable_padding(length=7)  # pyright: ignore[reportUnknownMemberType]  # untyped keywords
    tokenizer.save(str(path))
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return FileCounter(str(path))


@given(text=hostile_text)
@settings(max_examples=40, deadline=None)
def test_a_count_is_the_number_of_ids_without_frame_cut_or_padding(
    counter: FileCounter, tokenizer: Tokenizer, text: str
) -> None:
    tokenizer.encode_special_tokens = True
    assert counter.count(text) == len(tokenizer.encode(text, add_special_tokens=False).ids)


def test_text_that_spells_a_special_token_is_ordinary_text(counter: FileCounter) -> None:
    assert counter.count("<|endoftext|>") > 1


@given(text=st.one_of(hostile_text, lone_surrogates))
@settings(max_examples=40, deadline=None)
def test_there_is_one_end_for_each_token_in_order_and_the_last_is_the_texts(
    counter: FileCounter, text: str
) -> None:
    ends = counter.token_ends(text).tolist()
    assert len(ends) == counter.count(text)
    assert ends == sorted(ends)
    assert not ends or ends[-1] == byte_length(text)


def test_all_tokens_of_one_character_begin_where_it_begins(tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    train(byte_level=True).save(str(path))
    # U+10000 is no training text: a token for each of its four bytes.
    assert FileCounter(str(path)).token_ends("x\U00010000y").tolist() == [1, 1, 1, 1, 5, 6]


@given(text=hostile_text, data=st.data())
@settings(max_examples=40, deadline=None)
def test_counting_up_to_a_limit_agrees_below_it_and_exceeds_it_above(
    counter: FileCounter, text: str, data: st.DataObject
) -> None:
    check_counting_up_to(counter, text, data)


def test_counting_up_to_a_small_limit_reads_little_of_a_large_text(
    counter: FileCounter, monkeypatch: pytest.MonkeyPatch
) -> None:
    read_chars: list[int] = []
    count = counter.count

    def record(text: str) -> int:
        read_chars.append(len(text))
        return count(text)

    monkeypatch.setattr(counter, "count", record)
    assert not counter.fits("the quick brown fox " * 50_000, 300)
    assert sum(read_chars) < 10_000


def test_every_count_is_exact(counter: FileCounter) -> None:
    assert counter.exact
    assert counter.is_exact(" " * 200_000)
    assert (counter.scale(7), counter.raw_budget(7)) == (7, 7)


@pytest.mark.parametrize("content", [None, "", "{}", "not json", json.dumps({"model": {"type": "Nope"}})])
def test_a_file_that_is_no_tokenizer_is_a_value_error_with_its_path(
    tmp_path: Path, content: str | None
) -> None:
    path = tmp_path / "tokenizer.json"
    if content is not None:
        path.write_text(content)
    with pytest.raises(ValueError, match=r"cannot load the tokenizer file .*tokenizer\.json"):
        FileCounter(str(path))
