"""The whole graph anew, from every file: the first index, and any that cannot rely on what was kept.

Of what earlier indexes kept, the readings of files are used all the same, where they are there and hold.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from worker.code.assembling import (
    IndexedFile,
    assemble,
    entry_of,
    file_traces,
)
from worker.code.catalogue import (
    KEY,
    Catalogue,
    Entry,
    decode_catalogue,
    encode_catalogue,
    in_order,
    totals_of,
)
from worker.code.collecting import Known, Sources
from worker.code.facts_codec import decode_reading, encode_reading
from worker.code.history import History
from worker.code.index_values import IndexOptions
from worker.code.kept import (
    Lost,
    additions_fact,
    find_history,
    history_fact,
    history_keys,
    links_fact,
    reading_key,
)
from worker.code.linking import FileLinks
from worker.code.made import Made, Watch, documents_of, link_files, require_symbols, snapshot_of
from worker.code.outlines import digest_shelf, encode_shelves, outline_of
from worker.code.reading import FileReading
from worker.code.reading_pool import read_files
from worker.code.steps import Additions, CodeOutline, open_traces, run_steps
from worker.graph.diff import diff_contents
from worker.graph.model import Edge, FileStatus, GraphContents, GraphHead, Node, NodeRef

_EMPTY: Final = GraphContents(nodes=(), edges=())


@dataclass(frozen=True, slots=True, kw_only=True)
class Whole:
    """All that a store holds of a project."""

    head: GraphHead | None
    contents: GraphContents = _EMPTY
    facts: Mapping[str, bytes] = field(default_factory=dict[str, bytes])
    known: Known = field(default_factory=Known)
    history: History = field(default_factory=History)
    readings: Mapping[str, tuple[FileReading, bytes]] = field(
        default_factory=dict[str, tuple[FileReading, bytes]]
    )
    """By path, of the files as the graph has them; by the rules of the index alone."""
    outdated: Mapping[str, FileReading] = field(default_factory=dict[str, FileReading])
    """By path, what is kept of files that other rules read, where there is no graph to take it from."""


def read_whole(
    loaded: tuple[GraphHead, GraphContents] | None, facts: Mapping[str, bytes], *, rules: str
) -> Whole:
    """What a store holds, as far as it can be read. O(n).

    Facts without a graph are what a change left that was broken off: then their catalogue says which files
    there are.
    """
    head, contents = loaded or (None, _EMPTY)
    catalogue = decode_catalogue(facts.get(KEY, b""))
    is_current = catalogue is not None and catalogue.rules == rules
    listed: Mapping[str, Entry] = catalogue.files if catalogue is not None else dict[str, Entry]()
    rules_of = catalogue.rules if catalogue is not None and head is None else rules
    files: dict[str, Entry] = {}
    readings: dict[str, tuple[FileReading, bytes]] = {}
    outdated: dict[str, FileReading] = {}
    for path, known in (_entries_of(contents) if head is not None else listed).items():
        kept = facts.get(reading_key(path, known.sha256, rules=rules_of), b"")
        reading = decode_reading(kept)
        is_read = reading is not None and reading.status != "stale" and rules_of == rules
        if reading is not None and is_read:
            readings[path] = reading, kept
        elif reading is not None and head is None:
            outdated[path] = reading
        entry = listed.get(path) if is_current else None
        # A stamp may be believed only where what was read under it is at hand.
        stamp = entry.stamp if entry is not None and entry.sha256 == known.sha256 and is_read else None
        files[path] = replace(known, stamp=stamp)
    history = _find_history(facts, catalogue)
    return Whole(
        head=head,
        contents=contents,
        facts=facts,
        known=Known(files=files, history_head=history.head),
        history=history,
        readings=readings,
        outdated=outdated,
    )


def _find_history(facts: Mapping[str, bytes], catalogue: Catalogue | None) -> History:
    keys = [catalogue.history_key] if catalogue is not None else history_keys(facts)
    try:
        return find_history(facts, keys[0]) if keys else History()
    except Lost:
        return History()


def _entries_of(contents: GraphContents) -> dict[str, Entry]:
    return {node.id: _entry_of_node(node) for node in contents.nodes if node.label == "File"}


def _entry_of_node(node: Node) -> Entry:
    status: FileStatus = node.property("status")  # pyright: ignore[reportAssignmentType] - as assembled
    return Entry(
        sha256=node.property("sha256"),
        size_bytes=int(node.property("size_bytes") or 0),
        language=node.language,
        status=status,
        reason=node.property("reason"),
        unresolved_calls=None,
        exact_calls=0,
        guessed_calls=0,
        links_key="",
        documents=(),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Parts:
    """What a graph is put together from."""

    files: Mapping[str, IndexedFile]
    links: Mapping[str, FileLinks]
    history: History
    added: tuple[Additions, ...]


def rebuild(whole: Whole, sources: Sources, project_id: str, options: IndexOptions, watch: Watch) -> Made:
    """The graph of these sources, and what makes it of the one that is there.

    Raises NothingIndexed where no source file gives a symbol.
    """
    rules = options.rules
    with watch.phase("read"):
        files, files_read = _read(whole, sources, options, watch)
    with watch.phase("link"):
        links = link_files({path: file.reading for path, file in files.items()}, files, watch)
        history = sources.history if sources.history is not None else whole.history
        added = _additions(files, links, options)
        parts = _Parts(files=files, links=links, history=history, added=added)
        contents = assemble(project_id, files, links, history=history, rules=rules, additions=added)
    with watch.phase("store"):
        made = _made(whole, sources, parts, contents, rules=rules)
    return replace(made, files_read=files_read, files_linked=len(links))


def _read(
    whole: Whole, sources: Sources, options: IndexOptions, watch: Watch
) -> tuple[dict[str, IndexedFile], int]:
    """The readings of all files, kept ones where there are, and how many were read now."""
    jobs: list[tuple[str, bytes]] = []
    found: dict[str, tuple[FileReading, bytes]] = {}
    for path, source in sources.files.items():
        known = whole.known.files.get(path)
        if path in whole.readings and known is not None and known.sha256 == source.sha256:
            found[path] = whole.readings[path]
        elif source.content is not None:
            jobs.append((path, source.content))
        else:
            stale = _stale(path, whole)
            found[path] = stale, encode_reading(stale)
    found |= read_files(
        jobs,
        options.readers,
        processes=options.processes,
        on_read=lambda done: watch.step("read", done, len(jobs)),
    )
    files: dict[str, IndexedFile] = {}
    for path in sorted(found):
        reading, kept = found[path]
        source = sources.files[path]
        files[path] = IndexedFile(
            reading=reading, sha256=source.sha256, size_bytes=source.size_bytes, kept=kept
        )
    return files, len(jobs)


def _stale(path: str, whole: Whole) -> FileReading:
    """What is held of a file that would have to be read again, and whose content is not at hand."""
    held, outdated = whole.contents, whole.outdated.get(path)
    known = outdated.nodes if outdated is not None else held.nodes
    nodes = tuple(node for node in known if node.path == path and node.label != "File")
    refs = {node.ref for node in nodes}
    edges = tuple(
        edge
        for edge in (outdated.edges if outdated is not None else held.edges)
        if edge.relation == "DEFINES"
        and edge.target in refs
        and (edge.source in refs or (edge.source.label == "File" and edge.source.id == path))
    )
    return FileReading(
        path=path,
        language=whole.known.files[path].language,
        status="stale",
        reason="read by other rules; its content was not sent again",
        nodes=nodes,
        edges=edges,
    )


def _additions(
    files: Mapping[str, IndexedFile], links: Mapping[str, FileLinks], options: IndexOptions
) -> tuple[Additions, ...]:
    documents = documents_of(file.reading for file in files.values())
    if not documents:
        return ()
    refs = {NodeRef("File", path) for path in files}
    traces: list[Edge] = []
    for path, file in files.items():
        refs.update([node.ref for node in file.reading.nodes])
        traces += file_traces(file.reading, links.get(path))
    code = CodeOutline(refs=sorted(refs), traces=open_traces(traces, refs))
    return run_steps(options.steps, documents, code)


def _made(whole: Whole, sources: Sources, parts: _Parts, contents: GraphContents, *, rules: str) -> Made:
    """The change from what is there, with all that is to be kept."""
    facts: dict[str, bytes] = {}
    entries: dict[str, Entry] = {}
    traces: dict[str, tuple[Edge, ...]] = {}
    for path, file in parts.files.items():
        links = parts.links.get(path)
        facts[reading_key(path, file.sha256, rules=rules)] = file.kept
        links_key = ""
        if links is not None:
            links_key, kept_links = links_fact(path, links)
            facts[links_key] = kept_links
        entry = entry_of(file, links, links_key=links_key)
        entries[path] = replace(entry, stamp=sources.files[path].stamp)
        if of_file := file_traces(file.reading, links):
            traces[path] = tuple(of_file)
    outlines = {path: outline_of(file.reading) for path, file in parts.files.items()}
    require_symbols(entries, outlines)
    shelves = encode_shelves(outlines.values())
    history_key, facts_of_history = history_fact(parts.history)
    additions_key, facts_of_additions = additions_fact(parts.added)
    facts |= {history_key: facts_of_history, additions_key: facts_of_additions} | shelves
    catalogue = Catalogue(
        rules=rules,
        snapshot_id=snapshot_of(entries, parts.history, rules=rules),
        files=entries,
        totals=totals_of(contents),
        traces=traces,
        shelves={key: digest_shelf(shelf) for key, shelf in shelves.items()},
        additions_key=additions_key,
        history_key=history_key,
        history_head=parts.history.head,
        history_reason=parts.history.reason,
    )
    facts[KEY] = encode_catalogue(catalogue)
    change = diff_contents(whole.contents, contents)
    # Beside a change that was broken off another writer may be at work, that removes what it does not know.
    kept = whole.facts if whole.head is not None else dict[str, bytes]()
    added_facts = {key: fact for key, fact in facts.items() if kept.get(key) != fact}
    removed_facts = sorted(whole.facts.keys() - facts.keys())
    return Made(
        change=replace(change, added_facts=in_order(added_facts), removed_facts=tuple(removed_facts)),
        catalogue=catalogue,
        outlines=outlines,
        history=parts.history,
    )
