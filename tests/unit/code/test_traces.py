from __future__ import annotations

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from worker.code.extractor import extract
from worker.code.traces import expand_ids


def traces(source: str) -> dict[str, list[str]]:
    """Requirement ids by qualified name, the module's first."""
    found = extract("m.py", source.encode())
    assert found.parse_problem is None
    owners = [("<module>", found.traces)]
    owners += [(item.id.split("::")[1], item.traces) for item in (*found.classes, *found.functions)]
    return {name: [trace.requirement_id for trace in items] for name, items in owners if items}


def ids(text: str) -> list[str]:
    """The ids in a docstring or comment line of a function."""
    in_docstring = traces(f"def f():\n    r'''\n    {text}\n    '''\n")
    in_comment = traces(f"def f():\n    # {text}\n    pass\n")
    assert in_docstring == in_comment
    return in_docstring.get("f", [])


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("@traces REQ-1, REQ-2", ["REQ-1", "REQ-2"]),
        ("@traces: REQ-AUTH-001", ["REQ-AUTH-001"]),
        ("@implements REQ-X-002 some text", ["REQ-X-002"]),
        ("@covers AC-1 AC-2", ["AC-1", "AC-2"]),
        ("@spec FR-044 — text", ["FR-044"]),
        ("Implements: FR-001, FR-003", ["FR-001", "FR-003"]),
        ("Covers: REQ-1", ["REQ-1"]),
        ("@traces REQ-1 + REQ-2 and REQ-3; REQ-4 & REQ-5", ["REQ-1", "REQ-2", "REQ-3", "REQ-4", "REQ-5"]),
        ("@traces REQ-1, and REQ-2.", ["REQ-1", "REQ-2"]),
        ("@traces REQ-005.AC-05", ["REQ-005.AC-05"]),
        ("@traces REQ-106-030 REQ-106-042", ["REQ-106-030", "REQ-106-042"]),
        ("@traces REQ-1a", ["REQ-1a"]),
        ("@traces REQ-1 @covers AC-2", ["REQ-1", "AC-2"]),
        ("Does it (@traces REQ-1) well", ["REQ-1"]),
        ("- @traces REQ-1", ["REQ-1"]),
        ("@traces REQ-1, REQ-1", ["REQ-1"]),
        ("@traces FR-001..003", ["FR-001", "FR-002", "FR-003"]),
        ("@traces FR-001〜003", ["FR-001", "FR-002", "FR-003"]),
        ("@traces FR-009–FR-011", ["FR-009", "FR-010", "FR-011"]),
        ("@traces FR-001 through FR-003, FR-7", ["FR-001", "FR-002", "FR-003", "FR-7"]),
        ("@traces FR-1 through AC-3", ["FR-1", "AC-3"]),
        ("@traces FR-3..1", ["FR-3"]),
        ("@traces FR-1..FR-99999", ["FR-1", "FR-99999"]),
        ("@traces FR-044 — 50 retries", ["FR-044"]),
        ("@relation(REQ-1, sys.2, scope=function, role=impl)", ["REQ-1", "sys.2"]),
        ("[impl->req~name.of.req~1]", ["req~name.of.req~1"]),
        ("[utest->dsn~a-b~12] and more", ["dsn~a-b~12"]),
        ("nothing REQ-1 here", []),
        ("@traces nothing", []),
        ("@traces utf-8 Req-1 req-2", []),
        ("@traceserver REQ-1", []),
        ("mail@traces REQ-1", []),
        ("write `@traces REQ-1` above it", []),
        ('write "@traces REQ-1" above it', []),
        (">>> # @traces REQ-1", []),
        ("reImplements: FR-1", []),
    ],
)
def test_tags_are_read_as_they_are_written(text: str, expected: list[str]) -> None:
    assert ids(text) == expected


@pytest.mark.parametrize(
    ("comment", "expected"),
    [
        ("# REQ-4", ["REQ-4"]),
        ("#REQ-4, NFR-5", ["REQ-4", "NFR-5"]),
        ("#: FR-001..003", ["FR-001", "FR-002", "FR-003"]),
        ("# REQ-4: retries", ["REQ-4"]),
        ("# REQ-4 - retries", ["REQ-4"]),
        ("# REQ-4 is not met here", []),
        ("# see REQ-4", []),
        ("# UTF-8", []),
        ("# SHA-256", []),
    ],
)
def test_a_comment_of_nothing_but_requirements_is_a_tag(comment: str, expected: list[str]) -> None:
    assert traces(f"def f():\n    pass  {comment}\n").get("f", []) == expected


def test_in_a_docstring_a_bare_id_is_a_word() -> None:
    assert traces("def f():\n    '''REQ-4'''\n") == {}


def test_a_list_goes_on_after_a_comma_on_the_next_line() -> None:
    assert traces("def f():\n    '''Do.\n\n    @traces REQ-1,\n        REQ-2\n    REQ-3\n    '''\n") == {
        "f": ["REQ-1", "REQ-2"]
    }
    assert traces("# @traces REQ-1,\n#     REQ-2\ndef f(): pass\n") == {"f": ["REQ-1", "REQ-2"]}


def test_sample_text_is_no_trace() -> None:
    source = '''
def f():
    """Say it like this::

        @traces REQ-1

    or so:

    ```python
    # @traces REQ-2
    ```

    >>> x = 1  # @traces REQ-3
    ... # @traces REQ-4

    @traces REQ-5
    """
    sample = "# @traces REQ-6"
    """
    @traces REQ-7
    """
    return f"@traces REQ-8 {sample} # REQ-9"
'''
    assert traces(source) == {"f": ["REQ-5"]}


def test_a_literal_block_is_known_by_its_indentation_alone() -> None:
    assert traces("def f():\n    '''Say::\n\n        @traces REQ-1\n    '''\n") == {}
    assert traces("def f():\n    # Say::\n    #   @traces REQ-1\n    # @traces REQ-2\n    pass\n") == {
        "f": ["REQ-2"]
    }
    assert traces("def f():\n    '''Say::\n    @traces REQ-1\n    '''\n") == {"f": ["REQ-1"]}


BINDINGS = """
# @traces REQ-1

# @traces REQ-2
@decorator
# @traces REQ-3
def f():  # @traces REQ-4
    # @traces REQ-5
    def g():
        pass
        # @traces REQ-6
    # @traces REQ-7
    x = 1

    # @traces REQ-8


# @traces REQ-9
class A:
    # @traces REQ-10

    # @traces REQ-11
    def m(self):
        pass

    # @traces REQ-12

x = [
    1,  # @traces REQ-13
    # @traces REQ-14
]
# @traces REQ-15
"""


def test_a_tag_binds_to_what_it_stands_above_or_within() -> None:
    assert traces(BINDINGS) == {
        "<module>": ["REQ-1", "REQ-13", "REQ-14", "REQ-15"],
        "f": ["REQ-2", "REQ-3", "REQ-4", "REQ-7", "REQ-8"],
        "f.<locals>.g": ["REQ-5", "REQ-6"],
        "A": ["REQ-9", "REQ-10", "REQ-12"],
        "A.m": ["REQ-11"],
    }


def test_docstrings_bind_to_their_owner() -> None:
    source = "'''@spec R-1'''\nclass A:\n    '''@spec R-2'''\n    def m(self):\n        '''@spec R-3'''\n"
    assert traces(source) == {"<module>": ["R-1"], "A": ["R-2"], "A.m": ["R-3"]}


def test_a_relation_with_the_scope_of_the_file_binds_to_the_file() -> None:
    assert traces("def f():\n    # @relation(REQ-1, scope=file)\n    pass\n") == {"<module>": ["REQ-1"]}


def test_a_marked_test_names_its_requirements() -> None:
    source = '@pytest.mark.requirement("A-1", "any text")\n@pytest.mark.slow("B-1")\ndef test_f(): pass\n'
    assert traces(source) == {"test_f": ["A-1", "any text"]}


def test_each_trace_keeps_its_tag_and_line() -> None:
    found = extract("m.py", b"def f():\n    '''Do.\n\n    @traces REQ-1\n    '''\n    pass  # REQ-2\n")
    assert [(t.requirement_id, t.tag, t.line) for t in found.functions[0].traces] == [
        ("REQ-1", "@traces", 4),
        ("REQ-2", "#", 6),
    ]


@settings(max_examples=300)
@given(st.text(alphabet="AREQ-0129.~–…, +and@tracesthrough\n", max_size=60))
def test_any_list_ends_where_it_says_and_its_ids_stand_in_it(text: str) -> None:
    found, end = expand_ids(text)
    assert 0 <= end <= len(text)
    assert bool(found) == (end > 0)
    assert not found or text.startswith(found[0])


@pytest.mark.parametrize(
    "text",
    [
        "# @traces " + "A-1, " * 40_000,
        "# @traces A" + "-1" * 200_000 + "x",
        "# @traces A-" + "1" * 400_000 + ".." + "2" * 400_000,
        "# @traces FR-1.." + "9" * 100_000,
        "# " + "@traces " * 50_000,
        "# @relation(" * 30_000,
        "# [impl->" + "a~" * 100_000,
        "# @traces REQ-1\n" * 15_000,
        "def f():\n    pass\n" + "    # REQ-1\n\n" * 15_000,
        "def f(): # REQ-1\n    pass\n" * 4_000,
        "'''" + "```\n" * 100_000 + "@traces REQ-1'''",
    ],
    ids=range(11),
)
def test_hostile_tags_take_linear_time(text: str) -> None:
    started = time.process_time()
    extract("m.py", text.encode())
    assert time.process_time() - started < 4
