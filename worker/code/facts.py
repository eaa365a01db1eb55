"""What one module's source says, as plain values: the one shape that prompts and indexes are built from.

Ids are `<relpath>::<qualname>`, with Python's own qualified names (`Class.method`, `outer.<locals>.inner`)
and `<module>` for the module. The second definition of a qualified name gets `#2`, in source order, and so
on. Every tuple is in source order. Names of calls and bases are written as in the source, with `()` and
`[]` for what stands between brackets; nothing is resolved here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal, TypedDict

MODULE_QUALNAME: Final = "<module>"
MAX_DOCSTRING_CHARS: Final = 200
"""Of a docstring's head."""

ProblemKind = Literal["encoding", "nul_byte", "syntax", "too_complex"]
Leaving = Literal["", "return", "raise", "continue", "break"]
BranchKind = Literal[
    "if", "elif", "else", "for", "while", "except", "case", "ternary", "comprehension if", "assert"
]


@dataclass(frozen=True, slots=True)
class ParseProblem:
    """Why a module has no facts. `line` is 0 where the problem is the file's as a whole."""

    kind: ProblemKind
    line: int


@dataclass(frozen=True, slots=True)
class Call:
    """A call, by the name that is called: `f`, `self.store.get`, `make().run`; any other root is `?`."""

    name: str
    line: int


@dataclass(frozen=True, slots=True)
class BranchPoint:
    """A place where control can go two ways. `condition` is the source of what decides, folded and cut.

    What runs only here stands in lines `body_line` to `end_line`; of an expression these are its own.
    """

    line: int
    kind: BranchKind
    condition: str
    body_line: int
    end_line: int
    leaves: Leaving
    """What the last statement there is, where it ends the function or the turn of a loop."""


@dataclass(frozen=True, slots=True)
class Import:
    """One name that an import statement binds.

    `import a.b` binds `a` (`local_name`) to module `a.b` with no `name`; `from ..m import x as y` binds `y`
    to `x` of module `m` at level 2; a star import has `*` for both.
    """

    scope_id: str
    local_name: str
    module: str
    name: str | None
    level: int
    line: int


@dataclass(frozen=True, slots=True)
class Trace:
    """A requirement that a tag names, and the tag that does."""

    requirement_id: str
    tag: str
    line: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Definition:
    """What functions and classes have in common.

    `start_line` is the first decorator's, `line` the one of `def` or `class`, `end_line` the last; all from
    1. `scope_id` is what the definition stands in, `class_id` the class where that is one. `bound_names`
    are assigned in it or are its parameters; definitions and imports are not among them.
    """

    id: str
    qualname: str
    name: str
    scope_id: str
    class_id: str | None
    signature: str
    decorators: tuple[str, ...]
    start_line: int
    line: int
    end_line: int
    is_public: bool
    docstring_head: str
    docstring_lines: tuple[int, int]
    """First and last line of the docstring; zeros without one."""
    calls: tuple[Call, ...]
    bound_names: frozenset[str]
    traces: tuple[Trace, ...]


class DefinitionFields(TypedDict):
    """The fields of a definition, for readers that make functions and classes of them alike."""

    id: str
    qualname: str
    name: str
    scope_id: str
    class_id: str | None
    signature: str
    decorators: tuple[str, ...]
    start_line: int
    line: int
    end_line: int
    is_public: bool
    docstring_head: str
    docstring_lines: tuple[int, int]
    calls: tuple[Call, ...]
    bound_names: frozenset[str]
    traces: tuple[Trace, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Function(Definition):
    """A function or method. `complexity` is cyclomatic, without that of definitions inside it."""

    is_async: bool
    complexity: int
    branch_points: tuple[BranchPoint, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Class(Definition):
    """A class. Of its body only what stands outside its methods is its own."""

    bases: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ModuleFacts:
    """One source file. With a `parse_problem` there is nothing but the path and the number of lines."""

    path: str
    line_count: int
    parse_problem: ParseProblem | None = None
    docstring_head: str = ""
    docstring_lines: tuple[int, int] = (0, 0)
    exports: tuple[str, ...] | None = None
    """The names in `__all__`, where it is a plain list or tuple of strings."""
    functions: tuple[Function, ...] = ()
    classes: tuple[Class, ...] = ()
    imports: tuple[Import, ...] = ()
    calls: tuple[Call, ...] = ()
    bound_names: frozenset[str] = frozenset()
    traces: tuple[Trace, ...] = ()
    placeholders: tuple[Trace, ...] = ()
    """Tags anywhere in the file that name no requirement yet (`@traces TBD`): ids are what stands there."""

    @property
    def id(self) -> str:
        """The module's own id."""
        return f"{self.path}::{MODULE_QUALNAME}"
