"""The constraints and indexes that a Neo4j store needs, made from the canon's table alone."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from schemas.graph import BOOKKEEPING_KEYS, LABEL_RULES, LABELS, BookkeepingKey, BookkeepingLabel, NodeLabel

FULL_TEXT_INDEX: Final = "graph_text"
_SEARCHED: Final[tuple[NodeLabel, ...]] = tuple(rule.label for rule in LABEL_RULES if rule.is_searched)
_BY_NAME: Final = "CREATE INDEX graphnode_name IF NOT EXISTS FOR (n:GraphNode) ON (n.project, n.name)"
_STATE_INDEXES: Final = (
    # Its second property has the events of one thing come sorted, straight from the index.
    "CREATE INDEX stateevent_entity IF NOT EXISTS FOR (n:StateEvent) ON (n.entity, n.position)",
    "CREATE INDEX stateevent_thread IF NOT EXISTS FOR (n:StateEvent) ON (n.project, n.thread, n.at_us)",
    "CREATE INDEX stateentity_place IF NOT EXISTS FOR (n:StateEntity) ON (n.place)",
)
_NAME: Final = re.compile(r"(?:CONSTRAINT|INDEX) (\w+) IF NOT EXISTS")


def get_all_ddl() -> tuple[str, ...]:
    """Every statement, each idempotent, in the order of the table.

    Of each label a constraint that its `key`, `{project}:{id}`, is unique, and an index on `project`; the
    same for what a store keeps beside the graph; one index over names; three by which state is read; one
    full-text index over what is searched by words.
    """
    return (
        *(_unique(label) for label in LABELS),
        *(_unique_bookkeeping(label, key) for label, key in BOOKKEEPING_KEYS.items()),
        *(_by_project(label) for label in LABELS),
        _BY_NAME,
        *_STATE_INDEXES,
        _full_text(_SEARCHED),
    )


def ddl_name(statement: str) -> str:
    """The name of the constraint or index that a statement of `get_all_ddl` makes."""
    found = _NAME.search(statement)
    if found is None:
        raise ValueError(f"not one of the canon's statements: {statement}")
    return found.group(1)


def _unique(label: NodeLabel) -> str:
    name = f"{label.lower()}_key"
    return f"CREATE CONSTRAINT {name} IF NOT EXISTS FOR (n:{label}) REQUIRE n.key IS UNIQUE"


def _unique_bookkeeping(label: BookkeepingLabel, key: BookkeepingKey) -> str:
    name = f"{label.lower()}_{key}"
    return f"CREATE CONSTRAINT {name} IF NOT EXISTS FOR (n:{label}) REQUIRE n.{key} IS UNIQUE"


def _by_project(label: NodeLabel) -> str:
    return f"CREATE INDEX {label.lower()}_project IF NOT EXISTS FOR (n:{label}) ON (n.project)"


def _full_text(labels: Sequence[NodeLabel]) -> str:
    """Filled in the background: a commit of ten thousand functions does not wait for their words."""
    options = "OPTIONS {indexConfig: {`fulltext.eventually_consistent`: true}}"
    return (
        f"CREATE FULLTEXT INDEX {FULL_TEXT_INDEX} IF NOT EXISTS"
        f" FOR (n:{'|'.join(labels)}) ON EACH [n.name, n.path, n.text] {options}"
    )
