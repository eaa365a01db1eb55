"""Entity linking: which nodes a request names, and by what. A pure function of text, paths and snapshot.

What is ambiguous is kept with all its readings, each weaker the more there are. Nothing is guessed away.
"""

from __future__ import annotations

import hashlib
import heapq
import math
import posixpath
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from worker.graph.lexical import Query, query_of
from worker.graph.model import Node, NodeRef
from worker.graph.snapshot import Snapshot
from worker.graph.terms import terms_of, words_of

LinkKind = Literal["traceback", "path", "qualified", "exact", "normalised", "word", "module", "payload"]

BASE_STRENGTHS: Final[dict[LinkKind, float]] = {
    "traceback": 1.5,
    "path": 0.6,
    "payload": 0.6,
    "qualified": 1.6,
    "exact": 1.2,
    "normalised": 0.8,
    "word": 0.35,
    "module": 0.4,
}
"""What one unambiguous mention counts; 2 is as sure as it gets."""

MAX_LINKED_CHARS: Final = 20_000
"""Of a request; what stands beyond is found by its words alone."""
MAX_SEARCHED_CHARS: Final = 50_000
"""Of a request; words beyond are not looked at."""
MAX_MENTIONS: Final = 400
MAX_READINGS: Final = 200
"""Of one mention: the first by id. Those beyond are left out, and the others are the weaker for them."""
_MIN_WORD_CHARS: Final = 4

_FRAME: Final = re.compile(
    r'File "(?P<file>[^"\n]{1,400})", line (?P<line>\d{1,7})(?:, in (?P<function>[\w.<>]{1,200}))?'
)
_LINE_REF: Final = re.compile(r"(?<![\w/.\\-])(?P<file>[\w./\\-]{1,400}\.\w{1,5}):(?P<line>\d{1,7})(?!\d)")
_PATH: Final = re.compile(r"(?<![\w/.\\-])[\w./\\-]{0,400}[\w-]\.[A-Za-z]\w{0,4}(?![\w/\\])")
_NAME: Final = re.compile(r"(?<![\w.])[^\W\d]\w*(?:(?:\.|::|#)[^\W\d]\w*){0,8}(?P<call>\(\)?)?")
_DASHED: Final = re.compile(r"(?<![\w-])[^\W\d_]+(?:-[^\W_]+){1,5}(?![\w-])")
_LITERAL_ID: Final = re.compile(r"(?<![\w-])[A-Za-z][A-Za-z0-9]*(?:[-_][A-Za-z0-9]+){1,8}(?![\w-])")
_JOINT: Final = re.compile(r"\.|::|#")
_HUMP: Final = re.compile(r"[a-z][A-Z]|[A-Z][A-Z][a-z]|[A-Z][a-z]+[A-Z]")


@dataclass(frozen=True, slots=True, kw_only=True)
class EntityLink:
    """One mention and the nodes that it may mean, sorted; ambiguous where there are several."""

    mention: str
    kind: LinkKind
    nodes: tuple[NodeRef, ...]
    strength: float
    """Of each reading, rounded to six decimals."""

    @property
    def is_ambiguous(self) -> bool:
        """Whether it may mean more than one node."""
        return len(self.nodes) > 1


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestLinks:
    """What a request speaks of: the nodes that it names, and its words."""

    entities: tuple[EntityLink, ...]
    query: Query
    passage_query: Query
    """What passages are looked for by: the same words, and those of the names of the payload's files."""
    text_digest: str
    is_truncated: bool = False
    """Whether a cap left something out: mentions, for the length of the text or their number, or readings."""


def link_request(text: str, paths: Sequence[str], snapshot: Snapshot) -> RequestLinks:
    """The entities and terms of a request. `paths` are files that the payload names.

    Entities come in order of kind, mention and nodes, each mention once. O(length).
    """
    linker = _Linker(snapshot)
    scanned = text[:MAX_LINKED_CHARS]
    for path in paths[:MAX_MENTIONS]:
        linker.link_path(path, "payload")
    for match in (*_FRAME.finditer(scanned), *_LINE_REF.finditer(scanned)):
        linker.link_line(match["file"], int(match["line"]), match.groupdict().get("function") or "")
    for match in _PATH.finditer(scanned):
        linker.link_path(match[0], "path")
    for match in _LITERAL_ID.finditer(scanned):
        linker.link_id(match[0])
    for match in _DASHED.finditer(scanned):
        linker.link_folded(match[0])
    for match in _NAME.finditer(scanned):
        is_quoted = scanned[match.start() - 1 : match.start()] == "`"
        linker.link_name(match[0].rstrip("()"), is_code=is_quoted or match["call"] is not None)
    entities = linker.links()
    query = query_of(text[:MAX_SEARCHED_CHARS])
    return RequestLinks(
        entities=entities,
        query=query,
        passage_query=_with_file_names(query, paths[:MAX_MENTIONS]),
        text_digest=digest_of(text),
        is_truncated=len(text) > MAX_LINKED_CHARS or linker.is_truncated,
    )


def _with_file_names(query: Query, paths: Sequence[str]) -> Query:
    """The query with the words of the files' names, without folders and suffixes, each counting 1 more."""
    stems = {posixpath.splitext(posixpath.basename(path))[0] for path in paths}
    terms = {term for stem in stems for word in words_of(stem) for term in terms_of(word)}
    if not terms:
        return query
    weights = dict(query.weights)
    weights |= {term: weights.get(term, 0.0) + 1.0 for term in terms}
    return Query(tuple(sorted(weights.items())))


def names_in(text: str) -> tuple[str, ...]:
    """What may be names of code among the words of a request, sorted. O(length).

    By these a graph is entered that is too large to be searched. Of parts that are joined, all together and
    the last two; at most `MAX_MENTIONS`, those that are spelled as code before plain words, each in the order
    of the text.
    """
    coded: dict[str, None] = {}
    plain: dict[str, None] = {}
    scanned = text[:MAX_LINKED_CHARS]
    for match in _NAME.finditer(scanned):
        parts = _JOINT.split(match[0].rstrip("()"))
        is_quoted = scanned[match.start() - 1 : match.start()] == "`"
        if len(parts) > 1:
            coded |= dict.fromkeys((".".join(parts), ".".join(parts[-2:]), *parts[-2:]))
        elif is_quoted or match["call"] is not None or _looks_like_code(parts[0]):
            coded[parts[0]] = None
        elif len(parts[0]) >= _MIN_WORD_CHARS:
            plain[parts[0]] = None
    return tuple(sorted([*coded, *(word for word in plain if word not in coded)][:MAX_MENTIONS]))


def digest_of(text: str) -> str:
    """The first 16 hex digits of the text's SHA-256."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16]


class _Linker:
    """Collects links; a mention is looked up once, by the surest kind that finds something."""

    def __init__(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot
        self._found: dict[str, tuple[LinkKind, frozenset[int]]] = {}
        self.is_truncated = False

    def links(self) -> tuple[EntityLink, ...]:
        nodes = self._snapshot.nodes
        return tuple(
            EntityLink(
                mention=mention,
                kind=kind,
                nodes=tuple(nodes[n].ref for n in self._shown(found)),
                strength=round(BASE_STRENGTHS[kind] / math.sqrt(len(found)), 6),
            )
            for mention, (kind, found) in sorted(self._found.items(), key=lambda i: (i[1][0], i[0]))
        )

    def _add(self, mention: str, kind: LinkKind, found: Iterable[int]) -> bool:
        nodes = frozenset(found)
        if not nodes:
            return False
        if len(self._found) >= MAX_MENTIONS and mention not in self._found:
            self.is_truncated = True
            return True
        known = self._found.get(mention)
        if known is None or BASE_STRENGTHS[kind] > BASE_STRENGTHS[known[0]]:
            self._found[mention] = (kind, nodes)
        return True

    def _shown(self, found: frozenset[int]) -> list[int]:
        """The readings, sorted; of too many the first by id."""
        if len(found) <= MAX_READINGS:
            return sorted(found)
        self.is_truncated = True
        nodes = self._snapshot.nodes
        return sorted(heapq.nsmallest(MAX_READINGS, found, key=lambda n: (nodes[n].id, n)))

    def link_path(self, path: str, kind: LinkKind) -> None:
        """A file, as the documents in it."""
        for number in self._files_of(path):
            self._add(self._snapshot.paths[number], kind, self._modules_in(number))

    def link_line(self, path: str, line: int, function: str) -> None:
        """The innermost function that a line stands in, or the one that is named with it."""
        snapshot = self._snapshot
        for number in self._files_of(path):
            inside = [
                n for n in self._documents_in(number) if snapshot.nodes[n].label in {"Function", "Class"}
            ]
            named = [n for n in inside if snapshot.nodes[n].name == function]
            holding = [
                n for n in inside if snapshot.nodes[n].start_line <= line <= snapshot.nodes[n].end_line
            ]
            innermost = max(holding, key=lambda n: (snapshot.nodes[n].start_line, n), default=None)
            if innermost is not None and (not named or innermost in named):
                named = [innermost]
            self._add(f"{snapshot.paths[number]}:{line}", "traceback", named)

    def link_id(self, mention: str) -> None:
        """The literal id of a requirement or decision."""
        self._add(mention, "exact", self._snapshot.names.literal(mention))

    def link_folded(self, mention: str) -> None:
        """A name written with dashes."""
        self._add(mention, "normalised", self._snapshot.names.folded(mention))

    def link_name(self, mention: str, *, is_code: bool) -> None:
        """An identifier, or several joined by dots."""
        parts = _JOINT.split(mention)
        if len(parts) > 1:
            if self._add(mention, "qualified", self._qualified(parts)):
                return
            for part in parts[-2:]:
                self._link_part(part, is_code=True)
            return
        self._link_part(mention, is_code=is_code)

    def _link_part(self, name: str, *, is_code: bool) -> None:
        snapshot = self._snapshot
        is_code = is_code or _looks_like_code(name)
        if not is_code and len(name) < _MIN_WORD_CHARS:
            return
        exact = snapshot.names.exact(name)
        modules = [n for n in exact if snapshot.nodes[n].label == "Module"]
        others = [n for n in exact if snapshot.nodes[n].label != "Module"]
        if modules:
            self._add(f"{name} (module)", "module", modules)
        if others:
            self._add(name, "exact" if is_code else "word", others)
        elif is_code:
            self._add(name, "normalised", snapshot.names.folded(name))
        elif not modules:
            # Functions are left out: names such as `set_up` or `time_out` are plain words without their
            # underscores, and linking these lost some of what commits edited.
            folded = snapshot.names.folded(name)
            self._add(name, "word", [n for n in folded if snapshot.nodes[n].label == "Class"])

    def _qualified(self, parts: Sequence[str]) -> list[int]:
        """Nodes with the last name whose own outer names or module agree with the ones before it.

        Where none agrees with all of them, those that agree with the last but one: the first part is often
        a variable or a package that the path does not show.
        """
        whole: list[int] = []
        partly: list[int] = []
        for number in self._snapshot.names.exact(parts[-1]):
            outer = _outer_names(self._snapshot.nodes[number])
            if outer[-len(parts) :] == list(parts):
                whole.append(number)
            elif parts[-2] in outer[-3:-1]:
                partly.append(number)
        return whole or partly

    def _files_of(self, path: str) -> list[int]:
        """Files whose path ends with the given one, or that an absolute path of another host ends with."""
        parts = [part for part in path.replace("\\", "/").split("/") if part not in {"", "."}]
        for start in range(len(parts)):
            exact = self._snapshot.file_number("/".join(parts[start:]))
            if exact is not None:
                return [exact]
        return self._ending_with(parts) if parts else []

    def _ending_with(self, parts: Sequence[str]) -> list[int]:
        suffix = "/" + "/".join(parts)
        return [n for n, path in enumerate(self._snapshot.paths) if path.endswith(suffix)]

    def _documents_in(self, file: int) -> list[int]:
        documents = self._snapshot.documents
        start, end = documents.file_starts[file], documents.file_starts[file + 1]
        return documents.nodes[start:end].tolist()

    def _modules_in(self, file: int) -> Iterator[int]:
        nodes = self._snapshot.nodes
        inside = self._documents_in(file)
        modules = [n for n in inside if nodes[n].label == "Module"]
        yield from modules or inside[:1]


def _outer_names(node: Node) -> list[str]:
    """The parts of the node's path and qualified name; of a module those of its path."""
    path, _, qualname = node.id.partition("::")
    folders = path.rpartition(".")[0].split("/")
    return folders if node.label == "Module" else [*folders, *qualname.split(".")]


def _looks_like_code(word: str) -> bool:
    """Whether a word is spelled as no English word is."""
    return "_" in word.strip("_") or _HUMP.search(word) is not None or word.startswith("_")
