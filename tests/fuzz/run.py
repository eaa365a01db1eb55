"""Fuzz the parsers, guided by coverage: `python -m tests.fuzz.run decode plan --seconds 60`.

Each begins with its seeds in tests/fuzz/corpus and with what earlier runs found, kept in var/fuzz. An input
that breaks a promise is written to the seeds, where the tests meet it from then on; the exit code says so.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, cast

import atheris

from worker.logs import configure_logs

CORPUS: Final = Path(__file__).with_name("corpus")
FOUND: Final = Path(__file__).resolve().parents[2] / "var" / "fuzz"
TARGETS: Final = ("decode", "pack", "plan", "trim")
_LONGEST_BYTES: Final = 4_096
_LONGEST_SECONDS: Final = 60
"""Of one input: whatever takes longer is reported, on a machine that is busy too."""

_atheris: Final = cast("Any", atheris)
"""It has no types."""


def main() -> int:
    """Fuzz one target after the other until the time or the runs are over; 1 where a promise was broken."""
    options = _options()
    # Not its hook for expressions: the stand-in for a compiled one takes no start and no end.
    _atheris.enabled_hooks.add("str")
    with _atheris.instrument_imports(include=["worker", "schemas"], enable_loader_override=False):
        # What is imported here is instrumented, once for all targets.
        from tests.fuzz.targets import TARGETS  # noqa: PLC0415
        from tests.fuzz.words import WORDS  # noqa: PLC0415
    configure_logs(level="error", log_format="console")
    broken: list[str] = []
    for name in options.targets:
        arguments = _arguments(name, options, words=WORDS[name])
        pid = os.fork()
        if not pid:
            # It never returns: the library ends the process with the exit code of the run.
            _atheris.Setup(arguments, TARGETS[name])
            _atheris.Fuzz()
        if os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]):
            broken.append(name)
    if broken:
        sys.stderr.write(f"broken: {', '.join(broken)}\n")
    return int(bool(broken))


def _arguments(name: str, options: argparse.Namespace, *, words: Sequence[str]) -> list[str]:
    """Of libFuzzer; its folders are made, and its dictionary of the words that the target reads."""
    found: Path = options.found / name
    found.mkdir(parents=True, exist_ok=True)
    dictionary = options.found / f"{name}.dict"
    quoted = ("".join(f"\\x{byte:02x}" for byte in word.encode()) for word in words)
    dictionary.write_text("".join(f'"{word}"\n' for word in quoted))
    return [
        sys.argv[0],
        str(found),
        str(CORPUS / name),
        f"-artifact_prefix={options.artifacts or CORPUS / name}/",
        f"-dict={dictionary}",
        f"-max_len={_LONGEST_BYTES}",
        f"-timeout={_LONGEST_SECONDS}",
        f"-max_total_time={options.seconds}",
        f"-seed={options.seed}",
        "-rss_limit_mb=4096",
        *([f"-runs={options.runs}"] if options.runs else []),
    ]


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="tests.fuzz.run", description=__doc__)
    parser.add_argument("targets", nargs="*", metavar="TARGET", help=f"of {', '.join(TARGETS)}; all")
    parser.add_argument("--seconds", type=int, default=60, help="for each target")
    parser.add_argument("--runs", type=int, default=0, help="inputs to try; 0 sets no limit")
    parser.add_argument("--seed", type=int, default=0, help="0 takes another one each time")
    parser.add_argument("--found", type=Path, default=FOUND, help="where what earlier runs found is kept")
    parser.add_argument("--artifacts", type=Path, help="where a broken promise goes, if not to the seeds")
    options = parser.parse_args()
    options.targets = options.targets or TARGETS
    if unknown := sorted(set(options.targets) - set(TARGETS)):
        parser.error(f"no such target: {', '.join(unknown)}")
    return options


if __name__ == "__main__":
    sys.exit(main())
