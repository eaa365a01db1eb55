"""Chunks of text that is no code."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from worker.code.chunks import MAX_CHUNK_CHARS, MAX_CHUNK_LINES, MAX_CHUNKS, chunk_nodes
from worker.code.readers import read_chunks
from worker.graph.model import Edge, NodeRef

MARKDOWN = """\
Intro text.

# Guide

First part.

```text
# not a heading
```

## Use it

> # quoted

More.
"""


def test_markdown_is_cut_at_its_headings() -> None:
    nodes, edges, _ = chunk_nodes("docs/guide.md", MARKDOWN, "markdown")
    assert [(node.id, node.name, node.start_line, node.end_line) for node in nodes] == [
        ("docs/guide.md::L1", "Intro text.", 1, 1),
        ("docs/guide.md::L3", "Guide", 3, 9),
        ("docs/guide.md::L11", "Use it", 11, 15),
    ]
    assert edges[0] == Edge(
        NodeRef("File", "docs/guide.md"), "DEFINES", NodeRef("Chunk", "docs/guide.md::L1")
    )


def test_long_text_is_cut_at_blank_lines() -> None:
    text = "".join(f"line {n}\n" + ("\n" if n % 10 == 0 else "") for n in range(1, 101))
    nodes, _, _ = chunk_nodes("a.sql", text, "sql")
    assert [node.text.split("\n")[0] for node in nodes] == ["line 1", "line 51"]
    assert nodes[0].text.endswith("line 50\n")


@pytest.mark.parametrize("text", ["", "\n\n\n", "   \n\t\n"])
def test_what_holds_nothing_has_no_chunks(text: str) -> None:
    assert chunk_nodes("a.txt", text, "text") == ([], [], "")


def test_a_line_longer_than_a_chunk_is_cut_short_and_said_so() -> None:
    long = "x" * 500_000
    nodes, _, missing = chunk_nodes("a.txt", f"{long}\nshort\n{long}\n", "text")
    assert [len(node.text) for node in nodes] == [MAX_CHUNK_CHARS + 1, 6, MAX_CHUNK_CHARS + 1]
    assert missing == "line 1 cut after 6000 characters, and 1 more"


def test_what_comes_after_the_last_chunk_is_left_out_and_said_so() -> None:
    lines = [f"# {n}" for n in range(MAX_CHUNKS)]
    nodes, _, missing = chunk_nodes("a.md", "\n".join(lines), "markdown")
    assert (len(nodes), missing) == (MAX_CHUNKS, "")
    nodes, _, missing = chunk_nodes("a.md", "\n".join([*lines, "", "# end"]), "markdown")
    assert (len(nodes), missing) == (MAX_CHUNKS, "no more than 2000 chunks, left out from line 2002 on")


@pytest.mark.parametrize(
    ("text", "status"),
    [("short\n", "parsed"), ("x" * MAX_CHUNK_CHARS, "parsed"), ("é" * 6_001, "partly_parsed")],
)
def test_a_text_that_was_cut_is_read_in_part(text: str, status: str) -> None:
    reading = read_chunks("a.txt", text.encode())
    assert reading is not None
    assert (reading.status, bool(reading.reason)) == (status, status != "parsed")


@settings(max_examples=200)
@given(
    st.lists(
        st.sampled_from(["# A", "## B", "text", "", "```", "- item", "  x: 1", "a" * 3_000]), max_size=90
    ),
    st.sampled_from(["markdown", "yaml"]),
)
def test_chunks_are_disjoint_in_order_and_hold_every_line_with_text(lines: list[str], language: str) -> None:
    nodes, _, missing = chunk_nodes("a", "\n".join(lines), language)
    assert missing == ""
    held = [number for node in nodes for number in range(node.start_line, node.end_line + 1)]
    assert held == sorted(set(held))
    assert {n for n, line in enumerate(lines, 1) if line.strip()} <= set(held)
    assert all(node.end_line - node.start_line < MAX_CHUNK_LINES for node in nodes)
    assert len({node.id for node in nodes}) == len(nodes)
