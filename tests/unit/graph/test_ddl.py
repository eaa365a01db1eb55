"""The schema of a store comes from the canon's table, whole."""

from __future__ import annotations

from schemas.graph import BOOKKEEPING_KEYS, LABELS
from worker.graph.conformance import check_statement
from worker.graph.ddl import FULL_TEXT_INDEX, ddl_name, get_all_ddl


def test_each_label_has_a_unique_key_and_an_index_on_its_project() -> None:
    statements = get_all_ddl()
    for label in LABELS:
        assert (
            f"CREATE CONSTRAINT {label.lower()}_key IF NOT EXISTS FOR (n:{label}) REQUIRE n.key IS UNIQUE"
            in statements
        )
        assert (
            f"CREATE INDEX {label.lower()}_project IF NOT EXISTS FOR (n:{label}) ON (n.project)" in statements
        )


def test_what_the_store_keeps_for_itself_is_unique_too() -> None:
    assert (
        "CREATE CONSTRAINT graphnode_ref IF NOT EXISTS FOR (n:GraphNode) REQUIRE n.ref IS UNIQUE"
        in get_all_ddl()
    )
    assert len(get_all_ddl()) == 2 * len(LABELS) + len(BOOKKEEPING_KEYS) + 5


def test_one_index_finds_nodes_by_project_and_name() -> None:
    (statement,) = [made for made in get_all_ddl() if ddl_name(made) == "graphnode_name"]
    assert statement.endswith("FOR (n:GraphNode) ON (n.project, n.name)")


def test_state_is_read_by_thing_by_thread_and_by_place() -> None:
    made = {ddl_name(statement): statement.partition(" FOR ")[2] for statement in get_all_ddl()}
    assert made["stateevent_entity"] == "(n:StateEvent) ON (n.entity, n.position)"
    assert made["stateevent_thread"] == "(n:StateEvent) ON (n.project, n.thread, n.at_us)"
    assert made["stateentity_place"] == "(n:StateEntity) ON (n.place)"


def test_one_index_finds_code_and_requirements_by_words() -> None:
    (statement,) = [made for made in get_all_ddl() if "FULLTEXT" in made]
    assert ddl_name(statement) == FULL_TEXT_INDEX
    assert "(n:File|Module|Class|Function|Chunk|Requirement|RequirementItem|Decision)" in statement
    assert "ON EACH [n.name, n.path, n.text]" in statement


def test_every_statement_can_be_repeated_and_has_a_name_of_its_own() -> None:
    statements = get_all_ddl()
    assert all(" IF NOT EXISTS " in statement for statement in statements)
    assert len({ddl_name(statement) for statement in statements}) == len(statements)


def test_the_schema_keeps_to_the_canon() -> None:
    assert [check_statement(statement) for statement in get_all_ddl()] == [[]] * len(get_all_ddl())
