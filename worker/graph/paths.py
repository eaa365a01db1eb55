"""What a file is for, told by its path alone."""

from __future__ import annotations

from typing import Final

_TEST_FOLDERS: Final = frozenset({"tests", "test", "testing", "__tests__"})
_TEST_ENDINGS: Final = (".test.ts", ".test.tsx", ".test.js", ".test.jsx", ".spec.ts", ".spec.js", "_test.go")


def is_test_file(path: str) -> bool:
    """Whether pytest or unittest would look for tests in it."""
    name = path.rsplit("/", 1)[-1]
    stem = name.removesuffix(".py")
    return name.endswith(".py") and (stem.startswith("test") or stem.endswith("_test"))


def is_test_code(path: str) -> bool:
    """Whether it serves tests: a test file, a `conftest`, or anything in a folder of tests. Any language."""
    *folders, name = path.split("/")
    return (
        is_test_file(path)
        or name == "conftest.py"
        or name.endswith(_TEST_ENDINGS)
        or not _TEST_FOLDERS.isdisjoint(folders)
    )
