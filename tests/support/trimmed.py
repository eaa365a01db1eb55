"""What is true of every text that was cut to a budget."""

from __future__ import annotations

import regex

from worker.budget.fences import open_fence
from worker.budget.tokens import TokenCounter
from worker.budget.vocabulary import load_vocabulary


def recount(counter: TokenCounter, text: str) -> int:
    """By tiktoken itself, for its encodings."""
    if counter.name == "bytes":
        return len(text.encode())
    tokens = load_vocabulary(counter.name).encoding.encode(text, disallowed_special=())
    return counter.scale(len(tokens))


def without_closing_line(text: str, result: str) -> str:
    """The part of the result that is a prefix of the text; fails when more than one line is not."""
    if text.startswith(result):
        return result
    kept, _, line = result.rpartition("\n")
    if not text.startswith(kept):
        raise AssertionError("more than one line was added")
    assert regex.fullmatch(r"[> ]*(?:`{3,}|~{3,})", line), line
    return kept if len(kept) == len(text) or text[: len(kept) + 1] != kept + "\n" else kept + "\n"


def check_trimmed(text: str, result: str, budget: int, counter: TokenCounter) -> None:
    """A prefix of whole graphemes within the budget, with its fence closed; all of it where that fits."""
    assert recount(counter, result) <= budget or (budget, result) == (0, "")
    kept = without_closing_line(text, result)
    assert kept == "" or len(kept) in {found.end() for found in regex.finditer(r"\X", text)}
    assert kept.count("\ufffd") == text[: len(kept)].count("\ufffd") == result.count("\ufffd")
    if recount(counter, text) <= budget:
        assert result == text
    elif result:
        assert open_fence(result) is None
