"""Every kind of stray from the canon is found where it is planted, and nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from schemas.graph import LABEL_RULES, LABELS, RELATIONS, LabelRule
from worker.graph.conformance import Finding, check_sources, check_statement
from worker.graph.cypher import is_cypher, uses

ROOT = Path(__file__).parents[3]
NO_LABEL = "a label comes from outside the canon's table: use a NodeLabel"
NO_RELATION = "a relation comes from outside the canon's table: use a Relation"


def test_this_project_keeps_to_the_canon() -> None:
    assert check_sources(ROOT) == []


@pytest.mark.parametrize(
    ("statement", "messages"),
    [
        ("MATCH (m:Method) RETURN m", ["no label of the canon: Method; it says Function"]),
        ("MATCH (m:Parameter) RETURN m", ["no label of the canon: Parameter"]),
        ("MATCH (m:function) RETURN m", ["no label of the canon: function"]),
        ("MATCH (n:`Odd Label`) RETURN n", ["no label of the canon: Odd Label"]),
        (
            "MATCH (n:File&(Odd|!Even)) RETURN n",
            [f"no label of the canon: {name}" for name in ("Odd", "Even")],
        ),
        ("MATCH (n) WHERE n:Odd RETURN n", ["no label of the canon: Odd"]),
        ("MATCH (n:File) SET n:Odd REMOVE n:Even", [f"no label of the canon: {n}" for n in ("Odd", "Even")]),
        ("MATCH (n) WHERE 'Odd' IN labels(n) RETURN n", ["no label of the canon: Odd"]),
        ("MATCH (n) CALL (n) { MATCH (n)--(m:Odd) RETURN m } RETURN m", ["no label of the canon: Odd"]),
        ("MATCH (n) WHERE EXISTS { (n)--(:Odd) } RETURN n", ["no label of the canon: Odd"]),
        ("MATCH (n:$($label)) RETURN n", [NO_LABEL]),
        ("MATCH (a)-[:TRACES]->(b) RETURN a", ["no relation of the canon: TRACES; it says TRACES_TO"]),
        (
            "MATCH (a)<-[r:TESTS]-(b) RETURN a",
            ["no relation of the canon: TESTS; it says TESTED_BY reversed"],
        ),
        (
            "MATCH (a)-[:HAS_METHOD*1..3]-(b) RETURN a",
            ["no relation of the canon: HAS_METHOD; it says DEFINES"],
        ),
        (
            "MATCH (a)-[:CALLS|DEFINES_REQUIREMENT]->(b) RETURN a",
            ["no relation of the canon: DEFINES_REQUIREMENT; it says DEFINES or TRACES_TO"],
        ),
        ("MATCH (a)-[:CALLS|:LIKES {since: 1}]->(b) RETURN a", ["no relation of the canon: LIKES"]),
        ("MATCH ()-[r]-() WHERE type(r) = 'LIKES' RETURN r", ["no relation of the canon: LIKES"]),
        ("MATCH ()-[r]-() WHERE type(r) IN ['CALLS', 'LIKES'] RETURN r", ["no relation of the canon: LIKES"]),
        (
            "MERGE (f:Function {key: $k})-[:OWNED_BY]->(o)",
            ["no relation of the canon: OWNED_BY; it says OWNS reversed"],
        ),
        ("MATCH (f:Volk {id: $id}) RETURN f", ["id is no key of Volk; its keys are key and alias"]),
        ("MATCH (f:File {basename: $b}) RETURN f", ["basename is no key of File; its keys are key and id"]),
        ("MERGE (f:Function {id: $id})", ["a MERGE of Function without key lets two projects meet"]),
        (
            "MERGE (f:Function {key: $key, name: $n})",
            ["name is no key of Function; its keys are key and id"],
        ),
        ("MERGE (n {id: 1})", ["a MERGE by id names no label"]),
        ("CREATE CONSTRAINT c FOR (f:File) REQUIRE f.id IS UNIQUE", ["File is unique by key, not by id"]),
        (
            "CREATE CONSTRAINT c FOR (f:File) REQUIRE (f.project, f.key) IS NODE KEY",
            ["File is unique by key, not by project"],
        ),
        (
            "MATCH (n:Volk) WHERE n.id = $i RETURN n",
            ["id is no key of Volk; its keys are key and alias"],
        ),
        (
            "MATCH (n:Function) WHERE n.name = $n AND n.basename = $b RETURN n",
            ["basename is no key of Function; its keys are key and id"],
        ),
        (
            "MATCH (s:Session)-[:HAS]->(g:Goal) WHERE $i IN [s.`id`, g.id] RETURN s",
            ["id is no key of Session; its keys are key and session_id"],
        ),
        (
            "MERGE (p:Project {key: $k}) ON CREATE SET p.slug = $s ON MATCH SET p.project_id = $s",
            ["project_id is no key of Project; its keys are key and slug"],
        ),
        (
            "MATCH (v:Volk) CALL (v) { MATCH (f:File) WHERE f.id = v.id RETURN f } RETURN f",
            ["id is no key of Volk; its keys are key and alias"],
        ),
        (
            "MATCH (n:GraphNode) WHERE n.project_id = $p SET n.id = $id",
            ["project_id is no key of GraphNode; its keys are ref and ref"],
        ),
        (
            "CREATE INDEX i FOR (f:File) ON (f.basename)",
            ["basename is no key of File; its keys are key and id"],
        ),
        ("match (m:Odd) return m", ["no label of the canon: Odd"]),
        ("merge (m:Odd {key: $key})", ["no label of the canon: Odd"]),
        ("Merge (m:Odd {key: $key}) Set m.x = 1", ["no label of the canon: Odd"]),
        ("MERGE (m:", [NO_LABEL]),
        ("CALL apoc.merge.node(['File', 'Odd'], {key: $key})", ["no label of the canon: Odd"]),
        ("call apoc.create.addLabels(n, $labels)", [NO_LABEL]),
        ("CALL apoc.merge.relationship(a, $type, {}, {}, b)", [NO_RELATION]),
    ],
)
def test_each_kind_of_stray_is_named(statement: str, messages: list[str]) -> None:
    assert is_cypher(statement)
    assert check_statement(statement) == messages


@pytest.mark.parametrize(
    "statement",
    [
        "MATCH (f:Function {project: $p, path: $path})-[r:CALLS {resolution: 'exact'}]->(g) RETURN g.key",
        "MERGE (v:Volk {key: $key, project: $p, alias: $alias}) ON CREATE SET v.n = {a: 1}",
        "MATCH (a) RETURN [x IN nodes(p) WHERE x:Function | x.id], a {.id, kind: a.name}, {b: 1, c: {d: 2}}",
        'MATCH (n:File) WHERE n.text = "(:Odd)-[:LIKES]->" RETURN n // (:Even)-[:HATES]->',
        "MATCH (n:File) /* (:Odd {id: 1}) */ RETURN n AS `n:Odd`",
        "MATCH (n:File) WHERE n.size IS :: INTEGER RETURN n[1..2], CASE WHEN n:File THEN 1 END",
        "CREATE CONSTRAINT c FOR (f:File) REQUIRE f.path IS NOT NULL",
        "MATCH (f:Function) MERGE (f)-[:CALLS]->(f)",
        "CREATE FULLTEXT INDEX i FOR (n:File|Chunk) ON EACH [n.text]",
        "MATCH (s:Session {session_id: $id}), (p:Project {slug: $slug}) RETURN point({x: 1, id: 2})",
        "MATCH (n:GraphNode {ref: $ref}) RETURN n",
        "MATCH ((:Module)-[:DEFINES]->(:Class)){1,3} RETURN 1",
        "MATCH (s:Session) WHERE s.session_id = $id AND s.key IN $keys SET s.title = $title RETURN s.id",
        "MATCH (n) WHERE NOT n:Volk AND $id = CASE WHEN n:Project THEN n.slug ELSE n.id END SET n:Volk",
        "UNWIND $rows AS row MATCH (v:Volk) WHERE v.alias = row.id AND row.v.id = 1 RETURN v",
        "MATCH (n:Volk) RETURN n; MATCH (n) WHERE n.id = $i RETURN n; MATCH (n {id: $i}) RETURN n",
        "MATCH (n:GraphNode) WHERE NOT (n:Volk OR n:Session) AND n.id = $id RETURN n",
        "MATCH (n) WHERE (n:Volk OR n:Project) AND n.id = $id RETURN n",
        "MATCH (n:!Volk) WHERE n.id = $id RETURN n",
        "MATCH (n:GraphNode&!Volk) WHERE n.id = $id RETURN n",
        "MATCH (n:Function|Volk) WHERE n.id = $id OR n.alias = $id RETURN n",
    ],
)
def test_what_keeps_to_the_canon_is_left_alone(statement: str) -> None:
    assert check_statement(statement) == []


PLANTED = '''"""A docstring may say MATCH (m:Method)-[:TRACES]->(r)."""
from schemas.graph import LABELS, NodeLabel, Relation, LabelRule
KIND = "Method"
QUERY = "MATCH (a:File)" + "-[:TRACES]->(b) RETURN b"
SAFE = {label: f"MATCH (n:{label} {{key: $key}}) RETURN n" for label in LABELS}


def find(label: NodeLabel, relation: Relation, rule: LabelRule, other: str):
    """Likewise: MERGE (n:Nothing)."""
    yield f"MATCH (n:{label})-[:{relation}]->(m:{rule.label}) RETURN m"
    yield f"MATCH (n:{KIND}) RETURN n"
    yield f"""
        MATCH (n:File)
        MATCH (n)-[:{other}]->(m:{other})
        RETURN m
    """
    yield "MATCH (n:{}) RETURN n".format(other)
    yield "MATCH (n:%s) RETURN n" % other
    yield f"MATCH (n:{relation}) RETURN n"
    for name in other.split():
        yield f"MATCH (n:{name}) RETURN n"
    yield "".join(["MERGE (n:", other, " {key: $key})"])
    yield b"merge (n:Odd {key: $key})"
    yield "MERGE (n:" + label
'''


def test_strays_are_found_in_all_the_ways_in_which_python_writes_text(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text(PLANTED)
    assert [(found.line, found.kind, found.name, found.message) for found in check_sources(tmp_path)] == [
        (4, "relation", "TRACES", "no relation of the canon: TRACES; it says TRACES_TO"),
        (11, "label", "Method", "no label of the canon: Method; it says Function"),
        (14, "label", "unknown", NO_LABEL),
        (14, "relation", "unknown", NO_RELATION),
        (17, "label", "unknown", NO_LABEL),
        (18, "label", "unknown", NO_LABEL),
        (19, "label", "relation", NO_LABEL),
        (21, "label", "unknown", NO_LABEL),
        (22, "label", "unknown", NO_LABEL),
        (23, "label", "Odd", "no label of the canon: Odd"),
    ]


def test_cypher_files_are_read_and_tests_links_and_hidden_folders_are_not(tmp_path: Path) -> None:
    stray = "// old\nMATCH (m:Method)\nRETURN m;\n"
    for folder in ("queries", "tests", ".hidden", "node_modules"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "q.cypher").write_text(stray)
    (tmp_path / "linked").symlink_to(tmp_path / "queries")
    (tmp_path / "queries" / "link.cypher").symlink_to(tmp_path / "queries" / "q.cypher")
    (tmp_path / "notes.md").write_text(stray)
    message = "no label of the canon: Method; it says Function"
    assert check_sources(tmp_path) == [
        Finding(path="queries/q.cypher", line=2, kind="label", name="Method", message=message)
    ]


@pytest.mark.parametrize("content", [b"def broken(:\n", b"x = '\xff'\n", b"x = 1\x00\n"])
def test_a_file_that_nobody_can_read_is_a_finding(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "bad.py").write_bytes(b"# MATCH\n" + content)
    (found,) = check_sources(tmp_path)
    assert (found.path, found.kind, found.name) == ("bad.py", "source", "bad.py")
    assert found.message.startswith("cannot be read: ")


@pytest.mark.parametrize(
    "prose",
    [
        "Match (see: the manual) before you merge",
        "CREATE TABLE nodes (id TEXT, label TEXT)",
        "create (note: this is prose)",
        "SELECT a FROM b WHERE c IN (1, 2)",
        "a -> b: c",
        "[x: y]",
    ],
)
def test_prose_and_sql_are_no_cypher(prose: str) -> None:
    assert not is_cypher(prose)


@given(st.sampled_from(LABELS), st.sampled_from(RELATIONS), st.sampled_from(LABEL_RULES))
def test_every_name_of_the_canon_is_accepted(label: str, relation: str, rule: LabelRule) -> None:
    statement = (
        f"MATCH (a:{label})-[:{relation}]->(b:{rule.label} {{{rule.key}: $id}})"
        f" MERGE (c:{rule.label} {{key: $key}})"
    )
    assert check_statement(statement) == []


names = st.from_regex(r"[A-Z][a-z]{2,8}[0-9]", fullmatch=True)


@given(names, st.sampled_from(["(n:{})", "(:{} {{key: 1}})", "(n:File:{})", "(n:`{}`)", "(n:!{})"]))
def test_every_name_off_the_canon_is_found_in_every_shape(name: str, shape: str) -> None:
    assert check_statement(f"MATCH {shape.format(name)} RETURN 1") == [f"no label of the canon: {name}"]


pieces = st.sampled_from(
    [*"(){}[]:|&!-<>'\"`$.,=nA \n\\", "\0", "MATCH ", "type(", "REQUIRE ", "n.a IS UNIQUE"]
)


@settings(max_examples=100)
@given(st.lists(pieces, max_size=30).map("".join))
@example("MATCH (n:")
@example("REQUIRE n.")
def test_no_text_makes_it_fail_or_run_on(text: str) -> None:
    assert len(list(uses(text))) <= len(text)
