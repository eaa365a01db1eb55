"""Text that breaks careless tokenising and cutting, as hypothesis strategies."""

from __future__ import annotations

from hypothesis import strategies as st

from worker.ports import TokenCounter

FAMILY = "👨‍👩‍👧‍👦"

SNIPPETS = (
    "<|endoftext|>",
    "<|fim_prefix|><|endofprompt|>",
    "it's we'LL don't 'tis",
    "The quick brown fox. It jumps! Does it? ",
    "A second paragraph, with (brackets), numbers 12345678 and a URL https://example.org/a/b?c=d#e.\n\n",
    "def f(x: int) -> str:\n    return f'{x!r}'  # ok\n",
    "});\n\n\n",
    "//\n/\r\n/",
    "!\n/path",
    " \t ",
    "\r\n\r\n",
    "\n \n",
    "    ",
    "\u3000\u3000",
    "\xa0\u2003\u2029",
    "\x1c\x1f\x0b\x0c\x85",
    "\x00\x7f",
    "e\u0301\u0301\u0301",
    "\u0301",
    "Z͑ͫ̓ͪ̂ͫ̽͏̴̙̤̞͉͚̯̞̠͍A̴̵̜̰͔ͫ͗͢L̠ͨͧͩ͘G̴̻͈͍͔̹̑͗̎̅͛́Ǫ̵̹̻̝̳͂̌̌͘",
    FAMILY,
    "👍🏽❤️‍🔥🏳️‍🌈",
    "🇩🇪🇫🇷🇯",
    "中文测试。你好，世界！",
    "こんにちは世界。ガ\u3099行",
    "한국어 문장입니다. 다음",
    "ภาษาไทยไม่มีช่องว่าง",
    "हिन्दी क्षत्रिय",
    "العربية\u0600",
    "\ufffd",
    "```python\nx = 1\n```\n",
    "~~~~\nopen\n",
    "- item\n  ```\n  code\n",
    "`````\n```\n",
    "aB1aB1AbC",
    "1234567",
    "a" * 300,
    "." * 300,
    "\n" * 90,
    " " * 200,
    "中" * 120,
    "AAAAbbbb" * 20,
)

snippets = st.sampled_from(SNIPPETS)
characters = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
ascii_characters = st.text(st.characters(max_codepoint=127), max_size=30)
hostile_text = st.lists(st.one_of(snippets, characters, ascii_characters), max_size=14).map("".join)
"""Well-formed text of up to a few thousand characters."""


def _run(before: str, unit: str, size_chars: int, after: str) -> str:
    return before + unit * (size_chars // len(unit)) + after


long_runs = st.builds(
    _run,
    st.sampled_from(["", "x", "。", "(", "it's ", "!\n", "\n", "7", "e\u0301", "\x1c", "中 "]),
    st.sampled_from(
        ["a", "Q", "中", "한국", "😀", FAMILY, ".", "-=", " ", "\t ", "\u3000", "\xa0 ", " \n", "\n", "7"]
    ),
    st.integers(8_000, 21_000),
    st.sampled_from(["", "x", " x", "'s", "\n", "\nx", "。", ")", "7", "\u0301", "B", "/", "\x1c"]),
)
"""One run of thousands of characters of a kind between neighbours that may change how it is cut."""

_RUN_UNITS = (
    *("a", "B", "中", "é", "ก", "กิ", "क्ष", "त्रि", "ب", "𠀀", "한", "ʰ", "ǅ", "e\u0301", "\u0301"),
    *("😀", "❤️", "❤", "️", "\u200d", "👩‍👩‍👧", "🇩🇪", "1️⃣", "#️⃣", "👍🏽", "🏴\U000e0067\U000e007f"),
    *("-", "/", "'", ".", "\u2500", "7", "12", "Ⅷ", "\U0001fbf0", "\u0378", "\U00011b60", "\x1c"),
)


def _mixed_run(before: str, units: list[str], times: int, after: str) -> str:
    return before + "".join(units) * times + after


mixed_runs = st.builds(
    _mixed_run,
    st.lists(st.sampled_from((*_RUN_UNITS, " ", "\n", "\t", "it's", "we'LL")), max_size=4).map("".join),
    st.lists(st.sampled_from(_RUN_UNITS), min_size=1, max_size=3),
    st.integers(150, 500),
    st.lists(st.sampled_from((*_RUN_UNITS, " ", "\n", "'s")), min_size=1, max_size=3).map("".join),
)
"""Hundreds of characters without white space, of one kind or of a few in turn."""

lone_surrogates = st.sampled_from(["\ud800", "a\udfffb", "\ud83d\ude00 and \ud83d"])


def check_counting_up_to(counter: TokenCounter, text: str, data: st.DataObject) -> None:
    """At or below the count the answer is the count, above it something above the limit."""
    total = counter.count(text)
    limit = data.draw(st.integers(0, total + 3))
    counted = counter.count_up_to(text, limit)
    assert counted == total if total <= limit else counted > limit
    assert counter.fits(text, limit) is (total <= limit)
