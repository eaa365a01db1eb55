from __future__ import annotations

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from worker.code.catalogue import (
    Catalogue,
    Entry,
    Totals,
    decode_catalogue,
    encode_catalogue,
    moved,
)
from worker.code.linking import Linker
from worker.code.outlines import (
    Outline,
    decode_shelves,
    digest_shelf,
    encode_shelves,
    outline_of,
    shelf_of,
)
from worker.code.readers import READERS
from worker.code.reading import read_file
from worker.code.scan import FileStamp
from worker.graph.model import Edge, NodeRef

SOURCES = {
    "pkg/__init__.py": "from .a import Base as Root\n",
    "pkg/a.py": (
        "class Base:\n    name = 1\n    def helper(self): pass\n    @staticmethod\n    def make(): pass\n"
    ),
    "pkg/b.py": (
        "import pkg\nclass B(pkg.Root):\n    def run(self):\n        self.helper()\n        x.make()\n"
    ),
    "tests/test_b.py": "from pkg.b import B\nclass TestB:\n    def test_run(self): B().run()\n",
    "web/a.ts": "import { stop } from './b'\nexport class A extends Base { go() { stop(); } }\n",
    "web/b.ts": "export function stop() {}\nexport class Base {}\n",
    "half.py": "def kept(): pass\ndef broken(:\n",
    "bad.py": "def (:\n",
    "notes.md": "# One\n\nTwo.\n",
}


def decoded(outlines: list[Outline]) -> dict[str, Outline]:
    shelves = encode_shelves(outlines)
    found = decode_shelves(shelves, {key: digest_shelf(shelf) for key, shelf in shelves.items()})
    assert found is not None
    return found


def test_a_file_links_to_outlines_as_to_the_files_themselves() -> None:
    readings = {path: read_file(path, text.encode(), READERS) for path, text in SOURCES.items()}
    outlines = decoded([outline_of(reading) for reading in readings.values()])
    whole = Linker(readings)
    for path, reading in readings.items():
        others = {other: outline.reading for other, outline in outlines.items()} | {path: reading}
        assert Linker(others).link(path) == whole.link(path)


@settings(max_examples=50, deadline=None)
@given(st.lists(st.sampled_from(sorted(SOURCES)), unique=True))
def test_what_is_read_from_shelves_fills_the_same_shelves(paths: list[str]) -> None:
    outlines = [outline_of(read_file(path, SOURCES[path].encode(), READERS)) for path in paths]
    found = decoded(outlines)
    assert sorted(found) == sorted(paths)
    assert encode_shelves(found.values()) == encode_shelves(reversed(outlines))


def test_a_shelf_that_is_not_the_one_that_was_filled_is_not_read() -> None:
    outline = outline_of(read_file("a.py", b"def f(): pass\n", READERS))
    key = shelf_of("a.py")
    shelf = encode_shelves([outline])[key]
    other = encode_shelves([outline_of(read_file("a.py", b"def g(): pass\n", READERS))])[key]
    assert decode_shelves({key: shelf}, {key: digest_shelf(other)}) is None
    assert decode_shelves({}, {key: digest_shelf(shelf)}) is None
    assert decode_shelves({key: b"x"}, {key: digest_shelf(b"x")}) is None


# --- The catalogue --------------------------------------------------------------------------------------

STAMP = FileStamp(size_bytes=3, modified_ns=2**62, changed_ns=5, inode=7)
ENTRY = Entry(
    sha256="ab",
    size_bytes=3,
    language="python",
    status="partly_parsed",
    reason="syntax at line 1",
    unresolved_calls=4,
    exact_calls=5,
    guessed_calls=6,
    links_key="links:1",
    documents=("owners", "specification"),
    stamp=STAMP,
)
CATALOGUE = Catalogue(
    rules="r",
    snapshot_id="s",
    files={"é.py": ENTRY, "b.md": replace(ENTRY, stamp=None, documents=(), unresolved_calls=None)},
    totals=Totals(nodes={"File": 2}, edges={"CALLS": 3}, guessed_edges={"CALLS": 1}),
    traces={"é.py": (Edge(NodeRef("Function", "é.py::f"), "TRACES_TO", NodeRef("RequirementItem", "R-1")),)},
    shelves={"outlines:01": "d"},
    additions_key="additions:1",
    history_key="history:1",
    history_head="h",
    history_reason="",
)


def test_a_catalogue_is_read_as_it_was_written() -> None:
    assert decode_catalogue(encode_catalogue(CATALOGUE)) == CATALOGUE


@given(st.integers(0, 10_000), st.integers(0, 255))
def test_a_spoilt_catalogue_is_none_or_what_it_was(place: int, byte: int) -> None:
    written = bytearray(encode_catalogue(CATALOGUE))
    written[place % len(written)] = byte
    # A checksum is not part of it: what matters is that reading it never raises.
    decode_catalogue(bytes(written))
    assert decode_catalogue(bytes(written)[: place % len(written)]) is None


def test_totals_follow_the_part_that_was_replaced() -> None:
    totals = Totals(nodes={"File": 2, "Class": 1}, edges={"CALLS": 3})
    old = Totals(nodes={"Class": 1}, edges={"CALLS": 1})
    new = Totals(nodes={"Function": 2}, edges={"CALLS": 2}, guessed_edges={"CALLS": 2})
    assert moved(totals, old=old, new=new) == Totals(
        nodes={"File": 2, "Function": 2}, edges={"CALLS": 4}, guessed_edges={"CALLS": 2}
    )
