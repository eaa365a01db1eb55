from __future__ import annotations

import dataclasses
import json
from contextlib import suppress
from pathlib import Path
from typing import get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from worker.code.extractor import extract
from worker.code.facts import (
    BranchKind,
    BranchPoint,
    Call,
    Class,
    Definition,
    Function,
    Import,
    Leaving,
    ModuleFacts,
    ParseProblem,
    ProblemKind,
    Trace,
)
from worker.code.facts_stream import TEXT_CHARS, decode_facts, encode_facts

ROOT = Path(__file__).parents[3]

# Half a surrogate pair is what a docstring may spell.
texts = st.text(st.characters(exclude_categories=()), max_size=12)
lines = st.integers(0, 10**6)
pairs = st.tuples(lines, lines)


def several(values: st.SearchStrategy[object]) -> st.SearchStrategy[tuple[object, ...]]:
    return st.lists(values, max_size=4).map(tuple)


calls = several(st.builds(Call, texts, lines))
traces = several(st.builds(Trace, texts, texts, lines))
names = st.frozensets(texts, max_size=4)
shared = {
    **dict.fromkeys(("id", "qualname", "name", "scope_id", "signature", "docstring_head"), texts),
    **dict.fromkeys(("start_line", "line", "end_line"), lines),
    "class_id": st.none() | texts,
    "decorators": several(texts),
    "is_public": st.booleans(),
    "docstring_lines": pairs,
    "calls": calls,
    "bound_names": names,
    "traces": traces,
}
branches = several(
    st.builds(
        BranchPoint,
        lines,
        st.sampled_from(get_args(BranchKind)),
        texts,
        lines,
        lines,
        st.sampled_from(get_args(Leaving)),
    )
)
functions = st.builds(Function, **shared, is_async=st.booleans(), complexity=lines, branch_points=branches)
classes = st.builds(Class, **shared, bases=several(texts))
imports = st.builds(Import, texts, texts, texts, st.none() | texts, lines, lines)
modules = st.builds(
    ModuleFacts,
    path=texts,
    line_count=lines,
    parse_problem=st.none() | st.builds(ParseProblem, st.sampled_from(get_args(ProblemKind)), lines),
    docstring_head=texts,
    docstring_lines=pairs,
    exports=st.none() | several(texts),
    functions=several(functions),
    classes=several(classes),
    imports=several(imports),
    calls=calls,
    bound_names=names,
    traces=traces,
    placeholders=traces,
)


@settings(max_examples=150)
@given(modules)
def test_what_was_encoded_is_decoded_as_it_was(facts: ModuleFacts) -> None:
    assert decode_facts(encode_facts(facts)) == facts


def test_every_field_of_facts_is_told() -> None:
    """A field that is added to the facts and not to the stream would be lost here."""
    for kind in (Definition, Function, Class, ModuleFacts):
        told = {"functions", "classes", *shared, "is_async", "complexity", "branch_points", "bases"}
        told |= {"path", "line_count", "parse_problem", "exports", "imports", "placeholders"}
        assert {field.name for field in dataclasses.fields(kind)} <= told


@pytest.mark.parametrize(
    "path", ["worker/assembly.py", "worker/kafka/dispatch.py", "tests/support/hostile.py"]
)
def test_real_modules_survive(path: str) -> None:
    facts = extract(path, (ROOT / path).read_bytes())
    assert decode_facts(encode_facts(facts)) == facts


def test_no_text_is_long_however_much_one_function_does() -> None:
    content = b"def f():\n" + b"    g()\n    if a: x1 = h(1)\n" * 20_000
    facts = extract("a.py", content)
    texts = list(encode_facts(facts))
    assert max(map(len, texts)) < 2 * TEXT_CHARS
    assert len(texts) > 10
    assert decode_facts(texts) == facts


@pytest.mark.parametrize(
    "texts",
    [
        [],
        [b""],
        [b"\xff"],
        [b"7"],
        [b"null"],
        [b"[7]"],
        [b'[["module"]]'],
        [b'[["module",[]]]'],
        [b'[["calls",[["f",1]]]]'],
        [b'[["function",[1,2]]]'],
        [b'[["surprise",[1]]]'],
        [b"[" * 100_000],
        [json.dumps([["module", ["a", 1, "", [0, 0], None]], ["calls", [[1]]]]).encode()],
        [json.dumps([["module", ["a", 1, "", [0, 0], None]], ["branch_points", []]]).encode()],
    ],
)
def test_what_is_no_stream_of_facts_is_refused(texts: list[bytes]) -> None:
    with pytest.raises(ValueError, match=r"."):
        decode_facts(texts)


@settings(max_examples=200)
@given(modules, st.data())
def test_a_stream_that_was_damaged_gives_facts_or_is_refused(facts: ModuleFacts, data: st.DataObject) -> None:
    stream = bytearray(b"".join(encode_facts(facts)))
    place = data.draw(st.integers(0, len(stream) - 1))
    stream[place] = data.draw(st.integers(0, 255))
    with suppress(ValueError):
        assert isinstance(decode_facts([bytes(stream)]), ModuleFacts)
