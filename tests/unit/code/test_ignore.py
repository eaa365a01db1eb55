from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from worker.code.ignore import IgnoreRules
from worker.code.scan import scan_tree

NAMES = st.sampled_from(["a", "b", "build", "x.py", "y.log", "keep.py", "da ta"])
PATHS = st.lists(NAMES, min_size=1, max_size=4).map("/".join)
PATTERNS = st.sampled_from(
    [
        *(
            "*.log",
            "!y.log",
            "build/",
            "/build",
            "a/b",
            "/a/*",
            "!/a/b",
            "**/b",
            "a/**",
            "a/**/x.py",
            "!keep.py",
        ),
        *(
            "# comment",
            "",
            "  ",
            "x.p?",
            "[xy].*",
            "\\#x",
            "b/",
            "!b/",
            "*",
            "!*.py",
            "/*",
            "!/a",
            "da\\ ta",
            "a/b/*",
        ),
        *("keep.py ", "***", "/", "!", "\\", "[", "a//b", "*/x.py", "foo[!a]"),
    ]
)
LINES = st.lists(PATTERNS, max_size=5).map("\n".join)


def git_files(root: Path) -> set[str]:
    """What git itself would add."""
    environment = {"PATH": os.environ["PATH"], "GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_NOSYSTEM": "1"}
    subprocess.run(["git", "init", "-q", str(root)], check=True, env=environment)
    listed = subprocess.run(
        ["git", "-C", str(root), "ls-files", "-z", "--others", "--exclude-per-directory=.gitignore"],
        check=True,
        env=environment,
        stdout=subprocess.PIPE,
    )
    return {name.decode() for name in listed.stdout.split(b"\0") if name}


@settings(max_examples=60, deadline=None)
@given(
    st.sets(PATHS, min_size=1, max_size=8), st.dictionaries(st.sampled_from(["", "a", "a/b", "build"]), LINES)
)
def test_git_ignore_files_are_read_as_git_reads_them(
    tmp_path_factory: pytest.TempPathFactory, paths: set[str], ignore_files: dict[str, str]
) -> None:
    root = tmp_path_factory.mktemp("tree")
    for path in sorted(paths):
        target = root / path
        if any(parent.is_file() for parent in target.parents) or target.exists():
            continue
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text("text\n")
    for folder, lines in ignore_files.items():
        if (root / folder).is_dir():
            (root / folder / ".gitignore").write_text(lines)
    found = {file.path for file in scan_tree(root).files}
    assert found == git_files(root)


def test_the_last_line_that_matches_counts_and_the_innermost_file_comes_last() -> None:
    outer = IgnoreRules().within("", {".gitignore": "*.log\n!keep.log\n"})
    inner = outer.within("a", {".gitignore": "!x.log\n/y.py\n"})
    assert outer.verdict("x.log", is_folder=False) == "left_out"
    assert outer.verdict("keep.log", is_folder=False) == "unsaid"
    assert inner.verdict("a/x.log", is_folder=False) == "unsaid"
    assert inner.verdict("a/y.py", is_folder=False) == "left_out"
    assert inner.verdict("a/b/y.py", is_folder=False) == "unsaid"


def test_a_context_ignore_file_stands_below_the_git_ignore_file_of_its_folder() -> None:
    rules = IgnoreRules().within("", {".gitignore": "gen/\n", ".contextignore": "!gen/\ndocs/\n"})
    assert rules.verdict("gen", is_folder=True) == "wanted"
    assert rules.verdict("docs", is_folder=True) == "left_out"
    assert rules.verdict("docs", is_folder=False) == "unsaid"


def test_only_a_line_of_the_context_ignore_file_makes_a_path_wanted() -> None:
    rules = IgnoreRules().within("", {".gitignore": "*.py\n!a.py\n"})
    assert rules.verdict("a.py", is_folder=False) == "unsaid"


def test_ignore_files_with_crlf_and_a_byte_order_mark_are_read() -> None:
    rules = IgnoreRules().within("", {".gitignore": "\ufeff*.log\r\nb.py\r\n"})
    assert rules.verdict("x.log", is_folder=False) == "left_out"
    assert rules.verdict("b.py", is_folder=False) == "left_out"
