"""The canon's table agrees with itself."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from schemas.graph import (
    BOOKKEEPING_KEYS,
    LABEL_RULE_OF,
    LABEL_RULES,
    LABELS,
    LEGACY_LABELS,
    LEGACY_RELATION_RULES,
    RELATION_RULE_OF,
    RELATION_RULES,
    RELATIONS,
    store_key,
)
from worker.stores.neo4j_state_rows import SIGNAL_LABELS, TAKE_LABELS

INDEXER = Path(__file__).parents[3] / "worker" / "code"
NAME = re.compile(r"[A-Z][A-Za-z]*")
TYPE = re.compile(r"[A-Z]+(?:_[A-Z]+)*")
projects = st.from_regex(r"[A-Za-z0-9._-]{1,20}", fullmatch=True)


def test_every_label_and_relation_has_one_rule_in_the_order_of_its_type() -> None:
    assert tuple(rule.label for rule in LABEL_RULES) == LABELS
    assert tuple(rule.relation for rule in RELATION_RULES) == RELATIONS
    assert tuple(LABEL_RULE_OF) == LABELS
    assert tuple(RELATION_RULE_OF) == RELATIONS


def test_names_can_stand_in_a_statement_as_they_are() -> None:
    for label in (*LABELS, *BOOKKEEPING_KEYS, *LEGACY_LABELS):
        assert NAME.fullmatch(label)
    for relation in (*RELATIONS, *(rule.name for rule in LEGACY_RELATION_RULES)):
        assert TYPE.fullmatch(relation)


def test_names_differ_in_more_than_case() -> None:
    names = [name.lower() for name in (*LABELS, *BOOKKEEPING_KEYS, *RELATIONS)]
    assert len(set(names)) == len(names)


def test_what_is_old_is_not_of_the_canon() -> None:
    assert not {*LEGACY_LABELS, *BOOKKEEPING_KEYS} & {*LABELS}
    assert not {rule.name for rule in LEGACY_RELATION_RULES} & {*RELATIONS}


def test_every_label_but_the_lonely_joins_something() -> None:
    joined = {label for rule in RELATION_RULES for pair in rule.joins for label in pair}
    assert set(LABELS) == joined


def test_what_expires_is_what_events_are_labelled_as_and_what_takes_labels_away_knows_them_all() -> None:
    expiring = {rule.label for rule in LABEL_RULES if rule.expires}
    assert {*SIGNAL_LABELS.values()} == expiring
    assert {*re.findall(r":(\w+)", TAKE_LABELS.split("REMOVE")[1])} == expiring


def test_what_is_not_reserved_is_what_the_indexer_and_the_events_of_state_write() -> None:
    named = {name for path in sorted(INDEXER.rglob("*.py")) for name in _names_in(path)}
    rules = {rule.label: rule.is_reserved for rule in LABEL_RULES}
    rules |= {rule.relation: rule.is_reserved for rule in RELATION_RULES}
    written = {name for name, is_reserved in rules.items() if not is_reserved}
    assert named & {*rules} | {*SIGNAL_LABELS.values()} == written


def _names_in(path: Path) -> Iterator[str]:
    """Every text of a module that nothing is compared with: what is compared is read."""
    waiting: list[ast.AST] = [ast.parse(path.read_text())]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value
        if not isinstance(node, ast.Compare):
            waiting += ast.iter_child_nodes(node)


def test_the_keys_are_those_that_the_specification_names() -> None:
    other = {rule.label: rule.key for rule in LABEL_RULES if rule.key != "id"}
    assert other == {"Project": "slug", "Volk": "alias", "Session": "session_id"}


def test_code_serves_items_and_tests_are_reached_from_what_they_cover() -> None:
    assert {target for _, target in RELATION_RULE_OF["TRACES_TO"].joins} == {"RequirementItem"}
    assert ("Function", "Function") in RELATION_RULE_OF["TESTED_BY"].joins
    assert ("Class", "Function") in RELATION_RULE_OF["DEFINES"].joins


@given(projects, st.text(), projects, st.text())
def test_no_two_nodes_share_a_store_key(project: str, node: str, other: str, another: str) -> None:
    same = store_key(project, node) == store_key(other, another)
    assert same == ((project, node) == (other, another))
