"""State as nodes of Neo4j: their keys, their properties, and the statements that read and write them.

Every node has its project, and every key begins with it, so that no statement sees two. What is long or may
hold any character stands in a key as a digest. Times are compared by the server; ids are not, since it has an
order of its own for strings: an event's `position` is letters and digits that sort as time and id do.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from schemas.graph import LABELS, NodeLabel, store_key
from schemas.state import EventKind
from schemas.wire import canonical_json, sha256_hex
from worker.state.folding import EntityState
from worker.state.records import GROUP_OF, EntityKey, Order, StateRecord
from worker.state.store import Place
from worker.state.view import encode_entity
from worker.stores.state_rows import decode_base, decode_body, encode_base, encode_body

SIGNAL_LABELS: Final[Mapping[EventKind, NodeLabel]] = {
    "message": "Message",
    "gateway_event": "GatewayEvent",
    "tool_call": "ToolCall",
    "test_result": "TestResult",
    "decision": "DecisionEvent",
}
"""Second labels of events, by which people and rules find what happened lately in the graph itself."""

_YEAR_ZERO: Final = 2**62
"""Added to a time, it makes all of them positive and nineteen digits long."""

# --- Locks -------------------------------------------------------------------------------------------
# Setting what is already so takes the lock and writes nothing. Writers queue at one node from their start to
# their end; readers and ends of writers meet at another, since a commit becomes visible piece by piece.

QUEUE: Final = "MERGE (w:StateWriter {project: $project}) SET w.lock = 0"
QUEUE_IF_THERE: Final = "MATCH (w:StateWriter {project: $project}) SET w.lock = 0 RETURN count(w)"
CLOSE_DOOR: Final = "MATCH (p:StateProject {project: $project}) SET p.lock = 0"
FORGET_PROJECT: Final = """
    MATCH (w:StateWriter {project: $project})
    SET w.lock = 0
    WITH w
    OPTIONAL MATCH (p:StateProject {project: $project})
    SET p.lock = 0
    WITH w, p
    WHERE NOT EXISTS { MATCH (h:StateHead) WHERE h.key STARTS WITH $prefix AND h.project = $project }
    DELETE w, p
"""
PROBE: Final = "MERGE (p:StateProject {project: $project}) SET p.lock = 0"
FORGET_PROBE: Final = "MATCH (p:StateProject {project: $project}) DELETE p"

# --- Reading -----------------------------------------------------------------------------------------

_EVENT_COLUMNS: Final = "e.thread, e.id, e.kind, e.digest, e.claimed_us, e.received_us, e.body"
_ENTITIES_AND_HEADS: Final = """
    COLLECT {
        UNWIND $keys AS key
        MATCH (s:StateEntity {key: key, project: $project})
        RETURN [s.key, s.last_us, s.last_event_id, s.document, s.base]
    }, COLLECT {
        UNWIND $heads AS key
        MATCH (h:StateHead {key: key, project: $project})
        RETURN [h.key, h.version]
    }
"""
ENTITIES_AND_HEADS: Final = f"RETURN {_ENTITIES_AND_HEADS}"
QUEUE_AND_ALL: Final = f"""
    {QUEUE}
    WITH w
    RETURN {_ENTITIES_AND_HEADS}, COLLECT {{
        UNWIND $events AS key
        MATCH (e:StateEvent {{key: key, project: $project}})
        RETURN [{_EVENT_COLUMNS}]
    }}
"""
EVENTS_OF_ENTITY: Final = f"""
    MATCH (e:StateEvent {{entity: $entity, project: $project}})
    WHERE e.position > $after AND e.position < $before
    RETURN {_EVENT_COLUMNS}
    ORDER BY e.entity, e.position
    LIMIT $limit
"""
# A range of one key, where an equality would do: in a statement that takes a lock, the server locks an equal
# key too, even one that is not there. A reader that asks for an event would then deadlock with its writer.
HEADS_AND_EVENTS: Final = """
    MATCH (p:StateProject {project: $project})
    SET p.lock = 0
    WITH p
    RETURN COLLECT {
        UNWIND $heads AS key
        MATCH (h:StateHead {project: $project}) WHERE h.key >= key AND h.key <= key
        RETURN [h.key, h.version]
    }, COLLECT {
        UNWIND $events AS key
        MATCH (e:StateEvent {project: $project}) WHERE e.key >= key AND e.key <= key
        RETURN e.key
    }
"""
GROUPS: Final = """
    MATCH (p:StateProject {project: $project})
    SET p.lock = 0
    WITH p
    UNWIND $heads AS key
    MATCH (h:StateHead {project: $project}) WHERE h.key >= key AND h.key <= key
    RETURN h.key, h.version, COLLECT {
        MATCH (s:StateEntity {place: h.key, project: $project})
        RETURN [s.entity_kind, s.entity_id, s.document]
    }
"""
CONTENT: Final = """
    MATCH (c:StateContent {project: $project, sha256: $sha256})
    WHERE c.key STARTS WITH $prefix
    RETURN c.content
    LIMIT 1
"""
CONTENTS: Final = """
    MATCH (c:StateContent {project: $project})
    WHERE c.key STARTS WITH $prefix
    RETURN c.thread, collect(c.key)
"""
MISSING_CONTENTS: Final = """
    UNWIND $keys AS key
    OPTIONAL MATCH (c:StateContent {key: key, project: $project})
    WITH key, c WHERE c IS NULL
    RETURN key
"""
PROJECTS: Final = """
    MATCH (p:StateProject)
    WHERE EXISTS { MATCH (h:StateHead) WHERE h.key STARTS WITH p.project + ':' AND h.project = p.project }
    RETURN p.project
"""
OLD_ENTITIES: Final = """
    MATCH (h:StateHead {project: $project})
    WHERE h.key STARTS WITH $prefix
    WITH DISTINCT h.thread AS thread
    MATCH (e:StateEvent {project: $project, thread: thread})
    WHERE e.at_us < $before_us AND NOT EXISTS {
        MATCH (s:StateEntity {key: e.entity, project: $project}) WHERE s.last_event_id = e.id
    }
    RETURN DISTINCT thread, e.entity_kind, e.entity_id
"""

# --- Writing -----------------------------------------------------------------------------------------

_EVENT: Final = """{
    key: row[0], thread: row[2], kind: row[3], entity: row[4], entity_kind: row[5],
    entity_id: row[6], position: row[7], at_us: row[8], digest: row[9], claimed_us: row[10],
    received_us: row[11], body: row[12], project: $project
}"""
_CREATE: Final = f"FOREACH (row IN $rows | CREATE (e:StateEvent {_EVENT}) SET e.id = row[1])"
_CREATE_SIGNALS: Final[Mapping[NodeLabel, str]] = {
    label: f"FOREACH (row IN ${label} | CREATE (e:StateEvent:{label} {_EVENT}) SET e.id = row[1])"
    for label in LABELS
}
# Most events are new, and known to be: to create them with all that they have is half the work of a merge.
CREATE_EVENTS: Final = "\n".join((_CREATE, *(_CREATE_SIGNALS[label] for label in SIGNAL_LABELS.values())))
_CHANGE: Final = f"""
    UNWIND $rows AS row
    MERGE (e:StateEvent {{key: row[0]}})
    SET e = {_EVENT}
    SET e.id = row[1]
"""
CHANGE_EVENTS: Final = _CHANGE
CHANGE_SIGNALS: Final[Mapping[NodeLabel, str]] = {label: f"{_CHANGE} SET e:{label}" for label in LABELS}
TAKE_LABELS: Final = """
    UNWIND $keys AS key
    MATCH (e:StateEvent {key: key, project: $project})
    REMOVE e:Message:GatewayEvent:ToolCall:TestResult:DecisionEvent
"""
PUT_CONTENTS: Final = """
    UNWIND $rows AS row
    MERGE (c:StateContent {key: row[0]})
    SET c = {key: row[0], sha256: row[1], thread: row[2], content: row[3], project: $project}
"""
PUT_ENTITIES: Final = """
    UNWIND $rows AS row
    MERGE (s:StateEntity {key: row[0]})
    SET s = {
        key: row[0], thread: row[1], entity_kind: row[2], entity_id: row[3], place: row[4], last_us: row[5],
        last_event_id: row[6], document: row[7], base: row[8], project: $project
    }
"""
DROP_ENTITIES: Final = """
    UNWIND $keys AS key
    MATCH (s:StateEntity {key: key, project: $project})
    DELETE s
"""
PUT_HEADS: Final = """
    MERGE (p:StateProject {project: $project})
    SET p.lock = 0
    WITH p
    UNWIND $rows AS row
    MERGE (h:StateHead {key: row[0]})
    SET h = {key: row[0], thread: row[1], state_group: row[2], version: row[3], project: $project}
"""

# --- Forgetting --------------------------------------------------------------------------------------

FORGET_HEADS: Final = """
    MATCH (h:StateHead {project: $project})
    WHERE h.key STARTS WITH $prefix AND h.thread = coalesce($thread, h.thread)
    DELETE h
"""
FORGET_ENTITIES: Final = """
    MATCH (s:StateEntity {project: $project})
    WHERE s.key STARTS WITH $prefix AND s.thread = coalesce($thread, s.thread)
    WITH s LIMIT $limit
    DELETE s
    RETURN count(*)
"""
FORGET_CONTENTS: Final = """
    MATCH (c:StateContent {project: $project})
    WHERE c.key STARTS WITH $prefix AND c.thread = coalesce($thread, c.thread)
    WITH c LIMIT $limit
    DELETE c
    RETURN count(*)
"""
_EVENTS: Final = """
    MATCH (e:StateEvent {project: $project})
    WHERE e.key STARTS WITH $prefix
"""
_EVENTS_OF_THREAD: Final = """
    MATCH (e:StateEvent {project: $project, thread: $thread})
    WHERE e.at_us IS NOT NULL
"""
COUNT_EVENTS: Final = f"{_EVENTS} RETURN count(*)"
COUNT_EVENTS_OF_THREAD: Final = f"{_EVENTS_OF_THREAD} RETURN count(*)"
_DELETED: Final = """
    WITH e LIMIT $limit
    DETACH DELETE e
    RETURN count(*)
"""
FORGET_EVENTS: Final = f"{_EVENTS}{_DELETED}"
FORGET_EVENTS_OF_THREAD: Final = f"{_EVENTS_OF_THREAD}{_DELETED}"
FORGET_OLD_EVENTS: Final = """
    MATCH (e:StateEvent {entity: $entity, project: $project})
    WHERE e.position < $before AND e.position <= $last AND e.id <> $kept
    WITH e LIMIT $limit
    DETACH DELETE e
    RETURN count(*)
"""
# The text between the quotes cannot stand inside a JSON string, where they would be escaped.
FORGET_UNNAMED_CONTENTS: Final = """
    CALL () {
        MATCH (e:StateEvent {project: $project, thread: $thread})
        WHERE e.at_us IS NOT NULL AND e.entity_kind = 'artifact'
        RETURN e.body AS text
        UNION ALL
        MATCH (s:StateEntity {place: $place, project: $project})
        UNWIND [s.document, s.base] AS text
        RETURN text
    }
    UNWIND split(text, '"content_sha256":"')[1..] AS named
    WITH collect(DISTINCT left(named, 64)) AS named
    UNWIND $keys AS key
    MATCH (c:StateContent {key: key, project: $project})
    WHERE NOT c.sha256 IN named
    DELETE c
"""


# --- Keys --------------------------------------------------------------------------------------------


def prefix_of(project_id: str) -> str:
    """What every key of the project begins with, and no other's."""
    return f"{project_id}:"


def event_key(project_id: str, event_id: str) -> str:
    """Names an event in the whole store, as the canon names a node."""
    return store_key(project_id, event_id)


def entity_key(project_id: str, key: EntityKey) -> str:
    """Names a thing in the whole store."""
    return store_key(project_id, _digest(*key))


def place_key(project_id: str, place: Place) -> str:
    """Names a place in the whole store."""
    return store_key(project_id, _digest(*place))


def content_prefix(project_id: str, sha256: str) -> str:
    """What the keys of all threads that have the content begin with."""
    return f"{project_id}:{sha256}:"


def position_of(order: Order) -> str:
    """Sorts as the order does, whatever compares it: by code points, bytes or a locale's rules."""
    return f"{time_position(order.at_us)}{order.event_id.encode().hex()}"


def time_position(at_us: int) -> str:
    """Before the positions of all events from that instant on, and after all earlier ones."""
    return f"{at_us + _YEAR_ZERO:019d}_"


def _digest(*parts: str) -> str:
    return sha256_hex(canonical_json(list(parts)))


# --- Rows --------------------------------------------------------------------------------------------


def event_row(project_id: str, record: StateRecord) -> list[Any]:
    """As `CREATE_EVENTS` and `CHANGE_EVENTS` read it."""
    entity = record.entity
    return [
        event_key(project_id, record.event_id),
        record.event_id,
        record.thread_id,
        record.kind,
        entity_key(project_id, entity),
        entity.kind,
        entity.id,
        position_of(record.order),
        record.at_us,
        record.digest,
        record.claimed_us,
        record.received_us,
        encode_body(record.body),
    ]


def rows_to_create(project_id: str, records: Sequence[StateRecord]) -> dict[str, list[list[Any]]]:
    """As `CREATE_EVENTS` reads them: by label, and `rows` of those that have none."""
    found: dict[str, list[list[Any]]] = {name: [] for name in ("rows", *SIGNAL_LABELS.values())}
    for record in records:
        found[SIGNAL_LABELS.get(record.kind, "rows")].append(event_row(project_id, record))
    return found


def record_of(row: Sequence[Any]) -> StateRecord:
    """An event as it was read; its contents stay where they are."""
    thread_id, event_id, kind, digest, claimed_us, received_us, body = row
    return StateRecord(
        thread_id=thread_id,
        event_id=event_id,
        kind=kind,
        digest=digest,
        claimed_us=claimed_us,
        received_us=received_us,
        body=decode_body(body),
    )


def entity_row(project_id: str, key: EntityKey, state: EntityState) -> list[Any]:
    """As `PUT_ENTITIES` reads it."""
    return [
        entity_key(project_id, key),
        *key,
        place_key(project_id, Place(key.thread_id, GROUP_OF[key.kind])),
        *state.last,
        encode_entity(key, state.document).decode(),
        encode_base(state.base),
    ]


def state_of(row: Sequence[Any]) -> EntityState:
    """What is known of a thing, as it was read."""
    last_us, last_event_id, document, base = row
    return EntityState(
        # A row of a group: kind, id, document.
        document=decode_body(document)[2],
        last=Order(last_us, last_event_id),
        base=decode_base(base),
    )


def content_rows(project_id: str, records: Sequence[StateRecord]) -> list[list[str]]:
    """As `PUT_CONTENTS` reads them, sorted, each once."""
    rows = {
        f"{content_prefix(project_id, sha256)}{_digest(record.thread_id)}": [
            sha256,
            record.thread_id,
            content,
        ]
        for record in records
        for sha256, content in record.contents.items()
    }
    return [[key, *rows[key]] for key in sorted(rows)]
