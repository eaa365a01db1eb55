from __future__ import annotations

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from worker.providers.diff import split_diff

GIT = """diff --git a/src/net.py b/src/net.py
index 83db48f..bf269f4 100644
--- a/src/net.py
+++ b/src/net.py
@@ -1,3 +1,4 @@ def retry():
 one
-two
+2
+three
 four
@@ -10 +11 @@ class Client:
-old
+new
diff --git a/docs/a.md b/docs/a.md
new file mode 100644
--- /dev/null
+++ b/docs/a.md
@@ -0,0 +1,2 @@
+# A
+text
"""


def stats(text: str) -> list[str]:
    return [file.stat for file in split_diff(text)]


def test_a_git_diff_is_split_by_file() -> None:
    first, second = split_diff(GIT)
    assert (first.path, first.added, first.removed) == ("src/net.py", 3, 2)
    assert first.hunks == ("@@ -1,3 +1,4 @@ def retry():", "@@ -10 +11 @@ class Client:")
    assert second.stat == "docs/a.md (new, +2 -0)"
    assert f"{first.text}\n{second.text}\n" == GIT


def test_a_plain_diff_is_split_by_file() -> None:
    text = (
        "--- old/a.txt\t2026-01-01 00:00:00\n+++ new/a.txt\t2026-01-02 00:00:00\n@@ -1 +1 @@\n-a\n+b\n"
        "--- a/c.txt\n+++ /dev/null\n@@ -1 +0,0 @@\n-gone\n"
    )
    assert stats(text) == ["new/a.txt (+1 -1)", "c.txt (deleted, +0 -1)"]


def test_carriage_returns_belong_to_the_content() -> None:
    crlf = GIT.replace("\n", "\r\n")
    assert stats(crlf) == stats(GIT)
    assert split_diff(crlf)[0].text == "\r\n".join(GIT.split("\n")[:13])


def test_lines_that_look_like_headers_are_content_where_a_hunk_counts_them() -> None:
    text = (
        "--- a/x.sql\n+++ b/x.sql\n@@ -1,3 +1,3 @@\n-- old comment\n--- a/y\n+++ b/y\n+++ plus\n same\n"
        "--- a/z\n+++ b/z\n@@ -1 +1 @@\n-a\n+b\n"
    )
    assert stats(text) == ["x.sql (+2 -2)", "z (+1 -1)"]


def test_a_hunk_that_promises_too_much_ends_at_the_next_file() -> None:
    text = (
        "--- a/x\n+++ b/x\n@@ -1,9 +1,9 @@\n-a\n+b\n--- a/y\n+++ b/y\n@@ -1,9 +1,9 @@\n-c\n"
        "diff --git a/z b/z\n--- a/z\n+++ b/z\n@@ -1 +1 @@\n-a\n+b\n"
    )
    assert stats(text) == ["x (+1 -1)", "y (+0 -1)", "z (+1 -1)"]


def test_a_hunk_that_promises_too_little_is_counted_to_its_end() -> None:
    text = "--- a/x\n+++ b/x\n@@ -1 +1 @@\n-a\n+b\n+c\n context\n+d\n-- \n2.39.0\n"
    [file] = split_diff(text)
    assert file.stat == "x (+3 -1)"
    assert file.text == text.rstrip("\n")


@pytest.mark.parametrize(
    ("text", "stat"),
    [
        ("diff --git a/run.sh b/run.sh\nold mode 100644\nnew mode 100755\n", "run.sh (+0 -0)"),
        ("diff --git a/x y b/x y\nold mode 100644\nnew mode 100755\n", "x y (+0 -0)"),
        (
            "diff --git a/old.py b/new.py\nsimilarity index 100%\nrename from old.py\nrename to new.py\n",
            "new.py (renamed from old.py, +0 -0)",
        ),
        (
            "diff --git a/a.png b/a.png\nindex 1..2 100644\nBinary files a/a.png and b/a.png differ\n",
            "a.png (binary, +0 -0)",
        ),
        (
            "diff --git a/e b/e\ndeleted file mode 100644\nindex e69de29..0000000\n",
            "e (deleted, +0 -0)",
        ),
        (
            'diff --git "a/caf\\303\\251 \\"x\\".py" "b/caf\\303\\251 \\"x\\".py"\nnew file mode 100644\n',
            'café "x".py (new, +0 -0)',
        ),
        (
            '--- "a/tab\\there"\n+++ "b/tab\\there"\n@@ -1 +1 @@\n-a\n+b\n',
            "tab\there (+1 -1)",
        ),
        (
            "Index: trunk/a.c\n====\n--- trunk/a.c\t(rev 1)\n+++ trunk/a.c\t(working)\n@@ -1 +1 @@\n-a\n+b\n",
            "trunk/a.c (+1 -1)",
        ),
        (
            "diff -r 1 -r 2 a.c\n--- a/a.c\tMon\n+++ b/a.c\tTue\n@@ -1 +1 @@\n-a\n+b\n",
            "a.c (+1 -1)",
        ),
        (
            "diff --cc x.py\n--- a/x.py\n+++ b/x.py\n@@@ -1,2 -1,2 +1,3 @@@\n  a\n+ b\n +c\n++d\n- e\n",
            "x.py (+3 -1)",
        ),
    ],
)
def test_what_tools_write_is_read(text: str, stat: str) -> None:
    assert stats(text) == [stat]


def test_text_around_the_files_is_kept() -> None:
    text = f"From 1234\nSubject: [PATCH] x\n---\n src/net.py | 4 ++--\n\n{GIT}-- \n2.39.0\n"
    files = split_diff(text)
    assert "\n".join(file.text for file in files) == text.rstrip("\n")
    assert [file.stat for file in files] == stats(GIT)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "just words",
        "Index: rebuilt\nnothing else",
        "diff - what changed\n- this\n+ that",
        "--- a\n+++ b\nno hunk",
        "@@ -1 +1 @@\n-a\n+b",
        "@@ -1,99999999999999999999 +1 @@",
        "- one\n+ two",
        "*** a.c\n--- b.c\n***************\n*** 1 ****",
    ],
)
def test_other_texts_are_no_unified_diff(text: str) -> None:
    assert split_diff(text) == ()


def test_prose_that_looks_like_a_header_belongs_to_the_file_above() -> None:
    text = GIT + "Index: of things\n"
    assert stats(text) == stats(GIT)
    assert split_diff(text)[-1].text.endswith("\nIndex: of things")


_LINES = (
    "diff --git a/x b/x",
    "diff --cc x",
    "Index: x",
    "--- a/x",
    "+++ b/x",
    "+++ /dev/null",
    "@@ -1 +1 @@",
    "@@ -1,3 +1,2 @@ f",
    "@@@ -1 -1 +1 @@@",
    "+a",
    "-a",
    " a",
    "",
    "\\ No newline at end of file",
    'rename from "q\\303',
    "-- ",
    "\ud800",
    "--- a/x\r",
)


@settings(max_examples=400)
@given(st.lists(st.sampled_from(_LINES), max_size=14).map("\n".join))
def test_nothing_of_any_diff_is_lost(text: str) -> None:
    files = split_diff(text)
    if files:
        assert "".join("".join(f.text for f in files).split()) == "".join(text.split())
    assert all(f.added + f.removed <= f.text.count("\n") + 1 for f in files)


@pytest.mark.parametrize(
    "text",
    [
        GIT * 20_000,
        "diff --git a/x b/x\n" * 200_000,
        "--- a/x\n+++ b/x\n@@ -1 +1 @@\n" * 100_000,
        "--- a/x\n+++ b/x\n@@ -1,999999999 +1,999999999 @@\n" + "+a\n" * 1_000_000,
        "@@" * 2_000_000,
        "--- a/x\n+++ b/x\n@@ -1 +1 @@\n" + "+" * 10_000_000,
        "--- a/x\n+++ b/x\n" + "@@ " + "-1 " * 1_000_000,
        "\n" * 5_000_000,
    ],
)
def test_megabytes_take_bounded_time(text: str) -> None:
    started = time.process_time()
    split_diff(text)
    assert time.process_time() - started < 20
