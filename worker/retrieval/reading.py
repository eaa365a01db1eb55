"""The tools that read the graph around an entity. Pure functions of a snapshot and the call's arguments.

What is shown comes in a fixed order: the entity, then by hops, relation and id. Neighbours and definitions
are capped, and a cap that left something out is said.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from typing import Final

import numpy as np

from schemas.graph import Relation
from schemas.tools import (
    GetCodeArguments,
    GetContextArguments,
    GetRequirementsArguments,
    GetTestsArguments,
)
from worker.graph.adjacency import kind
from worker.graph.model import Node
from worker.graph.snapshot import Snapshot
from worker.retrieval.entities import find_entity
from worker.retrieval.found import Found, Piece, heading, line_piece, source_piece, unique

MAX_NEIGHBOURS: Final = 300
"""Of all hops together; a hub has thousands."""
MAX_BODIES: Final = 100
"""Sources that one call shows; budgets are full long before."""

_LEADS: Final[tuple[tuple[Relation, str, str], ...]] = (
    ("CALLS", "calls", "called by"),
    ("INHERITS_FROM", "inherits from", "inherited by"),
    ("DEFINES", "defines", "defined in"),
    ("IMPORTS", "imports", "imported by"),
    ("TRACES_TO", "traces to", "served by"),
    ("TESTED_BY", "tested by", "tests"),
    ("APPLIES_TO", "applies to", "decided by"),
    ("SUPERSEDES", "supersedes", "superseded by"),
    ("DEPENDS_ON", "depends on", "needed by"),
    ("OWNS", "owns", "owned by"),
)
"""Relations that are followed, in their order here, and how each reads along and against its direction."""

_KINDS: Final = np.array(
    [kind(relation, backward=backward) for backward in (False, True) for relation, _, _ in _LEADS],
    dtype=np.int8,
)
_READINGS: Final = (*(along for _, along, _ in _LEADS), *(against for _, _, against in _LEADS))
_AT_ONCE: Final = 256
"""Half-edges that are read together: of a hub with thousands a call shows few."""
_CODE: Final = frozenset({"Module", "Class", "Function", "Chunk"})


def get_context(snapshot: Snapshot, arguments: GetContextArguments) -> Found:
    """The entity's own text, then one line for each node within `depth` hops, nearest first.

    Raises ToolFailed where the entity is not known; so do the other tools here.
    """
    root = find_entity(snapshot, arguments.entity)
    neighbours, is_capped = _around(snapshot, root, arguments.depth)
    pieces = [source_piece(snapshot.nodes[root])]
    for hop, lines in enumerate(neighbours, start=1):
        pieces.append(Piece(text=f"### {hop} hop{'s' if hop > 1 else ''} away", is_line=True))
        pieces += lines
    return Found(pieces=tuple(pieces), is_capped=is_capped)


def get_code(snapshot: Snapshot, arguments: GetCodeArguments) -> Found:
    """The entity's source with all that it defines, then, where wanted, its callers' by distance and id."""
    root = find_entity(snapshot, arguments.entity_id)
    own = list(_definitions(snapshot, root))
    pieces: Iterator[Piece] = (source_piece(snapshot.nodes[number]) for number in own)
    if arguments.include_callers:
        callers = _callers(snapshot, own, arguments.depth)
        notes = ((n, "calls it" if hop == 1 else f"{hop} calls away") for n, hop in callers)
        pieces = chain(pieces, (source_piece(snapshot.nodes[n], note) for n, note in notes))
    taken, is_capped = unique(pieces, MAX_BODIES)
    return Found(pieces=taken, is_capped=is_capped)


def get_tests(snapshot: Snapshot, arguments: GetTestsArguments) -> Found:
    """The tests of the entity and of all that it defines: a list of them, then their sources.

    Of a requirement, the tests of what serves it as well.
    """
    root = find_entity(snapshot, arguments.entity_id)
    subjects = [*_definitions(snapshot, root), *snapshot.edges.of(root, (kind("TRACES_TO", backward=True),))]
    exercised: dict[int, list[int]] = {}
    for subject in dict.fromkeys(subjects):
        for test in snapshot.edges.of(subject, (kind("TESTED_BY"),)):
            exercised.setdefault(test, []).append(subject)
    if not exercised:
        return _nothing(snapshot, root, "No test is known to exercise it.")
    names = {test: ", ".join(snapshot.nodes[n].id for n in found[:3]) for test, found in exercised.items()}
    listed = (line_piece(snapshot.nodes[t], "") for t in exercised)
    sources = (source_piece(snapshot.nodes[t], f"exercises {names[t]}") for t in exercised)
    lines, has_more_lines = unique(listed, MAX_NEIGHBOURS)
    bodies, has_more = unique(sources, MAX_BODIES)
    title = Piece(text=f"# {len(exercised)} tests of {snapshot.nodes[root].id}", is_line=True)
    return Found(pieces=(title, *lines, *bodies), is_capped=has_more or has_more_lines)


def get_requirements(snapshot: Snapshot, arguments: GetRequirementsArguments) -> Found:
    """What the entity and all that it defines serve, what that is part of, and the decisions that apply.

    Of a requirement, itself and what it consists of; what serves each stands in its heading.
    """
    root = find_entity(snapshot, arguments.entity_id)
    own = list(_definitions(snapshot, root))
    served = _ends(snapshot, own, kind("TRACES_TO"))
    if snapshot.nodes[root].label in {"Spec", "Requirement", "RequirementItem"}:
        served = [*own, *(n for n in served if n not in own)]
    decisions = _ends(snapshot, own, kind("APPLIES_TO", backward=True))
    if not served and not decisions:
        return _nothing(snapshot, root, "It traces to no requirement, and no decision applies to it.")
    above = [n for n in _above(snapshot, served) if n not in served]
    pieces = (source_piece(snapshot.nodes[n], _served_by(snapshot, n)) for n in [*served, *above, *decisions])
    taken, is_capped = unique(pieces, MAX_BODIES)
    return Found(pieces=taken, is_capped=is_capped)


# --- Walking ---------------------------------------------------------------------------------------------


def _around(snapshot: Snapshot, root: int, depth: int) -> tuple[list[list[Piece]], bool]:
    """Lines of what lies around by hop, each node once, and whether the cap left some out."""
    seen, ring, hops = {root}, [root], list[list[Piece]]()
    left = MAX_NEIGHBOURS
    for hop in range(1, depth + 1):
        lines: list[Piece] = []
        beside: list[int] = []
        for source in ring:
            for lead, target in _edges(snapshot, source):
                if target in seen:
                    continue
                if not left:
                    return [*hops, lines] if lines else hops, True
                left -= 1
                seen.add(target)
                beside.append(target)
                of_whom = "" if hop == 1 else f"{snapshot.nodes[source].id} "
                lines.append(line_piece(snapshot.nodes[target], f"{of_whom}{lead} "))
        if not lines:
            break
        hops.append(lines)
        ring = beside
    return hops, False


def _edges(snapshot: Snapshot, node: int) -> Iterator[tuple[str, int]]:
    """How each half-edge reads and where it leads, by direction, relation and target. Lazy."""
    edges = snapshot.edges
    start, end = int(edges.starts[node]), int(edges.starts[node + 1])
    # Ordered by kind and target, so those of one kind stand together.
    kinds = edges.kinds[start:end]
    firsts, lasts = kinds.searchsorted(_KINDS).tolist(), kinds.searchsorted(_KINDS, side="right").tolist()
    for lead, first, last in zip(_READINGS, firsts, lasts, strict=True):
        for at in range(start + first, start + last, _AT_ONCE):
            run = slice(at, min(at + _AT_ONCE, start + last))
            near = zip(edges.targets[run].tolist(), edges.weights[run].tolist(), strict=True)
            yield from ((lead if weight == 1.0 else f"perhaps {lead}", target) for target, weight in near)


def _definitions(snapshot: Snapshot, root: int) -> Iterator[int]:
    """The node, and of what is no function all that stands in it, outer before inner, by line."""
    waiting = [root]
    seen = {root}
    while waiting:
        number = waiting.pop()
        yield number
        if snapshot.nodes[number].label == "Function":
            continue  # its text holds what is defined in it
        inner = [n for n in snapshot.edges.of(number, (kind("DEFINES"),)) if n not in seen]
        seen.update(inner)
        waiting += sorted(inner, key=lambda n: (snapshot.nodes[n].start_line, n), reverse=True)


def _callers(snapshot: Snapshot, own: Sequence[int], depth: int) -> Iterator[tuple[int, int]]:
    """Who calls any of these, and how many calls away, nearest first, then by node."""
    seen, ring = set(own), list(own)
    for hop in range(1, depth + 1):
        found = {n for node in ring for n in snapshot.calls.of(node, (kind("CALLS", backward=True),))} - seen
        ring = sorted(found)
        seen |= found
        yield from ((number, hop) for number in ring)


def _ends(snapshot: Snapshot, nodes: Iterable[int], edge: int) -> list[int]:
    return list(dict.fromkeys(n for node in nodes for n in snapshot.edges.of(node, (edge,))))


def _above(snapshot: Snapshot, items: Sequence[int]) -> list[int]:
    """Requirements and specifications that the items are part of, the nearer first."""
    defined_in = kind("DEFINES", backward=True)
    requirements = _ends(snapshot, items, defined_in)
    found = [*requirements, *_ends(snapshot, requirements, defined_in)]
    return list(dict.fromkeys(n for n in found if snapshot.nodes[n].label not in {*_CODE, "File", "Project"}))


def _served_by(snapshot: Snapshot, number: int) -> str:
    if snapshot.nodes[number].label == "Decision":
        return "applies"
    serving = snapshot.edges.of(number, (kind("TRACES_TO", backward=True),))
    names = ", ".join(snapshot.nodes[n].id for n in serving[:3])
    more = f" and {len(serving) - 3} more" if len(serving) > 3 else ""  # noqa: PLR2004  as many as are named
    return f"served by {names}{more}" if serving else ""


def _nothing(snapshot: Snapshot, root: int, sentence: str) -> Found:
    node: Node = snapshot.nodes[root]
    return Found(pieces=(Piece(text=f"{heading(node)}\n{sentence}", node_id=node.id),))
