"""The tools that read the structure of code: what a file defines, its branches, its skeleton, its tags.

They read the source as the graph holds it, so they agree with what bundles show, and need no file.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, TypeVar

from schemas.tools import (
    BranchesArguments,
    BranchTestsArguments,
    ComplexityArguments,
    RefsArguments,
    SkeletonArguments,
    SkeletonDiffArguments,
    SymbolsArguments,
    TraceLintArguments,
)
from worker.code.branch_tests import branch_tests as scaffold_of
from worker.code.branches import NotSupported, facts_of_text, read_branches_of
from worker.code.contracts import contract_shape, contract_skeleton
from worker.code.parameters import ParameterReport, report_parameters
from worker.code.shapes import Escape, Shape, shape_of
from worker.code.shapes import skeleton_diff as difference_of
from worker.code.stored_source import nodes_of_file, source_of_nodes
from worker.code.trace_lint import trace_lint as lint
from worker.code.trace_lint import trace_statuses
from worker.graph.model import Node
from worker.graph.neighbours import Neighbour, call_neighbours
from worker.graph.rendering import NodeText, fenced, one_line
from worker.graph.snapshot import Snapshot
from worker.retrieval.entities import find_entity
from worker.retrieval.found import Found, Piece, ToolFailed, heading
from worker.retrieval.parsed import shape_of_file, skeleton_of_file

T = TypeVar("T")

MAX_LISTED: Final = 500
_DEFINITIONS: Final = frozenset({"Class", "Function"})


def symbols(snapshot: Snapshot, arguments: SymbolsArguments) -> Found:
    """What the entity's file defines, in order of lines.

    Raises ToolFailed where the entity is not known or stands in no file of code; so do the others here.
    """
    nodes = _file_of(snapshot, arguments.entity_id)
    found = [node for node in nodes if node.label in _DEFINITIONS]
    title = f"# {nodes[0].path}: {_counted(found, 'definition')}"
    amiss: Mapping[str, list[ParameterReport]] = _amiss(nodes) if arguments.parameters else {}
    rows = ((node.id, _symbol_line(node) + _parameters_of(node, amiss)) for node in found)
    return _listed(title, rows, len(found))


def _amiss(nodes: Sequence[Node]) -> Mapping[str, list[ParameterReport]]:
    """The reports on the parameters of a file's functions, by qualified name."""
    found = _supported(report_parameters(source_of_nodes(nodes), language=nodes[0].language))
    reports: defaultdict[str, list[ParameterReport]] = defaultdict(list)
    for report in found.reports:
        reports[report.qualname].append(report)
    return reports


def _parameters_of(node: Node, amiss: Mapping[str, list[ParameterReport]]) -> str:
    for report in amiss.get(node.property("qualname"), ()):
        if node.start_line <= report.line <= node.end_line:
            untyped = f" · untyped: {', '.join(report.untyped)}" if report.untyped else ""
            sure = "" if report.is_certain else " (or asked for by a base)"
            return untyped + (f" · unused: {', '.join(report.dead)}{sure}" if report.dead else "")
    return ""


def complexity(snapshot: Snapshot, arguments: ComplexityArguments) -> Found:
    """The functions of the entity, or of its file, from `at_least` on: the most complex first, then by id."""
    root = snapshot.nodes[find_entity(snapshot, arguments.entity_id)]
    functions = [node for node in _own(snapshot, root) if node.label == "Function"]
    measured = [(_complexity(node), node) for node in functions]
    found = sorted(
        ((value, node) for value, node in measured if value >= arguments.at_least),
        key=lambda item: (-item[0], item[1].id),
    )
    title = f"# {root.id}: {_counted(found, 'function')} of complexity {arguments.at_least} or more"
    rows = ((node.id, f"- {value}: {one_line(node.id)} (line {node.start_line})") for value, node in found)
    return _listed(title, rows, len(found))


def branches(snapshot: Snapshot, arguments: BranchesArguments) -> Found:
    """The branch points of a function, or of each function of a class, by number in source order."""
    root = snapshot.nodes[find_entity(snapshot, arguments.entity_id)]
    functions = [node for node in _own(snapshot, root) if node.label == "Function"]
    if root.label not in _DEFINITIONS or not functions:
        raise ToolFailed("not_supported", f"{root.label} {root.id} has no branches; name a function or class")
    pieces: list[Piece] = []
    is_capped = False
    for node in functions:
        found = _supported(read_branches_of(node))
        partly = ", partly parsed" if found.is_partly_parsed else ""
        lines = [heading(node, f"complexity {found.complexity}{partly}")]
        lines += [
            f"- {branch.label} L{branch.point.line} {branch.point.kind} `{one_line(branch.point.condition)}`"
            f" → L{branch.point.body_line}-{branch.point.end_line}"
            + (f", ends in {branch.point.leaves}" if branch.point.leaves else "")
            for branch in found.branches
        ]
        pieces.append(
            Piece(text="\n".join([*lines, *(() if found.branches else ["No branches."])]), node_id=node.id)
        )
        is_capped = is_capped or bool(found.more)
    return Found(pieces=tuple(pieces), is_capped=is_capped)


def refs(snapshot: Snapshot, arguments: RefsArguments) -> Found:
    """Who calls the entity and whom it calls; what is certain before what is guessed."""
    root = snapshot.nodes[find_entity(snapshot, arguments.entity_id)]
    found = call_neighbours(snapshot, root.ref)
    if found is None:
        raise ToolFailed("not_supported", f"{root.label} {root.id} neither calls nor is called")
    pieces = [Piece(text=heading(root), node_id=root.id)]
    for title, ends, more in (
        ("Callers", found.callers, found.more_callers),
        ("Callees", found.callees, found.more_callees),
    ):
        pieces.append(Piece(text=f"### {title}: {len(ends) + more}", is_line=True))
        pieces += (Piece(text=_ref_line(end), node_id=end.ref.id, is_line=True) for end in ends)
    return Found(pieces=tuple(pieces), is_capped=bool(found.more_callers or found.more_callees))


def skeleton(snapshot: Snapshot, arguments: SkeletonArguments) -> Found:
    """The entity, or its whole file, without bodies; or what a contract asks of that file."""
    root = snapshot.nodes[find_entity(snapshot, arguments.entity_id)]
    nodes = _file_of(snapshot, root.id)
    if arguments.contract is not None:
        asked = _supported(contract_skeleton(arguments.contract))
        title = heading(nodes[0], f"contract, {asked.definitions} definitions")
        unread = f"\nNot understood: {one_line(' | '.join(asked.unread))}" if asked.unread else ""
        return Found(
            pieces=(Piece(text=f"{title}\n{_code(asked.text, asked.language)}{unread}", node_id=nodes[0].id),)
        )
    qualname = root.property("qualname") if root.label in _DEFINITIONS else None
    found = _supported(skeleton_of_file(nodes, qualname=qualname))
    shown = root if qualname else nodes[0]
    partly = ", partly parsed" if found.is_partly_parsed else ""
    title = heading(shown, f"skeleton, {found.definitions} definitions{partly}")
    return Found(pieces=(Piece(text=f"{title}\n{_code(found.text, found.language)}", node_id=shown.id),))


def skeleton_diff(snapshot: Snapshot, arguments: SkeletonDiffArguments) -> Found:
    """Where `source` escapes from its contract, or else from the shape that its file has in the graph."""
    nodes = _file_of(snapshot, arguments.entity_id)
    if nodes[0].language != "python":
        raise ToolFailed("not_supported", "shapes are compared of Python alone")
    contract = arguments.contract
    expected: Shape = _supported(shape_of_file(nodes) if contract is None else contract_shape(contract))
    found = difference_of(expected, _supported(shape_of(arguments.source)))
    path = nodes[0].path
    title = f"# {path}: {_counted(found.escapes, 'structural escape')}"
    lines = [Piece(text=_escape_line(escape), is_line=True) for escape in found.escapes[:MAX_LISTED]]
    unjudged = (
        [f"Not judged, for one side cannot be read: {', '.join(found.unjudged)}"] if found.unjudged else []
    )
    return Found(
        pieces=(
            Piece(text=title, node_id=nodes[0].id, is_line=True),
            *lines,
            *(Piece(text=one_line(text)) for text in unjudged),
        ),
        is_capped=len(found.escapes) > MAX_LISTED,
    )


def branch_tests(snapshot: Snapshot, arguments: BranchTestsArguments) -> Found:
    """A pytest file with a test to be written for each branch of a function that nothing has run."""
    node = snapshot.nodes[find_entity(snapshot, arguments.entity_id)]
    found = _supported(scaffold_of(node, executed_lines=arguments.executed_lines))
    title = heading(node, f"{_counted(found.tests, 'test')} to write, {found.tested} branches tested")
    body = f"\nPut it at {found.path}\n{_code(found.text, 'python')}" if found.text else "\nNothing to test."
    return Found(pieces=(Piece(text=title + body, node_id=node.id),), is_capped=bool(found.more))


def trace_lint(snapshot: Snapshot, arguments: TraceLintArguments) -> Found:
    """The tags of the entity's file, or of `source` in its place, that dangle or are placeholders."""
    nodes = _file_of(snapshot, arguments.entity_id)
    text = source_of_nodes(nodes) if arguments.source is None else arguments.source
    whole = Node(
        label="Module",
        id=nodes[0].id,
        path=nodes[0].path,
        start_line=1,
        text=text,
        language=nodes[0].language,
    )
    found = lint([_supported(facts_of_text(whole))], status_of=trace_statuses(snapshot))
    rows = [
        Piece(
            text=f"- L{one.line} {one.kind}: {one_line(f'{one.tag} {one.requirement_id}')} in {one.owner_id}",
            is_line=True,
        )
        for one in found.findings
    ]
    tags = f"{found.checked} tag{'' if found.checked == 1 else 's'}"
    title = f"# {nodes[0].path}: {_counted(found.findings, 'finding')} in {tags}"
    unjudged = (
        [f"Not judged, for the project has no documents: {', '.join(found.unjudged)}"]
        if found.unjudged
        else []
    )
    return Found(
        pieces=(
            Piece(text=title, node_id=nodes[0].id, is_line=True),
            *rows,
            *(Piece(text=one_line(text)) for text in unjudged),
        ),
        is_capped=bool(found.more),
    )


# --- Parts -----------------------------------------------------------------------------------------------


def _file_of(snapshot: Snapshot, text: str) -> list[Node]:
    """The code nodes of the entity's file, the module among them; never empty."""
    root = snapshot.nodes[find_entity(snapshot, text)]
    nodes = nodes_of_file(snapshot, root.path)
    if not nodes:
        raise ToolFailed("not_supported", f"{root.label} {root.id} stands in no file of code")
    return sorted(nodes, key=lambda node: (node.label != "Module", node.start_line, node.id))


def _own(snapshot: Snapshot, root: Node) -> Iterable[Node]:
    """The definition with those inside it; of what is none, those of its file."""
    nodes = _file_of(snapshot, root.id)
    if root.label not in _DEFINITIONS:
        return nodes
    return [node for node in nodes if node.id == root.id or node.id.startswith(f"{root.id}.")]


def _supported(found: T | NotSupported) -> T:
    if isinstance(found, NotSupported):
        raise ToolFailed("not_supported", found.reason)
    return found


def _listed(title: str, rows: Iterable[tuple[str, str]], count: int) -> Found:
    lines = [Piece(text=text, node_id=node_id, is_line=True) for node_id, text in rows]
    return Found(pieces=(Piece(text=title, is_line=True), *lines[:MAX_LISTED]), is_capped=count > MAX_LISTED)


def _symbol_line(node: Node) -> str:
    lines = f"L{node.start_line}-{node.end_line}"
    measure = f", complexity {node.property('complexity')}" if node.property("complexity") else ""
    return f"- {lines} {node.label} {one_line(node.id)}{measure} `{one_line(node.signature)}`"


def _ref_line(end: Neighbour) -> str:
    guess = "" if end.resolution == "exact" else "perhaps "
    return f"- {guess}{end.ref.label} {one_line(end.ref.id)} ({end.place})"


def _escape_line(escape: Escape) -> str:
    names = " → ".join(dict.fromkeys(name for name in (escape.expected, escape.actual) if name))
    line = f" L{escape.line}" if escape.line else ""
    detail = f": {one_line(escape.detail)}" if escape.detail else ""
    return f"- {escape.kind}{line} {names}{detail}"


def _complexity(node: Node) -> int:
    value = node.property("complexity")
    return int(value) if value.isdecimal() else 0


def _code(text: str, language: str) -> str:
    return fenced(NodeText(depth=9, text=text.strip("\n"), language=language, is_fenced=True))


def _counted(items: Sequence[object], noun: str) -> str:
    return f"{len(items)} {noun}{'' if len(items) == 1 else 's'}"
