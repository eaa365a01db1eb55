"""A module's nodes: whose line is whose."""

from __future__ import annotations

from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st

from worker.code.extractor import extract
from worker.code.nodes import module_nodes
from worker.graph.model import Edge, Node, NodeRef

SOURCE = '''"""What it is for."""
import os

LIMIT = 3

@traced
class Store:
    """Keeps things."""

    size = 0

    def put(self, item):
        r"""Store it.

        Twice.
        """
        def check():
            return item
        return check()

def one(): "not alone"; return 1
'''


def nodes_of(source: str, path: str = "pkg/store.py") -> tuple[dict[str, Node], list[Edge]]:
    nodes, edges = module_nodes(extract(path, source.encode()), source)
    return {node.id.split("::")[1]: node for node in nodes}, edges


def test_each_line_outside_definitions_is_its_own_scopes() -> None:
    nodes, _ = nodes_of(SOURCE)
    assert nodes["<module>"].text == '"""What it is for."""\nimport os\n\nLIMIT = 3\n\n\n'
    assert nodes["Store"].text == '@traced\nclass Store:\n    """Keeps things."""\n\n    size = 0\n\n'
    assert nodes["Store.put"].text.startswith("    def put(self, item):\n")
    assert nodes["Store.put"].text.endswith("        return check()\n")
    assert nodes["Store.put.<locals>.check"].text == "        def check():\n            return item\n"


def test_a_docstring_with_lines_of_its_own_has_a_span() -> None:
    nodes, _ = nodes_of(SOURCE)
    spans = {name: node.text[slice(*node.docstring_span)] for name, node in nodes.items()}
    assert spans["<module>"] == '"""What it is for."""\n'
    assert spans["Store"] == '    """Keeps things."""\n'
    assert spans["Store.put"] == '        r"""Store it.\n\n        Twice.\n        """\n'
    assert spans["one"] == ""


def test_definitions_are_contained_by_what_they_stand_in() -> None:
    nodes, edges = nodes_of(SOURCE)
    assert edges == [
        Edge(NodeRef("Module", "pkg/store.py::<module>"), "DEFINES", NodeRef("Class", "pkg/store.py::Store")),
        Edge(
            NodeRef("Class", "pkg/store.py::Store"), "DEFINES", NodeRef("Function", "pkg/store.py::Store.put")
        ),
        Edge(
            NodeRef("Function", "pkg/store.py::Store.put"),
            "DEFINES",
            NodeRef("Function", "pkg/store.py::Store.put.<locals>.check"),
        ),
        Edge(
            NodeRef("Module", "pkg/store.py::<module>"), "DEFINES", NodeRef("Function", "pkg/store.py::one")
        ),
    ]
    assert nodes["Store.put"].property("class_id") == "pkg/store.py::Store"
    assert nodes["Store.put.<locals>.check"].property("is_local") == "true"


def test_a_package_is_named_for_its_folder() -> None:
    assert nodes_of("x = 1\n", "pkg/sub/__init__.py")[0]["<module>"].name == "sub"
    assert nodes_of("x = 1\n", "pkg/sub/run.py")[0]["<module>"].name == "run"


STATEMENTS = st.sampled_from(
    [
        "x = 1",
        "def f():\n    return 1",
        "class A:\n    y = 2\n    def m(self):\n        def inner(): pass\n        return inner",
        "@d\ndef g():\n    '''Doc.'''\n    class L:\n        def n(self): pass\n",
        "if x:\n    def f(): pass\nelse:\n    def f(): return 2",
        "class B: pass",
        "",
    ]
)


@settings(max_examples=200)
@given(st.lists(STATEMENTS, max_size=8))
def test_the_texts_add_up_to_the_file(statements: list[str]) -> None:
    source = "".join(statement + "\n" for statement in statements)
    nodes, _ = module_nodes(extract("a.py", source.encode()), source)
    told = Counter(line for node in nodes if not node.property("is_local") for line in node.text.splitlines())
    assert told == Counter(source.splitlines())
