"""Everything that the graph has to say to one request, computed once and shared by the layers that show it.

The graph layer shows the pack, the semantic layer what words found and the pack lacks, the task layer the
facts that the template of the task asks for. An answer is a pure function of its inputs, so it can be kept
under a digest of them; `encode_answer` and
`decode_answer` give it a form that any cache can hold.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from pydantic import TypeAdapter

from schemas.fragments import RelevanceTier
from worker.graph.adjacency import kind
from worker.graph.model import Node, NodeRef
from worker.graph.pack_writer import WrittenPack
from worker.graph.rendering import deepest_text, fenced, label_of, texts_of
from worker.graph.selection import Selection
from worker.graph.snapshot import Snapshot

MAX_PASSAGES: Final = 20
MAX_TESTS: Final = 12
MAX_OPEN_TRACES: Final = 12
PART_LINE: Final = (
    "The graph is too large to be held: only what lies around the names in the request was looked at."
)
STATE_LINE: Final = "What fails in the thread could not be read, so nothing was looked for on its account."
RELEVANCE_LINE: Final = "The relevance rules could not be asked, so the order is the plain one."
_MAX_UNINDEXED: Final = 20
_LOOKED_AT: Final = 40
"""Best nodes whose tests and traces are looked at."""

_FORM: Final = b"3:"
"""Which form the bytes have; another number where a field is added or changes its meaning."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Passage:
    """One piece of source that words found: deepest text first, then shorter ones."""

    node_id: str
    label: str
    path: str
    line: int
    strength: float
    """Beside the strongest, 0 to 1."""
    texts: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphFact:
    """One line that a template asks for, and the node it is about."""

    node_id: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """How near a node of the pack is to what the request is about, which a pack file does not say."""

    node_id: str
    tier: RelevanceTier | None
    """None where relevance is off."""
    hops: int | None
    """Edges from what the request names; None where nothing was walked, or nothing leads there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphAnswer:
    """What the layers show."""

    snapshot_id: str
    pack: str
    """A pack file."""
    standings: tuple[Standing, ...] = ()
    """Of the nodes that it shows in full, as far as anything is known."""
    passages: tuple[Passage, ...] = ()
    tests: tuple[GraphFact, ...] = ()
    """Tests that exercise what was selected, the best node's first."""
    open_traces: tuple[GraphFact, ...] = ()
    """Requirements near the selection that nothing tests, or that no document defines."""
    unindexed: tuple[str, ...] = ()
    """Paths that the request names and the graph does not have, or has only in part."""
    tiers: Mapping[RelevanceTier, int] | None = None
    """Candidates by relevance tier; None where relevance is off."""
    is_relevance_missing: bool = False
    """Whether relevance was asked for and could not be had, so that the order is the plain one."""
    is_part: bool = False
    """Whether only what lies around the request's own roots was read, the whole being too large to hold."""


_ANSWER: Final = TypeAdapter(GraphAnswer)


def encode_answer(answer: GraphAnswer) -> bytes:
    """The answer as bytes."""
    return _FORM + _ANSWER.dump_json(answer)


def decode_answer(data: bytes) -> GraphAnswer | None:
    """The answer in `data`; None where it was written in another form."""
    if not data.startswith(_FORM):
        return None
    return _ANSWER.validate_json(data.removeprefix(_FORM))


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerInputs:
    """What an answer is made from, beside the selection and its snapshot."""

    paths: tuple[str, ...]
    """Files that the request names in its payload."""
    tiers: Mapping[RelevanceTier, int] | None = None
    is_relevance_missing: bool = False


def build_answer(
    selection: Selection, snapshot: Snapshot, written: WrittenPack, inputs: AnswerInputs
) -> GraphAnswer:
    """The answer for one selection and the pack that was written of it. Cost: that of a few hundred nodes."""
    shown = {item.node.ref for item in written.packed.bodies} if written.packed else set[NodeRef]()
    best = [number for number, _ in selection.ranked[:_LOOKED_AT]]
    return GraphAnswer(
        snapshot_id=selection.snapshot_id,
        pack=written.text,
        standings=_standings(selection, written),
        passages=find_passages(selection, snapshot, shown),
        tests=_tests(snapshot, best),
        open_traces=_open_traces(snapshot, best),
        unindexed=unindexed_paths(snapshot, inputs.paths),
        tiers=inputs.tiers,
        is_relevance_missing=inputs.is_relevance_missing,
        is_part=snapshot.is_part,
    )


def _standings(selection: Selection, written: WrittenPack) -> tuple[Standing, ...]:
    bodies = written.packed.bodies if written.packed else ()
    if selection.relevance == "off" and not selection.hops:
        return ()
    return tuple(
        [
            Standing(
                node_id=item.node.id,
                tier=selection.tier_of(item.number),
                hops=selection.hops.get(item.number),
            )
            for item in bodies
        ]
    )


def unindexed_line(paths: Sequence[str]) -> str:
    """What a reader is told of paths that the graph lacks: the first twenty, and how many more."""
    named = ", ".join(paths[:_MAX_UNINDEXED])
    more = f" and {len(paths) - _MAX_UNINDEXED} more" if len(paths) > _MAX_UNINDEXED else ""
    return f"Not indexed, or not wholly: {named}{more}"


def unindexed_paths(snapshot: Snapshot, paths: tuple[str, ...]) -> tuple[str, ...]:
    """Of these paths, sorted, those that are not in the graph or could not be read whole."""
    missing: set[str] = set()
    for path in paths:
        number = snapshot.find(NodeRef("File", path))
        if number is None or snapshot.nodes[number].property("status") not in {"parsed", ""}:
            missing.add(path)
    return tuple(sorted(missing))


def find_passages(
    selection: Selection, snapshot: Snapshot, shown: Collection[NodeRef] = ()
) -> tuple[Passage, ...]:
    """What the request's words found, the strongest first, at most twenty, without the nodes in `shown`."""
    found: list[Passage] = []
    for link in selection.lexical:
        number = snapshot.find(link.node)
        if number is None or link.node in shown or len(found) == MAX_PASSAGES:
            continue
        node = snapshot.nodes[number]
        if deepest_text(node, keeps_docstring=True) is None:
            continue
        found.append(
            Passage(
                node_id=node.id,
                label=node.label,
                path=node.path,
                line=node.start_line,
                strength=link.strength,
                texts=tuple(fenced(text) for text in texts_of(node, keeps_docstring=False)),
            )
        )
    return tuple(found)


def _tests(snapshot: Snapshot, best: Sequence[int]) -> tuple[GraphFact, ...]:
    """Each test once, with the best node that it exercises."""
    found: dict[str, GraphFact] = {}
    for number in best:
        node = snapshot.nodes[number]
        for test in snapshot.edges.of(number, (kind("TESTED_BY"),)):
            test_id = snapshot.nodes[test].id
            found.setdefault(test_id, GraphFact(node_id=test_id, text=f"{test_id} exercises {node.id}"))
    return tuple(list(found.values())[:MAX_TESTS])


def _open_traces(snapshot: Snapshot, best: Sequence[int]) -> tuple[GraphFact, ...]:
    """Each requirement item once, with what is open about it."""
    found: dict[str, GraphFact] = {}
    for number in best:
        node = snapshot.nodes[number]
        for item in snapshot.edges.of(number, (kind("TRACES_TO"),)):
            traced = snapshot.nodes[item]
            problem = _open_problem(snapshot, item, traced)
            if problem:
                fact = GraphFact(
                    node_id=traced.id, text=f"{traced.id}, traced by {label_of(node)}: {problem}"
                )
                found.setdefault(traced.id, fact)
    return tuple(list(found.values())[:MAX_OPEN_TRACES])


def _open_problem(snapshot: Snapshot, item: int, traced: Node) -> str:
    if traced.property("status") == "dangling":
        return "no document defines it"
    if snapshot.edges.of(item, (kind("TESTED_BY"),)):
        return ""
    tested = (kind("TESTED_BY"),)
    serving = snapshot.edges.of(item, (kind("TRACES_TO", backward=True),))
    if any(snapshot.edges.of(node, tested) for node in serving):
        return ""
    return "nothing that serves it is tested"
