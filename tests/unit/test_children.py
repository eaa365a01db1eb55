"""What leaves this process: to its children no settings, to files nothing that others may read."""

from __future__ import annotations

import ast
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from worker.children import finding_this_package, without_settings
from worker.code.extracting_pool import ExtractingPool
from worker.private_files import open_private

WORKER: Final = Path(__file__).resolve().parents[2] / "worker"
STARTS: Final = frozenset({"Popen", "run", "call", "check_output", "create_subprocess_exec", "fork", "spawn"})
MODULES: Final = frozenset({"subprocess", "asyncio", "os", "multiprocessing"})
WITH_SETTINGS: Final = frozenset({"code/syncing_child.py"})
"""Stores what it has indexed, so it reads the settings itself."""
NO_CONTENT: Final = frozenset(
    {
        "cli_load.py",  # the report of a replay: ids and numbers
        "code/extracting_process.py",  # the kernel's own file
        "code/syncing_process.py",  # as above
        "kafka/embedded.py",  # what the broker says of itself
    }
)
"""Files that write what holds no text of a project."""


def calls() -> Iterator[tuple[str, str, ast.Call]]:
    for path in sorted(WORKER.rglob("*.py")):
        source = path.read_text()
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.Call):
                yield str(path.relative_to(WORKER)), ast.unparse(node), node


def test_no_child_process_sees_the_settings() -> None:
    seen: set[str] = set()
    for file, text, call in calls():
        name = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
        owner = ast.unparse(call.func.value) if isinstance(call.func, ast.Attribute) else ""
        if name not in STARTS or (owner not in MODULES and name != "create_subprocess_exec"):
            continue
        if owner == "asyncio" and name == "run":
            continue
        seen.add(file)
        environment = next((ast.unparse(key.value) for key in call.keywords if key.arg == "env"), None)
        if file in WITH_SETTINGS:
            continue
        assert environment is not None, (file, text)
        assert "os.environ" not in environment.replace("without_settings(os.environ)", ""), (file, text)
    # Those that there are: a check that finds none would prove nothing.
    assert {"code/extracting_pool.py", "code/history.py", "evaluation/git.py", "kafka/embedded.py"} <= seen


def test_a_child_finds_this_package_and_no_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    own = {"WORKER_GRAPH__NEO4J_PASSWORD": "x", "worker_http__token": "x", "PATH": "p", "PYTHONPATH": "q"}
    assert without_settings(own) == {"PATH": "p", "PYTHONPATH": "q"}
    assert finding_this_package(own)["PYTHONPATH"] == os.pathsep.join((str(WORKER.parent), "q"))
    monkeypatch.setenv("WORKER_HTTP__TOKEN", "s3cret-word")
    pool = ExtractingPool()
    try:
        pool.prepare()
        children = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
        seen = b"".join(Path(f"/proc/{pid}/environ").read_bytes() for pid in children)
    finally:
        pool.close()
    assert b"PYTHONPATH=" in seen
    assert b"s3cret-word" not in seen


def test_a_private_file_is_private_from_its_first_moment_whatever_the_umask(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        for number, mode in enumerate(("wb", "xb", "w", "a")):
            path = tmp_path / str(number)
            with open_private(path, mode) as file:
                assert stat.S_IMODE(os.fstat(file.fileno()).st_mode) == 0o600
        (tmp_path / "shared").touch(mode=0o644)
        with open_private(tmp_path / "shared", "w") as file:
            file.write("a\n")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "shared").stat().st_mode) == 0o644
    assert (tmp_path / "shared").read_bytes() == b"a\n"


def test_what_writes_content_to_a_file_makes_it_private() -> None:
    careless = {
        file
        for file, text, call in calls()
        if isinstance(call.func, ast.Attribute)
        and (
            call.func.attr in {"write_text", "write_bytes"}
            or (
                call.func.attr == "open"
                and call.args
                and isinstance(call.args[0], ast.Constant)
                and str(call.args[0].value)[:1] in {"w", "a", "x"}
                and "open_private" not in text
            )
        )
    }
    assert careless == NO_CONTENT
