from __future__ import annotations

import json
import time
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from schemas.session import FailingTest
from schemas.wire import canonical_json
from tests.unit.providers.frames import BUDGET, SCOPE, frame, pins, texts
from worker.providers.contribution import layer_text
from worker.providers.task import FailingTests, TaskProvider, build_task

DIFF = """diff --git a/src/net.py b/src/net.py
--- a/src/net.py
+++ b/src/net.py
@@ -1,2 +1,2 @@ def retry():
-a
+b
 c
"""
LAYER = """# TASK
## Task context
Add a retry.
## Current diff
- src/net.py (+1 -1)
```diff
diff --git a/src/net.py b/src/net.py
--- a/src/net.py
+++ b/src/net.py
@@ -1,2 +1,2 @@ def retry():
-a
+b
 c
```
## Failing tests
- tests/test_net.py::test_retry
```
AssertionError: 1 != 2
at line 3
```
- tests/test_net.py::test_silent
- tests/test_net.py::test_short: boom"""


async def test_the_layer_holds_context_diff_and_failing_tests() -> None:
    request = frame(
        payload={"task_context": "Add a retry.\n"},
        working={
            "current_diff": DIFF,
            "failing_tests": [
                {"id": "tests/test_net.py::test_retry", "message": "AssertionError: 1 != 2\nat line 3\n"},
                {"id": "tests/test_net.py::test_silent"},
                {"id": "tests/test_net.py::test_short", "message": "boom"},
            ],
        },
    )
    contribution = await TaskProvider().provide(request, SCOPE, BUDGET)
    assert layer_text(contribution) == LAYER
    assert pins(contribution) == [
        "- src/net.py (+1 -1)\n  @@ -1,2 +1,2 @@ def retry():",
        "- tests/test_net.py::test_retry: AssertionError: 1 != 2",
        "- tests/test_net.py::test_silent",
        "- tests/test_net.py::test_short: boom",
    ]
    assert [f.node for f in contribution.fragments] == [
        "task://context",
        "diff://src/net.py",
        "test://tests/test_net.py::test_retry",
        "test://tests/test_net.py::test_silent",
        "test://tests/test_net.py::test_short",
    ]
    assert contribution.fragments[1].metadata == {"added": "1", "removed": "1"}


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"working": {}},
        {"working": {"current_diff": " \n"}},
        {"payload": {"task_context": ""}},
        {"payload": {"task_context": " \n\t"}},
        {"payload": {"task_context": {}}},
        {"payload": {"task_context": []}},
        {"payload": {"task_context": None}},
    ],
)
async def test_nothing_given_is_an_empty_layer(fields: dict[str, Any]) -> None:
    contribution = await TaskProvider().provide(frame(**fields), SCOPE, BUDGET)
    assert (contribution.status, contribution.reason) == ("empty", "no_data")


@pytest.mark.parametrize(
    ("context", "text"),
    [
        ("Plain\n\ntext", "Plain\n\ntext"),
        (False, "false"),
        (0, "0"),
        (1.0, "1"),
        (1.5, "1.5"),
        (["b", "ä"], '```json\n[\n  "b",\n  "ä"\n]\n```'),
        ({"b": 1.0, "a": {"c": None}}, '```json\n{\n  "a": {\n    "c": null\n  },\n  "b": 1\n}\n```'),
        ({"code": "```\nx\n```"}, '````json\n{\n  "code": "```\\nx\\n```"\n}\n````'),
        (["\ud800"], '```json\n[\n  "�"\n]\n```'),
    ],
)
def test_any_json_value_is_spelled_for_reading(context: object, text: str) -> None:
    contribution = build_task(context, None)
    assert texts(contribution) == [text]
    assert contribution.fragments[0].is_divisible


_LEAVES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**53) + 1, 2**53 - 1),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(st.characters(exclude_categories=["Cs"])),
)
_VALUES = st.recursive(
    _LEAVES,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text("abé", max_size=2), inner, max_size=3)
    ),
    max_leaves=8,
)


@settings(max_examples=150)
@given(_VALUES, st.randoms())
def test_values_with_one_canonical_form_are_spelled_alike(value: Any, random: Any) -> None:
    def shuffled(part: Any) -> Any:
        if isinstance(part, dict):
            pairs = list(cast("dict[str, Any]", part).items())
            random.shuffle(pairs)
            return {key: shuffled(item) for key, item in pairs}
        if isinstance(part, list):
            return [shuffled(item) for item in cast("list[Any]", part)]
        if isinstance(part, int) and not isinstance(part, bool) and abs(part) < 2**53:
            return float(part)
        return part

    other = shuffled(value)
    assert canonical_json([other]) == canonical_json([value])
    assert build_task(other, None) == build_task(value, None)


def test_a_context_that_cannot_be_spelled_costs_its_own_section() -> None:
    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep]
    for context in (deep, {"a": object()}, {"a": float("nan")}, {1: 2, "1": 3}):
        contribution = build_task(context, DIFF)
        assert (contribution.status, contribution.reason) == ("partial", "section_error")
        assert len(contribution.fragments) == 1
    while deep:  # taken apart by hand: so deep a list cannot be compared or freed in one go
        deep = deep[0]


def test_forty_levels_are_spelled() -> None:
    value: Any = "leaf"
    for _ in range(40):
        value = {"k": [value]}
    [text] = texts(build_task(value, None))
    assert json.loads(text.removeprefix("```json\n").removesuffix("\n```")) == value


def test_files_that_a_diff_names_twice_are_told_apart() -> None:
    nodes = [f.node for f in build_task(None, DIFF + DIFF).fragments]
    assert nodes == ["diff://src/net.py", "diff://src/net.py#2"]


def test_a_fence_is_longer_than_any_in_the_diff() -> None:
    diff = "--- a/x.md\n+++ b/x.md\n@@ -1 +1,2 @@\n ````\n+```` x\n"
    [text] = texts(build_task(None, diff))
    assert text.split("\n")[1] == "`````diff"
    assert text.split("\n")[-1] == "`````"


def test_what_is_no_unified_diff_is_one_divisible_pin() -> None:
    text = "\n* Moved é to b\n* Removed c\n"
    [fragment] = build_task(None, text).fragments
    assert fragment.is_pinned
    assert fragment.is_divisible
    assert [r.text for r in fragment.renderings] == [
        "```diff\n\n* Moved é to b\n* Removed c\n```",
        "- * Moved é to b (3 lines, 28 bytes)",
    ]


def test_every_floor_line_is_short() -> None:
    diff = f"--- a/{'p' * 5_000}\n+++ b/{'p' * 5_000}\n@@ -1 +1 @@ {'f' * 5_000}\n-a\n+b\n"
    tests = FailingTests([FailingTest(id="t", message="m" * 5_000)])
    for contribution in (build_task(None, diff, tests), build_task(None, "x" * 5_000)):
        for floor in pins(contribution):
            assert all(len(line) < 340 for line in floor.split("\n"))


@pytest.mark.parametrize("message", ["", " ", "\n\n", "\r\n"])
def test_a_test_without_a_message_is_its_id(message: str) -> None:
    assert texts(build_task(None, None, FailingTests([FailingTest(id="t", message=message)]))) == ["- t"]


def test_a_message_over_lines_is_kept_as_it_is() -> None:
    message = "\n\n  indented\n```\nfence\n"
    [fragment] = build_task(None, None, FailingTests([FailingTest(id="t", message=message)])).fragments
    assert [r.text for r in fragment.renderings] == [
        "- t\n````\n  indented\n```\nfence\n````",
        "- t: indented",
    ]


async def test_megabytes_of_diff_take_bounded_time() -> None:
    request = frame(
        working={
            "current_diff": DIFF * 40_000,
            "failing_tests": [{"id": f"t{n}", "message": "x" * 100} for n in range(10_000)],
        }
    )
    started = time.process_time()
    contribution = await TaskProvider().provide(request, SCOPE, BUDGET)
    assert time.process_time() - started < 30
    assert len(contribution.fragments) == 50_000
