from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from tests.unit.budget.hostile_text import hostile_text
from worker.budget.fences import FenceTracker, close_open_fence, open_fence

ORACLE = MarkdownIt("commonmark").disable(["html_block", "reference"])

lines = st.sampled_from(
    [
        *("```", "```py", "````", "~~~", "~~~~", "   ```", "    ```", "``` a`b", "`` ` ``", "~~~ a`b"),
        *("- a", "  code", "- ```", "- - x", "  ```", "1. x", "2. z", "1. ```py", "   - b", "-", "-     z"),
        *("> q", "> ```", "> > x", " > ```", "> - ```", "  > a", ">", ">```", "10) ten", "     ```"),
        *("text", "", "  ", "\t", "* * *", "---", "===", "# h", "    deep", "\t```", "-\t```", "+ c"),
    ]
)
documents = st.lists(lines, min_size=1, max_size=9).map("\n".join)


def swallowed(text: str) -> bool:
    """Whether a paragraph that is joined after `text` ends up in a code block."""
    tokens = ORACLE.parse(text + "\n\nmarker\n")
    return any(t.type in {"fence", "code_block"} and "marker" in t.content for t in tokens)


@pytest.mark.parametrize(
    ("text", "closing"),
    [
        ("", None),
        ("prose with ``` inside a line", None),
        ("```py\nx = 1\n```", None),
        ("```py\nx = 1", "```"),
        ("~~~\n```\n", "~~~"),
        ("````md\n```py\n```\n", "````"),
        ("```\n````", None),
        ("```\n``` no", "```"),
        ("```\n    ```", "```"),
        ("   ```\ncode", "   ```"),
        ("``` a`b\ncode", None),
        ("~~~ a`b\ncode", "~~~"),
        ("- item\n\n  ```sh\n  ls", "  ```"),
        ("- item\n\n  ```sh\n  ls\nafter the list", None),
        ("1. one\n   - two\n     ~~~~\n", "     ~~~~"),
        ("> quoted\n> ```\n> x", "> ```"),
        ("> ```\n> x\n\nafter the quote", None),
        ("```\r\ncode\r\n", "```"),
        ("```\rcode\r```\r", None),
        ("    ```\nindented code", None),
        ("```", "```"),
        ("``", None),
    ],
)
def test_the_line_that_closes_what_is_open(text: str, closing: str | None) -> None:
    assert open_fence(text) == closing


def test_a_closed_text_is_left_alone_and_an_open_one_gets_one_line() -> None:
    assert close_open_fence("```\nx\n```") == "```\nx\n```"
    assert close_open_fence("```\nx") == "```\nx\n```"
    assert close_open_fence("```\nx\n") == "```\nx\n```"


@given(text=documents)
@settings(max_examples=400, deadline=None)
def test_what_is_joined_after_a_closed_text_is_not_swallowed(text: str) -> None:
    assert not swallowed(close_open_fence(text))


@given(text=documents)
@settings(max_examples=400, deadline=None)
def test_a_text_that_would_swallow_what_follows_is_reported_open(text: str) -> None:
    assert open_fence(text) is not None or not swallowed(text)


@given(text=st.one_of(documents, hostile_text))
@settings(max_examples=200, deadline=None)
def test_closing_twice_changes_nothing(text: str) -> None:
    closed = close_open_fence(text)
    assert close_open_fence(closed) == closed


blocks = st.builds(
    "{}\n{}\n{}".format,
    st.sampled_from(["```", "```py", "```a`b", "````", "``` ```", "```\r`", "   ```"]),
    documents,
    st.sampled_from(["```", " ```", "````", "```\n", "x```"]),
)


@given(text=blocks)
@settings(max_examples=100, deadline=None)
def test_a_text_that_is_one_block_is_found_closed_only_where_reading_it_says_so(text: str) -> None:
    assert open_fence(text) == FenceTracker(text).closing_line(len(text))


@given(text=st.one_of(documents, hostile_text), data=st.data())
@settings(max_examples=200, deadline=None)
def test_a_tracker_asked_in_any_order_says_what_each_prefix_alone_does(
    text: str, data: st.DataObject
) -> None:
    text *= 12  # beyond one checkpoint
    tracker = FenceTracker(text)
    for end in data.draw(st.lists(st.integers(0, len(text)), max_size=8)):
        assert tracker.closing_line(end) == open_fence(text[:end])


@pytest.mark.parametrize(
    "text",
    [
        ">" * 300_000,
        "> " * 150_000,
        "- " * 150_000,
        ("> " * 40 + "\n") * 3_000,
        ("- " * 20 + "```\n") * 3_000,
        "```\n" * 50_000,
        "`" * 300_000,
        ("`" * 1_000 + "x`\n") * 300,
        "````\n" + "```x\n" * 50_000,
        "```" + " " * 300_000,
        "```\n" + "\t" * 300_000,
        "```\n" + "\r" * 300_000,
        "* " * 150_000 + "x\n```\n",
    ],
    ids=lambda text: repr(text[:12]),
)
def test_hostile_text_takes_no_more_than_linear_time(text: str) -> None:
    # Quadratic work on these would run into the time limit of the test.
    assert close_open_fence(text).startswith(text)
