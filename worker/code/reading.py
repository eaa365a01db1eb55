"""One file's content to what it gives on its own: its nodes, and the names that are still to be linked.

A reader is a plain function of path and content. Readers stand in a list: the first that can read a file
reads it, so a tolerant reader stands behind a strict one. What is said of a file besides its code (that it
holds requirements, say) is added by further readers, each of which is asked.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

from worker.code.extractor import extract
from worker.code.facts import ModuleFacts, ParseProblem
from worker.code.languages import PYTHON_SUFFIXES, language_of
from worker.code.nodes import LANGUAGE, failed_module, module_nodes
from worker.code.parsing import decode
from worker.graph.model import Edge, FileStatus, Node, NodeRef

_SHEBANG_CHARS: Final = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class FileReading:
    """What one file gives. `reason` says what is missing where it is not `parsed`.

    `edges` join the file's own nodes, its File node among them, which is not in `nodes`.
    """

    path: str
    language: str = ""
    status: FileStatus = "parsed"
    reason: str = ""
    nodes: tuple[Node, ...] = ()
    edges: tuple[Edge, ...] = ()
    facts: ModuleFacts | None = None
    """Of source, by which its calls, imports and bases are linked."""
    documents: tuple[tuple[str, str], ...] = ()
    """What later steps over all files need to know of this one: kind, and text in that step's own form."""


FileReader = Callable[[str, bytes], FileReading | None]
"""Gives None for a file that it is not for. Never raises, whatever the content."""


def read_python(path: str, content: bytes) -> FileReading | None:
    """A Python module; `failed`, with the module alone, where its source cannot be parsed."""
    if not is_python(path, content):
        return None
    facts = extract(path, content)
    problem = facts.parse_problem
    text = decode(content)
    file = NodeRef("File", path)
    if problem is not None or isinstance(text, ParseProblem):
        node = failed_module(facts)
        edges = (Edge(file, "DEFINES", node.ref),)
        reason = node.property("parse_error")
        return FileReading(
            path=path,
            language=LANGUAGE,
            status="failed",
            reason=reason,
            nodes=(node,),
            edges=edges,
            facts=facts,
        )
    nodes, edges = module_nodes(facts, text)
    edges = [Edge(file, "DEFINES", nodes[0].ref), *edges]
    return FileReading(path=path, language=LANGUAGE, nodes=tuple(nodes), edges=tuple(edges), facts=facts)


@dataclass(frozen=True, slots=True, kw_only=True)
class FileReaders:
    """Which readers an index asks. They are module-level functions, so that a child process finds them."""

    first: tuple[FileReader, ...] = (read_python,)
    """The first that reads a file is the one."""
    also: tuple[FileReader, ...] = ()
    """Each adds what it finds."""


def read_file(path: str, content: bytes, readers: FileReaders) -> FileReading:
    """What the readers find in a file; without any for it, a reading with nothing in it.

    Where the first reader fails and a later one does not, the reading says why that one was needed.
    """
    reading: FileReading | None = None
    for reader in readers.first:
        found = reader(path, content)
        if found is None:
            continue
        if reading is not None and found.status != "failed":
            reading = replace(found, reason=found.reason or reading.reason)
        else:
            reading = reading or found
        if reading.status != "failed":
            break
    reading = reading or FileReading(path=path, language=language_of(path))
    for reader in readers.also:
        more = reader(path, content)
        if more is not None:
            reading = replace(
                reading,
                nodes=reading.nodes + more.nodes,
                edges=reading.edges + more.edges,
                documents=reading.documents + more.documents,
            )
    return reading


def is_python(path: str, content: bytes) -> bool:
    """Whether the file is Python by its name, or without a suffix by its first line."""
    if path.endswith(PYTHON_SUFFIXES):
        return True
    if "." in path.rsplit("/", 1)[-1] or not content.startswith(b"#!"):
        return False
    return b"python" in content[:_SHEBANG_CHARS].split(b"\n", 1)[0]
