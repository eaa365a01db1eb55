from __future__ import annotations

import ast
import asyncio
from pathlib import Path
from typing import Any

import pytest

from schemas.tools import ARGUMENTS, TOOL_NAMES
from tests.support.tooling import FILES, SHOP, Shop, fill

BRANCHY = "src/branchy.py::choose"
SOURCE = '''class Picker:
    def pick(self, items):
        return items[0]


def choose(a, b):
    """@traces REQ-9"""
    if a:
        return 1
    for item in b:
        if item:
            raise ValueError(item)
    return helper(a)


def helper(a):
    return a
'''


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("shop")
    asyncio.run(fill(made, files={**FILES, "src/branchy.py": SOURCE}))
    return made


async def said(shop: Shop, tool: str, **arguments: Any) -> str:
    answer = await shop.call(tool, **arguments)
    assert answer.error is None, answer.error
    assert answer.receipt is not None
    assert answer.receipt.nodes
    assert answer.content is not None
    return answer.content


def fence_in(text: str) -> str:
    """What stands in the only fence."""
    return text.partition("```python\n")[2].partition("\n```")[0]


async def test_the_contract_names_the_tools_that_there_are(shop: Shop) -> None:
    assert {spec.name for spec in shop.toolbox.specs} == set(TOOL_NAMES) == set(ARGUMENTS)
    for spec in shop.toolbox.specs:
        assert spec.schema["additionalProperties"] is False
        assert len(spec.description) > 20


async def test_symbols_are_those_of_the_file_whatever_in_it_is_named(shop: Shop) -> None:
    text = await said(shop, "symbols", entity_id=BRANCHY)
    assert text == await said(shop, "symbols", entity_id="src/branchy.py")
    listed = [line.split()[3].rstrip(",") for line in text.splitlines() if line.startswith("- ")]
    assert listed == [
        "src/branchy.py::Picker",
        "src/branchy.py::Picker.pick",
        "src/branchy.py::choose",
        "src/branchy.py::helper",
    ]
    assert text.startswith("# src/branchy.py: 4 definitions")


async def test_branches_are_numbered_and_say_how_they_end(shop: Shop) -> None:
    text = await said(shop, "branches", entity_id=BRANCHY)
    assert "- b1 L8 if `a` → L9-9, ends in return" in text
    assert "ends in raise" in text
    nothing = await said(shop, "branches", entity_id="src/branchy.py::Picker")
    assert nothing.endswith("No branches.")


async def test_complexity_lists_the_most_complex_first_and_from_a_bound_on(shop: Shop) -> None:
    text = await said(shop, "complexity", entity_id="src/branchy.py")
    values = [int(line.split()[1].rstrip(":")) for line in text.splitlines() if line.startswith("- ")]
    assert values == sorted(values, reverse=True)
    assert len(values) == 3
    assert "1 function of" in await said(shop, "complexity", entity_id="src/branchy.py", at_least=2)


async def test_refs_name_callers_and_callees_with_their_places(shop: Shop) -> None:
    text = await said(shop, "refs", entity_id="src/shop.py::charge_order")
    callers, _, callees = text.partition("### Callees")
    assert "- Function src/shop.py::checkout (src/shop.py:" in callers
    assert "- Function src/shop.py::retry_payment (src/shop.py:" in callees


async def test_a_skeleton_is_valid_and_holds_no_body(shop: Shop) -> None:
    whole = fence_in(await said(shop, "skeleton", entity_id="src/branchy.py"))
    ast.parse(whole)
    assert "def choose(a, b)" in whole
    assert "raise" not in whole
    one = fence_in(await said(shop, "skeleton", entity_id="src/branchy.py::Picker"))
    assert "def pick" in one
    assert "choose" not in one


async def test_a_skeleton_diff_names_what_escapes_and_nothing_else(shop: Shop) -> None:
    same = await said(shop, "skeleton_diff", entity_id="src/branchy.py", source=SOURCE)
    assert same == "# src/branchy.py: 0 structural escapes"
    changed = SOURCE.replace("def choose(a, b)", "def choose(a, b, c)").replace("return items[0]", "return 7")
    text = await said(shop, "skeleton_diff", entity_id="src/branchy.py", source=changed)
    assert text.startswith("# src/branchy.py: 1 structural escape\n- signature")
    assert "choose" in text


async def test_symbols_say_which_parameters_lack_a_type_or_a_use_where_asked(shop: Shop) -> None:
    plain = await said(shop, "symbols", entity_id="src/branchy.py")
    text = await said(shop, "symbols", entity_id="src/branchy.py", parameters=True)
    assert "untyped" not in plain
    [line] = [line for line in text.splitlines() if "choose" in line]
    assert " · untyped: a, b, return" in line


async def test_a_contract_is_handed_over_as_a_skeleton_and_code_is_held_to_it(shop: Shop) -> None:
    diagram = "classDiagram\nclass Till {\n+take(coin: int) int\n??\n}\n"
    text = await said(shop, "skeleton", entity_id="src/branchy.py", contract=diagram)
    assert fence_in(text) == "class Till:\n\n    def take(self, coin: int) -> int:\n        ..."
    assert "Not understood: ??" in text
    asked = {"entity_id": "src/branchy.py", "contract": diagram}
    kept = "class Till:\n    def take(self, coin: int) -> int:\n        return coin\n"
    assert "0 structural escapes" in await said(shop, "skeleton_diff", source=kept, **asked)
    other = await said(shop, "skeleton_diff", source=kept.replace("coin: int", "coin: str"), **asked)
    assert "- signature" in other
    answer = await shop.call("skeleton", entity_id="src/branchy.py", contract="flowchart LR")
    assert answer.error is not None
    assert answer.error.code == "not_supported"


async def test_branch_tests_are_a_file_that_parses_with_a_test_for_each_branch_left(shop: Shop) -> None:
    text = fence_in(await said(shop, "branch_tests", entity_id=BRANCHY))
    every = [node.name for node in ast.walk(ast.parse(text)) if isinstance(node, ast.FunctionDef)]
    left = fence_in(await said(shop, "branch_tests", entity_id=BRANCHY, executed_lines=[9]))
    assert sum(name.startswith("test_choose_b") for name in every) >= 3
    assert "test_choose_b1_if" in text
    assert "test_choose_b1_if" not in left


async def test_tags_that_dangle_are_found_in_the_index_and_in_a_source_that_is_not_written_yet(
    shop: Shop,
) -> None:
    assert "dangling: @traces REQ-9" in (await said(shop, "trace_lint", entity_id="src/branchy.py"))
    mended = SOURCE.replace("REQ-9", "REQ-2")
    assert "0 findings in 1 tag" in await said(shop, "trace_lint", entity_id="src/branchy.py", source=mended)


@pytest.mark.parametrize(
    ("tool", "more"),
    [
        ("branches", {}),
        ("skeleton", {}),
        ("symbols", {}),
        ("branch_tests", {}),
        ("skeleton_diff", {"source": "x"}),
        ("trace_lint", {}),
    ],
)
async def test_what_is_no_code_is_not_supported_and_says_why(
    shop: Shop, tool: str, more: dict[str, str]
) -> None:
    answer = await shop.ask(tool, {"entity_id": "REQ-1", **more})
    assert answer.error is not None
    assert answer.error.code == "not_supported"
    assert "REQ-1" in answer.error.message or tool == "branch_tests"


@pytest.mark.parametrize("source", ["", "def (", "\x00", "((" * 3_000, "é" * 1_000, SHOP])
async def test_any_source_is_answered(shop: Shop, source: str) -> None:
    for tool in ("skeleton_diff", "trace_lint"):
        answer = await shop.call(tool, entity_id="src/branchy.py", source=source)
        assert answer.error is None or answer.error.code == "not_supported"
