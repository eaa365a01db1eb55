"""The manifest of a bundle: what its prompt shows that can be cited, and what has to be."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from schemas.citations import TEMPLATE_SECTIONS, CitationItem, Citations
from schemas.trusted import trusted
from worker.citations.labels import Label, names_of
from worker.ports import Fragment

TEMPLATE: Final = (
    "Cite what you use by the id in brackets before it; ids that end in ! have to be cited. End your answer "
    "with these headings, the ids that belong there below each, or none: "
    + ", ".join(TEMPLATE_SECTIONS)
    + "."
)
"""How to answer. The same for all prompts, so that it stays in a cached prefix."""


def template_of(required_tools: Sequence[str]) -> str:
    """How to answer, with a line more where tools have to be called first: each once, in the given order."""
    if not required_tools:
        return TEMPLATE
    return f"{TEMPLATE}\nBefore you answer, call these tools: {', '.join(dict.fromkeys(required_tools))}."


def build_manifest(
    shown: Iterable[Fragment],
    labels: Mapping[str, Label],
    *,
    must_cite: Iterable[str],
    template: str,
) -> Citations:
    """The manifest of these fragments, which are given in the order of the prompt.

    Of `must_cite` those are unresolved that name nothing shown: what no source has, what had no room, and
    what has no id to be cited by. O(fragments).
    """
    items: dict[str, CitationItem] = {}
    musts: dict[str, None] = {}
    named: set[str] = set()
    for fragment in shown:
        label = labels.get(fragment.key)
        if label is None:
            continue
        named |= names_of(fragment, label.id)
        items.setdefault(
            label.short,
            trusted(CitationItem, short=label.short, id=label.id, kind=label.kind, layer=fragment.layer),
        )
        if label.is_must:
            musts[label.short] = None
    return trusted(
        Citations,
        items=tuple(items.values()),
        must_cite=tuple(musts),
        unresolved=tuple(dict.fromkeys(name for name in must_cite if name not in named)),
        template=template or None,
    )
