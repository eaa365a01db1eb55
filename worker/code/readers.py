"""The readers of an index, in the order in which they are asked, and the steps that join what they found.

A new kind of file adds a reader to a list here, and what only all files together can tell adds a step. What
reads documents is loaded with the first of them: it takes longer to load than many a tree of code to read.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from worker.code.decoding import decode_anyway
from worker.code.documents.suffixes import takes
from worker.code.facts import ModuleFacts, ParseProblem
from worker.code.grammars import GRAMMAR_OF, PYTHON
from worker.code.languages import language_of
from worker.code.nodes import module_nodes
from worker.code.owners import OWNERS, link_owners, read_owner_file
from worker.code.parsing import decode
from worker.code.reading import FileReaders, FileReading, is_python, read_python
from worker.code.steps import Additions, CodeOutline, ProjectStep
from worker.code.tolerant import extract_tolerant
from worker.graph.model import Edge, NodeRef

SPECIFICATION: Final = "specification"
"""The kind of document that requirements and decisions are read from."""


def read_partly(path: str, content: bytes) -> FileReading | None:
    """Python that its own parser refuses: newer syntax, or half written. Read as far as it goes."""
    if not is_python(path, content):
        return None
    text, reason = _python_text(content)
    facts = extract_tolerant(path, text, PYTHON)
    if not (facts.functions or facts.classes) and (facts.parse_problem or not reason):
        return None
    # Whatever the grammar makes of it, no name in it was worked out by Python's own rules.
    facts = replace(facts, parse_problem=ParseProblem("syntax", 0))
    return replace(_source(facts, text, language="python", is_whole=False), reason=reason)


def read_foreign(path: str, content: bytes) -> FileReading | None:
    """Source in a language that there is a grammar for."""
    language = language_of(path)
    grammar = GRAMMAR_OF.get(language)
    if grammar is None:
        return None
    text, encoding = decode_anyway(content)
    facts = extract_tolerant(path, text, grammar)
    reading = _source(facts, text, language=language, is_whole=facts.parse_problem is None)
    reason = _encoding_reason(encoding) if encoding != "utf-8" else _nul_reason(content)
    return replace(reading, status="partly_parsed", reason=reason) if reason else reading


def read_chunks(path: str, content: bytes) -> FileReading | None:
    """Any other text, by its headings or blank lines; `partly_parsed` where there is too much of it."""
    language = language_of(path)
    if language == "python":
        return None
    from worker.code.chunks import chunk_nodes  # noqa: PLC0415 - see above

    nodes, edges, missing = chunk_nodes(path, _text(content), language)
    return FileReading(
        path=path,
        language=language,
        status="partly_parsed" if missing else "parsed",
        reason=missing,
        nodes=tuple(nodes),
        edges=tuple(edges),
    )


def read_specification(path: str, content: bytes) -> FileReading | None:
    """Requirements and decisions, kept for `link_specification`."""
    if not takes(path):
        return None
    from worker.code.documents.reading import read_document  # noqa: PLC0415 - see above
    from worker.code.documents.results import facts_to_bytes  # noqa: PLC0415 - see above

    facts = read_document(path, _text(content))
    if facts is None:
        return None
    return FileReading(path=path, documents=((SPECIFICATION, facts_to_bytes(facts).decode()),))


def link_specification(documents: Mapping[str, str], code: CodeOutline) -> Additions:
    """Specifications, requirements and decisions, what they apply to, and which of them tags in code mean.

    A tag that names an id which several specifications use leads to each, as a guess; one that names a
    requirement leads to its items. O(nodes + references).
    """
    from worker.code.documents.project import join_documents  # noqa: PLC0415 - see above
    from worker.code.documents.references import resolve_references  # noqa: PLC0415 - see above
    from worker.code.documents.results import facts_from_bytes  # noqa: PLC0415 - see above

    joined = join_documents(facts_from_bytes(text.encode()) for text in documents.values())
    edges = [*joined.edges, *resolve_references(joined, (*code.refs, *joined.nodes)).edges]
    known = {node.id for node in joined.nodes if node.label == "RequirementItem"}
    replaced: list[Edge] = []
    for edge in code.traces:
        if edge.target.id in known:
            continue
        items = joined.items_for(edge.target.id, within=edge.source.id.partition("::")[0])
        if items:
            replaced.append(edge)
            edges += (_traced(edge, item, among=len(items)) for item in items)
    return Additions(joined.nodes, edges, replaced)


def _traced(edge: Edge, item: str, *, among: int) -> Edge:
    target = NodeRef("RequirementItem", item)
    if among == 1:
        return edge._replace(target=target)
    return edge._replace(target=target, resolution="guess", candidates=among)


def _source(facts: ModuleFacts, text: str, *, language: str, is_whole: bool) -> FileReading:
    nodes, edges = module_nodes(facts, text, language=language)
    edges = [Edge(NodeRef("File", facts.path), "DEFINES", nodes[0].ref), *edges]
    reading = FileReading(
        path=facts.path, language=language, nodes=tuple(nodes), edges=tuple(edges), facts=facts
    )
    return reading if is_whole else replace(reading, status="partly_parsed", reason=_reason(facts))


def _reason(facts: ModuleFacts) -> str:
    problem = facts.parse_problem
    return f"syntax at line {problem.line}" if problem is not None and problem.line else ""


def _python_text(content: bytes) -> tuple[str, str]:
    """The text, and what was wrong with its bytes; empty where they are as Python wants them."""
    text = decode(content)
    if isinstance(text, str):
        return text, ""
    if text.kind == "nul_byte":
        # All else is as the file declares it.
        blanked = decode(content.replace(b"\0", b" "))
        if isinstance(blanked, str):
            return blanked, _nul_reason(content)
    anyway, encoding = decode_anyway(content)
    return anyway, _encoding_reason(encoding)


def _encoding_reason(encoding: str) -> str:
    return f"encoding, read as {encoding}"


def _nul_reason(content: bytes) -> str:
    """Empty where there is none."""
    at = content.find(b"\0")
    if at < 0:
        return ""
    above = content[:at].replace(b"\r\n", b"\n").replace(b"\r", b"\n")
    line = above.count(b"\n") + 1
    return f"nul_byte at line {line}, read as a blank"


def _text(content: bytes) -> str:
    return decode_anyway(content)[0]


READERS: Final = FileReaders(
    first=(read_python, read_partly, read_foreign, read_chunks),
    also=(read_owner_file, read_specification),
)
STEPS: Final = (ProjectStep(OWNERS, link_owners), ProjectStep(SPECIFICATION, link_specification))
