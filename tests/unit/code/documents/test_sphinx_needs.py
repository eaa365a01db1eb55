from __future__ import annotations

from worker.code.documents.reading import read_document
from worker.code.documents.results import DocumentFacts

RST = """Login
=====

.. req:: The title
   goes on
   :id: R_LOGIN
   :status: open
   :tags: ui; web
   :links: A-1, OTHER

   The system SHALL ask.

   .. my-spec:: Inner
      :id: S_1

      Inner text.

   Outer again.

.. test:: A test
   :id: T_1

.. code-block:: rst

   .. req:: Sample
      :id: SAMPLE

.. a comment

   .. req:: Hidden
      :id: HIDDEN

Literal::

   .. req:: Literal
      :id: LITERAL

.. req:: No id

See :need:`R_LOGIN` and :need:`this <S_1>`.
"""


def read(path: str, text: str) -> DocumentFacts:
    facts = read_document(path, text)
    assert facts is not None
    return facts


def test_directives_with_an_id_are_requirements_but_samples_comments_and_tests_are_not() -> None:
    facts = read("docs/login.rst", RST)
    assert (facts.spec_id, facts.title, facts.format) == ("docs/login.rst", "Login", "sphinx_needs")
    assert [(r.id, r.title, r.status, r.parent) for r in facts.requirements] == [
        ("R_LOGIN", "The title goes on", "pending", "A-1"),
        ("S_1", "Inner", "", "R_LOGIN"),
    ]


def test_the_body_is_the_text_and_what_is_nested_is_not() -> None:
    login, inner = read("docs/login.rst", RST).requirements
    assert (login.text, login.modality) == ("The system SHALL ask.\n\nOuter again.", "must")
    assert inner.text == "Inner text."
    assert (login.start_line, login.end_line) == (4, 18)
    assert dict(login.properties) == {"directive": "req", "links": "A-1, OTHER", "tags": "ui; web"}


def test_ranges_in_links_expand_or_are_noted() -> None:
    facts = read("a.rst", ".. req:: T\n   :id: X\n   :links: REQ-001..003; REQ-1..SYS-3\n\n   b\n")
    assert dict(facts.requirements[0].properties)["links"] == "REQ-001, REQ-002, REQ-003, REQ-1, SYS-3"
    assert [(n.code, n.detail) for n in facts.notes] == [("range_unexpanded", "REQ-1..SYS-3")]


def test_fences_of_markdown_hold_needs_too() -> None:
    text = (
        "# Needs\n\n```{req} Title\n:id: login_1\n:status: done\n\nThe system MUST ask.\n```\n\n"
        "```{spec}\n---\nid: S2\nlinks: [A, B]\n---\nBody\n```\n\n```python\n:id: NO\n```\n"
    )
    facts = read("docs/needs.md", text)
    assert [(r.id, r.title, r.text, r.status, r.parent) for r in facts.requirements] == [
        ("login_1", "Title", "The system MUST ask.", "done", ""),
        ("S2", "Body", "Body", "", "A"),
    ]
    assert (facts.requirements[0].start_line, facts.requirements[0].end_line) == (3, 8)


def test_other_files_are_passed_over() -> None:
    assert read_document("a.rst", "Title\n=====\n\ntext :id: x\n") is None
