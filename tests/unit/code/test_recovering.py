"""Syntax errors in Python: what stands in one definition costs no other."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from worker.code.facts import ModuleFacts, ParseProblem
from worker.code.grammars import PYTHON
from worker.code.nodes import module_nodes
from worker.code.tolerant import extract_tolerant
from worker.graph.model import Node


def read(text: str) -> tuple[ModuleFacts, dict[str, Node]]:
    facts = extract_tolerant("a.py", text, PYTHON, problem=ParseProblem("syntax", 0))
    nodes, _ = module_nodes(facts, text)
    return facts, {node.id.removeprefix("a.py::"): node for node in nodes}


WHOLE = (
    "def {name}(first, second):\n    return helper(first, second)\n",
    'def {name}():\n    """Says what.\n\n    And more.\n    """\n    return one()\n',
    (
        "@decorate(\n    1,\n)\n@again\nasync def {name}(\n    x: int,\n) -> int:\n"
        "    await go(x)\n\n    # In it.\n    return x\n"
    ),
    "def {name}():\n    text = '''\ndef inside_a_string():\n    pass\n'''\n    return text\n",
    'def {name}():\n    return {{"it\'s": [1, 2], "`": f"{{x!r}}"}}\n',
    "def {name}(): return 1\n",
    "def {name}():\n    def local():\n        return 2\n\n    return local()\n",
    (
        "@dataclass\nclass {name}(Base, metaclass=Meta):\n    field: int = 0\n\n"
        "    def run(self):\n        return 3\n"
    ),
)
BROKEN = (
    "def broken(:\n    x = 2\n",
    "def broken(a, b:\n    x = 2\n    return f(x)\n",
    "def broken(:\n    x = = 2\n",
    "def broken():\n    x = = 2\n    return x\n",
    "def broken():\n    call(1,\n",
    "def broken():\n    x = [1, {2: (3\n    return x\n",
    "def broken():\n    x = 1\n  y = 2\n    return y\n",
    "def broken():\n        x = 1\n    y = 2\n",
    "def broken():\n    s = 'abc\n    return s\n",
    "def broken():\n    s = \"it's\n    return s\n",
    'def broken():\n    """Not closed.\n    return 1\n',
    "def broken():\n    s = '''not closed\n    return 1\n",
    'def broken():\n    s = f"{x\n    return s\n',
    "def broken()\n    return 1\n",
    "def broken():\n",
    "def broken",
    "async def broken(:\n    await x y\n",
    "@decorate(\ndef broken():\n    return 1\n",
    "class broken(:\n    x = 1\n",
    "class broken\n    def = 1\n",
    "def broken():\n    if x:\n    else\n        pass\n    return ) ] }\n",
    "def broken():\n<<<<<<< ours\n    return 1\n=======\n    return 2\n>>>>>>> theirs\n",
    "def broken(): return (\n    lambda: [\n",
    "def broken():\n    x = 1 \\\n",
    "def broken():\n    print 'x'\n    exec \"y\" in z\n",
)


def indented(text: str) -> str:
    return "".join(f"    {line}" if line.strip() else line for line in text.splitlines(keepends=True))


@settings(max_examples=120, deadline=None)
@given(
    st.lists(st.sampled_from(WHOLE), min_size=1, max_size=5),
    st.sampled_from(BROKEN),
    st.integers(0, 5),
    st.sampled_from(["\n", "\n\n", "\n# Between.\n\n", "\nVALUE = {\n    1: 2,\n}\n\n"]),
)
def test_what_stands_beside_a_broken_definition_has_its_own_node_and_text(
    whole: list[str], broken: str, at: int, between: str
) -> None:
    parts = [part.format(name=f"good_{number}") for number, part in enumerate(whole)]
    module = between.join([*parts[:at], broken, *parts[at:]])
    _, nodes = read("import os\n\n" + module)
    assert "broken" in nodes
    for number, part in enumerate(parts):
        node = nodes[f"good_{number}"]
        if node.label == "Function":
            assert node.text == part
        else:
            assert node.text + nodes[f"good_{number}.run"].text == part
        assert "good_" not in nodes["broken"].text
    assert "inside_a_string" not in nodes
    local = {name for name in nodes if "<locals>" in name}
    assert local == {f"good_{n}.<locals>.local" for n, part in enumerate(whole) if "local" in part}


METHODS = tuple(
    part.replace("{name}()", "{name}(self)")
    for part in WHOLE
    if "inside_a_string" not in part and "class" not in part
)


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.sampled_from(METHODS), min_size=1, max_size=4),
    st.sampled_from([part for part in BROKEN if "<<<" not in part]),
    st.integers(0, 4),
    st.sampled_from(["", "    size: int = 0\n\n"]),
)
def test_a_broken_method_costs_no_other_method_nor_what_comes_after_the_class(
    whole: list[str], broken: str, at: int, field: str
) -> None:
    parts = [indented(part.format(name=f"good_{number}")) for number, part in enumerate(whole)]
    body = "\n".join([*parts[:at], indented(broken), *parts[at:]])
    after = "\n\ndef after():\n    return Kit()\n"
    facts, nodes = read(f"class Kit(Base):\n{field}{body}{after}")
    assert nodes["Kit"].label == "Class"
    assert [item.bases for item in facts.classes if item.name == "Kit"] == [("Base",)]
    assert "Kit.broken" in nodes
    for number, part in enumerate(parts):
        assert nodes[f"Kit.good_{number}"].text == part
        assert nodes[f"Kit.good_{number}"].property("class_id") == "a.py::Kit"
    assert nodes["after"].text == "def after():\n    return Kit()\n"
    assert not any("after" in node.text for name, node in nodes.items() if name.startswith("Kit"))


def test_a_broken_definition_keeps_its_text_its_calls_and_its_signature() -> None:
    facts, nodes = read(
        "def good_one():\n    return helper_x()\n\n\n@dec\nasync def broken(:\n    x = = call_me(2)\n\n\n"
        "def good_two():\n    return good_one()\n"
    )
    assert nodes["broken"].text == "@dec\nasync def broken(:\n    x = = call_me(2)\n"
    assert nodes["good_two"].text == "def good_two():\n    return good_one()\n"
    calls = {item.qualname: [(call.name, call.line) for call in item.calls] for item in facts.functions}
    assert calls["good_one"] == [("helper_x", 2)]
    assert calls["good_two"] == [("good_one", 11)]
    assert ("call_me", 7) in calls["broken"]
    assert nodes["broken"].signature.endswith("async def broken(")


def test_what_a_docstring_shows_is_no_definition_however_broken_the_rest() -> None:
    text = 'def shows():\n    """Use it so:\n\ndef example():\n    pass\n    """\n    return 1\n'
    _, nodes = read(f"{text}\n\ndef broken(:\n    pass\n")
    assert set(nodes) == {"<module>", "shows", "broken"}
    assert nodes["shows"].text == text


def test_several_errors_cost_no_more_than_one() -> None:
    bad = [part.replace("broken", f"bad_{n}") for n, part in enumerate(BROKEN) if "'''" not in part]
    bad = [part for part in bad if '"""' not in part]
    good = [f"def good_{n}():\n    return {n}\n" for n in range(len(bad))]
    _, nodes = read("".join(f"{b}\n\n{g}\n\n" for b, g in zip(bad, good, strict=True)))
    for number, part in enumerate(good):
        assert nodes[f"good_{number}"].text == part
    assert all(
        f"bad_{n}" in nodes for n, part in enumerate(BROKEN) if '"""' not in part and "'''" not in part
    )


@pytest.mark.parametrize(
    "piece",
    [
        "def f(:\n    x = = 2\n\n",
        "class C(:\n  def f(:\n    def g(:\n      x = = 1\n",
        'def f():\n    """\n',
        "def f(): x = '''\n",
        "@d(\n",
        "def f():\n\tx = (\n  def g():\n",
        "".join(f"{' ' * depth}def f(:\n" for depth in range(40)),
    ],
)
def test_a_long_repetition_of_what_is_broken_ends(piece: str) -> None:
    # An exponential reading would not; how fast it is stands in no test, for machines differ.
    facts = extract_tolerant("a.py", piece * (16_000 // len(piece)), PYTHON)
    assert facts.functions or facts.classes or facts.calls
