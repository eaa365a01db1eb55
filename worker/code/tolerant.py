"""Source to facts where a strict parser has nothing to say: other languages, and Python that does not parse.

The facts have the shape of any module's, so everything after reads them alike. What they leave open: nothing
says which names are bound where, so no name in them is beyond doubt, and links made from them are guesses.
A syntax error costs what stands at the error and no more: the grammars go on after it.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

from tree_sitter import Node

from worker.code.facts import (
    MAX_DOCSTRING_CHARS,
    MODULE_QUALNAME,
    BranchPoint,
    Call,
    Class,
    DefinitionFields,
    Function,
    Import,
    ModuleFacts,
    ParseProblem,
    Trace,
)
from worker.code.grammars import PYTHON, Grammar, parser_for
from worker.code.loose_branches import read_branches
from worker.code.recovering import Header, Piece, cut
from worker.code.segments import first_line, fold, shorten
from worker.code.traces import may_hold_tags, read_placeholders, read_tags

MAX_SIGNATURE_CHARS: Final = 500
_PLAIN_NAME: Final = re.compile(r"[\w$]+(?:(?:\.|::)[\w$]+)*")
_LAST_NAME: Final = re.compile(r"[\w$]+\Z")
_QUOTED: Final = re.compile(r"[\"'`]([^\"'`\n]+)[\"'`]")
_COMMENT_MARKS: Final = re.compile(
    r"^[ \t]*(?://[/!]*|/\*[*!]?|\*/?|#+!?)[ \t]?|[ \t]*\*/[ \t]*$", re.MULTILINE
)


def extract_tolerant(
    path: str, text: str, grammar: Grammar, *, problem: ParseProblem | None = None
) -> ModuleFacts:
    """The facts of the module, as far as they can be read. Gives a result for any text. O(n).

    `text` has newlines as line ends. `problem` is why the strict parser refused; without one, the first
    syntax error that was met.
    """
    content = text.encode("utf-8", "surrogatepass")
    root = parser_for(grammar).parse(content).root_node
    reading = _Reading(grammar, content)
    if grammar is PYTHON and root.has_error:
        _read_pieces(reading, cut(text, content), reading.module)
    else:
        reading.read(root, reading.module)
    if problem is None and root.has_error:
        problem = ParseProblem("syntax", _first_error_line(root))
    return _facts(path, text, reading, problem)


@dataclass(slots=True, eq=False)
class _Item:
    """A definition, or what stands around all of them, while it is being read."""

    name: str
    qualname: str
    parent: _Item | None
    is_class: bool = False
    is_definition: bool = True
    """False for the module, and for what only holds members of something defined elsewhere."""
    start_line: int = 1
    line: int = 1
    column: int = 0
    end_line: int = 0
    signature: str = ""
    decorators: tuple[str, ...] = ()
    bases: tuple[str, ...] = ()
    docstring: str = ""
    docstring_lines: tuple[int, int] = (0, 0)
    complexity: int = 1
    is_async: bool = False
    branches: list[BranchPoint] = field(default_factory=list[BranchPoint])
    calls: list[Call] = field(default_factory=list[Call])
    imports: list[tuple[str, str, str | None, int]] = field(
        default_factory=list[tuple[str, str, str | None, int]]
    )
    traces: list[Trace] = field(default_factory=list[Trace])


class _Reading:
    """One walk over one tree."""

    def __init__(self, grammar: Grammar, content: bytes) -> None:
        self._grammar = grammar
        self._content = content
        self.module = _Item(MODULE_QUALNAME, MODULE_QUALNAME, None, is_definition=False)
        self.items: list[_Item] = []
        self.comments: list[tuple[int, int, str]] = []
        """First line, last line, text with its marks; those below one another are one."""
        self._taken: set[tuple[int, int, str]] = set()
        """Those that document a definition: of several on one line, the outermost."""

    def read(self, root: Node, scope: _Item) -> None:
        """Meet every node once, in source order; no nesting is too deep."""
        stack: list[tuple[Node, _Item]] = [(root, scope)]
        while stack:
            node, item = stack.pop()
            kind = node.type
            if kind in self._grammar.comments:
                self._on_comment(node)
                continue
            item = self._scope(node, item)
            if kind in self._grammar.calls:
                self._on_call(node, item)
            elif kind == "decorator":
                self._on_decorator(node, item)
            elif kind in self._grammar.imports:
                self._on_import(node, item)
            elif kind in self._grammar.decisions:
                item.complexity += 1
            item.branches += read_branches(node)
            stack += [(child, item) for child in reversed(node.children)]

    def define_unread(self, header: Header, scope: _Item) -> _Item:
        """A definition whose first line is all that is sure of it."""
        item = _Item(
            name=header.name,
            qualname=self._qualname(header.name, scope),
            parent=scope,
            is_class=header.is_class,
            start_line=header.first + 1,
            line=header.line + 1,
            column=header.column,
            end_line=header.line + 1,
            signature=shorten(fold(header.text).rstrip("{:= "), max_chars=MAX_SIGNATURE_CHARS),
            is_async=header.text.startswith("async"),
        )
        self.items.append(item)
        return item

    # --- Definitions -----------------------------------------------------------------------------

    def _scope(self, node: Node, item: _Item) -> _Item:
        """The scope of what stands inside the node."""
        grammar, kind = self._grammar, node.type
        if kind in grammar.holders:
            held = _base_name(self._text(node.child_by_field_name(grammar.holders[kind])))
            return _Item(held, self._qualname(held, item), item, is_class=True, is_definition=False)
        is_class = kind in grammar.classes
        # Keywords are nodes, too, and some are spelled like a kind.
        if not node.is_named or not (is_class or kind in grammar.functions):
            return item
        name, outer = self._name(node)
        if not name:
            return item
        parent = item
        if receiver := node.child_by_field_name("receiver"):
            held = _base_name(self._text(receiver).strip("()").split()[-1])
            parent = _Item(held, self._qualname(held, item), item, is_class=True, is_definition=False)
        found = self._define(node, self._outermost(outer), name, parent, is_class=is_class)
        self.items.append(found)
        return found

    def _define(self, node: Node, outer: Node, name: str, parent: _Item, *, is_class: bool) -> _Item:
        body = node.child_by_field_name("body")
        signature_end = body.start_byte if body is not None else node.end_byte
        signature = fold(self._content[outer.start_byte : signature_end].decode("utf-8", "replace"))
        item = _Item(
            name=name,
            qualname=self._qualname(name, parent),
            parent=parent,
            is_class=is_class,
            start_line=outer.start_point.row + 1,
            line=node.start_point.row + 1,
            column=outer.start_point.column,
            end_line=_last_line(outer),
            signature=shorten(signature.rstrip("{:= "), max_chars=MAX_SIGNATURE_CHARS),
            decorators=tuple(
                fold(self._text(child)).lstrip("@") for child in outer.children if child.type == "decorator"
            ),
            bases=tuple(self._bases(node)) if is_class else (),
            is_async=any(child.type == "async" for child in node.children),
        )
        if self._grammar.has_leading_docs:
            self._take_leading_comment(item)
        elif body is not None:
            self._take_docstring(item, body)
        return item

    def _qualname(self, name: str, parent: _Item) -> str:
        if parent.parent is None:
            return name
        inside = "" if parent.is_class else "<locals>."
        return f"{parent.qualname}.{inside}{name}"

    def _name(self, node: Node) -> tuple[str, Node]:
        """The name, and the node whose lines the definition's are; empty for a function nobody named."""
        own = node.child_by_field_name("name")
        if own is not None:
            return self._text(own), node
        parent = node.parent
        for name_field in ("name", "left", "property", "key"):
            named = parent.child_by_field_name(name_field) if parent is not None else None
            if parent is not None and named is not None and named != node:
                match = _LAST_NAME.search(self._text(named))
                return (match[0] if match else ""), parent
        return "", node

    def _outermost(self, node: Node) -> Node:
        """The node with what stands in front of the definition on its behalf."""
        parent = node.parent
        while parent is not None and parent.type in self._grammar.wrappers:
            # `const f = …, g = …` wraps two definitions, so it is neither's.
            if sum(child.is_named and child.type == node.type for child in parent.children) > 1:
                break
            node, parent = parent, parent.parent
        return node

    def _bases(self, node: Node) -> Iterator[str]:
        for child in node.children:
            if child.type in self._grammar.bases:
                text = re.sub(r"<[^<>]*>|\b(?:extends|implements)\b", ",", self._text(child))
                for part in text.strip("()").split(","):
                    if _PLAIN_NAME.fullmatch(part.strip()):
                        yield part.strip()

    # --- Documentation ---------------------------------------------------------------------------

    def _take_leading_comment(self, item: _Item) -> None:
        if (
            self.comments
            and self.comments[-1][1] == item.start_line - 1
            and self.comments[-1] not in self._taken
        ):
            first, last, text = self.comments[-1]
            self._taken.add(self.comments[-1])
            item.start_line = first
            item.docstring, item.docstring_lines = _without_marks(text), (first, last)

    def _take_docstring(self, item: _Item, body: Node) -> None:
        first = next((child for child in body.children if child.type not in self._grammar.comments), None)
        if first is None or first.type != "expression_statement" or first.child_count != 1:
            return
        string = first.children[0]
        if string.type == "string":
            text = "".join(self._text(part) for part in string.children if part.type == "string_content")
            item.docstring = text
            item.docstring_lines = (string.start_point.row + 1, _last_line(string))

    def _on_comment(self, node: Node) -> None:
        first, last, text = node.start_point.row + 1, _last_line(node), self._text(node)
        before = self._content[: node.start_byte].rpartition(b"\n")[2]
        if self.comments and not before.strip() and self.comments[-1][1] == first - 1:
            above = self.comments.pop()
            first, text = above[0], f"{above[2].rstrip()}\n{text}"
        self.comments.append((first, last, text.rstrip("\n")))

    # --- What is inside --------------------------------------------------------------------------

    def _on_call(self, node: Node, item: _Item) -> None:
        named = node.child_by_field_name(self._grammar.calls[node.type])
        if named is None:
            return
        name = self._text(named)
        if owner := node.child_by_field_name("object"):
            name = f"{self._text(owner)}.{name}"
        self._add_call(name, named, item)

    def _on_decorator(self, node: Node, item: _Item) -> None:
        """What stands without brackets is called with the definition; a call is met as one."""
        for child in node.named_children:
            if child.type not in self._grammar.comments and child.type not in self._grammar.calls:
                self._add_call(self._text(child), child, item)

    def _add_call(self, name: str, named: Node, item: _Item) -> None:
        name = re.sub(r"<[^<>]*>", "", name)
        if not _PLAIN_NAME.fullmatch(name):
            last = _LAST_NAME.search(name)
            name = f"?.{last[0]}" if last else ""
        if name:
            item.calls.append(Call(name, named.end_point.row + 1))

    def _on_import(self, node: Node, item: _Item) -> None:
        line = node.start_point.row + 1
        for local_name, module, name in _imported(node, fold(self._text(node))):
            item.imports.append((local_name, module, name, line))

    def _text(self, node: Node | None) -> str:
        if node is None:
            return ""
        return self._content[node.start_byte : node.end_byte].decode("utf-8", "replace")


def _read_pieces(reading: _Reading, piece: Piece, scope: _Item) -> None:
    """Each piece with what is around it as its scope; a definition that the grammar missed, by its line."""
    header = piece.header
    if header is None:
        reading.read(piece.root, scope)
    else:
        begins = len(reading.items)
        if _holds(piece.root, header):
            reading.read(piece.root, scope)
            scope = next(item for item in reading.items[begins:] if _is_of(item, header))
        else:
            scope = reading.define_unread(header, scope)
            reading.read(piece.root, scope)
        if piece.root.has_error or piece.inner:
            scope.end_line = piece.end
            scope.start_line = piece.first + 1
    for inner in piece.inner:
        _read_pieces(reading, inner, scope)


def _is_of(item: _Item, header: Header) -> bool:
    return item.line == header.line + 1 and item.name == header.name and item.is_class == header.is_class


def _holds(root: Node, header: Header) -> bool:
    """Whether the grammar saw the definition for what it is."""
    kinds = PYTHON.classes if header.is_class else PYTHON.functions
    stack = [root]
    while stack:
        node = stack.pop()
        if node.is_named and node.type in kinds and node.start_point.row == header.line:
            name = node.child_by_field_name("name")
            return name is not None and name.text == header.name.encode()
        stack += [child for child in node.children if child.start_point.row <= header.line]
    return False


# --- Imports -----------------------------------------------------------------------------------------

_FROM_IMPORT: Final = re.compile(r"from (?P<module>[.\w]+) import \(?(?P<names>[^()]*)\)?")
_PATH_IMPORT: Final = re.compile(r"(?:import(?: static)?|use|pub use|pub\([\w ]+\) use) (?P<path>[^;]+);?")


def _imported(node: Node, text: str) -> Iterator[tuple[str, str, str | None]]:
    """Local name, module and name within it, for each thing that an import statement brings."""
    quoted = _QUOTED.search(text)
    if quoted is not None:
        yield from _quoted_import(text, quoted)
    elif match := _FROM_IMPORT.match(text):
        for local_name, name in _aliases(match["names"], separator=" as "):
            yield local_name, match["module"], name
    elif node.type == "import_statement":
        for local_name, module in _aliases(text.removeprefix("import "), separator=" as "):
            yield local_name, module, None
    elif match := _PATH_IMPORT.match(text):
        for path in _paths(match["path"]):
            module, _, name = path.replace("::", ".").rpartition(".")
            local_name = name.rpartition(" as ")[2].strip()
            yield local_name, module, name.partition(" as ")[0].strip()


def _quoted_import(text: str, quoted: re.Match[str]) -> Iterator[tuple[str, str, str | None]]:
    module = quoted[1]
    before = text[: quoted.start()].removeprefix("import").removesuffix("from ").strip()
    braces = re.search(r"\{([^{}]*)\}", before)
    if braces is not None:
        for local_name, name in _aliases(braces[1], separator=" as "):
            yield local_name, module, name
        before = before[: braces.start()].strip().rstrip(",")
    default = before.removeprefix("type ").removeprefix("* as ").strip()
    if default or braces is None:
        yield default or module.rpartition("/")[2], module, None


def _aliases(names: str, *, separator: str) -> Iterator[tuple[str, str]]:
    for part in names.split(","):
        name, _, alias = part.strip().partition(separator)
        name = name.strip().removeprefix("type ")
        if name:
            yield alias.strip() or name, name


def _paths(path: str) -> Iterator[str]:
    """`a::{b, c::d}` as `a::b` and `a::c::d`; deeper braces are left as they are."""
    head, brace, rest = path.partition("{")
    if not brace:
        yield path.strip()
        return
    for part in rest.rstrip("} ").split(","):
        if part.strip():
            yield head.strip() + part.strip().lstrip("{").rstrip("}")


# --- Facts -------------------------------------------------------------------------------------------


def _facts(path: str, text: str, reading: _Reading, problem: ParseProblem | None) -> ModuleFacts:
    items = sorted(reading.items, key=lambda item: (item.start_line, item.column, -item.end_line))
    ids = _ids(path, items)
    classes = {item.qualname: ids[item] for item in reversed(items) if item.is_class}
    if may_hold_tags(text):
        _bind_traces(reading, items)
    functions: list[Function] = []
    classes_found: list[Class] = []
    for item in items:
        common = _common(item, ids, classes, module_id=ids[None])
        if item.is_class:
            classes_found.append(Class(**common, bases=item.bases))
        else:
            functions.append(
                Function(
                    **common,
                    is_async=item.is_async,
                    complexity=item.complexity,
                    branch_points=tuple(sorted(item.branches, key=lambda point: point.line)),
                )
            )
    imports = [
        Import(ids.get(item, ids[None]), local_name, module, name, _level(module), line)
        for item in (reading.module, *items)
        for local_name, module, name, line in item.imports
    ]
    return ModuleFacts(
        path=path,
        line_count=text.count("\n") + (bool(text) and not text.endswith("\n")),
        parse_problem=problem,
        functions=tuple(functions),
        classes=tuple(classes_found),
        imports=tuple(imports),
        calls=tuple(reading.module.calls),
        traces=_once(reading.module.traces),
        placeholders=_placeholders(reading, items) if may_hold_tags(text) else (),
    )


def _ids(path: str, items: Sequence[_Item]) -> dict[_Item | None, str]:
    """By item; under None the module's."""
    ids: dict[_Item | None, str] = {None: f"{path}::{MODULE_QUALNAME}"}
    seen = Counter[str]()
    for item in items:
        seen[item.qualname] += 1
        number = seen[item.qualname]
        ids[item] = f"{path}::{item.qualname}" + (f"#{number}" if number > 1 else "")
    return ids


def _common(
    item: _Item, ids: dict[_Item | None, str], classes: dict[str, str], *, module_id: str
) -> DefinitionFields:
    scope, parent = module_id, item.parent
    if parent is not None and parent.parent is not None:
        scope = ids[parent] if parent.is_definition else classes.get(parent.qualname, module_id)
    in_class = parent is not None and parent.is_class and scope != module_id
    return {
        "id": ids[item],
        "qualname": item.qualname,
        "name": item.name,
        "scope_id": scope,
        "class_id": scope if in_class else None,
        "signature": item.signature,
        "decorators": item.decorators,
        "start_line": item.start_line,
        "line": item.line,
        "end_line": item.end_line,
        "is_public": not item.name.startswith(("_", "#")) and "<locals>" not in item.qualname,
        "docstring_head": shorten(first_line(item.docstring), max_chars=MAX_DOCSTRING_CHARS),
        "docstring_lines": item.docstring_lines,
        "calls": tuple(item.calls),
        "bound_names": frozenset(),
        "traces": _once(item.traces),
    }


def _bind_traces(reading: _Reading, items: Sequence[_Item]) -> None:
    """Give each tag in a comment or docstring to the definition below it, else to the innermost around it."""
    for item in items:
        if item.docstring and item.docstring_lines[0] >= item.line:
            item.traces += [t for t, _ in read_tags(item.docstring, item.docstring_lines[0], column=0)]
    by_line = {item.start_line: item for item in reversed(items)}
    for first, last, text in reading.comments:
        traces = list(read_tags(_without_marks(text), first))
        if not traces:
            continue
        owner = by_line.get(last + 1) or _innermost(items, first) or reading.module
        for trace, is_of_file in traces:
            (reading.module if is_of_file else owner).traces.append(trace)


def _placeholders(reading: _Reading, items: Sequence[_Item]) -> tuple[Trace, ...]:
    found: list[Trace] = []
    for item in items:
        if item.docstring and item.docstring_lines[0] >= item.line:
            found += read_placeholders(item.docstring, item.docstring_lines[0], column=0)
    for first, _, text in reading.comments:
        found += read_placeholders(_without_marks(text), first)
    return tuple(sorted(found, key=lambda trace: trace.line))


def _innermost(items: Sequence[_Item], line: int) -> _Item | None:
    around = [item for item in items if item.start_line <= line <= item.end_line]
    return min(around, key=lambda item: item.end_line - item.start_line, default=None)


def _once(traces: Sequence[Trace]) -> tuple[Trace, ...]:
    found: dict[str, Trace] = {}
    for trace in sorted(traces, key=lambda trace: trace.line):
        found.setdefault(trace.requirement_id, trace)
    return tuple(found.values())


def _without_marks(comment: str) -> str:
    return _COMMENT_MARKS.sub("", comment)


def _base_name(text: str) -> str:
    """`*Store[T]` and `Store<T>` as `Store`."""
    return re.split(r"[\[<]", text.lstrip("*&"), maxsplit=1)[0].strip()


def _level(module: str) -> int:
    """How many packages up a relative import starts, as Python writes it."""
    return len(module) - len(module.lstrip(".")) if "/" not in module else 0


def _last_line(node: Node) -> int:
    """The last line that the node has a character on: some grammars take the line break with them."""
    row, column = node.end_point.row, node.end_point.column
    return row if column == 0 and row > node.start_point.row else row + 1


def _first_error_line(root: Node) -> int:
    stack = [root]
    while stack:
        node = stack.pop()
        if node.is_error or node.is_missing:
            return node.start_point.row + 1
        stack += [child for child in reversed(node.children) if child.has_error or child.is_missing]
    return 0
