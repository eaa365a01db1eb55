"""Skeletons: what a module or class offers, without how it does it; of Python again valid Python.

Kept are definitions with decorators, signatures and the first line of their docstrings, fields of classes,
and public names of the module; every body and value is `...`. What stands under conditions is lifted out.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from worker.code.branches import NotSupported
from worker.code.facts import MODULE_QUALNAME, Class, Function, ModuleFacts, ParseProblem
from worker.code.grammars import GRAMMAR_OF, PYTHON
from worker.code.parsing import Source, parse
from worker.code.scopes import DefinitionNode
from worker.code.segments import first_line, shorten
from worker.code.tolerant import extract_tolerant

MAX_DOCSTRING_CHARS: Final = 200
MAX_DEFAULT_CHARS: Final = 60
MAX_ANNOTATION_CHARS: Final = 600
"""Longer ones are `...`, which keeps the text valid and its cost in bounds."""

_INDENT: Final = "    "
_HEAD: Final = re.compile(r"(?:\basync\s+)?\b(?:def|class)\s.*", re.DOTALL)


@dataclass(frozen=True, slots=True, kw_only=True)
class Skeleton:
    """A skeleton as text."""

    text: str
    """Ends with a newline, unless it is empty."""
    language: str
    definitions: int
    is_partly_parsed: bool = False
    """Whether the source has syntax errors; what stands at them may be missing."""
    unread: tuple[str, ...] = ()
    """Qualified names of definitions whose heads could not be read; a comment stands in their place."""


def skeleton(text: str, *, language: str = "python", qualname: str | None = None) -> Skeleton | NotSupported:
    """The skeleton of a source, or of the first definition in it with that qualified name. O(n).

    Of Python it parses, whatever the source is: one with syntax errors is read by the tolerant reader. Of
    other languages it is an outline, signatures below one another, which no compiler takes.
    """
    if language != "python":
        return _outline(text, language, qualname)
    source = parse(text.encode("utf-8", "surrogatepass"))
    if isinstance(source, ParseProblem):
        facts = extract_tolerant("", text, PYTHON, problem=source)
        return _tolerant_skeleton(facts, qualname)
    found: DefinitionNode | None = None
    if qualname is not None and qualname != MODULE_QUALNAME:
        found = find_definition(source.body, qualname)
        if found is None:
            return NotSupported(f"no definition {qualname} that can be reached from outside")
    try:
        return _written(_Writer(source), found)
    except (ValueError, RecursionError):
        # Some f-strings cannot be written back with the quotes there are, and some trees are too deep.
        return _written(_Writer(source, is_careful=True), found)


def _written(writer: _Writer, found: DefinitionNode | None) -> Skeleton:
    body = writer.module() if found is None else [writer.definition(found)]
    return Skeleton(text=_unparse(body), language="python", definitions=writer.definitions)


def skeleton_tree(source: Source, *, is_careful: bool = False) -> list[ast.stmt]:
    """The statements that a module's skeleton is written from, without positions. O(n).

    A careful one leaves out what cannot be written back as source, which takes twice as long to find.
    """
    return _Writer(source, is_careful=is_careful).module()


def definitions_in(body: Iterable[ast.stmt]) -> Iterator[ast.stmt]:
    """The statements of a body in source order, those under conditions too, but none inside definitions."""
    stack = [*body][::-1]
    while stack:
        statement = stack.pop()
        yield statement
        if not isinstance(statement, DefinitionNode):
            inner = [child for part in _bodies(statement) for child in part]
            stack += inner[::-1]


def find_definition(body: Iterable[ast.stmt], qualname: str) -> DefinitionNode | None:
    """The first definition of that qualified name; what stands inside functions cannot be found. O(n)."""
    found: DefinitionNode | None = None
    for name in qualname.partition("#")[0].split("."):
        if found is not None:
            body = found.body if isinstance(found, ast.ClassDef) else ()
        found = next(
            (item for item in definitions_in(body) if isinstance(item, DefinitionNode) and item.name == name),
            None,
        )
        if found is None:
            return None
    return found


def _bodies(statement: ast.stmt) -> Iterator[Sequence[ast.stmt]]:
    match statement:
        case ast.If() | ast.For() | ast.AsyncFor() | ast.While():
            yield statement.body
            yield statement.orelse
        case ast.Try() | ast.TryStar():
            yield statement.body
            for handler in statement.handlers:
                yield handler.body
            yield statement.orelse
            yield statement.finalbody
        case ast.With() | ast.AsyncWith():
            yield statement.body
        case ast.Match():
            for case in statement.cases:
                yield case.body
        case _:
            return


class _Writer:
    """Makes trees that hold no more than a skeleton does."""

    def __init__(self, source: Source, *, is_careful: bool = False) -> None:
        """A careful one tries every expression that it keeps, which takes twice as long."""
        self._source = source
        self._lines = source.lines
        self._is_careful = is_careful
        self.definitions = 0

    def module(self) -> list[ast.stmt]:
        """All that is shown of the module."""
        return [*self.docstring(self._source.body), *self.body(self._source.body, in_class=False)]

    def body(self, statements: Iterable[ast.stmt], *, in_class: bool) -> Iterator[ast.stmt]:
        """What of a body is shown."""
        for statement in definitions_in(statements):
            if isinstance(statement, DefinitionNode):
                yield self.definition(statement)
            else:
                yield from self._names(statement, in_class=in_class)

    def definition(self, node: DefinitionNode) -> ast.stmt:
        """The definition with nothing in it but what is shown."""
        self.definitions += 1
        decorators = [self._short(item, MAX_ANNOTATION_CHARS, call=True) for item in node.decorator_list]
        inside = self.docstring(node.body)
        if isinstance(node, ast.ClassDef):
            inside += self.body(node.body, in_class=True)
            return ast.ClassDef(
                name=node.name,
                bases=[self._short(base, MAX_ANNOTATION_CHARS) for base in node.bases],
                keywords=[
                    ast.keyword(arg=item.arg, value=self._short(item.value, MAX_DEFAULT_CHARS))
                    for item in node.keywords
                ],
                body=inside or [_rest()],
                decorator_list=decorators,
            )
        made = ast.FunctionDef if isinstance(node, ast.FunctionDef) else ast.AsyncFunctionDef
        return made(
            name=node.name,
            args=self._arguments(node.args),
            body=[*inside, _rest()],
            decorator_list=decorators,
            returns=None if node.returns is None else self._short(node.returns, MAX_ANNOTATION_CHARS),
            type_comment=None,
            lineno=0,
        )

    @staticmethod
    def docstring(body: Sequence[ast.stmt]) -> list[ast.stmt]:
        """The first line of the docstring that a body begins with; nothing where there is none."""
        match body:
            case [ast.Expr(value=ast.Constant(value=str(text))), *_]:
                head = shorten(first_line(text), max_chars=MAX_DOCSTRING_CHARS)
                return [ast.Expr(ast.Constant(head.encode("utf-8", "replace").decode()))]
            case _:
                return []

    def _names(self, statement: ast.stmt, *, in_class: bool) -> Iterator[ast.stmt]:
        """Fields of a class and public names of a module, without their values."""
        match statement:
            case ast.AnnAssign(target=ast.Name(id=name) as target, annotation=annotation, value=value):
                if in_class or not name.startswith("_"):
                    kept = self._short(annotation, MAX_ANNOTATION_CHARS)
                    yield ast.AnnAssign(target, kept, None if value is None else _ellipsis(), simple=1)
            case ast.Assign(targets=targets):
                names = [item for item in targets if isinstance(item, ast.Name)]
                if shown := [item for item in names if in_class or not item.id.startswith("_")]:
                    yield ast.Assign(targets=list[ast.expr](shown), value=_ellipsis(), lineno=0)
            case _:
                return

    def _arguments(self, args: ast.arguments) -> ast.arguments:
        return ast.arguments(
            posonlyargs=[self._argument(arg) for arg in args.posonlyargs],
            args=[self._argument(arg) for arg in args.args],
            vararg=None if args.vararg is None else self._argument(args.vararg),
            kwonlyargs=[self._argument(arg) for arg in args.kwonlyargs],
            kw_defaults=[
                None if value is None else self._short(value, MAX_DEFAULT_CHARS) for value in args.kw_defaults
            ],
            kwarg=None if args.kwarg is None else self._argument(args.kwarg),
            defaults=[self._short(value, MAX_DEFAULT_CHARS) for value in args.defaults],
        )

    def _argument(self, arg: ast.arg) -> ast.arg:
        annotation = None if arg.annotation is None else self._short(arg.annotation, MAX_ANNOTATION_CHARS)
        return ast.arg(arg=arg.arg, annotation=annotation)

    def _short(self, node: ast.expr, max_chars: int, *, call: bool = False) -> ast.expr:
        """The expression, or `...` where it is long; of a long call what is called, with `...`."""
        if self._size(node) <= max_chars and (not self._is_careful or _can_be_written(node)):
            return node
        if call and isinstance(node, ast.Call) and self._size(node.func) <= max_chars:
            return ast.Call(func=node.func, args=[_ellipsis()], keywords=[])
        return _ellipsis()

    def _size(self, node: ast.expr) -> int:
        """Characters, roughly; more than any cap where it is over very many lines."""
        first, last = node.lineno, node.end_lineno or node.lineno
        if first == last:
            return (node.end_col_offset or 0) - node.col_offset
        if last - first > MAX_ANNOTATION_CHARS:
            return MAX_ANNOTATION_CHARS + 1
        return sum(len(line.strip()) for line in self._lines[first - 1 : last])


def _can_be_written(node: ast.expr) -> bool:
    try:
        ast.unparse(node)
    except (ValueError, RecursionError):
        return False
    return True


def _rest() -> ast.stmt:
    return ast.Expr(_ellipsis())


def _ellipsis() -> ast.expr:
    return ast.Constant(...)


def _unparse(body: list[ast.stmt]) -> str:
    # Writing asks for lines where a comment may say a type; these nodes have one, and others need none.
    text = ast.unparse(ast.Module(body=body, type_ignores=[]))
    return f"{text}\n" if text else ""


# --- Without a parser that is strict -----------------------------------------------------------------


def _tolerant_skeleton(facts: ModuleFacts, qualname: str | None) -> Skeleton | NotSupported:
    wanted, levels = _shown(facts, qualname)
    if qualname is not None and not wanted:
        return NotSupported(f"no definition {qualname} that can be read")
    lines: list[str] = []
    unread: list[str] = []
    holders = {item.scope_id for item in wanted}
    for item in wanted:
        indent = _INDENT * levels[item.id]
        is_empty = item.id not in holders
        head = _readable_head(item)
        if head is None:
            unread.append(item.qualname)
            name = shorten(item.signature, max_chars=MAX_DEFAULT_CHARS)
            lines.append(f"{indent}# not readable: {name}")
            if not isinstance(item, Class):
                continue
            head = f"class {item.name}:"
        lines += [f"{indent}@{name}" for name in item.decorators if _parses(f"@{name}\ndef f(): ...")]
        lines.append(f"{indent}{head}")
        if item.docstring_head:
            lines.append(f"{indent}{_INDENT}{_quoted(item.docstring_head)}")
        if is_empty or not isinstance(item, Class) or not item.docstring_head:
            lines.append(f"{indent}{_INDENT}...")
    return Skeleton(
        text="".join(f"{line}\n" for line in lines),
        language="python",
        definitions=len(wanted),
        is_partly_parsed=True,
        unread=tuple(unread),
    )


def _shown(facts: ModuleFacts, qualname: str | None) -> tuple[list[Function | Class], dict[str, int]]:
    """The definitions that are no function's own, in source order, and how deep each stands."""
    items = sorted((*facts.functions, *facts.classes), key=lambda i: (i.start_line, -i.end_line, i.id))
    inside = "" if qualname in {None, MODULE_QUALNAME} else f"{qualname}"
    shown = [
        item
        for item in items
        if "<locals>" not in item.qualname
        and (not inside or item.qualname == inside or item.qualname.startswith(f"{inside}."))
    ]
    levels: dict[str, int] = {}
    for item in shown:
        levels[item.id] = levels.get(item.scope_id, -1) + 1
    return shown, levels


def _readable_head(item: Function | Class) -> str | None:
    found = _HEAD.search(item.signature)
    heads = (found[0], found[0].partition("#")[0]) if found else ()
    written = (f"{head.rstrip(': ')}:" for head in heads)
    return next((head for head in written if _parses(f"{head} ...")), None)


def _parses(text: str) -> bool:
    return isinstance(parse(text.encode("utf-8", "surrogatepass")), Source)


def _quoted(text: str) -> str:
    return repr(text.encode("utf-8", "replace").decode())


def _outline(text: str, language: str, qualname: str | None) -> Skeleton | NotSupported:
    grammar = GRAMMAR_OF.get(language)
    if grammar is None:
        return NotSupported(f"no parser for {language or 'a file without a known language'}")
    facts = extract_tolerant("", text, grammar)
    shown, levels = _shown(facts, qualname)
    if qualname is not None and not shown:
        return NotSupported(f"no definition {qualname} that can be read")
    return Skeleton(
        text="".join(f"{_INDENT * levels[item.id]}{item.signature}\n" for item in shown),
        language=language,
        definitions=len(shown),
        is_partly_parsed=facts.parse_problem is not None,
    )
