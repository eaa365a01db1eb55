"""How a node's section reads in a pack file and in a prompt, and what it costs in each.

A file carries provenance that a person or a program may need: a heading and a node line for every section. A
prompt carries what a model reads: the path once above the sections of one file, a name only where the code
does not say it, no node line. The same sections make both, so a pack can be cut as a file and then shown.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, Literal

from worker.graph.model import Node
from worker.graph.packing import Section, SectionWriter, TextSizes
from worker.graph.rendering import short_name

Layout = Literal["file", "prompt"]
"""What a budget is spent on: the whole pack file, or what a prompt shows of it."""

SEPARATOR: Final = "\n\n"
"""Between the sections of a pack file."""
LINE_END: Final = "\n"
"""Between the pieces of a prompt's layer."""

_ID: Final = re.compile(r"[^\x00-\x20\x7f](?:[^\x00-\x1f\x7f]{0,1022}[^\x00-\x20\x7f])?")
_FIXED_POINT_ROUNDS: Final = 4
_USUAL_FIGURES_TOKENS: Final = 27
_KEPT_PROVENANCES: Final = 8_192
"""Of some four hundred bytes; the nodes that requests are about come again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptHeadings:
    """What stands above a node's code in a prompt."""

    file: str
    """Once above the nodes of one file; empty for what stands for itself."""
    name: str
    """The line that stands for the node where nothing else of it is shown."""
    is_said_by_code: bool
    """Whether the code below says the name, so that the line can be left out."""

    def above(self, body: str) -> str:
        """The section: the name where it is needed, and the body."""
        if not body:
            return self.name
        return body if self.is_said_by_code else f"{self.name}\n{body}"


def prompt_headings(*, kind: str, name: str, node_id: str) -> PromptHeadings:
    """The headings for a node, from what a pack file says of it."""
    path, separator, qualname = node_id.partition("::")
    if not path or not separator or qualname != name:
        return PromptHeadings(file="", name=f"## {kind} {name}", is_said_by_code=False)
    return PromptHeadings(file=f"## {path}", name=f"### {name}", is_said_by_code="." not in name)


class FileSections:
    """Sections of which every part is paid for: the whole file stays within the budget."""

    least_tokens = 48
    """A section with its provenance hardly ever takes less."""
    ending = SEPARATOR

    def __init__(self, sizes: TextSizes) -> None:
        """Count with `sizes`."""
        self._sizes = sizes
        self._figures_tokens = _USUAL_FIGURES_TOKENS

    def section(
        self, node: Node, *, template: str, rank: int, score: float, body: str, body_tokens: int
    ) -> Section:
        """The section, whose node line says what the section itself costs, that line included."""
        provenance = _provenance(node.label, short_name(node), node.id)
        # Encodings split before a blank between two other characters, so the two parts add up.
        fixed_tokens = self._sizes.of(provenance.start) + body_tokens
        headings = provenance.headings
        if headings is None:
            return _plain(provenance.start + body, tokens=fixed_tokens)
        tokens = fixed_tokens + self._figures_tokens
        figures = ""
        for _ in range(_FIXED_POINT_ROUNDS):
            # The number stands in the text that it counts.
            figures = _figures(template, rank, score, tokens)
            self._figures_tokens = self._sizes.of_figures(figures)
            if fixed_tokens + self._figures_tokens == tokens:
                break
            tokens = fixed_tokens + self._figures_tokens
        return Section(
            text=f"{provenance.start}{figures}{body}",
            shown=headings.above(body),
            file_heading=headings.file,
            tokens=tokens,
        )

    def file_tokens(self, file_heading: str) -> int:
        """Nothing: a file has none."""
        del file_heading
        return 0


class PromptSections:
    """Sections of which only what a prompt shows is paid for; provenance is the file's own."""

    least_tokens = 12
    ending = LINE_END

    def __init__(self, sizes: TextSizes, *, label_tokens: int = 0) -> None:
        """Count with `sizes`; a section will get an id to be cited by, which takes `label_tokens`."""
        self._sizes = sizes
        self._label_tokens = label_tokens

    def section(
        self, node: Node, *, template: str, rank: int, score: float, body: str, body_tokens: int
    ) -> Section:
        """The section, whose node line says what a prompt pays for it."""
        provenance = _provenance(node.label, short_name(node), node.id)
        headings = provenance.headings
        if headings is None:
            return _plain(provenance.start + body, tokens=self._sizes.of(provenance.start) + body_tokens)
        name_tokens = 0 if headings.is_said_by_code else self._sizes.of(f"{headings.name}\n")
        tokens = self._label_tokens + name_tokens + body_tokens
        return Section(
            text=f"{provenance.start}{_figures(template, rank, score, tokens)}{body}",
            shown=headings.above(body),
            file_heading=headings.file,
            tokens=tokens,
        )

    def file_tokens(self, file_heading: str) -> int:
        """The heading's line."""
        return self._sizes.of(f"{file_heading}\n") if file_heading else 0


class MaskedSections:
    """The sections of another writer, with what must not be shown masked in their bodies, and paid for so."""

    def __init__(self, inner: SectionWriter, mask: Callable[[str], str], sizes: TextSizes) -> None:
        """Let `inner` write what `mask` leaves, counted with `sizes`."""
        self.least_tokens = inner.least_tokens
        self.ending = inner.ending
        self._inner = inner
        self._mask = mask
        self._sizes = sizes

    def section(
        self, node: Node, *, template: str, rank: int, score: float, body: str, body_tokens: int
    ) -> Section:
        """The section of the masked body."""
        masked = self._mask(body)
        if masked != body:
            body_tokens = self._sizes.counter.count(masked + self.ending)
        return self._inner.section(
            node, template=template, rank=rank, score=score, body=masked, body_tokens=body_tokens
        )

    def file_tokens(self, file_heading: str) -> int:
        """As the other writer has it: paths are not masked, for an id must stay one."""
        return self._inner.file_tokens(file_heading)


def is_citable(node_id: str) -> bool:
    """Whether a node line can hold the id."""
    return _ID.fullmatch(node_id) is not None and "-->" not in node_id


def by_file(sections: Sequence[Section]) -> list[Section]:
    """The sections in the order of a pack: those of one source file together, where its first one stands."""
    runs: dict[str, list[Section]] = {}
    for number, section in enumerate(sections):
        runs.setdefault(section.file_heading or f"\n{number}", []).append(section)
    return [section for run in runs.values() for section in run]


@dataclass(frozen=True, slots=True)
class _Provenance:
    """What the section of a node begins with, whatever request it is for."""

    start: str
    """The heading, and the node line up to the id; the heading alone where no line can hold the id."""
    headings: PromptHeadings | None
    """None where no line can hold the id."""


@lru_cache(_KEPT_PROVENANCES)
def _provenance(kind: str, name: str, node_id: str) -> _Provenance:
    heading = f"## {kind} {name}\n"
    if not is_citable(node_id):
        return _Provenance(heading, None)
    return _Provenance(
        f"{heading}<!-- node: {node_id}", prompt_headings(kind=kind, name=name, node_id=node_id)
    )


def _figures(template: str, rank: int, score: float, tokens: int) -> str:
    return f" | template: {template} | rank: {rank} | score: {score:.6f} | tokens: {tokens} -->\n"


def _plain(text: str, *, tokens: int) -> Section:
    """What would not read back as provenance: the code is shown all the same."""
    return Section(text=text, shown=text, file_heading="", tokens=tokens)
