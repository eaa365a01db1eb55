"""A node of the graph as properties of a node of Neo4j, and back.

What people query stands under its own name: the label's key, `name`, `path`, `text`, and each free property
whose name is a plain word (`class_id`, `complexity`). Free properties with other names are one line of JSON.
What has its default is left out.

A node crosses the wire as a list, in the order of `COLUMNS`: names of properties repeated for each of ten
thousand nodes were a third of the driver's work.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final, cast

from schemas.graph import LABEL_RULE_OF, NodeLabel, store_key
from worker.graph.model import Node, NodeRef
from worker.stores.graph_rows import decode_properties, encode_properties, size_bytes

_PLAIN_NAME: Final = re.compile(r"[a-z][a-z0-9_]{0,63}")
_FIELDS: Final = frozenset(
    {"ref", "key", "project", "id", "slug", "alias", "session_id", "name", "path", "start_line", "end_line"}
    | {"signature", "text", "docstring_start", "docstring_end", "language", "size_bytes", "other_properties"}
)

COLUMNS: Final = (
    "ref",
    "key",
    "name",
    "path",
    "start_line",
    "end_line",
    "signature",
    "text",
    "docstring_start",
    "docstring_end",
    "language",
    "size_bytes",
)
PROPERTIES: Final = (
    "{" + ", ".join(f"{name}: row[{n}]" for n, name in enumerate(COLUMNS)) + ", project: $project}"
)
"""In Cypher: the properties in `row`, but for those that not every label has."""
REST: Final = f"row[{len(COLUMNS)}]"
"""In Cypher: a map of those."""


def ref_of(project_id: str, ref: NodeRef) -> str:
    """What names a node in the whole store. Within a project refs sort as labels and ids do."""
    return store_key(project_id, f"{ref.label}:{ref.id}")


def encode_node(project_id: str, node: Node) -> list[Any]:
    """What `PROPERTIES` and `REST` make a node's properties of; None and 0 for what is not written."""
    rest = {name: value for name, value in node.properties if _is_plain(name)}
    rest[LABEL_RULE_OF[node.label].key] = node.id
    if other := encode_properties(pair for pair in node.properties if not _is_plain(pair[0])):
        rest["other_properties"] = other
    docstring_start, docstring_end = node.docstring_span
    return [
        ref_of(project_id, node.ref),
        store_key(project_id, node.id),
        node.name or None,
        node.path or None,
        node.start_line or None,
        node.end_line or None,
        node.signature or None,
        node.text or None,
        docstring_start or None,
        docstring_end or None,
        node.language or None,
        size_bytes(node),
        rest,
    ]


def decode_node(labels: list[str], row: Mapping[str, Any]) -> Node:
    """The node that was encoded. What a migration or a person left out has its default."""
    label = cast("NodeLabel", next(label for label in labels if label in LABEL_RULE_OF))
    free = [(name, _text(value)) for name, value in row.items() if _is_plain(name)]
    return Node(
        label=label,
        id=row[LABEL_RULE_OF[label].key],
        name=_text(row.get("name", "")),
        path=_text(row.get("path", "")),
        start_line=row.get("start_line", 0),
        end_line=row.get("end_line", 0),
        signature=_text(row.get("signature", "")),
        docstring_span=(row.get("docstring_start", 0), row.get("docstring_end", 0)),
        language=_text(row.get("language", "")),
        properties=tuple(sorted((*free, *decode_properties(row.get("other_properties", ""))))),
        text=_text(row.get("text", "")),
    )


def _is_plain(name: str) -> bool:
    return _PLAIN_NAME.fullmatch(name) is not None and name not in _FIELDS


def _text(value: Any) -> str:
    return value if isinstance(value, str) else str(value)
