"""Leaving out lines that are all comment: the code that is left says what it said."""

from __future__ import annotations

import ast
import inspect
import textwrap
from types import ModuleType

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.graph.graphs import function, snapshot_of
from tests.unit.graph.test_packing import packed
from worker.graph import documents, links, migration, packing, signals, snapshot
from worker.graph.documents import without_comment_lines
from worker.graph.packing import TIGHT_TOKENS

LINES = st.lists(
    st.sampled_from(
        [
            "x = 1",
            "# a remark",
            "    # an indented one",
            "y = 2  # beside code",
            "s = '# no remark'",
            "t = 'begun \\\n# and ended'",
            "u = 1 + \\\n    2",
            'v = """of\n# many\nlines"""',
            "w = '''\n    # of\nmany'''",
            "if x:\n    # first\n    pass\n    # last",
            "",
        ]
    ),
    min_size=1,
    max_size=8,
)


@settings(max_examples=60)
@given(LINES, st.sampled_from(["", "\n"]))
def test_the_code_that_is_left_parses_to_the_same_tree(lines: list[str], ending: str) -> None:
    code = "\n".join(lines) + ending
    left = without_comment_lines(code, "python")
    assert ast.dump(ast.parse(left)) == ast.dump(ast.parse(code))
    assert left.endswith("\n") == code.endswith("\n")
    assert without_comment_lines(left, "python") == left


@pytest.mark.parametrize("module", [documents, links, migration, packing, signals, snapshot])
def test_of_real_functions_nothing_but_comments_is_left_out(module: ModuleType) -> None:
    for _, item in inspect.getmembers(module, inspect.isfunction):
        code = textwrap.dedent(inspect.getsource(item))
        left = without_comment_lines(code, "python")
        assert ast.dump(ast.parse(left)) == ast.dump(ast.parse(code))
        gone = len(code.splitlines()) - len(left.splitlines())
        is_sure = '"""' not in code
        assert gone == is_sure * sum(line.lstrip().startswith("#") for line in code.splitlines())


@pytest.mark.parametrize(
    ("code", "language"),
    [
        ("# all of it", "python"),
        ("class A:\n    # to be written", "python"),
        ("# heading", "markdown"),
        ("# key: value\nkey: value", "yaml"),
        ("x = 1", "python"),
        ("", "python"),
    ],
)
def test_what_lines_do_not_tell_stays_whole(code: str, language: str) -> None:
    assert without_comment_lines(code, language) == code


def test_a_tight_pack_leaves_comment_lines_out_unless_the_work_is_documentation() -> None:
    node = function("a.py", "load_cart", "    # of the shop\n    return 1  # at once")
    snapshot = snapshot_of([node])
    tight = packed("load_cart()", 500, snapshot).text
    assert "of the shop" not in tight
    assert "return 1  # at once" in tight
    assert "# of the shop" in packed("load_cart()", 500, snapshot, task_type="DOCUMENT").text
    assert "# of the shop" in packed("load_cart()", TIGHT_TOKENS + 200, snapshot).text
