"""What is kept of a file's source is what reading it gives."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.code.sources import functions
from worker.code.branches import NotSupported
from worker.code.reading import read_python
from worker.code.shapes import shape_of
from worker.code.skeletons import skeleton
from worker.code.stored_source import source_of_nodes
from worker.graph.model import Node
from worker.retrieval.parsed import shape_of_file, skeleton_of_file


def code_of(path: str, source: str) -> Sequence[Node]:
    reading = read_python(path, source.encode())
    assert reading is not None
    return [node for node in reading.nodes if node.label in {"Module", "Class", "Function"}]


@settings(max_examples=20)
@given(st.lists(functions(), min_size=1, max_size=3), st.sampled_from([None, "f", "none"]))
def test_what_was_read_before_changes_no_answer(sources: list[str], qualname: str | None) -> None:
    """The same path with other contents, each asked for twice and in turns."""
    files = [code_of("m.py", source) for source in sources]
    for nodes in (*files, *files):
        text = source_of_nodes(nodes)
        assert shape_of_file(nodes) == shape_of(text)
        assert skeleton_of_file(nodes, qualname=qualname) == skeleton(text, qualname=qualname)


def test_a_file_is_read_once_and_what_cannot_be_read_is_not_kept() -> None:
    first, same = code_of("a.py", "def f(): ...\n"), code_of("a.py", "def f(): ...\n")
    assert shape_of_file(first) is shape_of_file(same)
    assert skeleton_of_file(first, qualname="f") is skeleton_of_file(same, qualname="f")
    missing = skeleton_of_file(first, qualname="g")
    assert isinstance(missing, NotSupported)
    assert missing is not skeleton_of_file(first, qualname="g")
