"""What of a bundle can be cited, the answers that cite it, and what is said to them.

An id such as `f:483921` stands in the prompt in brackets, before what it names; `[d:000217!]` has to be
cited. The letter is the kind, the digits are of a digest of project, thread, kind and node id: the same in
all prompts of a thread. Tokenizers take three digits as one token, so such an id costs six with its brackets,
where five letters and digits mixed cost seven; and in 126 MB of code and prose none stood, with brackets or
without.
"""

from __future__ import annotations

from typing import Final, Literal

from schemas.codes import PartName
from schemas.wire import Count, WireModel

CitationKind = Literal["function", "class", "module", "requirement", "decision", "artifact", "memory", "step"]
LETTERS: Final[dict[CitationKind, str]] = {
    "function": "f",
    "class": "c",
    "module": "m",
    "requirement": "r",
    "decision": "d",
    "artifact": "a",
    "memory": "n",
    "step": "s",
}
"""What a short id begins with."""

TemplateSection = Literal["Entities modified", "Requirements satisfied", "Decisions respected"]
TEMPLATE_SECTIONS: Final[tuple[TemplateSection, ...]] = (
    "Entities modified",
    "Requirements satisfied",
    "Decisions respected",
)
"""What an answer ends with, where the prompt asks for it."""


class CitationItem(WireModel):
    """One thing that the prompt shows and an answer may cite, by either id."""

    short: str
    id: str
    """Its own id: of a node, a decision, an artifact, a memory item, or `plan/step`."""
    kind: CitationKind
    layer: PartName
    """Where it is shown; the first such part."""


class Citations(WireModel):
    """What answers to a bundle may cite, and what they have to."""

    items: tuple[CitationItem, ...]
    """In the order of the prompt, each once."""
    must_cite: tuple[str, ...]
    """Short ids, in the same order: of pins, of what the request names in its target files, and of what it
    says has to be cited."""
    unresolved: tuple[str, ...]
    """Ids that the request says have to be cited and that nothing shown has, as they were given."""
    template: str | None = None
    """What the prompt says about how to answer; absent where there was no room, or no use for it."""


class UsedTokens(WireModel):
    """Tokens of texts that a prompt showed."""

    cited_tokens: Count
    """Of what the answer cites."""
    tokens: Count
    """Of all."""


class Used(WireModel):
    """What of a prompt its answer used."""

    layers: dict[PartName, UsedTokens]
    """In the order of the prompt; headings and marks of a layer are no part of it."""
    sources: dict[str, UsedTokens]
    """By what the texts come from, as the receipt's nodes begin: `pack`, `session`, `plan` and so on."""


# --- Answers --------------------------------------------------------------------------------------------

VerdictCode = Literal[
    "complied",
    "not_injected",
    "invented_citations",
    "no_citations",
    "missing_citations",
    "tools_not_called",
    "sections_missing",
]
"""What is said of an answer: it did all that was asked; or, the first that holds: it cites what exists and
was not shown; an id that exists nowhere in the prompt; nothing at all; not all that has to be cited; a tool
that was required was not called; a section of the template is not there, or names nothing."""

Step = Literal["accept", "expand", "warn", "shrink", "escalate"]
"""What follows: the answer is taken; it is asked for again with more context, with a word of warning, or with
the one most relevant thing and the pins; or people are asked."""
