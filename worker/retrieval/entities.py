"""Which node a call speaks of, and which ids are near where it is none. Pure functions of one snapshot.

A snapshot holds one project, so nothing that is near can be another's.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from difflib import SequenceMatcher
from typing import Final

import numpy as np
from numpy.typing import NDArray

from schemas.graph import NodeLabel
from schemas.tools import MAX_NEAR
from worker.graph.links import link_request
from worker.graph.model import NodeRef
from worker.graph.snapshot import Snapshot
from worker.retrieval.found import ToolFailed

ENTITY_LABELS: Final[tuple[NodeLabel, ...]] = (
    "Function",
    "Class",
    "Module",
    "RequirementItem",
    "Requirement",
    "Spec",
    "Decision",
    "Chunk",
    "File",
)
"""In the order in which an id that several labels have is read."""

_COMPARED_CHARS: Final = 200
_COMPARED_NAMES: Final = 40
_FREQUENT: Final = 2_000
_GRAM: Final = 3
_BREAK: Final = ord("\n")
_LEAST_LIKENESS: Final = 0.5


def find_entity(snapshot: Snapshot, text: str) -> int:
    """The number of the node that `text` names: an id, a path, or a name that means one thing.

    A path means its module; a file without one, its first piece. A name is compared as it is written, the
    parts of a qualified one with those of the node. Raises ToolFailed, `not_found`, with what is near: the
    readings of a name that means several, else names that are spelled alike.
    """
    for label in ENTITY_LABELS[:-1]:
        number = snapshot.find(NodeRef(label, text))
        if number is not None:
            return number
    readings = _of_path(snapshot, text) or _of_name(snapshot, text)
    if len(readings) == 1:
        return readings[0]
    if readings:
        near = tuple(snapshot.nodes[number].id for number in readings[:MAX_NEAR])
        raise ToolFailed(
            "not_found", f"{_quoted(text)} means {len(readings)} things; name one by its id", near=near
        )
    number = snapshot.find(NodeRef("File", text))
    if number is not None:
        return number
    raise ToolFailed("not_found", f"nothing is called {_quoted(text)}", near=near_ids(snapshot, text))


def entry_refs(text: str) -> tuple[NodeRef, ...]:
    """Nodes from which a graph that is too large to be held is read for this entity."""
    return tuple(NodeRef(label, text) for label in ENTITY_LABELS)


def entry_names(text: str) -> tuple[str, ...]:
    """Names from which such a graph is read."""
    name = text.rpartition("::")[2]
    return tuple(dict.fromkeys(part for part in (name, name.rpartition(".")[2]) if part))


def near_ids(snapshot: Snapshot, text: str) -> tuple[str, ...]:
    """Ids whose names or paths are spelled much as `text`, the most alike first, then by id; at most five.

    What is compared letter by letter is bounded: the names that share most of the rarer groups of three
    letters. Some 25 ms at 50,000 names.
    """
    wanted = text[:_COMPARED_CHARS]
    path, colons, name = wanted.rpartition("::")
    names = _alike(snapshot.names.sorted_names, name.rpartition(".")[2] or name)
    is_place = bool(colons) or "/" in name or "." in name
    paths = _alike(snapshot.paths[1:], path if colons else name) if is_place else []
    numbers: list[int] = snapshot.names.by_literal_id.tolist()
    literal = [snapshot.nodes[number].id for number in numbers]
    candidates = {snapshot.nodes[n].id for one in names for n in snapshot.names.exact(one)[:_COMPARED_NAMES]}
    candidates |= {*paths, *_alike(literal, name)}
    return most_alike(candidates, wanted)


def _of_path(snapshot: Snapshot, text: str) -> list[int]:
    if "::" in text or ("/" not in text and "." not in text):
        return []
    links = link_request("", (text,), snapshot)
    refs = dict.fromkeys(ref for link in links.entities if link.kind == "payload" for ref in link.nodes)
    return [number for ref in refs if (number := snapshot.find(ref)) is not None]


def _of_name(snapshot: Snapshot, text: str) -> list[int]:
    name = text.rpartition("::")[2]
    last = name.rpartition(".")[2]
    if not last:
        return []
    found = snapshot.names.exact(last)
    if text != last:
        found = [n for n in found if _ends_with(snapshot.nodes[n].id, text)]
    return found or (snapshot.names.exact(text) if text != last else snapshot.names.folded(text))


def _ends_with(node_id: str, text: str) -> bool:
    """Whether the parts of `text` are the last of the node's: of its path, dotted, and its name."""
    path, _, name = node_id.partition("::")
    dotted = f"{path.rpartition('.')[0] or path}.{name}".replace("/", ".")
    return f".{dotted}".endswith("." + text.replace("::", ".").replace("/", "."))


def _quoted(text: str) -> str:
    return repr(text if len(text) <= _COMPARED_CHARS else text[: _COMPARED_CHARS - 1] + "…")


def _alike(names: Sequence[str], wanted: str) -> list[str]:
    """Of `names`, those that share most groups of three letters with the wanted one, each once."""
    if not wanted or not names:
        return []
    # One text that the groups are looked for in: a loop over names would take twenty times as long.
    text = "\n".join(names)
    if text.count("\n") >= len(names):
        text = "\n".join(name.replace("\n", " ") for name in names)
    characters = _characters(f"\n{text.casefold()}\n")
    breaks = np.flatnonzero(characters == _BREAK)
    padded = _characters(f"\n{wanted.casefold()}\n")
    groups = {tuple(padded[at : at + _GRAM].tolist()) for at in range(len(padded) - _GRAM + 1)}
    shared = np.zeros(len(names), dtype=np.int32)
    for group in groups:
        shared[_lines_with(characters, breaks, group)] += 1
    # Where equally many are shared, in the order of the names.
    best = np.argsort(-shared, kind="stable")[:_COMPARED_NAMES]
    lines: list[int] = best[shared[best] > 0].tolist()
    return list(dict.fromkeys([names[line] for line in lines]))


def _characters(text: str) -> NDArray[np.uint8] | NDArray[np.uint32]:
    """The text as an array of code points; names of code are ASCII, and bytes are searched the fastest."""
    if text.isascii():
        return np.frombuffer(text.encode("ascii"), dtype=np.uint8)
    return np.frombuffer(text.encode("utf-32-le", "surrogatepass"), dtype=np.uint32)


def _lines_with(
    characters: NDArray[np.uint8] | NDArray[np.uint32], breaks: NDArray[np.intp], group: Sequence[int]
) -> NDArray[np.intp]:
    """Numbers of the lines that hold the group; none where it is frequent, and so tells little."""
    count = len(characters) - _GRAM + 1
    found = characters[:count] == group[0]
    for at in range(1, _GRAM):
        found &= characters[at : at + count] == group[at]
    places = np.flatnonzero(found)
    if len(places) > _FREQUENT:
        return places[:0]
    # A group that begins with the break before a name belongs to that name.
    return np.unique(np.searchsorted(breaks, places, side="right") - 1)


def most_alike(candidates: Iterable[str], wanted: str) -> tuple[str, ...]:
    """Of the candidates those that are spelled much as the wanted id, the most alike first, then by id.

    At most five. Some 0.1 ms a candidate.
    """
    matcher = SequenceMatcher(autojunk=False)
    matcher.set_seq2(wanted[:_COMPARED_CHARS].casefold())
    scored: list[tuple[float, str]] = []
    for candidate in candidates:
        likeness = _likeness(matcher, _tail(candidate, wanted))
        if likeness >= _LEAST_LIKENESS:
            scored.append((-round(likeness, 6), candidate))
    return tuple(candidate for _, candidate in sorted(scored)[:MAX_NEAR])


def _tail(candidate: str, wanted: str) -> str:
    """The candidate's end that has as many parts as the wanted id: a bare name is compared with names."""
    if "::" in wanted or "/" in wanted or "::" not in candidate:
        return candidate
    name = candidate.rpartition("::")[2]
    return name if "." in wanted else name.rpartition(".")[2]


def _likeness(matcher: SequenceMatcher[str], form: str) -> float:
    matcher.set_seq1(form[:_COMPARED_CHARS].casefold())
    return matcher.ratio()
