"""A bundle's layers as the one text that consumers of `payload["graph_context"]` read."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from schemas.codes import CONTENT_LAYERS, PartName


def graph_context(parts: Mapping[PartName, str]) -> str:
    """The content layers joined, mission first and task last, as they stand in the prompt; may be empty."""
    return "".join(parts[layer] for layer in CONTENT_LAYERS)


def collapse(payload: Mapping[str, Any], parts: Mapping[PartName, str]) -> dict[str, Any]:
    """A shallow copy of the payload with the layers in its `graph_context`; all else in it stays as it is.

    So whoever prepends `graph_context` to a message shows the whole bundle, and whoever reads
    `task_context` finds what was there.
    """
    return {**payload, "graph_context": graph_context(parts)}
