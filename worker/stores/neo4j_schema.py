"""Brings a Neo4j database to the constraints and indexes of the canon."""

from __future__ import annotations

from typing import Final

from worker.errors import StoreUnavailable
from worker.graph.ddl import ddl_name, get_all_ddl
from worker.stores.neo4j_link import STORE, Neo4jLink

_STATEMENT_SECONDS: Final = 30.0
_NAMES: Final = (
    "SHOW CONSTRAINTS YIELD name RETURN collect(name)",
    "SHOW INDEXES YIELD name RETURN collect(name)",
)
_AWAIT: Final = "CALL db.awaitIndexes(25)"


async def apply_ddl(link: Neo4jLink) -> tuple[str, ...]:
    """Make what is missing, one statement after the other; the names of what was made, in that order.

    Idempotent, and several processes may do it at once: each statement says IF NOT EXISTS, and one that
    meets another's lock runs again. Raises StoreUnavailable, also where data in the old shape forbids a
    constraint: migrate it first.
    """
    present = await _present(link)
    missing = [statement for statement in get_all_ddl() if ddl_name(statement) not in present]
    for statement in missing:
        await link.execute(statement, timeout_seconds=_STATEMENT_SECONDS)
    if missing:
        await link.execute(_AWAIT, timeout_seconds=_STATEMENT_SECONDS)
    made = tuple(ddl_name(statement) for statement in missing)
    if absent := set(made) - await _present(link):
        raise StoreUnavailable(
            STORE, f"the schema lacks {', '.join(sorted(absent))}: another index has its place"
        )
    return made


async def _present(link: Neo4jLink) -> set[str]:
    names: set[str] = set()
    for statement in _NAMES:
        ((found,),) = await link.execute(statement, timeout_seconds=_STATEMENT_SECONDS)
        names.update(found)
    return names
