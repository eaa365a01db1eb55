"""Short ids for what a prompt shows, and how they stand in its text."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, overload

from schemas.citations import LETTERS, CitationKind
from schemas.wire import canonical_json, sha256_hex
from worker.citations.forms import LETTER, MOST_DIGITS, SHORT, SHORT_DIGITS
from worker.ports import Fragment, Rendering, Scope, TokenCounter
from worker.targets import SEARCHED_CHARS, is_named

_STEP_DIGITS: Final = 3

_KIND_OF_NODE: Final[Mapping[str, CitationKind]] = {
    "function": "function",
    "class": "class",
    "module": "module",
    "file": "module",
    "requirement": "requirement",
    "requirementitem": "requirement",
    "decision": "decision",
}
"""By the graph's label, in any case."""
KINDS_OF_NODES: Final = frozenset(_KIND_OF_NODE.values())
"""What nodes of the graph are cited as."""
_DECISION: Final = "session://decision/"
_MARKS: Final = r"(?:#{1,6} |[-*+] |\d{1,9}[.)] )?"
_MARKER: Final = re.compile(_MARKS)
"""What a line of Markdown may begin with, before its text."""
_LABEL: Final = re.compile(rf"({_MARKS})\[{SHORT}!?\][ \n]")
_BARE_LABEL: Final = re.compile(
    rf"{_MARKS}\[{LETTER}(?::[0-9]{{0,{MOST_DIGITS}}}!?)?\]?\s*(?:(?P<fence>`{{3,}}|~{{3,}})[^\n]*\n(?P=fence)\s*)?"
)
_FENCES: Final = ("```", "~~~")


@dataclass(frozen=True, slots=True)
class Label:
    """The short id of one thing."""

    short: str
    kind: CitationKind
    id: str
    is_must: bool = False
    """Whether an answer has to cite it."""

    @property
    def mark(self) -> str:
        """As it stands in the prompt."""
        return f"[{self.short}!]" if self.is_must else f"[{self.short}]"


def citable(fragment: Fragment) -> tuple[CitationKind, str] | None:
    """What the fragment can be cited as: its kind and its own id; None for what has no id.

    Of a pack or a passage what is a node; of the session decisions; artifacts; memory items; steps of a plan.
    """
    source = fragment.provenance[0].resource_type if fragment.provenance else ""
    node, about = fragment.node, fragment.about
    if source in {"pack", "code"}:
        kind = _KIND_OF_NODE.get(fragment.metadata.get("kind", "").casefold())
        return (kind, about) if kind is not None and about else None
    if source == "plan":
        return ("step", node.partition("://")[2] or node) if fragment.metadata.get("kind") == "step" else None
    if not about:
        return None
    if source == "session":
        return ("decision", about) if node.startswith(_DECISION) else None
    if source == "artifact":
        return ("artifact", about)
    return ("memory", node.partition("://")[2] or node) if source == "memory" else None


def label_fragments(
    fragments: Sequence[Fragment], scope: Scope, *, must_cite: Iterable[str] = (), message: str = ""
) -> dict[str, Label]:
    """Labels by fragment key, of those that can be cited.

    The digits depend on project, thread, kind and id alone. Where two ids would get the same, both get three
    more, until they differ; of that the order of the fragments decides nothing. An answer has to cite what is
    pinned; what `must_cite` names, by its own id, by a file, or through something that was merged into it;
    and functions and classes that the message names, of files that the message or `must_cite` names.
    """
    found = [(f, identity) for f in fragments if (identity := citable(f)) is not None]
    if not found:
        return {}
    shorts = _shorts(dict.fromkeys([identity for _, identity in found]), scope)
    roots = _Roots(must_cite, message)
    musts = {identity for fragment, identity in found if roots.must(fragment, *identity)}
    labels = {
        identity: Label(short, *identity, is_must=identity in musts) for identity, short in shorts.items()
    }
    return {fragment.key: labels[identity] for fragment, identity in found}


class _Roots:
    """What the request is about, by its own words."""

    def __init__(self, must_cite: Iterable[str], message: str) -> None:
        self._given = frozenset(must_cite)
        self._message = message
        self._words = frozenset(_WORDS.findall(message[:SEARCHED_CHARS]))

    def must(self, fragment: Fragment, kind: CitationKind, own_id: str) -> bool:
        """Whether an answer has to cite it."""
        if fragment.is_pinned:
            return True
        if self._given and not names_of(fragment, own_id).isdisjoint(self._given):
            return True
        if kind not in {"function", "class"}:
            return False
        path, _, qualname = own_id.partition("::")
        if qualname.rpartition(".")[2] not in self._words:
            return False
        return path in self._given or is_named(path, self._message)


_WORDS: Final = re.compile(r"[^\W\d]\w*")


def names_of(fragment: Fragment, own_id: str) -> set[str]:
    """All that a request may call the fragment by: its ids, and those of what was merged into it."""
    nodes = (fragment.node, *(other.node for other in fragment.absorbed))
    names = {own_id, fragment.about, *nodes, *(node.partition("://")[2] for node in nodes)}
    if fragment.node.startswith(_DECISION):
        names.add(fragment.node.removeprefix(_DECISION))
    names.discard("")
    return names


def _shorts(
    identities: Iterable[tuple[CitationKind, str]], scope: Scope
) -> dict[tuple[CitationKind, str], str]:
    digits = {identity: _digits(scope, *identity) for identity in identities}
    shorts: dict[tuple[CitationKind, str], str] = {}
    waiting = list(digits)
    for size in range(SHORT_DIGITS, MOST_DIGITS + 1, _STEP_DIGITS):
        alike: dict[str, list[tuple[CitationKind, str]]] = {}
        for identity in waiting:
            alike.setdefault(f"{LETTERS[identity[0]]}:{digits[identity][:size]}", []).append(identity)
        is_last = size == MOST_DIGITS
        shorts |= {ids[0]: short for short, ids in alike.items() if len(ids) == 1 or is_last}
        waiting = [identity for ids in alike.values() if len(ids) > 1 for identity in ids]
        if not waiting:
            break
    return shorts


def digits_of(scope: Scope, kind: CitationKind, own_id: str) -> str:
    """The eighteen digits of which short ids show the first ones. Some 3 us; nothing is kept."""
    digest = sha256_hex(canonical_json([scope.project_id, scope.thread_id or "", kind, own_id]))
    return f"{int(digest[:24], 16) % 10**MOST_DIGITS:0{MOST_DIGITS}d}"


_digits: Final = lru_cache(maxsize=65_536)(digits_of)


@lru_cache(maxsize=64)
def label_tokens(counter: TokenCounter) -> int:
    """What a label adds to a text at the most, unless more than six digits are needed."""
    return counter.count(f"{Label('f:000000', 'function', '', is_must=True).mark}\n")


# --- In the text ----------------------------------------------------------------------------------------


def marked(text: str, label: Label) -> str:
    """The text with the label before its first words, behind a list's or heading's mark.

    At the beginning, so that whatever is cut off still has it. Before a code fence it has a line of its own.
    """
    if text.startswith(_FENCES):
        return f"{label.mark}\n{text}"
    found = _MARKER.match(text)
    at = found.end() if found else 0
    return f"{text[:at]}{label.mark} {text[at:]}"


def unmarked(text: str) -> str:
    """The text as it was before `marked`."""
    return _LABEL.sub(r"\1", text, count=1) if _LABEL.match(text) else text


def is_bare_label(text: str) -> bool:
    """Whether there is a label, or its beginning, and nothing beside it but marks and an empty fence."""
    return _BARE_LABEL.fullmatch(text) is not None


def mark_levels(
    levels: Mapping[str, Sequence[Rendering]], labels: Mapping[str, Label]
) -> Mapping[str, Sequence[Rendering]]:
    """All renderings with their labels, each made when it is asked for."""
    if not labels:
        return levels
    return {
        key: MarkedLevels(renderings, labels[key]) if key in labels else renderings
        for key, renderings in levels.items()
    }


class MarkedLevels(Sequence[Rendering]):
    """Renderings of one fragment with its label in each."""

    __slots__ = ("_label", "_made", "_plain")

    def __init__(self, plain: Sequence[Rendering], label: Label) -> None:
        """Mark `plain` with `label`."""
        self._plain = plain
        self._label = label
        self._made: dict[int, Rendering] = {}

    @overload
    def __getitem__(self, index: int) -> Rendering: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Rendering]: ...
    def __getitem__(self, index: int | slice) -> Rendering | Sequence[Rendering]:
        if isinstance(index, slice):
            return [self._marked(rendering) for rendering in self._plain[index]]
        made = self._made.get(index)
        if made is None:
            made = self._made[index] = self._marked(self._plain[index])
        return made

    def __len__(self) -> int:
        return len(self._plain)

    def __iter__(self) -> Iterator[Rendering]:
        yield self[0]
        for index in range(1, len(self)):
            yield self[index]

    def _marked(self, rendering: Rendering) -> Rendering:
        return Rendering(depth=rendering.depth, text=marked(rendering.text, self._label))


# --- What else may be cited -----------------------------------------------------------------------------


def shorts_of(
    shorts: Iterable[str], identities: Iterable[tuple[CitationKind, str]], scope: Scope
) -> dict[str, str]:
    """Of these short ids, those that one of the identities has in this scope, with its own id.

    However many digits each has; of two identities that it may mean the smaller id. O(identities), some 3 us
    each, and nothing of them is kept: it is asked for answers that cite what their prompt did not show.
    """
    wanted = frozenset(shorts)
    if not wanted:
        return {}
    letters = {short[0] for short in wanted}
    sizes = {len(short) - 2 for short in wanted}
    found: dict[str, str] = {}
    for kind, own_id in identities:
        if LETTERS[kind] not in letters:
            continue
        digits = digits_of(scope, kind, own_id)
        for size in sizes:
            short = f"{LETTERS[kind]}:{digits[:size]}"
            if short in wanted:
                found[short] = min(own_id, found.get(short, own_id))
    return found


def kind_of_label(label: str) -> CitationKind | None:
    """What a node of the graph with this label is cited as; None where it is not."""
    return _KIND_OF_NODE.get(label.casefold())
