"""An older graph, planted in a real Neo4j, is brought to the canon; a second run finds nothing to do."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import Any, LiteralString, cast
from uuid import uuid4

import pytest
from neo4j import AsyncDriver

from tests.support.graphs import EMPTY, chain
from worker.errors import StoreUnavailable
from worker.graph.diff import diff_contents
from worker.graph.migration import Unmoved
from worker.graph.model import Edge, GraphChange, GraphContents, Node, NodeRef
from worker.stores.neo4j_graph import Neo4jGraphStore
from worker.stores.neo4j_link import Neo4jLink
from worker.stores.neo4j_migration import MigrationReport, migrate

Auth = tuple[str, str]

# What older writers left, with the mistakes of each: two ways to name the project, bare file names, methods
# and packages of their own label, traces to requirements, tests that point at the code.
PLANT = """
    CREATE (:Project {slug: $project, name: 'Demo'})-[:CONTAINS]->
           (file:File {project: $project, id: $project + ':src/a.py', path: 'src/a.py'})
    CREATE (bare:File {project_id: $project, id: 'b.py', path: 'src/b.py', lines: 12})
    CREATE (module:Module {project: $project, id: 'a.py', name: 'a', path: 'src/a.py', text: 'import b'})
    CREATE (package:Package {project: $project, name: 'src', path: 'src'})
    CREATE (class:Class {project: $project, id: 'a.py::A', name: 'A'})
    CREATE (method:Method {project: $project, name: 'run', path: 'src/a.py', text: 'def run(self): ...',
                           start_line: 3, end_line: 4, complexity: 7})
    CREATE (test:Function {project: $project, id: 'tests/test_a.py::test_run', name: 'test_run'})
    CREATE (parameter:Parameter {project: $project, name: 'self'})
    CREATE (spec:Spec {project: $project, id: 'SPEC-1'})
    CREATE (requirement:Requirement {project: $project, id: 'REQ-1', name: 'Runs', text: 'It runs.'})
    CREATE (with_item:Requirement {project: $project, id: 'REQ-2'})
    CREATE (item:RequirementItem {project: $project, id: 'REQ-2.a'})
    CREATE (lost:Function {project: $project, name: 'lost'})
    CREATE (volk:Volk {project: $project, name: 'ada'})
    CREATE (file)-[:CONTAINS]->(module), (module)-[:CONTAINS]->(class), (class)-[:HAS_METHOD]->(method),
           (method)-[:HAS_PARAMETER]->(parameter), (method)-[:TRACES {line: 3}]->(requirement),
           (class)-[:DEFINES_REQUIREMENT]->(with_item), (test)-[:TESTS]->(method),
           (spec)-[:DEFINES_REQUIREMENT]->(requirement), (spec)-[:CONTAINS]->(with_item),
           (with_item)-[:CONTAINS]->(item), (method)-[:CALLS]->(test), (lost)-[:CALLS]->(method)
"""
MOVED_COUNTS = {
    "CONTAINS -> DEFINES": 5,
    "Class": 1,
    "DEFINES made": 1,
    "DEFINES_REQUIREMENT -> DEFINES": 1,
    "DEFINES_REQUIREMENT -> TRACES_TO": 1,
    "File": 2,
    "Function": 1,
    "HAS_METHOD -> DEFINES": 1,
    "Method -> Function": 1,
    "Module": 1,
    "Package -> Module": 1,
    "Project": 1,
    "Requirement": 2,
    "RequirementItem": 1,
    "RequirementItem made": 1,
    "Spec": 1,
    "TESTS -> TESTED_BY": 1,
    "TRACES -> TRACES_TO": 1,
    "Volk": 1,
}
LEFT_COUNTS = {"Function -CALLS-> Method": 1, "Method -HAS_PARAMETER-> Parameter": 1, "Parameter": 1}
LOST = Unmoved(kind="node", name="Function 'lost'", reason="nothing says in which file it is")


@pytest.fixture
async def link(neo4j_url: str, neo4j_auth: Auth) -> AsyncGenerator[Neo4jLink]:
    opened = Neo4jLink(neo4j_url, user=neo4j_auth[0], password=neo4j_auth[1])
    yield opened
    await opened.close()


@pytest.fixture
async def projects(driver: AsyncDriver) -> AsyncGenerator[tuple[str, str]]:
    """Two projects with the same old ids."""
    made = f"p{uuid4().hex}", f"q{uuid4().hex}"
    for project in made:
        await _query(driver, PLANT, project=project)
    yield made
    await _query(
        driver,
        "MATCH (n) WHERE coalesce(n.project, n.project_id, n.slug) IN $projects DETACH DELETE n",
        projects=list(made),
    )


async def _query(driver: AsyncDriver, statement: str, **parameters: Any) -> list[list[Any]]:
    found = await driver.execute_query(cast("LiteralString", statement), parameters)
    return [list(record.values()) for record in found.records]


async def _picture(driver: AsyncDriver, projects: tuple[str, ...]) -> list[list[Any]]:
    """Everything that the database holds of the projects."""
    mine = "coalesce(n.project, n.project_id, n.slug) IN $projects"
    nodes = await _query(
        driver,
        f"MATCH (n) WHERE {mine} RETURN elementId(n), labels(n), properties(n) ORDER BY elementId(n)",
        projects=list(projects),
    )
    edges = await _query(
        driver,
        f"MATCH (n)-[r]->(m) WHERE {mine}"
        " RETURN elementId(r), type(r), elementId(n), elementId(m), properties(r) ORDER BY elementId(r)",
        projects=list(projects),
    )
    return [*nodes, *edges]


def _ref(label: str, node_id: str) -> NodeRef:
    return NodeRef(label, node_id)  # pyright: ignore[reportArgumentType]  # the labels of this file


RUN = _ref("Function", "src/a.py::A.run")
TEST = _ref("Function", "tests/test_a.py::test_run")


async def _check_moved(link: Neo4jLink, project: str) -> None:
    loaded = await Neo4jGraphStore(link).load(project)
    assert loaded is not None
    head, graph = loaded
    assert head.graph_version == 1
    nodes = {node.ref: node for node in graph.nodes}
    assert sorted(nodes) == sorted(
        [
            _ref("Project", project),
            _ref("File", "src/a.py"),
            _ref("File", "src/b.py"),
            _ref("Module", "src/a.py::<module>"),
            _ref("Module", "src/__init__.py::<module>"),
            _ref("Class", "src/a.py::A"),
            RUN,
            TEST,
            _ref("Spec", "SPEC-1"),
            _ref("Requirement", "REQ-1"),
            _ref("Requirement", "REQ-2"),
            _ref("RequirementItem", "REQ-1"),
            _ref("RequirementItem", "REQ-2.a"),
        ]
    )
    assert nodes[RUN].property("class_id") == "src/a.py::A"
    assert nodes[RUN].property("complexity") == "7"
    assert (nodes[RUN].text, nodes[RUN].start_line) == ("def run(self): ...", 3)
    assert nodes[_ref("RequirementItem", "REQ-1")].text == "It runs."
    assert graph.edges == tuple(
        sorted(
            [
                Edge(_ref("Project", project), "DEFINES", _ref("File", "src/a.py")),
                Edge(_ref("File", "src/a.py"), "DEFINES", _ref("Module", "src/a.py::<module>")),
                Edge(_ref("Module", "src/a.py::<module>"), "DEFINES", _ref("Class", "src/a.py::A")),
                Edge(_ref("Class", "src/a.py::A"), "DEFINES", RUN),
                Edge(RUN, "TRACES_TO", _ref("RequirementItem", "REQ-1")),
                Edge(_ref("Class", "src/a.py::A"), "TRACES_TO", _ref("RequirementItem", "REQ-2.a")),
                Edge(RUN, "TESTED_BY", TEST),
                Edge(RUN, "CALLS", TEST),
                Edge(_ref("Spec", "SPEC-1"), "DEFINES", _ref("Requirement", "REQ-1")),
                Edge(_ref("Spec", "SPEC-1"), "DEFINES", _ref("Requirement", "REQ-2")),
                Edge(_ref("Requirement", "REQ-1"), "DEFINES", _ref("RequirementItem", "REQ-1")),
                Edge(_ref("Requirement", "REQ-2"), "DEFINES", _ref("RequirementItem", "REQ-2.a")),
            ]
        )
    )


async def test_an_old_graph_becomes_one_of_the_canon_and_a_second_run_changes_nothing(
    link: Neo4jLink, driver: AsyncDriver, projects: tuple[str, str]
) -> None:
    for project in projects:
        (report,) = await migrate(link, project)
        assert (report.project_id, report.counts) == (project, MOVED_COUNTS)
        assert report.unmoved == (LOST,)
        assert report.left == LEFT_COUNTS
        await _check_moved(link, project)
    before = await _picture(driver, projects)
    for project in projects:
        (report,) = await migrate(link, project)
        assert (report.counts, report.unmoved) == ({}, (LOST,))
    assert await _picture(driver, projects) == before


async def test_a_dry_run_says_what_would_be_done_and_does_nothing(
    link: Neo4jLink, driver: AsyncDriver, projects: tuple[str, str]
) -> None:
    before = await _picture(driver, projects)
    (would,) = await migrate(link, projects[0], is_dry_run=True)
    assert await _picture(driver, projects) == before
    (did,) = await migrate(link, projects[0])
    assert (would.counts, would.left, would.unmoved) == (did.counts, did.left, did.unmoved)
    assert (would.is_dry_run, did.is_dry_run) == (True, False)


async def test_one_project_moves_and_the_other_stays_as_it_was(
    link: Neo4jLink, driver: AsyncDriver, projects: tuple[str, str]
) -> None:
    one, other = projects
    before = await _picture(driver, (other,))
    await migrate(link, one)
    assert await _picture(driver, (other,)) == before
    await _check_moved(link, one)


async def test_without_a_project_all_are_moved(link: Neo4jLink, projects: tuple[str, str]) -> None:
    reports = {report.project_id: report for report in await migrate(link)}
    for project in projects:
        assert reports[project].counts == MOVED_COUNTS
        await _check_moved(link, project)


async def test_state_and_relationships_keep_what_they_say(
    link: Neo4jLink, driver: AsyncDriver, projects: tuple[str, str]
) -> None:
    await migrate(link, projects[0])
    volk = "MATCH (v:Volk {key: $key}) RETURN v.alias, labels(v)"
    assert await _query(driver, volk, key=f"{projects[0]}:ada") == [["ada", ["Volk"]]]
    trace = "MATCH (f:Function {project: $project})-[r:TRACES_TO]->(i:RequirementItem) RETURN r.line, i.key"
    assert await _query(driver, trace, project=projects[0]) == [[3, f"{projects[0]}:REQ-1"]]


async def test_a_migrated_graph_takes_the_next_change(link: Neo4jLink, projects: tuple[str, str]) -> None:
    await migrate(link, projects[0])
    store = Neo4jGraphStore(link)
    head = await store.apply(projects[0], GraphChange(removed=(RUN,)), snapshot_id="s", expected_version=1)
    loaded = await store.load(projects[0])
    assert loaded is not None
    assert loaded[0] == head
    assert RUN not in {node.ref for node in loaded[1].nodes}


async def test_nodes_without_a_project_are_reported_and_adopted_only_when_asked(
    link: Neo4jLink, driver: AsyncDriver, projects: tuple[str, str]
) -> None:
    name = f"adopt/{uuid4().hex}.py"
    await _query(driver, "CREATE (:File {id: $name, path: $name})", name=name)
    find = "MATCH (f:File {id: $name}) RETURN f.project"
    await migrate(link, projects[0])
    assert await _query(driver, find, name=name) == [[None]]
    unscoped = {report.project_id: report for report in await migrate(link, is_dry_run=True)}[""]
    assert unscoped.left["File"] >= 1
    assert [unmoved.reason for unmoved in unscoped.unmoved] == ["they name no project; adopt them"]
    with pytest.raises(ValueError, match="named"):
        await migrate(link, adopts=True)
    (report,) = await migrate(link, projects[0], adopts=True)
    assert report.counts["File"] >= 1
    assert await _query(driver, find, name=name) == [[projects[0]]]


async def test_a_constraint_that_would_let_projects_collide_is_said(
    link: Neo4jLink, driver: AsyncDriver, projects: tuple[str, str]
) -> None:
    await _query(driver, "CREATE CONSTRAINT old_spec_id FOR (s:Goal) REQUIRE s.id IS UNIQUE")
    try:
        (report,) = await migrate(link, projects[0], is_dry_run=True)
    finally:
        await _query(driver, "DROP CONSTRAINT old_spec_id")
    reason = "Goal may not be unique by id: drop it"
    assert report.unmoved == (Unmoved(kind="constraint", name="old_spec_id", reason=reason), LOST)


async def test_a_graph_whose_index_is_under_way_is_left_to_it(
    link: Neo4jLink, driver: AsyncDriver, projects: tuple[str, str]
) -> None:
    await _query(driver, "CREATE (:GraphHead {project: $project, changing: 'x'})", project=projects[0])
    before = await _picture(driver, projects)
    (report,) = await migrate(link, projects[0])
    assert (report.counts, report.left) == ({}, {})
    assert [unmoved.reason for unmoved in report.unmoved] == [
        "an index is under way, or ended in the middle: index again"
    ]
    assert await _picture(driver, projects) == before


async def test_what_a_store_keeps_is_as_it_should_be(link: Neo4jLink, driver: AsyncDriver) -> None:
    project = f"p{uuid4().hex}"
    store = Neo4jGraphStore(link)
    graph = GraphContents(
        nodes=(*chain("odd id").nodes, Node(label="Requirement", id="R")),
        edges=chain("odd id", "odd id").edges,
    )
    await store.apply(project, diff_contents(EMPTY, graph), snapshot_id="s", expected_version=0)
    before = await _picture(driver, (project,))
    (report,) = await migrate(link, project)
    assert (report.counts, report.left, report.unmoved) == ({}, {}, ())
    assert await _picture(driver, (project,)) == before
    await store.purge(project)


class DyingLink(Neo4jLink):
    """Loses its server after so many transactions."""

    left = 0

    async def write(self, work: Any, *, timeout_seconds: float) -> Any:
        self.left -= 1
        if self.left < 0:
            raise StoreUnavailable("neo4j", "lost")
        return await super().write(work, timeout_seconds=timeout_seconds)


async def test_a_run_that_ended_anywhere_is_finished_by_the_next(
    link: Neo4jLink, driver: AsyncDriver, neo4j_url: str, neo4j_auth: Auth
) -> None:
    await migrate(link, "nothing")
    dying = DyingLink(neo4j_url, user=neo4j_auth[0], password=neo4j_auth[1])
    survived = 0
    reports: tuple[MigrationReport, ...] = ()
    while not reports:
        project = f"p{uuid4().hex}"
        await _query(driver, PLANT, project=project)
        survived += 3
        dying.left = survived
        try:
            reports = await migrate(dying, project)
        except StoreUnavailable:
            await migrate(link, project)
        await _check_moved(link, project)
        await _query(
            driver,
            "MATCH (n) WHERE coalesce(n.project, n.project_id) = $project DETACH DELETE n",
            project=project,
        )
    await dying.close()
    assert survived > 12


async def test_two_runs_at_once_leave_one_whole_graph(
    link: Neo4jLink, driver: AsyncDriver, projects: tuple[str, str]
) -> None:
    await asyncio.gather(migrate(link, projects[0]), migrate(link, projects[0]), return_exceptions=True)
    await migrate(link, projects[0])
    loaded = await Neo4jGraphStore(link).load(projects[0])
    assert loaded is not None
    found = await _query(
        driver,
        "MATCH (n:GraphNode {project: $project}) RETURN count(n), count(DISTINCT n.ref)",
        project=projects[0],
    )
    assert found == [[13, 13]]
