#!/usr/bin/env python3
"""Run Kafka, Neo4j and Redis for development and tests, with SWI-Prolog, Chromium, promtool; no containers.

    python3 infra/services.py up                      start all, installing what is missing
    python3 infra/services.py up redis                start one
    eval "$(python3 infra/services.py env --worker)"  have a worker of this shell run on them
    eval "$(python3 infra/services.py env)"           tell the tests where they are
    python3 infra/services.py run -- pytest tests     start, run a command, take down again
    python3 infra/services.py pause kafka             freeze it (continue, stop, start: same ports and data)
    python3 infra/services.py down                    end them and remove their data

Ports are free ones, or CONTEXT_KAFKA_PORT, CONTEXT_NEO4J_PORT and CONTEXT_REDIS_PORT. What runs is
written down in var/services of the checkout; `--dir` makes it another folder, with services of its own.
"""

from __future__ import annotations

import argparse
import os
import shlex
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from catalogue import SERVICES, TOOLS, worker_settings
from provision import ServiceError, say
from runner import Runner

CHECKOUT: Final = Path(__file__).resolve().parent.parent
NAMES: Final = (*SERVICES, *TOOLS)


def main(arguments: Sequence[str]) -> int:
    """Carry out one command; its exit code."""
    at = arguments.index("--") if "--" in arguments else len(arguments)
    options, command = _parser().parse_args(arguments[:at]), arguments[at + 1 :]
    if (options.command == "run") != bool(command):
        say("error: `run` needs a command after `--`, and nothing else takes one")
        return 2
    if sys.platform != "linux":
        say("the native runner needs Linux; use a container engine with infra/compose.yaml")
        return 1
    try:
        return _carry_out(options, command)
    except ServiceError as error:
        say(f"error: {error}")
        return 1
    except KeyboardInterrupt:
        return 128 + signal.SIGINT


def _carry_out(options: argparse.Namespace, command: Sequence[str]) -> int:
    runner = Runner(Path(options.dir))
    names: list[str] = options.names or list(NAMES)
    match options.command:
        case "up" | "start":
            runner.up(names)
        case "down":
            runner.down(names)
        case "stop":
            runner.stop(names)
        case "pause":
            runner.send(names, signal.SIGSTOP)
        case "continue":
            runner.send(names, signal.SIGCONT)
        case "status":
            print(_table(runner.status()))
        case "env":
            exports = runner.exports()
            for variable, value in (worker_settings(exports) if options.worker else exports).items():
                print(f"export {variable}={shlex.quote(value)}")
        case _:
            return runner.run(names, command)
    return 0


def _table(rows: Sequence[Sequence[str]]) -> str:
    widths = [max(len(cell) for cell in column) for column in zip(*rows, strict=True)]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in rows]
    return "\n".join(line.rstrip() for line in lines)


def _name(text: str) -> str:
    if text not in NAMES:
        raise argparse.ArgumentTypeError(f"{text!r} is none of {', '.join(NAMES)}")
    return text


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="services.py", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    state = os.environ.get("CONTEXT_SERVICES_DIR", str(CHECKOUT / "var" / "services"))
    parser.add_argument("--dir", default=state, help="where state, data and logs are kept")
    commands = parser.add_subparsers(dest="command", required=True)
    for command, purpose, names in (
        ("up", "start, and wait until each answers", "*"),
        ("down", "end, and remove the data", "*"),
        ("run", "start, run the command after `--`, take down what was started", "*"),
        ("stop", "end, keeping ports and data", "+"),
        ("start", "start again on the same ports and data", "+"),
        ("pause", "freeze with SIGSTOP", "+"),
        ("continue", "wake with SIGCONT", "+"),
        ("status", "show a table", None),
        ("env", "print the variables that tests read, for a shell", None),
    ):
        sub = commands.add_parser(command, help=purpose, description=purpose)
        if names is None:
            sub.set_defaults(names=[])
        else:
            sub.add_argument("names", nargs=names, type=_name, metavar="NAME", help=", ".join(NAMES))
        if command == "env":
            sub.add_argument("--worker", action="store_true", help="the settings of a worker instead")
    return parser


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
