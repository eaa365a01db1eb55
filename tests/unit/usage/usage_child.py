"""Another worker process that appends numbered lines. Arguments: path, name, how many, bytes per file."""

from __future__ import annotations

import json
import sys

from worker.usage.log import Rotation, write_usage_record


def main(path: str, name: str, count: str, max_bytes: str) -> None:
    rotation = Rotation(max_bytes=int(max_bytes), max_old_files=1_000)
    for number in range(int(count)):
        # Up to twice what a pipe would take as one write.
        padding = "x" * (number * 37 % 9_000)
        line = json.dumps({"writer": name, "number": number, "padding": padding}).encode()
        write_usage_record(line, path, rotation=rotation)


if __name__ == "__main__":
    main(*sys.argv[1:])
