"""A bundle's layers as the one text that consumers of `payload["graph_context"]` read."""

from __future__ import annotations

from collections.abc import Mapping

from schemas.codes import CONTENT_LAYERS, PartName


def graph_context(parts: Mapping[PartName, str]) -> str:
    """The content layers joined, mission first and task last, as they stand in the prompt; may be empty."""
    return "".join(parts[layer] for layer in CONTENT_LAYERS)
