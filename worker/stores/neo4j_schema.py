"""Brings a Neo4j database to the constraints and indexes of the canon."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from worker.errors import StoreUnavailable
from worker.graph.ddl import ddl_name, get_all_ddl
from worker.stores.neo4j_link import STORE, Neo4jLink, Transaction, rows

_STATEMENT_SECONDS: Final = 30.0
_NAMES: Final = (
    "SHOW CONSTRAINTS YIELD name RETURN collect(name)",
    "SHOW INDEXES YIELD name RETURN collect(name)",
)
_AWAIT: Final = "CALL db.awaitIndexes(25)"


async def apply_ddl(link: Neo4jLink) -> tuple[str, ...]:
    """Make what is missing, in one transaction where it can be; the names of what was made, in order.

    Idempotent, and several processes may do it at once: whoever is beaten to a statement by another finds its
    work done and goes on. Raises StoreUnavailable, also where data in the old shape forbids a
    constraint: migrate it first.
    """
    present = await _present(link)
    missing = [statement for statement in get_all_ddl() if ddl_name(statement) not in present]
    made = await _make(link, missing)
    if missing:
        await link.execute(_AWAIT, timeout_seconds=_STATEMENT_SECONDS)
    present = await _present(link)
    absent = [name for statement in missing if (name := ddl_name(statement)) not in present]
    if absent:
        # IF NOT EXISTS is content with an index of another name on the same property.
        raise StoreUnavailable(STORE, f"the schema lacks {', '.join(absent)}: another index has its place")
    return tuple(made)


async def _make(link: Neo4jLink, statements: Sequence[str]) -> list[str]:
    """The names of what this process made. All or none at once; where that fails, one after the other.

    A transaction costs more than the statement in it, and a database that has no schema yet lacks dozens.
    """

    async def work(transaction: Transaction) -> None:
        for statement in statements:
            await rows(transaction, statement, {})

    if len(statements) > 1:
        try:
            await link.write(work, timeout_seconds=_STATEMENT_SECONDS)
        except StoreUnavailable:
            # Another process makes the same, or data in the old shape forbids one of them.
            pass
        else:
            return [ddl_name(statement) for statement in statements]
    return [ddl_name(statement) for statement in statements if await _makes(link, statement)]


async def _makes(link: Neo4jLink, statement: str) -> bool:
    """Whether the statement made something, and not another process meanwhile."""
    try:
        await link.execute(statement, timeout_seconds=_STATEMENT_SECONDS)
    except StoreUnavailable:
        # Two that look at once and create one after the other: IF NOT EXISTS does not cover that.
        if ddl_name(statement) in await _present(link):
            return False
        raise
    return True


async def _present(link: Neo4jLink) -> set[str]:
    names: set[str] = set()
    for statement in _NAMES:
        ((found,),) = await link.execute(statement, timeout_seconds=_STATEMENT_SECONDS)
        names.update(found)
    return names
