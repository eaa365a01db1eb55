"""Calls that lead to certain edges, beside what scip-python (Pyright's checker) makes of the same places.

Where both resolve a call they should agree in at least 95 of 100; where one alone does, neither is wrong: the
checker follows types, the index does not. Needs `scip-python`, which npm has as `@sourcegraph/scip-python`:
on the path, or its file in CONTEXT_TEST_SCIP.
"""

from __future__ import annotations

import ast
import os
import re
import shutil
import subprocess
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from sysconfig import get_path

import pytest

from worker.code.facts import ModuleFacts
from worker.code.neighbourhood import NameResolver
from worker.code.reading import FileReaders, read_file
from worker.code.signatures import written_name

pytestmark = [pytest.mark.bench, pytest.mark.timeout(600)]

PACKAGES = ("click", "httpx", "starlette")
LEAST_AGREEMENT = 0.95
_DEFINITION_ROLE = 1
_DUPLICATE = re.compile(r"#\d+$")


@dataclass(frozen=True, slots=True)
class Occurrence:
    """A name in a file, as scip has it: line and columns count from 0."""

    line: int
    start: int
    end: int
    symbol: str
    is_definition: bool


# --- The index file: protocol buffers, of which two levels matter ------------------------------------------


def fields(message: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Number and value of each field."""
    place = 0
    while place < len(message):
        tag, place = varint(message, place)
        if tag & 7 == 0:
            value, place = varint(message, place)
            yield tag >> 3, value
        elif tag & 7 == 2:
            size, place = varint(message, place)
            yield tag >> 3, message[place : place + size]
            place += size
        else:
            raise ValueError(f"wire type {tag & 7} is not in an index")


def varint(message: bytes, place: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = message[place]
        place += 1
        value |= (byte & 127) << shift
        shift += 7
        if byte < 128:
            return value, place


def occurrences(index: bytes) -> dict[str, list[Occurrence]]:
    """By document, the names that stand on one line."""
    found: dict[str, list[Occurrence]] = {}
    for number, document in fields(index):
        if number == 2 and isinstance(document, bytes):
            held = [(n, value) for n, value in fields(document) if isinstance(value, bytes)]
            path = next(value.decode() for n, value in held if n == 1)
            found[path] = [o for n, value in held if n == 2 for o in one_line(value)]
    return found


def one_line(message: bytes) -> Iterator[Occurrence]:
    numbers: list[int] = []
    symbol, roles = "", 0
    for number, value in fields(message):
        if number == 1 and isinstance(value, bytes):
            place = 0
            while place < len(value):
                found, place = varint(value, place)
                numbers.append(found)
        elif number == 2 and isinstance(value, bytes):
            symbol = value.decode()
        elif number == 3 and isinstance(value, int):
            roles = value
    if len(numbers) == 3 and symbol and not symbol.startswith("local "):
        line, start, end = numbers
        yield Occurrence(line, start, end, symbol, bool(roles & _DEFINITION_ROLE))


# --- The comparison -----------------------------------------------------------------------------------------


def compare(sources: Mapping[str, bytes], found: Mapping[str, list[Occurrence]]) -> Counter[str]:
    """Calls by who resolves them within the package, and whether both mean the same."""
    modules = [read_file(path, content, FileReaders()).facts for path, content in sources.items()]
    known = [module for module in modules if module is not None]
    resolver = NameResolver(known)
    ids = {
        (module.path, item.line, item.name): item.id
        for module in known
        for item in (*module.functions, *module.classes)
    }
    symbols: dict[str, str] = {}
    for path, names in found.items():
        lines = sources[path].decode().split("\n") if path in sources else []
        for name in names:
            key = (path, name.line + 1, lines[name.line][name.start : name.end] if lines else "")
            if name.is_definition and key in ids:
                symbols[name.symbol] = ids[key]
    counts = Counter[str]()
    for module in known:
        counts.update(
            compare_module(module, sources[module.path], found.get(module.path, []), symbols, resolver)
        )
    return counts


def compare_module(
    module: ModuleFacts,
    content: bytes,
    names: list[Occurrence],
    symbols: Mapping[str, str],
    resolver: NameResolver,
) -> Iterator[str]:
    theirs_at: defaultdict[tuple[int, int], set[str]] = defaultdict(set)
    for name in names:
        if name.symbol in symbols:
            theirs_at[name.line + 1, name.end].add(symbols[name.symbol])
    lines = content.split(b"\n")
    places: dict[tuple[int, str], int] = {}
    for node in ast.walk(ast.parse(content)):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name | ast.Attribute):
            line, column = node.func.end_lineno or 0, node.func.end_col_offset or 0
            places.setdefault((line, written_name(node.func)), len(lines[line - 1][:column].decode()))
    for within in (None, *module.functions, *module.classes):
        for call in (module if within is None else within).calls:
            if (call.line, call.name) not in places:
                continue
            target = resolver.resolve(call.name, module=module, within=within)
            # The checker calls a class by its name or by its constructor's.
            theirs = {
                meant
                for found in theirs_at[call.line, places[call.line, call.name]]
                for meant in (found, found.removesuffix(".__init__"))
            }
            if target is not None and theirs:
                is_same = not theirs.isdisjoint({target.id, _DUPLICATE.sub("", target.id)})
                yield "agree" if is_same else "differ"
            elif target is not None or theirs:
                yield "index alone" if theirs == set() else "scip-python alone"
            else:
                yield "neither"


@pytest.fixture(scope="module")
def scip_python() -> str:
    program = os.environ.get("CONTEXT_TEST_SCIP") or shutil.which("scip-python")
    if program is None:
        pytest.fail("scip-python is needed: npm install @sourcegraph/scip-python, then CONTEXT_TEST_SCIP")
    return program


@pytest.mark.parametrize("package", PACKAGES)
def test_certain_calls_agree_with_the_checker(package: str, scip_python: str, tmp_path: Path) -> None:
    root = tmp_path / package
    shutil.copytree(Path(get_path("purelib")) / package, root / package)
    shutil.rmtree(root / package / "__pycache__", ignore_errors=True)
    subprocess.run(
        [scip_python, "index", "--project-name", package, "--project-version", "1", "--output", "index.scip"],
        cwd=root,
        check=True,
        capture_output=True,
        timeout=500,
        env=os.environ | {"NODE_OPTIONS": "--max-old-space-size=2048"},
    )
    sources = {str(path.relative_to(root)): path.read_bytes() for path in sorted(root.rglob("*.py"))}
    counts = compare(sources, occurrences((root / "index.scip").read_bytes()))
    both = counts["agree"] + counts["differ"]
    print(f"\n{package}: {counts['agree']} of {both} agree; {dict(sorted(counts.items()))}")  # noqa: T201 - the figures are the result
    assert both > 50
    assert counts["agree"] >= LEAST_AGREEMENT * both
