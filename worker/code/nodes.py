"""One parsed Python module as nodes of the graph, and what contains what among them.

A function has all its lines, those of definitions inside it included; a class and the module have what is
left of theirs outside the definitions in them. So the texts of a file add up to the file, and no line is paid
for twice. What is defined inside a function comes on top of that: a node of its own that says `is_local`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence

from worker.code.facts import MODULE_QUALNAME, Class, Definition, Function, ModuleFacts
from worker.graph.model import NO_SPAN, Edge, Node, NodeRef

LANGUAGE = "python"


def module_nodes(facts: ModuleFacts, text: str, *, language: str = LANGUAGE) -> tuple[list[Node], list[Edge]]:
    """The module's node, then its definitions in source order, and the DEFINES edges among them.

    `text` is the decoded source that `facts` were extracted from, its line ends newlines. O(lines).
    """
    lines = text.split("\n")
    if lines and not lines[-1]:
        lines.pop()
    inner = _inner_spans(facts)
    definitions = sorted(
        (*facts.functions, *facts.classes), key=lambda item: (item.start_line, -item.end_line, item.id)
    )
    kinds = {item.id: _label_ref(item) for item in definitions}
    kinds[facts.id] = module = NodeRef("Module", facts.id)
    nodes = [_module_node(facts, lines, inner[facts.id], language)]
    nodes += [_definition_node(facts.path, item, lines, inner[item.id], language) for item in definitions]
    edges = [Edge(kinds.get(item.scope_id, module), "DEFINES", kinds[item.id]) for item in definitions]
    return nodes, edges


def failed_module(facts: ModuleFacts) -> Node:
    """The node of a module that could not be parsed. `parse_error` is `<kind>`, or `<kind> at line <n>`."""
    problem = facts.parse_problem
    error = "" if problem is None else problem.kind + (f" at line {problem.line}" if problem.line else "")
    return Node(
        label="Module",
        id=facts.id,
        name=_module_name(facts.path),
        path=facts.path,
        start_line=1 if facts.line_count else 0,
        end_line=facts.line_count,
        language=LANGUAGE,
        properties=(("parse_error", error), ("qualname", MODULE_QUALNAME)),
    )


def _label_ref(item: Definition) -> NodeRef:
    return NodeRef("Class" if isinstance(item, Class) else "Function", item.id)


def _inner_spans(facts: ModuleFacts) -> defaultdict[str, list[tuple[int, int]]]:
    """First and last lines of the definitions directly inside each scope."""
    spans: defaultdict[str, list[tuple[int, int]]] = defaultdict(list)
    for item in (*facts.functions, *facts.classes):
        spans[item.scope_id].append((item.start_line, item.end_line))
    return spans


def _module_node(
    facts: ModuleFacts, lines: Sequence[str], inner: Iterable[tuple[int, int]], language: str
) -> Node:
    numbers = _own_lines(1, len(lines), inner)
    text, span = _text(numbers, lines, facts.docstring_lines)
    return Node(
        label="Module",
        id=facts.id,
        name=_module_name(facts.path),
        path=facts.path,
        start_line=1 if lines else 0,
        end_line=len(lines),
        text=text,
        docstring_span=span,
        language=language,
        properties=(("qualname", MODULE_QUALNAME),),
    )


def _definition_node(
    path: str, item: Definition, lines: Sequence[str], inner: Iterable[tuple[int, int]], language: str
) -> Node:
    properties = {"qualname": item.qualname}
    if "<locals>" in item.qualname:
        properties["is_local"] = "true"
    if item.class_id is not None:
        properties["class_id"] = item.class_id
    if isinstance(item, Function):
        properties["complexity"] = str(item.complexity)
        numbers: Sequence[int] = range(item.start_line, item.end_line + 1)
    else:
        numbers = _own_lines(item.start_line, item.end_line, inner)
    text, span = _text(numbers, lines, item.docstring_lines)
    return Node(
        label="Class" if isinstance(item, Class) else "Function",
        id=item.id,
        name=item.name,
        path=path,
        start_line=item.start_line,
        end_line=item.end_line,
        signature=item.signature,
        text=text,
        docstring_span=span,
        language=language,
        properties=tuple(sorted(properties.items())),
    )


def _own_lines(first: int, last: int, inner: Iterable[tuple[int, int]]) -> list[int]:
    """The numbers of the lines from `first` to `last` that stand in none of the spans."""
    numbers: list[int] = []
    for start, end in sorted(inner):
        numbers += range(first, start)
        first = max(first, end + 1)
    return [*numbers, *range(first, last + 1)]


def _text(
    numbers: Sequence[int], lines: Sequence[str], docstring_lines: tuple[int, int]
) -> tuple[str, tuple[int, int]]:
    """Those lines, and where among them the docstring's are, if it has its lines to itself."""
    chosen = [lines[number - 1] for number in numbers]
    text = "\n".join(chosen) + "\n" if chosen else ""
    first, last = docstring_lines
    if not first or not _begins_line(lines[first - 1]):
        return text, NO_SPAN
    before = sum(len(line) + 1 for number, line in zip(numbers, chosen, strict=True) if number < first)
    inside = sum(
        len(line) + 1 for number, line in zip(numbers, chosen, strict=True) if first <= number <= last
    )
    return text, (before, before + inside)


def _begins_line(line: str) -> bool:
    """Whether the docstring is the first thing on its line, whatever its prefix."""
    return line.lstrip().lstrip("rRuUbBfF")[:1] in {'"', "'"}


def _module_name(path: str) -> str:
    """The last part of a module's name; of a package its folder's."""
    parts = path.removesuffix(".pyi").removesuffix(".pyw").removesuffix(".py").split("/")
    return parts[-2] if parts[-1] == "__init__" and len(parts) > 1 else parts[-1]
