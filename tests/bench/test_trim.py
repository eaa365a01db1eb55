"""Trimming against one tokenisation of its result, as a ratio within one run.

Target: at most twice, at 100 KB and at 10 MB of input; results under 2,000 tokens may take 0.3 ms more.
Nothing is asserted on time: the table says `over` where the target is missed.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from statistics import median
from time import thread_time
from typing import NamedTuple

import pytest

from tests.bench.conftest import Report
from worker.budget.tiktoken_counter import TiktokenCounter
from worker.budget.tokens import TokenCounter
from worker.budget.trimming import trim_to_budget

pytestmark = pytest.mark.bench

SIZES_BYTES = (100_000, 10_000_000)
BUDGETS_TOKENS = (200, 1_900, 2_100, 8_000, 32_000, 120_000)
ALLOWED_RATIO = 2.0
ALLOWED_EXTRA_SECONDS = 0.000_3
SMALL_RESULT_TOKENS = 2_000

WORDS = [
    *("the", "budget", "of", "a", "layer", "is", "what", "it", "may", "spend", "when", "nothing", "else"),
    *("has", "asked", "for", "more", "so", "every", "token", "counted", "twice", "one", "somebody", "will"),
    *("miss", "although", "nobody", "notices", "until", "an", "answer", "cut", "short", "and", "that"),
]
HAN = (
    "的一是不了人我在有他这为之大来以个中上们到说国和地也子时道出而要于就下得可你年生"
    "自会那后能对着事其里所去行过家十用发天如然作方成者"
)

EMOJI = ["😀", "🚀", "🎉", "👍🏽", "👩‍👩‍👧", "🇩🇪", "❤️", "🔥", "🤔", "1️⃣", "🏳️‍🌈", "🙂"]


UNSPACED = {
    "flags": ["🇩🇪", "🇫🇷", "🇯🇵", "🇺🇸"],
    "keycaps": ["1️⃣", "2️⃣", "#️⃣", "*️⃣"],
    "joined": ["👩‍👩‍👧", "👨‍👩‍👧‍👦", "🏳️‍🌈", "👩‍💻"],
    "marked": ["❤️", "☀️", "✔️"],
    "arabic": [*"ابتثجحخدذرزسشصضطظعغفقكلمنهوي"],
    "thai": [*"กขคงจฉชซญดตถทนบปผพฟมยรลวสหอ"],
    "hindi": ["क्ष", "त्रि", "हि", "न्दी", "का", "में"],
    "rare Han": [*"𠀀𠀁𠀂𠀃"],
    "digits": [*"0123456789"],
}
"""Scripts and symbols written without a space, which is where a text is cut most easily."""


def prose(chance: random.Random) -> str:
    sentence = " ".join(chance.choices(WORDS, k=chance.randrange(5, 20))).capitalize()
    return sentence + chance.choice([". ", ". ", "! ", "?\n", ".\n\n"])


def code(chance: random.Random) -> str:
    name, other = chance.choices(WORDS, k=2)
    return (
        f"def {name}_{other}(self, {name}: int = {chance.randrange(1000)}) -> dict[str, {other.title()}]:\n"
        f'    """Return {" ".join(chance.choices(WORDS, k=6))}."""\n'
        f"    if not self._{other}:  # {name}\n"
        f"        raise ValueError(f'{{{name}!r}} is no {other}')\n"
        f"    return {{key: value for key, value in self._{other}.items() if value > {name}}}\n\n"
    )


def chinese(chance: random.Random) -> str:
    return "".join(chance.choices(HAN, k=chance.randrange(4, 15))) + chance.choice("，，，。、。\n")


def fenced(chance: random.Random) -> str:
    return "```python\n" + code(chance) * chance.randrange(1, 6) + "```\n\n" + prose(chance) * 3 + "\n\n"


def unbroken(chance: random.Random) -> str:
    return "".join(chance.choices(HAN, k=50))


def crlf(chance: random.Random) -> str:
    return fenced(chance).replace("\n", "\r\n")


def emoji(chance: random.Random) -> str:
    return "".join(chance.choices(EMOJI, k=50))


def unspaced(alphabet: list[str]) -> Callable[[random.Random], str]:
    return lambda chance: "".join(chance.choices(alphabet, k=60))


def word(chance: random.Random) -> str:
    """Letters without an end; the corpus cuts them to words of 100,000."""
    return "".join(chance.choices("etaoinshrdlucmfw", k=100_000)) + " "


def minified(chance: random.Random) -> str:
    name, other = chance.choices(WORDS, k=2)
    return (
        f'{{"{name}":{chance.randrange(100_000)},"{other}_id":"{chance.randbytes(6).hex()}",'
        f'"is_{name}":true,"items":[{chance.random():.6f},null,"{" ".join(chance.choices(WORDS, k=4))}"]}},'
    )


CORPORA: dict[str, Callable[[random.Random], str]] = {
    "prose": prose,
    "code": code,
    "chinese": chinese,
    "fenced": fenced,
    "unbroken": unbroken,
    "emoji": emoji,
    "word": word,
    "minified": minified,
    "crlf": crlf,
    **{kind: unspaced(alphabet) for kind, alphabet in UNSPACED.items()},
}


def corpus(kind: str, size_bytes: int) -> str:
    chance = random.Random(kind)
    block = ""
    while len(block.encode()) < min(size_bytes, 200_000):
        block += CORPORA[kind](chance)
    return (block * (size_bytes // len(block.encode()) + 1)).encode()[:size_bytes].decode(errors="ignore")


def best_seconds(*runs: Callable[[], object], at_least_seconds: float = 0.1) -> list[float]:
    """The least processor time of each, run in turn: the machine is shared, only the work counts."""
    best = [float("inf")] * len(runs)
    spent, rounds = 0.0, 0
    while spent < at_least_seconds or rounds < 5:
        for index, run in enumerate(runs):
            start = thread_time()
            run()
            seconds = thread_time() - start
            best[index] = min(best[index], seconds)
            spent += seconds
        rounds += 1
    return best


@pytest.mark.timeout(600)
@pytest.mark.parametrize("encoding", ["o200k_base", "cl100k_base"])
def test_trimming_costs_about_one_tokenisation_of_its_result(
    encoding: str, capsys: pytest.CaptureFixture[str], report: Report
) -> None:
    # What it remembered of the round before would make both look better than they are.
    counter = TiktokenCounter(encoding, remembered_texts=0)
    lines = [
        f"\n{encoding:<12}{'corpus':<10}{'input':>11}{'budget':>9}{'result':>9}{'trim ms':>9}{'ratio':>7}"
    ]
    worst: dict[str, float] = {}
    for kind in CORPORA:
        for size_bytes in SIZES_BYTES:
            text = corpus(kind, size_bytes)
            for budget_tokens in BUDGETS_TOKENS:
                if counter.fits(text, budget_tokens):
                    continue
                measured = row(counter, text, budget_tokens)
                lines.append(f"{'':<12}{kind:<10}{size_bytes:>11,}" + measured.line)
                worst[kind] = max(worst.get(kind, 0.0), measured.ratio)
    report(f"trim, {encoding}: worst median of a corpus", median(worst.values()), "x", at_most=ALLOWED_RATIO)
    kind = max(worst, key=lambda kind: worst[kind])
    report(f"trim, {encoding}: worst of all ({kind})", worst[kind], "x", at_most=ALLOWED_RATIO)
    with capsys.disabled():
        print("\n".join(lines))  # noqa: T201  # the table is what this is for


class Row(NamedTuple):
    line: str
    ratio: float
    """Over one tokenisation, what small results may take besides left out."""


def row(counter: TokenCounter, text: str, budget_tokens: int) -> Row:
    result = trim_to_budget(text, budget_tokens, counter)
    result_tokens = counter.count(result)
    assert 0 < result_tokens <= budget_tokens
    trim, once = best_seconds(
        lambda: trim_to_budget(text, budget_tokens, counter), lambda: counter.count(result)
    )
    extra = ALLOWED_EXTRA_SECONDS if result_tokens < SMALL_RESULT_TOKENS else 0
    ratio = max(0.0, trim - extra) / once
    verdict = "PASS" if ratio <= ALLOWED_RATIO else "over"
    line = f"{budget_tokens:>9,}{result_tokens:>9,}{trim * 1000:>9.2f}{trim / once:>7.2f} {verdict}"
    return Row(line, ratio)
