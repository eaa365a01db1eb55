"""The digest of the code moves with every file that can change a prompt."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from worker import deciding

ROOT = Path(__file__).parents[2]
BEGINNINGS = (
    "assembly.py",
    "fusing.py",
    "planning.py",
    "sealing.py",
    "providers",
    "state",
    "graph",
    "memory",
)
ONLY_TELL = {
    "worker/__init__.py",  # says what the package is
    "worker/children.py",  # what a child process sees of the environment
    "worker/errors.py",  # names of failures
    "worker/failpoints.py",  # drills
    "worker/instruments.py",  # from here on what is counted and timed
    "worker/semconv.py",
    "worker/spans.py",
    "worker/telemetry.py",
    "worker/turns.py",  # when a thread computes, not what
}
"""What is imported and shapes no text."""


def module_files() -> dict[str, Path]:
    found: dict[str, Path] = {}
    for folder in ("worker", "schemas"):
        for path in (ROOT / folder).rglob("*.py"):
            parts = path.relative_to(ROOT).with_suffix("").parts
            found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def imported(path: Path, known: dict[str, Path]) -> set[Path]:
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module:
            names |= {node.module} | {f"{node.module}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
    return {known[name] for name in names if name in known}


def test_all_that_the_path_of_a_bundle_imports_is_in_the_digest_or_shapes_no_text() -> None:
    known = module_files()
    begun = [(ROOT / "worker" / name) for name in BEGINNINGS]
    waiting = {file for one in begun for file in ([one] if one.is_file() else one.rglob("*.py"))}
    reached: set[Path] = set()
    while waiting:
        path = waiting.pop()
        reached.add(path)
        waiting |= imported(path, known) - reached
    names = {str(path.relative_to(ROOT)) for path in reached}
    assert len(names) > 100
    assert names - {name for name, _ in deciding.deciding()} == ONLY_TELL


def test_every_file_beside_that_code_is_in_the_digest() -> None:
    """Rules and templates shape texts as code does."""
    beside = {
        str(path.relative_to(ROOT))
        for package in deciding.PACKAGES
        for path in (ROOT / package.replace(".", "/")).rglob("*")
        if path.is_file() and path.suffix not in {".pyc", ".json"}
    }
    assert {"worker/graph/relevance.pl", "worker/providers/session.md.j2"} <= beside
    assert beside <= {name for name, _ in deciding.deciding()}


@pytest.mark.parametrize(
    "name", ["worker/fusing.py", "worker/graph/relevance.pl", "worker/citations/labels.py"]
)
def test_another_text_of_a_file_is_another_version(
    monkeypatch: pytest.MonkeyPatch, name: str, tmp_path: Path
) -> None:
    changed = tmp_path / "changed"
    changed.write_text("# other\n")
    whole, version = deciding.deciding(), deciding.code_version()
    monkeypatch.setattr(
        deciding, "deciding", lambda: [(at, changed if at == name else file) for at, file in whole]
    )
    assert deciding.code_version.__wrapped__() != version
