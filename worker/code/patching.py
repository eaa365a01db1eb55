"""The part of a graph that a change touches, anew: an index that reads in proportion to what changed.

A graph is made of parts that share no key, and each is a function of what the catalogue lists: a file's own
part of its reading and its links, the history's of the commits and the paths, and the requirements' of all
traces and documents. So both what the touched parts were and what they are to be can be worked out without
the rest, and their difference is that of the whole graphs. Where something that was kept is lost, `Lost` is
raised, and everything has to be made anew.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace

from worker.code.affected import affected_paths
from worker.code.assembling import (
    GraphBuilder,
    IndexedFile,
    entry_of,
    file_edges,
    file_node,
    file_traces,
    project_node,
)
from worker.code.catalogue import KEY, Catalogue, Entry, encode_catalogue, in_order, moved, totals_of
from worker.code.collecting import Sources, changed_paths
from worker.code.history import History, updates
from worker.code.index_values import IndexOptions
from worker.code.kept import (
    Lost,
    additions_fact,
    find_additions,
    find_history,
    find_links,
    find_reading,
    history_fact,
    links_fact,
    reading_key,
)
from worker.code.linking import FileLinks
from worker.code.made import Made, Watch, documents_of, link_files, require_symbols, snapshot_of
from worker.code.outlines import Outline, decode_shelves, digest_shelf, encode_shelves, outline_of, shelf_of
from worker.code.reading import FileReading
from worker.code.reading_pool import read_files
from worker.code.steps import Additions, CodeOutline, open_traces, run_steps
from worker.graph.diff import diff_contents
from worker.graph.model import Edge, GraphContents, NodeRef

Fetch = Callable[[Collection[str]], Awaitable[Mapping[str, bytes]]]
"""What the store keeps under these keys, as far as it is there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Before:
    """What an index starts from: the catalogue, and what of the rest is in memory already."""

    catalogue: Catalogue
    outlines: Mapping[str, Outline] | None = None
    history: History | None = None


@dataclass(frozen=True, slots=True)
class _Part:
    """What one file gives: its own nodes and edges by its reading, the others by its links."""

    reading: FileReading
    links: FileLinks | None

    @property
    def traces(self) -> tuple[Edge, ...]:
        return tuple(file_traces(self.reading, self.links))


async def patch(
    before: Before,
    sources: Sources,
    project_id: str,
    options: IndexOptions,
    watch: Watch,
    *,
    fetch: Fetch,
) -> Made:
    """The graph of these sources, and what makes it of the catalogue's.

    Raises Lost where what was kept does not suffice, NothingIndexed where no source file gives a symbol, and
    what `fetch` raises.
    """
    work = _Patch(before, sources, project_id, options, watch)
    await asyncio.to_thread(work.read, await fetch(work.keys_to_read()))
    await asyncio.to_thread(work.link, await fetch(work.keys_to_link()))
    return await asyncio.to_thread(work.finish, await fetch(work.keys_to_finish()))


class _Patch:
    """One such index, step by step; before each it says what it needs of what is kept."""

    def __init__(
        self, before: Before, sources: Sources, project_id: str, options: IndexOptions, watch: Watch
    ) -> None:
        self._before = before
        self._catalogue = before.catalogue
        self._sources = sources
        self._project = project_node(project_id, options.rules)
        self._options = options
        self._watch = watch
        self._changed = changed_paths(before.catalogue, sources)
        self._old: dict[str, _Part] = {}
        self._new: dict[str, _Part] = {}
        self._fresh: Mapping[str, tuple[FileReading, bytes]] = {}
        self._outlines: dict[str, Outline] = {}
        self._old_outlines: Mapping[str, Outline] = {}
        self._history = self._old_history = History()
        self._to_link: list[str] = []

    # --- Reading ---------------------------------------------------------------------------------------

    def keys_to_read(self) -> list[str]:
        """The outlines, the history, and what the files that changed were."""
        before, catalogue = self._before, self._catalogue
        keys = list(catalogue.shelves) if before.outlines is None else []
        if before.history is None:
            keys.append(catalogue.history_key)
        return [*keys, *self._part_keys(path for path in self._changed if path in catalogue.files)]

    def _part_keys(self, paths: Iterable[str]) -> Iterable[str]:
        for path in paths:
            entry = self._catalogue.files[path]
            yield reading_key(path, entry.sha256, rules=self._options.rules)
            if entry.links_key:
                yield entry.links_key

    def _old_part(self, path: str, facts: Mapping[str, bytes]) -> _Part:
        entry = self._catalogue.files[path]
        reading = find_reading(facts, reading_key(path, entry.sha256, rules=self._options.rules))
        return _Part(reading, find_links(facts, entry.links_key) if entry.links_key else None)

    def read(self, facts: Mapping[str, bytes]) -> None:
        """Read the files that changed, and find those whose names may mean something else now."""
        before, catalogue, changed = self._before, self._catalogue, self._changed
        with self._watch.phase("read"):
            old = before.outlines
            if old is None:
                old = decode_shelves(facts, catalogue.shelves)
            if old is None or old.keys() != catalogue.files.keys():
                raise Lost("outlines")
            self._old_outlines = old
            self._old_history = before.history or find_history(facts, catalogue.history_key)
            history = self._sources.history
            # The same object where it is the same: what hangs from it is not looked at then.
            is_same = history is None or history == self._old_history
            self._history = self._old_history if history is None or is_same else history
            self._old = {path: self._old_part(path, facts) for path in changed if path in catalogue.files}
            self._fresh = self._read_changed()
            self._outlines = {path: old[path] for path in old if path in self._sources.files}
            self._outlines |= {path: outline_of(reading) for path, (reading, _) in self._fresh.items()}
            affected = affected_paths(old, self._outlines, changed=changed)
            wanted = self._outlines.keys() if affected is None else affected
            self._to_link = sorted(path for path in wanted if self._outlines[path].facts is not None)

    def _read_changed(self) -> Mapping[str, tuple[FileReading, bytes]]:
        jobs: list[tuple[str, bytes]] = []
        for path in self._changed:
            source = self._sources.files.get(path)
            if source is not None and source.content is None:
                raise Lost(path)
            if source is not None and source.content is not None:
                jobs.append((path, source.content))
        return read_files(
            jobs,
            self._options.readers,
            processes=self._options.processes,
            on_read=lambda done: self._watch.step("read", done, len(jobs)),
        )

    # --- Linking ---------------------------------------------------------------------------------------

    def keys_to_link(self) -> list[str]:
        """What the files are that have to be linked again without having changed."""
        return list(self._part_keys(path for path in self._to_link if path not in self._fresh))

    def link(self, facts: Mapping[str, bytes]) -> None:
        """Link, and leave out of the touched parts what came out as it was."""
        with self._watch.phase("link"):
            for path in self._to_link:
                if path not in self._fresh:
                    self._old[path] = self._old_part(path, facts)
            readings = {path: outline.reading for path, outline in self._outlines.items()}
            for path in self._to_link:
                if path not in self._fresh:
                    readings[path] = self._old[path].reading
            readings |= {path: reading for path, (reading, _) in self._fresh.items()}
            links = link_files(readings, self._to_link, self._watch)
            for path in {*self._fresh, *links}:
                self._new[path] = _Part(readings[path], links.get(path))
            for path in links.keys() - self._fresh.keys():
                if self._old[path].links == links[path]:
                    del self._old[path], self._new[path]

    # --- Comparing -------------------------------------------------------------------------------------

    def keys_to_finish(self) -> list[str]:
        """Where requirements are touched: the documents that did not change, and what steps added."""
        if not self._are_requirements_touched():
            return []
        return [self._catalogue.additions_key, *map(self._reading_key, self._kept_documents())]

    def _reading_key(self, path: str) -> str:
        return reading_key(path, self._sources.files[path].sha256, rules=self._options.rules)

    def _kept_documents(self) -> list[str]:
        return [
            path
            for path, entry in self._catalogue.files.items()
            if entry.documents and path in self._sources.files and path not in self._new
        ]

    def _has_documents(self) -> bool:
        return any(part.reading.documents for part in self._new.values()) or any(
            entry.documents for entry in self._catalogue.files.values()
        )

    def _are_requirements_touched(self) -> bool:
        has_documents = self._has_documents()
        for path in self._old.keys() | self._new.keys():
            old, new = self._old.get(path), self._new.get(path)
            if old is None or new is None:
                part = old or new
                if has_documents or (part is not None and part.traces):
                    return True
                continue
            has_other_nodes = [n.ref for n in old.reading.nodes] != [n.ref for n in new.reading.nodes]
            if old.traces != new.traces or (has_other_nodes and new.traces):
                return True
            if has_documents and (has_other_nodes or old.reading.documents != new.reading.documents):
                return True
        return False

    def finish(self, facts: Mapping[str, bytes]) -> Made:
        """Compare the touched parts with what they were."""
        with self._watch.phase("store"):
            catalogue = self._catalogue
            kept: dict[str, bytes] = {}
            entries = self._entries(kept)
            require_symbols(entries, self._outlines)
            traces = {path: found for path, found in catalogue.traces.items() if path in entries}
            for path, part in self._new.items():
                traces.pop(path, None)
                if part.traces:
                    traces[path] = part.traces
            old_added, new_added = self._additions(facts, traces)
            old = self._contents(self._old, catalogue.files, self._old_history, catalogue.traces, old_added)
            new = self._contents(self._new, entries, self._history, traces, new_added)
            return self._made(entries, traces, new_added, old=old, new=new, kept=kept)

    def _entries(self, kept: dict[str, bytes]) -> dict[str, Entry]:
        """The files' entries; what is to be kept of the files that were touched goes to `kept`."""
        entries: dict[str, Entry] = {}
        for path, source in self._sources.files.items():
            part = self._new.get(path)
            if part is None:
                entries[path] = replace(self._catalogue.files[path], stamp=source.stamp)
                continue
            encoded = b""
            if path in self._fresh:
                encoded = kept[self._reading_key(path)] = self._fresh[path][1]
            links_key = ""
            if part.links is not None:
                links_key, encoded_links = links_fact(path, part.links)
                kept[links_key] = encoded_links
            file = IndexedFile(
                reading=part.reading, sha256=source.sha256, size_bytes=source.size_bytes, kept=encoded
            )
            entries[path] = replace(entry_of(file, part.links, links_key=links_key), stamp=source.stamp)
        return entries

    def _additions(
        self, facts: Mapping[str, bytes], traces: Mapping[str, tuple[Edge, ...]]
    ) -> tuple[tuple[Additions, ...] | None, tuple[Additions, ...] | None]:
        """What steps added and add; None, both, where no requirement is touched."""
        if not self._are_requirements_touched():
            return None, None
        old = find_additions(facts, self._catalogue.additions_key)
        readings = [find_reading(facts, self._reading_key(path)) for path in self._kept_documents()]
        documents = documents_of([*readings, *[part.reading for part in self._new.values()]])
        if not documents:
            return old, ()
        refs = self._refs(self._outlines)
        found = [edge for path in traces for edge in traces[path]]
        code = CodeOutline(refs=sorted(refs), traces=open_traces(found, refs))
        return old, run_steps(self._options.steps, documents, code)

    def _refs(self, outlines: Mapping[str, Outline]) -> set[NodeRef]:
        refs = {NodeRef("File", path) for path in outlines}
        for outline in outlines.values():
            refs.update(outline.refs)
        return refs

    def _contents(
        self,
        parts: Mapping[str, _Part],
        files: Mapping[str, Entry],
        history: History,
        traces: Mapping[str, tuple[Edge, ...]],
        additions: tuple[Additions, ...] | None,
    ) -> GraphContents:
        """The touched parts of a graph."""
        graph = GraphBuilder()
        refs = self._refs(self._old_outlines if parts is self._old else self._outlines)
        refs.add(self._project.ref)
        has_other_history = self._history is not self._old_history
        touched = updates(history)
        for path in sorted(files if has_other_history else parts):
            graph.add_nodes([file_node(path, files[path], touched.get(path))])
            graph.add_edges([Edge(self._project.ref, "DEFINES", NodeRef("File", path))])
        for path in sorted(parts):
            graph.add_nodes(parts[path].reading.nodes)
            graph.add_edges(file_edges(parts[path].reading, parts[path].links))
        if has_other_history or self._catalogue.files.keys() != self._sources.files.keys():
            graph.add_history(history, files)
        if additions is not None:
            graph.add_requirements(
                [edge for path in sorted(traces) for edge in traces[path]], additions, refs
            )
        return graph.contents(known=refs)

    def _made(
        self,
        entries: Mapping[str, Entry],
        traces: Mapping[str, tuple[Edge, ...]],
        added: tuple[Additions, ...] | None,
        *,
        old: GraphContents,
        new: GraphContents,
        kept: dict[str, bytes],
    ) -> Made:
        """The change from `old` to `new`, with all that is to be `kept` from now on."""
        catalogue, rules = self._catalogue, self._options.rules
        gone = {catalogue.files[path].links_key for path in self._old} - {""}
        for path in self._changed:
            if path in catalogue.files:
                gone.add(reading_key(path, catalogue.files[path].sha256, rules=rules))
        shelves = self._shelves(kept, gone)
        additions_key = catalogue.additions_key
        if added is not None:
            gone.add(additions_key)
            additions_key, kept_additions = additions_fact(added)
            kept[additions_key] = kept_additions
        history_key = catalogue.history_key
        if self._history is not self._old_history:
            gone.add(history_key)
            history_key, kept_history = history_fact(self._history)
            kept[history_key] = kept_history
        after = Catalogue(
            rules=rules,
            snapshot_id=snapshot_of(entries, self._history, rules=rules),
            files=entries,
            totals=moved(catalogue.totals, old=totals_of(old), new=totals_of(new)),
            traces=traces,
            shelves=shelves,
            additions_key=additions_key,
            history_key=history_key,
            history_head=self._history.head,
            history_reason=self._history.reason,
        )
        kept[KEY] = encode_catalogue(after)
        return Made(
            change=replace(
                diff_contents(old, new),
                added_facts=in_order(kept),
                removed_facts=tuple(sorted(gone - kept.keys())),
            ),
            catalogue=after,
            outlines=self._outlines,
            history=self._history,
            files_read=len(self._fresh),
            files_linked=len(self._to_link),
        )

    def _shelves(self, kept: dict[str, bytes], gone: set[str]) -> dict[str, str]:
        """The digests of all shelves, those of files that changed filled anew."""
        touched = {shelf_of(path) for path in self._changed}
        filled = encode_shelves(o for path, o in self._outlines.items() if shelf_of(path) in touched)
        kept |= filled
        gone |= touched - filled.keys()
        shelves = {key: digest for key, digest in self._catalogue.shelves.items() if key not in touched}
        return shelves | {key: digest_shelf(shelf) for key, shelf in filled.items()}
