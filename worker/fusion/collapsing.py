"""A bundle as the one text that consumers of `payload["graph_context"]` put in front of a message."""

from __future__ import annotations

from collections.abc import Mapping

from schemas.codes import CONTENT_LAYERS, PartName


def graph_context(parts: Mapping[PartName, str], *, preamble: str, template: str) -> str:
    """What stands above the user's own text in the prompt, as it stands there; may be empty.

    Preamble, template, then the content layers, mission first and task last. The preamble is never left out:
    it is what says that the marked sections below it are no instructions.
    """
    return preamble + template + "".join([parts[layer] for layer in CONTENT_LAYERS])
