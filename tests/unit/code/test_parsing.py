from __future__ import annotations

import ast
import json
import subprocess
import sys
import sysconfig
import threading
import time
import tokenize
import warnings
from io import BytesIO
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from worker.code import parsing
from worker.code.facts import ParseProblem, ProblemKind
from worker.code.parsing import STRING_OR_COMMENT, Source, parse

STDLIB = Path(sysconfig.get_path("stdlib"))


def dump(body: tuple[ast.stmt, ...] | list[ast.stmt]) -> str:
    return ast.dump(ast.Module(list(body), []), include_attributes=True)


def text_of(content: bytes) -> str:
    source = parse(content)
    assert isinstance(source, Source)
    return source.text


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (b"", ""),
        (b"x = 'caf\xc3\xa9'", "x = 'café'"),
        (b"\xef\xbb\xbfx = 1", "x = 1"),
        (b"# -*- coding: latin-1 -*-\nx = '\xe9'", "# -*- coding: latin-1 -*-\nx = 'é'"),
        (b"#!/usr/bin/python\n# vim: set fileencoding=koi8-r :\nx = '\xc1'", None),
        (b"# coding: shift_jis\nx = '\x83\x5c'", "# coding: shift_jis\nx = 'ソ'"),
        (b"a = 1\r\nb = 2\rc = 3\n", "a = 1\nb = 2\nc = 3\n"),
    ],
)
def test_a_file_is_read_in_the_encoding_it_names(content: bytes, text: str | None) -> None:
    assert text_of(content) == text if text is not None else text_of(content).endswith("'а'")


@pytest.mark.parametrize(
    ("content", "kind", "line"),
    [
        (b"x = 1\ny = '\xe9'\n", "encoding", 0),
        (b"# coding: no-such-thing\n", "encoding", 0),
        (b"\xef\xbb\xbf# coding: latin-1\n", "encoding", 0),
        (b"x = 1\n# \x00", "nul_byte", 2),
        (b"x\x00", "nul_byte", 1),
        (b"\xff\xfex\x00=\x001\x00", "encoding", 0),
        (b"x = 1\nif\n", "syntax", 2),
        (b"def f():\n    x = (1,\n", "syntax", 2),
        (b"x = " + b"9" * 5_000, "syntax", 1),
        (b"\t\tx = 1\n  y", "syntax", 1),
    ],
)
def test_what_cannot_be_read_is_a_problem_with_its_line(content: bytes, kind: ProblemKind, line: int) -> None:
    assert parse(content) == ParseProblem(kind, line)


# As a coding line they would be a bomb, quadratic, or no encoding of a source at all.
@pytest.mark.parametrize(
    "name",
    [
        "zlib",
        "bz2",
        "hex",
        "rot13",
        "base64",
        "punycode",
        "idna",
        "unicode_escape",
        "raw_unicode_escape",
        "utf-7",
        "utf-16",
        "utf_32_be",
        "undefined",
        "mbcs",
    ],
)
def test_an_encoding_that_is_none_for_source_is_refused(name: str) -> None:
    started = time.process_time()
    content = f"# coding: {name}\n".encode() + b"a-" * 500_000
    assert parse(content) == ParseProblem("encoding", 0)
    assert time.process_time() - started < 2


DEEP = {
    "5,000 terms": "x = 1" + " + 1" * 5_000,
    "attributes": "a" + ".b" * 100_000,
    "calls": "a" + "()" * 100_000,
    "subscripts": "a" + "[0]" * 100_000,
    "not": "not " * 100_000 + "1",
    "minus": "-" * 100_000 + "1",
    "power": "1" + "**1" * 100_000,
    "lambdas": "lambda: " * 100_000 + "1",
    "ternaries": "1 if 1 else " * 100_000 + "1",
    "elifs": "if a:\n pass\n" + "elif a:\n pass\n" * 100_000,
    "f-string fields": "f'" + "{a}" * 100_000 + "'",
    "fields in a long f-string": "f'''" + "x" * 1_000_000 + "{a}" * 1_000 + "'''",
    "dotted import": "import a" + ".a" * 100_000,
    "dotted import over lines": "import a" + ".\\\na" * 20_000,
    "accents": "x = a" + "\u0301\u0323" * 100_000,
    "accents in a field": "f'{a" + "\u0301\u0323" * 100_000 + "}'",
    "half-width accents": "x = a" + "\uff9e\u0323" * 100_000,
}


@pytest.mark.parametrize("name", DEEP)
def test_what_would_exhaust_a_stack_or_an_hour_is_too_complex(name: str) -> None:
    started = time.process_time()
    assert parse(DEEP[name].encode()) == ParseProblem("too_complex", 0)
    assert time.process_time() - started < 5


@pytest.mark.parametrize("text", ["(" * 100_000 + "1" + ")" * 100_000, "[" * 300, "{" * 100_000])
def test_nesting_beyond_what_the_language_allows_is_a_syntax_error(text: str) -> None:
    assert parse(text.encode()) == ParseProblem("syntax", 1)


def test_a_thread_of_ordinary_stack_size_survives_the_deepest_nesting() -> None:
    results: list[object] = []

    def work() -> None:
        results.extend(parse(text.encode()) for text in DEEP.values())

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert results == [ParseProblem("too_complex", 0)] * len(DEEP)


def test_many_braces_and_dots_in_a_real_file_are_no_reason_to_refuse_it() -> None:
    table = "T = {\n" + "".join(f"    {n}: {{'a': 0.{n}, 'b': m.n.o}},\n" for n in range(10_000)) + "}\n"
    assert isinstance(parse(table.encode()), Source)


def test_letters_with_a_few_accents_are_no_reason_to_refuse_a_file() -> None:
    assert isinstance(
        parse(("e\u0301\u0323 = 'Z\u0351\u036b\u0343' # \uff76\uff9e\n" * 1_000).encode()), Source
    )


ODD = ["x = '\\d'", "x = b'\\d'", "x = 1if 1else 0", "f'{1if 1else 0}'", "f'\\d{x}'", "x is 1"]


def test_warnings_about_the_source_go_nowhere_whatever_the_process_does() -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert all(isinstance(parse(text.encode()), Source) for text in ODD)
        assert caught == []
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert all(isinstance(parse(text.encode()), Source) for text in ODD)


def test_warnings_of_anybody_else_are_as_they_were() -> None:
    parse(b"x = '\\d'")
    with pytest.warns(DeprecationWarning, match="old"):
        warnings.warn("old", DeprecationWarning, stacklevel=1)
    with pytest.warns(DeprecationWarning, match="invalid escape"):
        compile("x = '\\d'", "their.py", "exec")


# --- Pieces ---


def test_a_long_file_parses_in_pieces_as_it_does_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parsing, "PIECE_CHARS", 500)
    paths = sorted(STDLIB.glob("*.py"))[::15] + sorted((STDLIB / "test").glob("test_g*.py"))
    for path in paths:
        content = path.read_bytes()
        source = parse(content)
        assert isinstance(source, Source), path
        assert dump(source.body) == dump(ast.parse(content).body), path


PARTS = st.sampled_from(
    [
        "x = 1\n",
        "@d\n",
        "@d(\na,\n)\n",
        "def f():\n    '''doc\ndef g():\n'''\n    return 1\n",
        "class A:\n\n    x = '''\n@no\n'''\n",
        "if x:\n    pass\n",
        "else:\n    pass\n",
        "elif y:\n    pass\n",
        "try:\n    pass\n",
        "finally:\n    pass\n",
        "except E:\n    pass\n",
        "x = (\n1,\ny,\n)\n",
        "x = 'a\\\nb'\n",
        "x = 1 + \\\ny\n",
        '"""\n',
        "# comment\n",
        "\n",
        "async def f(): pass\n",
        "match x:\n    case 1: pass\n",
        "with a as b: pass\n",
        "\f\n",
        "é = 'é'\n",
        "(\n",
        ")\n",
    ]
)


@given(parts=st.lists(PARTS, max_size=30))
def test_pieces_give_what_the_whole_gives_or_fail_as_it_fails(parts: list[str]) -> None:
    text = "".join(parts)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(parsing, "PIECE_CHARS", 1)
        source = parse(text.encode())
    try:
        whole = ast.parse(text)
    except SyntaxError:
        assert isinstance(source, ParseProblem)
        assert source.kind == "syntax"
    else:
        assert isinstance(source, Source)
        assert dump(source.body) == dump(whole.body)


def test_a_file_of_small_definitions_never_holds_the_interpreter_for_long(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    text = "def f(a, b):\n    return [a + b for _ in range(10)]\n\n" * 4_000
    compile_piece = parsing._compile  # pyright: ignore[reportPrivateUsage]  # the call that holds the lock
    lengths: list[int] = []

    def measure(piece: str) -> ast.Module:
        lengths.append(len(piece.lstrip("\n")))
        return compile_piece(piece)

    monkeypatch.setattr(parsing, "_compile", measure)
    assert isinstance(parse(text.encode()), Source)
    assert sum(lengths) == len(text)
    assert max(lengths) < 1.1 * parsing.PIECE_CHARS


# --- Strings and comments ---


def comments_by_tokenize(content: bytes) -> list[tuple[int, int, str]]:
    tokens = tokenize.tokenize(BytesIO(content).readline)
    return [(*token.start, token.string) for token in tokens if token.type == tokenize.COMMENT]


def comments_by_pattern(text: str) -> list[tuple[int, int, str]]:
    found: list[tuple[int, int, str]] = []
    for match in STRING_OR_COMMENT.finditer(text):
        if match[0].startswith("#"):
            line_start = text.rfind("\n", 0, match.start()) + 1
            line = text.count("\n", 0, match.start()) + 1
            found.append((line, match.start() - line_start, match[0]))
    return found


@pytest.mark.skipif(sys.version_info >= (3, 12), reason="f-strings may hold their own quotes from 3.12 on")
def test_comments_are_found_where_the_tokenizer_finds_them() -> None:
    paths = sorted(STDLIB.glob("*.py"))[::12] + sorted((STDLIB / "test").glob("test_*string*.py"))
    for path in paths:
        content = path.read_bytes()
        assert comments_by_pattern(text_of(content)) == comments_by_tokenize(content), path


@pytest.mark.parametrize("text", ['\'\\"""\n' * 50_000, '"""{' * 50_000, "'" * 200_000, "\\" * 200_000 + "'"])
def test_strings_that_are_not_closed_are_found_in_linear_time(text: str) -> None:
    started = time.process_time()
    sum(1 for _ in STRING_OR_COMMENT.finditer(text))
    assert time.process_time() - started < 2


COLD_AND_WARM = """
import json, os, threading
from worker.code.parsing import Source, parse

def nests(depth):
    found = []
    text = b"x = " + b"+".join([b"1"] * depth) + b"\\n"
    thread = threading.Thread(target=lambda: found.append(isinstance(parse(text), Source)))
    thread.start()
    thread.join()
    return found[0]

def first(depth):
    child = os.fork()
    if not child:
        os._exit(nests(depth))
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 1

depths = [*range(2940, 3000)]
colds = [*map(first, depths)]
for _ in range(20):
    nests(1)
print(json.dumps([colds, [*map(nests, depths)]]))
"""


def test_how_deep_source_may_nest_is_the_same_at_the_first_call_and_later() -> None:
    """The interpreter takes a shorter way where a call has run a few times; what nests may not hang on it."""
    told = subprocess.run([sys.executable, "-c", COLD_AND_WARM], check=True, stdout=subprocess.PIPE)
    first, later = json.loads(told.stdout)
    assert first == later
    assert set(first) == {True, False}
