from __future__ import annotations

import time

import pytest

from worker.code.owners import link_owners, owners_of, parse_owners, read_owner_file
from worker.code.steps import CodeOutline
from worker.graph.model import Edge, Node, NodeRef


def owners(text: str, path: str) -> tuple[str, ...]:
    return owners_of(path, parse_owners(text))


@pytest.mark.parametrize(
    ("pattern", "owned", "not_owned"),
    [
        ("*", ["a", "a/b.c"], []),
        ("*.js", ["x.js", "a/b/x.js"], ["x.jsx", "js"]),
        ("/build/logs/", ["build/logs/a", "build/logs/b/c"], ["a/build/logs/x", "build/logs"]),
        ("docs/*", ["docs/a.md"], ["docs/b/c.md", "a/docs/b"]),
        ("apps/", ["apps/a", "x/apps/y/z"], ["apps", "myapps/a"]),
        ("/docs/", ["docs/a", "docs/b/c"], ["x/docs/a"]),
        ("docs", ["docs", "docs/a", "x/docs/y"], ["docs2", "mydocs"]),
        ("/scripts/", ["scripts/a"], ["x/scripts/a"]),
        ("**/logs", ["logs", "build/logs", "a/b/logs/x"], ["logs2"]),
        ("/a/**/z.py", ["a/z.py", "a/b/z.py", "a/b/c/z.py"], ["b/a/z.py"]),
        ("a/**", ["a/b", "a/b/c"], ["a", "x/a/b"]),
        ("/file.py", ["file.py"], ["x/file.py"]),
        ("x?z.py", ["xyz.py", "a/xyz.py"], ["xz.py", "x/z.py"]),
        ("with\\ blank.py", ["with blank.py"], ["with"]),
        ("\\#odd.py", ["#odd.py"], ["odd.py"]),
        ("a.b", ["a.b"], ["axb"]),
    ],
)
def test_a_pattern_means_what_github_says(pattern: str, owned: list[str], not_owned: list[str]) -> None:
    rules = parse_owners(f"{pattern} @owner\n")
    assert [path for path in owned if not owners_of(path, rules)] == []
    assert [path for path in not_owned if owners_of(path, rules)] == []


def test_the_last_line_that_matches_counts_alone() -> None:
    text = "* @global @second\n*.py @python # remark\n/secret.py\n"
    assert owners(text, "a.md") == ("@global", "@second")
    assert owners(text, "a.py") == ("@python",)
    assert owners(text, "secret.py") == ()


def test_lines_that_github_would_not_accept_are_passed_over() -> None:
    text = "* @ok\n!a.py @x\n[Section] @y\na[bc].py @z\n*.py not-an-owner\n*.md @org/team me@example.org\n"
    assert owners(text, "a.py") == ("@ok",)
    assert owners(text, "ab.py") == ("@ok",)
    assert owners(text, "a.md") == ("@org/team", "me@example.org")


def test_a_hostile_pattern_costs_little() -> None:
    rules = parse_owners("*a*a*a*a*a*a*a*a*a*a*a*a*a*a*a*a*b @x\n" + "**/" * 200 + "z @y\n")
    started = time.process_time()
    owners_of("a" * 200 + "/" + "a" * 200, rules)
    owners_of("/".join(["a"] * 60), rules)
    assert time.process_time() - started < 1


def test_the_first_owner_file_that_there_is_counts() -> None:
    assert read_owner_file("src/CODEOWNERS", b"* @a") is None
    file = Node(label="File", id="a.py")
    code = CodeOutline(refs=(file.ref,))
    added = link_owners({"CODEOWNERS": "* @root", ".github/CODEOWNERS": "* @hub @two"}, code)
    assert [node.id for node in added.nodes] == ["@hub", "@two"]
    assert added.edges == [
        Edge(NodeRef("Owner", "@hub"), "OWNS", file.ref),
        Edge(NodeRef("Owner", "@two"), "OWNS", file.ref),
    ]
