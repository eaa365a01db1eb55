from __future__ import annotations

import random
from pathlib import Path

import pytest
import regex
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, models, pre_tokenizers, trainers

from tests.support.trimmed import check_trimmed, recount, without_closing_line
from tests.unit.budget.hostile_text import FAMILY, SNIPPETS, hostile_text, lone_surrogates, long_runs
from worker.budget.fences import open_fence
from worker.budget.tiktoken_counter import TiktokenCounter
from worker.budget.tokens import TokenCounter, counter_for
from worker.budget.trimming import trim_to_budget

O200K = counter_for("o200k_base")
COUNTERS = [
    O200K,
    counter_for("cl100k_base"),
    counter_for("o200k_base", safety_factor="1.15"),
    counter_for("bytes"),
]
by_counter = pytest.mark.parametrize("counter", COUNTERS, ids=lambda c: f"{c.name}-{c.scale(100)}")


def budgets(counter: TokenCounter, text: str) -> st.SearchStrategy[int]:
    return st.integers(0, counter.count(text) + 1)


@by_counter
@given(text=st.one_of(hostile_text, hostile_text, long_runs), data=st.data())
def test_the_result_is_a_prefix_of_whole_graphemes_within_the_budget_and_trims_to_itself(
    counter: TokenCounter, text: str, data: st.DataObject
) -> None:
    budget = data.draw(budgets(counter, text))
    result = trim_to_budget(text, budget, counter)
    check_trimmed(text, result, budget, counter)
    assert trim_to_budget(result, budget, counter) == result


@by_counter
@given(text=hostile_text, data=st.data())
def test_no_longer_prefix_fits_unless_half_the_budget_is_used(
    counter: TokenCounter, text: str, data: st.DataObject
) -> None:
    budget = data.draw(budgets(counter, text))
    if recount(counter, text) <= budget:
        return
    result = trim_to_budget(text, budget, counter)
    ends = {found.end() for found in regex.finditer(r"\X", text)}
    largest = max((end for end in ends if recount(counter, closed(text, end)) <= budget), default=0)
    half_is_used = 2 * counter.raw_budget(recount(counter, result)) >= counter.raw_budget(budget)
    kept = len(without_closing_line(text, result))
    assert kept >= len(text[:largest].rstrip()) or half_is_used


@given(text=hostile_text, data=st.data())
@settings(max_examples=60, deadline=None)
def test_without_a_hard_limit_no_word_is_cut(text: str, data: st.DataObject) -> None:
    budget = data.draw(budgets(O200K, text))
    kept = without_closing_line(text, trim_to_budget(text, budget, O200K, hard_limit=False))
    assert kept in {"", text} or regex.search(r"(?<=\S)(?=\s)|\p{Han}|\p{Hiragana}", text[len(kept) - 1 :])


def closed(text: str, end: int) -> str:
    closing = open_fence(text[:end])
    if closing is None:
        return text[:end]
    return text[:end] + ("" if text[end - 1] in "\r\n" else "\n") + closing


@given(text=lone_surrogates, budget=st.integers(0, 12))
@settings(max_examples=60)
def test_a_lone_surrogate_is_kept_and_counted_as_its_replacement(text: str, budget: int) -> None:
    text = "one two. " + text + " three four"
    result = trim_to_budget(text, budget, O200K)
    assert text.startswith(result)
    assert O200K.count(result) <= budget


def test_a_text_within_its_budget_is_untouched_open_fence_and_all() -> None:
    text = "  ```py\nx = 1  \n\n"
    assert trim_to_budget(text, 100, O200K) == text
    assert trim_to_budget(text, O200K.count(text), O200K) == text
    assert trim_to_budget("", 5, O200K) == ""


@pytest.mark.parametrize("budget", [0, -1, -1_000])
def test_no_budget_gives_nothing(budget: int) -> None:
    assert trim_to_budget("some text", budget, O200K) == ""
    assert trim_to_budget("some text", budget, O200K, hard_limit=False) == ""


TEXT = "One two three. Four five six.\n\nSeven eight nine. Ten eleven twelve.\n\nThirteen. Fourteen fifteen."


@pytest.mark.parametrize(
    ("budget", "kept"),
    [
        (22, "One two three. Four five six.\n\nSeven eight nine. Ten eleven twelve."),
        (16, "One two three. Four five six.\n\nSeven eight nine. Ten eleven twelve."),
        (15, "One two three. Four five six."),
        (8, "One two three. Four five six."),
        (7, "One two three."),
        (4, "One two three."),
        (3, "One two"),
        (2, "One two"),
        (1, "One"),
    ],
)
def test_whole_paragraphs_go_before_whole_sentences_and_those_before_words(budget: int, kept: str) -> None:
    assert trim_to_budget(TEXT, budget, O200K) == kept


def test_a_heading_does_not_stand_for_the_paragraph_below_it() -> None:
    text = (
        "# Title\n\nA first sentence of some length. A second one, a little longer than that. " + "word " * 99
    )
    assert trim_to_budget(text, 26, O200K) == (
        "# Title\n\nA first sentence of some length. A second one, a little longer than that."
    )
    assert (
        trim_to_budget("# Title\n\n" + "word " * 99, 12, O200K)
        == "# Title\n\nword word word word word word word word word"
    )


def test_without_a_word_that_fits_the_hard_limit_cuts_after_a_grapheme() -> None:
    text = "antidisestablishmentarianism" * 3
    assert trim_to_budget(text, 2, O200K) == "antidis"
    assert trim_to_budget(FAMILY * 2 + "x", O200K.count(FAMILY) + 3, O200K) == FAMILY
    assert trim_to_budget(FAMILY * 2, 3, O200K) == ""


def test_a_budget_is_not_filled_with_the_white_space_behind_the_last_word() -> None:
    assert trim_to_budget("one two" + " \t" * 5_000 + "three", 100, O200K) == "one two"


def test_a_word_that_leaves_most_of_the_budget_unused_does_not_stand_for_the_data_behind_it() -> None:
    text = 'data = [{"id":' + ",".join(map(str, range(10_000, 12_000))) + "}]"
    assert trim_to_budget(text, 100, O200K).startswith('data = [{"id":10000,10001,')
    assert 95 <= O200K.count(trim_to_budget(text, 100, O200K)) <= 100


def test_without_a_hard_limit_an_untrimmable_text_is_returned_as_it_is() -> None:
    text = "antidisestablishmentarianism" * 3
    assert trim_to_budget(text, 2, O200K, hard_limit=False) == text
    assert trim_to_budget(text + " tail", 2, O200K, hard_limit=False) == text + " tail"
    assert trim_to_budget("short " + text, 2, O200K, hard_limit=False) == "short"


def test_a_cut_inside_a_fence_closes_it_within_the_budget() -> None:
    text = "Intro.\n\n```python\nfirst = 1\n\nsecond = 2\n\nthird = 3\n```\n\nOutro."
    result = trim_to_budget(text, 15, O200K)
    assert result == "Intro.\n\n```python\nfirst = 1\n```"
    assert O200K.count(result) == 11


def test_a_fence_in_a_list_is_closed_with_the_indent_of_its_item() -> None:
    text = "- Steps:\n\n  ```sh\n  make up\n\n  make test\n\n  make down\n  ```\n"
    assert trim_to_budget(text, 16, O200K) == "- Steps:\n\n  ```sh\n  make up\n  ```"


def test_the_budget_is_never_taken_on_trust_where_a_longer_prefix_has_fewer_tokens() -> None:
    # " indivisible" grows from several tokens to one: the last word counts less than its beginning.
    text = "pledge indivisible"
    prefixes = [O200K.count(text[:end]) for end in range(len(text) + 1)]
    assert prefixes != sorted(prefixes)
    for budget in range(1, max(prefixes) + 1):
        assert O200K.count(trim_to_budget(text + " and on", budget, O200K)) <= budget


@pytest.mark.parametrize(
    "text",
    [
        "a" * 100_000,
        "中" * 300_000,
        "的一是不" * 100_000,
        "😀" * 100_000,
        FAMILY * 20_000,
        " " * 1_000_000,
        "\n" * 300_000,
        "0123456789" * 30_000,
        "<|endoftext|>" * 30_000,
        "e" + "\u0301" * 100_000,
        "🇩" * 50_000,
        "aB" * 50_000,
        "```\n" * 50_000,
        "word " * 200_000,
        "\x00" * 300_000,
    ],
    ids=lambda text: repr(text[:4]),
)
@pytest.mark.parametrize("budget", [7, 1_000, 30_000])
def test_huge_hostile_texts_fill_their_budget_in_bounded_time(text: str, budget: int) -> None:
    result = trim_to_budget(text, budget, O200K)
    tokens = recount(O200K, result) if not result.startswith(" " * 900_000) else O200K.count(result)
    assert tokens <= budget
    one_cluster = regex.match(r"\X", text)
    assert one_cluster
    if O200K.count(text) > budget and O200K.count(one_cluster[0]) <= budget:
        assert tokens > 0.9 * budget - 8


def test_a_megabyte_is_not_tokenised_to_keep_a_page(monkeypatch: pytest.MonkeyPatch) -> None:
    counter = TiktokenCounter("o200k_base")
    read_chars: list[int] = []
    encode = counter.encode

    def record(text: str) -> object:
        read_chars.append(len(text))
        return encode(text)

    monkeypatch.setattr(counter, "encode", record)
    for text in ("Some words, and more of them.\n" * 40_000, "的一是不了人我在有他" * 100_000, TEXT * 10_000):
        read_chars.clear()
        result = trim_to_budget(text, 2_000, counter)
        assert len(result) < sum(read_chars) < 1.5 * len(result) + 200


@pytest.fixture(scope="module")
def file_counter(tmp_path_factory: pytest.TempPathFactory) -> TokenCounter:
    path: Path = tmp_path_factory.mktemp("tokenizer") / "tokenizer.json"
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(
        vocab_size=700, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    tokenizer.train_from_iterator([*SNIPPETS, TEXT * 5], trainer)
    tokenizer.save(str(path))
    return counter_for(f"file:{path}", safety_factor="1.05")


@given(text=hostile_text, data=st.data())
@settings(max_examples=60, deadline=None)
def test_a_tokenizer_file_is_trimmed_for_as_well(
    file_counter: TokenCounter, text: str, data: st.DataObject
) -> None:
    budget = data.draw(budgets(file_counter, text))
    result = trim_to_budget(text, budget, file_counter)
    assert file_counter.count(result) <= budget
    assert trim_to_budget(result, budget, file_counter) == result
    kept = without_closing_line(text, result)
    assert kept == "" or len(kept) in {found.end() for found in regex.finditer(r"\X", text)}
    if file_counter.count(text) <= budget:
        assert result == text


def test_a_tokenizer_file_fills_its_budget_from_a_large_text(file_counter: TokenCounter) -> None:
    result = trim_to_budget("Seven eight nine. " * 30_000, 2_000, file_counter)
    assert 1_980 < file_counter.count(result) <= 2_000


def sizes_tokenised(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The bytes of each text and piece that is handed to tiktoken from now on: work, without a clock."""
    sizes: list[int] = []
    encode_text, encode_piece = TiktokenCounter._encode_text, TiktokenCounter.encode_piece  # pyright: ignore[reportPrivateUsage]  # where all texts pass

    def count_text(counter: TiktokenCounter, text: str) -> object:
        sizes.append(len(text.encode()))
        return encode_text(counter, text)

    def count_piece(counter: TiktokenCounter, piece: bytes) -> object:
        sizes.append(len(piece))
        return encode_piece(counter, piece)

    monkeypatch.setattr(TiktokenCounter, "_encode_text", count_text)
    monkeypatch.setattr(TiktokenCounter, "encode_piece", count_piece)
    return sizes


@pytest.mark.parametrize("encoding", ["o200k_base", "cl100k_base"])
@pytest.mark.parametrize("budget_tokens", [1_900, 6_000])
@pytest.mark.parametrize(
    "alphabet",
    [
        ["🇩🇪", "🇫🇷", "🇯🇵"],
        ["1️⃣", "2️⃣", "#️⃣"],
        ["👩‍👩‍👧", "👨‍👩‍👧‍👦", "🏳️‍🌈"],
        ["👍🏽", "👍🏻", "🙏🏿"],
        ["❤️", "☀️", "✔️"],
        ["😀", "❤️", "🇩🇪", "1️⃣", "👩‍💻"],
        [*"กขคงจฉชซญดตถทนบปผพฟมยรลวสหอ"],
        ["क्ष", "त्रि", "हि", "न्दी"],
        [*"ابتثجحخدذرزسشصضطظعغفقكلمنهوي"],
        [*"𠀀𠀁𠀂𠀃"],
        [*"的一是不了人我在有他"],
        ["Foo", "Bar", "Baz"],
        [*"0123456789"],
        ["e\u0301", "a\u0300\u0302"],
        [*"\u0301\u0302\u0303"],
        [*"─│┌┐"],
        [*"абвгдежз"],
    ],
    ids="".join,
)
def test_a_text_without_a_space_is_tokenised_about_once_as_far_as_the_budget_goes(
    alphabet: list[str], budget_tokens: int, encoding: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    counter = counter_for(encoding)
    text = "".join(random.Random(1).choices(alphabet, k=120_000))
    prefix_bytes = int(counter.token_ends(text[: 8 * budget_tokens])[budget_tokens - 1])
    sizes = sizes_tokenised(monkeypatch)
    trim_to_budget(text, budget_tokens, counter)
    assert sum(sizes) <= 2 * prefix_bytes


def test_white_space_without_an_end_is_not_read_to_its_end() -> None:
    counter = counter_for("o200k_base")
    assert trim_to_budget("one\n\ntwo" + "\n" * 1_000_000 + "x", 4, counter) == "one\n\ntwo"
