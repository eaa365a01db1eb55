"""Composition by hand, the graph's store alone: a process that syncs starts with no more than this.

Only the product that the settings name is imported: the driver of Neo4j takes a third of a second.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from worker.settings import Settings, read_secret

if TYPE_CHECKING:
    from worker.graph.store import GraphStore
    from worker.stores.neo4j_link import Neo4jLink

NO_PROJECT: Final = ":none"
"""No project has this id; asked for at the start of a worker."""


def build_graph_store(settings: Settings) -> GraphStore:
    """The graph store that the settings name."""
    graph = settings.graph
    if graph.neo4j_url is None:
        from worker.stores.sqlite_graph import SqliteGraphStore  # noqa: PLC0415 - as said above

        return SqliteGraphStore(graph.sqlite_path)
    from worker.stores.neo4j_graph import Neo4jGraphStore  # noqa: PLC0415 - as said above

    return Neo4jGraphStore(build_neo4j_link(settings))


def build_neo4j_link(settings: Settings) -> Neo4jLink:
    """The connection to the Neo4j that the settings name. Raises ValueError where they name none."""
    graph = settings.graph
    if graph.neo4j_url is None:
        raise ValueError("this needs a Neo4j: set WORKER_GRAPH__STORE=neo4j and WORKER_GRAPH__NEO4J_URL")
    from worker.stores.neo4j_link import Neo4jLink  # noqa: PLC0415 - as said above

    return Neo4jLink(
        graph.neo4j_url,
        user=graph.neo4j_user,
        password=read_secret(graph.neo4j_password, graph.neo4j_password_file) or "",
        database=graph.neo4j_database,
        ca_file=graph.neo4j_ca_file,
    )
