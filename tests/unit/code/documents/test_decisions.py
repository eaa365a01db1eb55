from __future__ import annotations

import time

import pytest

from worker.code.documents.project import Documents, read_documents
from worker.code.documents.reading import read_document
from worker.code.documents.results import Decision, DocumentFacts
from worker.graph.model import Node

NYGARD = """# 7. Use queues

Date: 2026-01-05

## Status

Accepted

Superseded by [9. Streams. Now](0009-streams.md)

Amends [3. Files](0003-files.md)

## Context

See `worker/app.py:12-20`, `dispatch()` and `Queue.put(item)`; not `1.2.3`, `True` or `http://x.y/z`.
[code](../../src/b.py#L5) and [site](https://example.org/a.py)

## Decision

It serves REQ-4 and FR-001..003.

## Touches

- worker/kafka/
- `Retrier`
- plain words
"""

MADR = """---
status: "superseded by ADR-0009"
date: 2026-02-01
decision-makers: [a, b]
---
# ADR-0002: Use rows

## Status

Accepted

## Considered Options

* rows

## Decision Outcome

Chosen option: "rows", because

### Confirmation

A test.
"""


def facts_of(text: str, path: str) -> DocumentFacts:
    facts = read_document(path, text)
    assert facts is not None
    return facts


def record(text: str, path: str = "docs/adr/0007-use-queues.md") -> Decision:
    facts = facts_of(text, path)
    assert facts.format == "adr"
    return facts.decisions[0]


def decisions(documents: Documents) -> dict[str, Node]:
    return {node.id: node for node in documents.nodes if node.label == "Decision"}


def test_nygards_form() -> None:
    decision = record(NYGARD)
    assert (decision.id, decision.number, decision.title, decision.date) == (
        "",
        "7",
        "Use queues",
        "2026-01-05",
    )
    assert (decision.status, decision.superseded_by) == ("superseded", ("0009-streams.md",))
    assert (decision.start_line, decision.end_line, decision.text) == (1, 26, NYGARD.strip())


def test_what_a_record_speaks_of_is_collected_without_suffixes_of_lines() -> None:
    assert [(r.kind, r.value, r.line) for r in record(NYGARD).applies_to] == [
        ("path", "worker/app.py", 15),
        ("symbol", "dispatch", 15),
        ("symbol", "Queue.put", 15),
        ("path", "src/b.py", 16),
        ("requirement", "REQ-4", 20),
        ("requirement", "FR-001", 20),
        ("requirement", "FR-002", 20),
        ("requirement", "FR-003", 20),
        ("path", "worker/kafka", 24),
        ("symbol", "Retrier", 25),
    ]


def test_the_form_of_madr_and_its_conflicting_statuses() -> None:
    facts = facts_of(MADR, "docs/decisions/0002-rows.md")
    decision = facts.decisions[0]
    assert (decision.id, decision.title, decision.date) == ("ADR-0002", "Use rows", "2026-02-01")
    assert (decision.status, decision.superseded_by) == ("superseded", ("ADR-0009",))
    assert [(n.code, n.line, n.detail) for n in facts.notes] == [
        ("status_conflict", 8, "superseded by ADR-0009 / Accepted")
    ]


@pytest.mark.parametrize(
    ("line", "status", "superseded_by"),
    [
        ("**Status:** Accepted", "accepted", ()),
        ("**Status**: accepted", "accepted", ()),
        ("- Status: Superseded by ADR 0044", "superseded", ("ADR 0044",)),
        ("> **Статус: Принято**", "accepted", ()),
        ("* 状态：已接受", "accepted", ()),
        ("Status: Active", "active", ()),
        ("Status: Draft", "draft", ()),
        ("Status: On hold", "on hold", ()),
        ("Status: Rejected (2026-01-01)", "rejected", ()),
        ("Status: Deprecated", "deprecated", ()),
        ("Status: Accepted, 2026-05-01; storage part superseded by 0013", "accepted", ("0013",)),
        ("Status: Partially superseded by ADR-0013", "accepted", ("ADR-0013",)),
        ("Status: Superseded by #1597", "superseded", ("#1597",)),
        ("Status: Superseded by [#1597](https://example.org/1597)", "superseded", ("#1597",)),
        ("Status: Superseded by the new gateway", "superseded", ("the new gateway",)),
        ("Status: Superseded by ADR-0003 and ADR-0004", "superseded", ("ADR-0003", "ADR-0004")),
        ("Status: Proposed | Accepted | Deprecated", "unknown", ()),
        ("Status: [Proposed / Accepted / Deprecated / Superseded]", "unknown", ()),
        ("Status: inactive", "unknown", ()),
        ("Status: waiting", "unknown", ()),
        ("| Status | Accepted |\n|--|--|\n| Date | 2026-01-01 |", "accepted", ()),
        ("Text without any.", "", ()),
    ],
)
def test_statuses_in_the_forms_that_people_write(
    line: str, status: str, superseded_by: tuple[str, ...]
) -> None:
    decision = record(f"# Use rows\n\n{line}\n\nText.\n")
    assert (decision.status, decision.superseded_by) == (status, superseded_by)


@pytest.mark.parametrize(
    ("front", "supersedes", "superseded_by"),
    [
        ("supersedes: [ADR-0002]\nsuperseded_by: ADR-0005", ("ADR-0002",), ("ADR-0005",)),
        ("supersedes: ADR-0002, ADR-0003", ("ADR-0002", "ADR-0003"), ()),
        ("supersedes:\n  - 0002-rows.md\nsuperseded-by: none", ("0002-rows.md",), ()),
        ("supersedes: _(none)_\nsuperseded_by: []", (), ()),
        ("title: ADR: broken: yaml\nsupersedes: ADR-0002", ("ADR-0002",), ()),
    ],
)
def test_supersession_in_front_matter(
    front: str, supersedes: tuple[str, ...], superseded_by: tuple[str, ...]
) -> None:
    decision = record(f"---\n{front}\nstatus: accepted\n---\n# Use rows\n")
    assert (decision.supersedes, decision.superseded_by) == (supersedes, superseded_by)
    assert decision.text == "# Use rows"


@pytest.mark.parametrize(
    ("line", "supersedes"),
    [
        ("Supersedes: None", ()),
        ("**Supersedes:** _(none)_", ()),
        ("- Supersedes: n/a", ()),
        ("**Supersedes:** ADR-0002", ("ADR-0002",)),
        ("Supersedes: [ADR-0002](0002-rows.md)", ("0002-rows.md",)),
    ],
)
def test_supersession_in_lines(line: str, supersedes: tuple[str, ...]) -> None:
    assert record(f"# Use rows\n\n- Status: Accepted\n{line}\n").supersedes == supersedes


@pytest.mark.parametrize(
    ("path", "heading", "literal", "number", "title"),
    [
        ("docs/adr/0007-x.md", "# 7. Use queues", "", "7", "Use queues"),
        ("docs/adr/0007-x.md", "# ADR-0007: Use queues", "ADR-0007", "7", "Use queues"),
        ("docs/adr/ADR-0007-x.md", "# Use queues", "ADR-0007", "7", "Use queues"),
        ("docs/adr/adr-007-x.md", "# ADR 7 — Use queues", "ADR 7", "7", "Use queues"),
        ("adr/use-queues.md", "# Use queues", "", "", "Use queues"),
        ("decisions/012-x.md", "# Use 2 queues", "", "12", "Use 2 queues"),
        ("doc/architecture/decisions/0007-x.md", "# 2026 plans", "", "7", "2026 plans"),
    ],
)
def test_a_record_is_named_as_it_names_itself(
    path: str, heading: str, literal: str, number: str, title: str
) -> None:
    decision = record(f"{heading}\n\nStatus: Accepted\n", path)
    assert (decision.id, decision.number, decision.title) == (literal, number, title)


@pytest.mark.parametrize(
    "path",
    [
        "docs/adr/README.md",
        "docs/adr/index.md",
        "docs/adr/template.md",
        "docs/adr/0000-adr-template.md",
        "adr-template.md",
        "template/0000-use-records.md",
    ],
)
def test_templates_indexes_and_readmes_are_no_decisions(path: str) -> None:
    index = (
        "# Records\n\n## Status\n\nAccepted\n\n## Decision\n\n"
        "| ID | Decision | Status |\n|--|--|--|\n| 1 | rows | Accepted |\n"
    )
    assert read_document(path, index) is None


def test_a_record_anywhere_is_known_by_its_sections() -> None:
    text = "# Use rows\n\n## Status\n\nAccepted\n\n## Context\n\nx\n\n## Decision\n\ny\n"
    assert record(text, "notes/rows.md").status == "accepted"
    assert read_document("notes/rows.md", "# Rows\n\n## Status\n\nAccepted\n") is None


def test_fences_hold_samples_and_name_nothing() -> None:
    text = "# Use rows\n\nStatus: Accepted\n\n```\nStatus: Rejected\n`src/a.py`\n```\n"
    decision = record(text)
    assert (decision.status, decision.applies_to) == ("accepted", ())


def test_a_label_opens_a_list_of_what_is_touched() -> None:
    text = (
        "# Use rows\n\nStatus: Accepted\n\n**Affects:** src/a.py, `run`\n\n- src/b.py\n\n"
        "Later src/c.py and `word`.\n"
    )
    assert [(r.kind, r.value) for r in record(text).applies_to] == [
        ("symbol", "run"),
        ("path", "src/a.py"),
        ("path", "src/b.py"),
    ]


def test_a_range_that_does_not_expand_is_noted() -> None:
    facts = facts_of("# Use rows\n\nStatus: Accepted\n\nFor FR-001..NFR-003.\n", "adr/0001-x.md")
    assert [r.value for r in facts.decisions[0].applies_to] == ["FR-001", "NFR-003"]
    assert [(n.code, n.line, n.detail) for n in facts.notes] == [("range_unexpanded", 5, "FR-001..NFR-003")]


def test_decisions_are_named_by_their_id_else_by_their_path() -> None:
    documents = read_documents({"docs/adr/0007-q.md": NYGARD, "docs/decisions/0002-rows.md": MADR})
    assert sorted(decisions(documents)) == ["ADR-0002", "docs/adr/0007-q.md"]


def test_the_same_id_in_two_folders_stays_two() -> None:
    text = "# ADR-0001: Use rows\n\nStatus: Accepted\n"
    documents = read_documents({"a/adr/0001-x.md": text, "b/adr/0001-x.md": text})
    assert sorted(decisions(documents)) == ["a/adr/0001-x.md", "b/adr/0001-x.md"]


def test_either_side_of_a_supersession_gives_the_other() -> None:
    accepted = "# {}\n\nStatus: Accepted\n"
    documents = read_documents(
        {
            "adr/0001-a.md": "# 1. A\n\nStatus: Superseded by [2. B](0002-b.md)\n",
            "adr/0002-b.md": accepted.format("2. B"),
            "adr/0003-c.md": accepted.format("3. C"),
            "adr/0004-d.md": "# 4. D\n\nStatus: Accepted\nSupersedes: ADR-0003\n",
            "adr/0005-e.md": "# 5. E\n\nStatus: Accepted; storage part superseded by 0004\n",
        }
    )
    assert [
        (edge.source.id, edge.target.id) for edge in documents.edges if edge.relation == "SUPERSEDES"
    ] == [
        ("adr/0002-b.md", "adr/0001-a.md"),
        ("adr/0004-d.md", "adr/0003-c.md"),
        ("adr/0004-d.md", "adr/0005-e.md"),
    ]
    found = decisions(documents)
    assert found["adr/0001-a.md"].property("superseded_by") == "adr/0002-b.md"
    assert found["adr/0002-b.md"].property("supersedes") == "adr/0001-a.md"
    assert found["adr/0003-c.md"].property("superseded_by") == "adr/0004-d.md"
    assert (found["adr/0005-e.md"].property("status"), found["adr/0005-e.md"].property("superseded_by")) == (
        "accepted",
        "adr/0004-d.md",
    )


def test_both_sides_recorded_are_one_edge_and_a_record_never_supersedes_itself() -> None:
    documents = read_documents(
        {
            "adr/0001-a.md": "# A\n\nStatus: Superseded by 0002\n",
            "adr/0002-b.md": "# B\n\nStatus: Accepted\nSupersedes: 1, 0002\n",
        }
    )
    assert [(e.source.id, e.target.id) for e in documents.edges] == [("adr/0002-b.md", "adr/0001-a.md")]


def test_a_record_that_is_not_there_is_noted_and_kept() -> None:
    documents = read_documents(
        {
            "adr/0001-a.md": "# A\n\nStatus: Superseded by ADR-0099\n",
            "adr/0002-b.md": "# B\n\nStatus: Superseded by #1597\n",
        }
    )
    assert [(n.code, n.path, n.detail) for n in documents.notes] == [
        ("dangling_link", "adr/0001-a.md", "ADR-0099")
    ]
    found = decisions(documents)
    assert found["adr/0001-a.md"].property("superseded_by") == "ADR-0099"
    assert found["adr/0002-b.md"].property("superseded_by") == "#1597"


def test_numbers_mean_the_record_in_the_same_folder() -> None:
    documents = read_documents(
        {
            "a/adr/0001-x.md": "# ADR-0001: X\n\nStatus: Superseded by 0002\n",
            "a/adr/0002-y.md": "# ADR-0002: Y\n\nStatus: Accepted\n",
            "b/adr/0002-z.md": "# ADR-0002: Z\n\nStatus: Accepted\n",
        }
    )
    assert [(e.source.id, e.target.id) for e in documents.edges] == [("a/adr/0002-y.md", "ADR-0001")]


def test_a_path_whose_end_can_be_read_in_many_ways_is_read_at_once() -> None:
    context = f"See `worker/app.py{':1' * 140}x`, `worker/app.py:1:2-3#L4 (lines 5-6)`."
    text = NYGARD.replace("See `worker/app.py:12-20`", context)
    started = time.process_time()
    decision = record(text)
    assert time.process_time() - started < 2
    assert "worker/app.py" in str(decision.applies_to)
