from __future__ import annotations

import pytest

from tests.support.memory_graph import MemoryGraphStore
from worker.code.extractor import extract
from worker.code.grammars import GRAMMAR_OF
from worker.code.indexing import IndexOptions, index_files
from worker.code.tolerant import extract_tolerant
from worker.code.trace_lint import MAX_FINDINGS, trace_lint, trace_statuses
from worker.graph.snapshot import build_snapshot

CODE = '''"""Pay.

@traces TBD
Symbols without @traces are listed; so is what has an `@traces TODO` in a sample:

    # as in ::

    >>> f()  # @traces TODO
"""
# @traces REQ-XXX, to be found
def f(a):
    """@implements REQ-7, and @covers <ID>"""
    # @traces REQ-
    # @spec REQ-000
    return a  # @traces REQ-404

class A:
    def m(self):
        # @traces
        x = "@traces TODO"
'''
SPEC = "- **REQ-7**: It starts at once.\n- **REQ-8**: It ends.\n"


def found(text: str) -> list[tuple[int, str, str]]:
    return [(t.line, t.tag, t.requirement_id) for t in extract("a.py", text.encode()).placeholders]


def test_placeholders_are_tags_in_prose_of_the_program_and_nothing_else() -> None:
    assert found(CODE) == [
        (3, "@traces", "TBD"),
        (10, "@traces", "REQ-XXX"),
        (12, "@covers", "<ID>"),
        (13, "@traces", "REQ-"),
        (19, "@traces", ""),
    ]


@pytest.mark.parametrize(
    ("text", "is_placeholder"),
    [
        ("@traces TODO", True),
        ("@traces: todo", True),
        ("@traces ???", True),
        ("@implements FR-NN", True),
        ("@traces [REQ-<n>]", True),
        ("@traces REQ-1", False),
        ("@traces TODOS are listed", False),
        ("@implements the protocol", False),
        ("@traces N/A", False),
        ("see @traces", False),
        ("@tracesTODO", False),
    ],
)
def test_what_counts_as_a_placeholder(text: str, *, is_placeholder: bool) -> None:
    assert bool(found(f"# {text}\nx = 1\n")) is is_placeholder
    assert bool(found(f'"""Doc.\n\n{text}\n"""\n')) is is_placeholder


def test_other_languages_have_placeholders_too() -> None:
    facts = extract_tolerant("a.ts", "// @traces TBD\nfunction f() {}\n", GRAMMAR_OF["typescript"])
    assert [(t.line, t.requirement_id) for t in facts.placeholders] == [(1, "TBD")]


async def test_a_tag_dangles_where_the_documents_of_the_project_do_not_define_its_id() -> None:
    store = MemoryGraphStore()
    files = {"a.py": CODE.encode(), "docs/requirements.md": SPEC.encode()}
    await index_files(store, "p", files, options=IndexOptions(with_history=False, processes=1))
    loaded = await store.load("p")
    assert loaded is not None
    statuses = trace_statuses(build_snapshot(*loaded))
    assert [statuses(name) for name in ("REQ-7", "REQ-8", "REQ-404", "REQ-9999")] == [
        *("defined", "defined", "dangling", "dangling")
    ]
    lint = trace_lint([extract("a.py", CODE.encode())], status_of=statuses)
    assert [(f.line, f.kind, f.requirement_id, f.owner_id) for f in lint.findings] == [
        (3, "placeholder", "TBD", "a.py::<module>"),
        (10, "placeholder", "REQ-XXX", "a.py::<module>"),
        (12, "placeholder", "<ID>", "a.py::f"),
        (13, "placeholder", "REQ-", "a.py::f"),
        (14, "dangling", "REQ-000", "a.py::f"),
        (15, "dangling", "REQ-404", "a.py::f"),
        (19, "placeholder", "", "a.py::A.m"),
    ]
    assert (lint.more, lint.checked, lint.unjudged) == (0, 8, ())


async def test_without_documents_no_id_is_said_to_dangle() -> None:
    store = MemoryGraphStore()
    await index_files(
        store, "p", {"a.py": CODE.encode()}, options=IndexOptions(with_history=False, processes=1)
    )
    loaded = await store.load("p")
    assert loaded is not None
    module = extract("a.py", CODE.encode())
    with_graph = trace_lint([module], status_of=trace_statuses(build_snapshot(*loaded)))
    assert with_graph == trace_lint([module])
    assert with_graph.unjudged == ("REQ-404", "REQ-7")
    assert {f.kind for f in with_graph.findings} == {"placeholder"}
    assert [f.requirement_id for f in with_graph.findings if f.line == 14] == ["REQ-000"]


def test_findings_are_cut_and_counted() -> None:
    lint = trace_lint([extract("a.py", b"# @traces TBD\nx = 1\n" * 150)])
    assert (len(lint.findings), lint.more) == (MAX_FINDINGS, 50)
