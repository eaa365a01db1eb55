"""A contract drawn as a Mermaid class diagram to the skeleton that code has to have.

Read are classes with their members, generics, inheritance (`A <|-- B`, `B --|> A`, dotted too),
`<<interface>>` and the like, `$` for what is static and `*` for what is abstract, and namespaces, whose
classes are taken out of them. Members of a class that is marked `<<module>>` are functions of the module. A
field of two words is read as Mermaid has it, type first. What else a line may say is given back.
"""

from __future__ import annotations

import ast
import keyword
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from worker.code.branches import NotSupported
from worker.code.parsing import Source, parse
from worker.code.shapes import Shape, shape_of
from worker.code.skeletons import Skeleton, skeleton

MAX_CONTRACT_CHARS: Final = 200_000
_MAX_LINE_CHARS: Final = 1_000

_HEADER: Final = re.compile(r"classDiagram(?:-v2)?\s*\Z")
_CLASS: Final = re.compile(
    r"class\s+(?P<name>[\w`]+)(?P<generic>~[^{}]*~)?(?:\[[^\]]*\])?(?::::\w+)?\s*(?P<open>\{)?\s*(?P<close>\})?\Z"
)
_NOTE: Final = re.compile(r"<<\s*(?P<note>[\w ]+)>>(?:\s+(?P<name>\w+))?\Z")
_CARDINALITY: Final = r'(?:\s*"[^"]*")?\s*'
_RELATION: Final = re.compile(
    rf"(?P<left>\w+)(?:~[^~]*~)?{_CARDINALITY}(?P<arrow>[<>|*o()]{{0,2}}(?:--|\.\.)[<>|*o()]{{0,2}}){_CARDINALITY}"
    r"(?P<right>\w+)(?:~[^~]*~)?\s*(?::.*)?\Z"
)
_MEMBER_OF: Final = re.compile(r"(?P<name>\w+)\s*:\s*(?P<member>\S.*)\Z")
_METHOD: Final = re.compile(
    r"[+\-#~]?\s*(?P<async>async\s+)?(?P<name>\w+)\s*\((?P<parameters>.*)\)\s*(?P<before>[*$]?)\s*:?\s*"
    r"(?P<result>[^*$]*?)\s*(?P<after>[*$]?)\Z"
)
_FIELD: Final = re.compile(r"[+\-#~]?\s*(?P<text>[^()*$]+?)\s*(?P<after>[*$]?)\Z")
_IGNORED: Final = re.compile(
    r"(?:%%|direction\b|note\b|style\b|classDef\b|cssClass\b|click\b|link\b|callback\b)"
)
_GENERIC: Final = re.compile(r"~([^~]*)~")
_ABSTRACT: Final = frozenset({"interface", "abstract", "protocol"})


@dataclass(slots=True, eq=False)
class _Drawn:
    """A class while it is read."""

    name: str
    bases: list[str] = field(default_factory=list[str])
    members: list[str] = field(default_factory=list[str])
    """Python source, one member each, from the first column."""
    notes: set[str] = field(default_factory=set[str])


def contract_skeleton(text: str) -> Skeleton | NotSupported:
    """The skeleton that a class diagram asks for, classes in the order in which they are drawn. O(n).

    It is valid Python and can be compared with code by `shape_of` and `skeleton_diff`. `unread` holds the
    lines of the diagram that were not understood.
    """
    if len(text) > MAX_CONTRACT_CHARS:
        return NotSupported(f"more than {MAX_CONTRACT_CHARS} characters")
    reading = _Reading()
    lines = _lines(text)
    if not _HEADER.match(next(lines, "")):
        return NotSupported("no class diagram of Mermaid")
    for line in lines:
        reading.read(line)
    written = reading.written()
    made = skeleton(written)
    if isinstance(made, NotSupported) or made.is_partly_parsed:
        return NotSupported("names of the diagram are none that Python takes")
    return Skeleton(
        text=made.text,
        language="python",
        definitions=made.definitions,
        is_partly_parsed=bool(reading.unread),
        unread=tuple(reading.unread),
    )


def contract_shape(text: str) -> Shape | NotSupported:
    """The shape that a contract asks for: a class diagram, or Python (a skeleton, say). O(n)."""
    if not _HEADER.match(next(_lines(text), "")):
        return shape_of(text)
    drawn = contract_skeleton(text)
    return drawn if isinstance(drawn, NotSupported) else shape_of(drawn.text)


def _lines(text: str) -> Iterator[str]:
    """The lines that say something, without the front matter."""
    lines = [line.strip() for line in text.splitlines()]
    start = next((n for n, line in enumerate(lines) if line), 0)
    if lines[start : start + 1] == ["---"]:
        start = next((n + 1 for n in range(start + 1, len(lines)) if lines[n] == "---"), len(lines))
    for line in lines[start:]:
        if line and not _IGNORED.match(line):
            yield line.rstrip(";")


class _Reading:
    """One diagram, line by line."""

    def __init__(self) -> None:
        self._classes: dict[str, _Drawn] = {}
        self._inside: _Drawn | None = None
        self.unread: list[str] = []

    def read(self, line: str) -> None:
        """Take in the next line."""
        if len(line) > _MAX_LINE_CHARS:
            # The expressions below take time in the square of a line, and a caller sends it.
            self.unread.append(line[:_MAX_LINE_CHARS])
        elif self._inside is not None:
            self._read_inside(self._inside, line)
        elif line == "}" or (line.startswith("namespace ") and line.endswith("{")):
            return  # of a namespace only what is in it counts
        elif match := _CLASS.match(line):
            drawn = self._drawn(match["name"].strip("`"))
            self._inside = drawn if match["open"] and not match["close"] else None
        elif match := _NOTE.match(line):
            if match["name"]:
                self._drawn(match["name"]).notes.add(match["note"].strip().lower())
        elif match := _RELATION.match(line):
            self._relate(match["left"], match["arrow"], match["right"])
        elif match := _MEMBER_OF.match(line):
            self._add_member(self._drawn(match["name"]), match["member"], line)
        else:
            self.unread.append(line)

    def written(self) -> str:
        """The source of all classes, in order."""
        return "\n".join(_source_of(drawn) for drawn in self._classes.values()) + "\n"

    def _read_inside(self, drawn: _Drawn, line: str) -> None:
        if line == "}":
            self._inside = None
        elif match := _NOTE.match(line):
            drawn.notes.add(match["note"].strip().lower())
        else:
            self._add_member(drawn, line, line)

    def _drawn(self, name: str) -> _Drawn:
        return self._classes.setdefault(name, _Drawn(name))

    def _relate(self, left: str, arrow: str, right: str) -> None:
        first, second = self._drawn(left), self._drawn(right)
        if arrow.startswith("<|"):
            second.bases.append(left)
        if arrow.endswith("|>"):
            first.bases.append(right)

    def _add_member(self, drawn: _Drawn, member: str, line: str) -> None:
        if match := _METHOD.match(member):
            made = _method(match)
        else:
            found = _FIELD.match(member)
            made = _field(found["text"]) if found else None
        if made is None:
            self.unread.append(line)
        else:
            drawn.members.append(made)


def _source_of(drawn: _Drawn) -> str:
    if "module" in drawn.notes:
        functions = [member.replace("(self, ", "(").replace("(self)", "()") for member in drawn.members]
        return "\n".join(member.replace("@staticmethod\n", "") for member in functions)
    bases = list(dict.fromkeys(drawn.bases))
    if not bases and not drawn.notes.isdisjoint(_ABSTRACT):
        bases = ["Protocol" if drawn.notes & {"interface", "protocol"} else "ABC"]
    head = f"class {drawn.name}({', '.join(bases)}):" if bases else f"class {drawn.name}:"
    lines = [line for member in drawn.members or ["..."] for line in member.split("\n")]
    return "\n".join([head, *(f"    {line}" for line in lines)])


def _method(match: re.Match[str]) -> str | None:
    """Python for a method; None where its names are none."""
    mark = match["before"] or match["after"]
    parameters = [_parameter(part) for part in _split(match["parameters"])]
    if not _is_name(match["name"]) or None in parameters:
        return None
    own = [] if mark == "$" else ["self"]
    names = ", ".join([*own, *(part for part in parameters if part)])
    result = _type(match["result"]) if match["result"].strip() else ""
    decorator = {"$": "@staticmethod\n", "*": "@abstractmethod\n"}.get(mark, "")
    head = f"{'async ' if match['async'] else ''}def {match['name']}({names})"
    return f"{decorator}{head}{f' -> {result}' if result else ''}: ..."


def _field(text: str) -> str | None:
    """`name: type` for `name: type`, `type name` or `name`; None where there is no name."""
    name, separator, kind = text.partition(":")
    if not separator:
        kind, _, name = text.rpartition(" ")
    name, kind = name.strip(), kind.strip()
    if not _is_name(name):
        return None
    return f"{name}: {_type(kind)}" if kind else f"{name} = ..."


def _parameter(text: str) -> str | None:
    """As `_field`, with a default where one is written."""
    written, separator, default = text.partition("=")
    stars = "*" * (len(written.lstrip()) - len(written.lstrip().lstrip("*")))
    made = _field(written.strip().lstrip("*"))
    if made is None:
        return "*" if written.strip() == "*" else None
    made = made.removesuffix(" = ...")
    return f"{stars}{made}{f' = {_value(default)}' if separator else ''}"


def _split(text: str) -> Iterator[str]:
    """The parts between commas that stand in no bracket."""
    depth, start = 0, 0
    for place, character in enumerate(text):
        depth += (character in "([{") - (character in ")]}")
        if character == "," and depth <= 0:
            yield text[start:place]
            start = place + 1
    if text[start:].strip():
        yield text[start:]


def _type(text: str) -> str:
    """The type as Python writes it; as a string where it is none of Python's."""
    return _value(_GENERIC.sub(r"[\1]", text.strip()))


def _value(text: str) -> str:
    text = text.strip()
    source = parse(f"_ = (\n{text}\n)\n".encode("utf-8", "surrogatepass"))
    is_one = isinstance(source, Source) and len(source.body) == 1 and isinstance(source.body[0], ast.Assign)
    return text if text and is_one else repr(text)


def _is_name(name: str) -> bool:
    return name.isidentifier() and not keyword.iskeyword(name)
