"""The child's side of reading files in other processes: jobs come in on standard input, readings go out.

A job is two frames, path and content; its answer is one, an encoded reading. Before any of them comes an
empty frame, once the process is ready. End of input ends it.
"""

from __future__ import annotations

import gc
import importlib
import json
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import IO

from worker.code.facts_codec import encode_reading
from worker.code.frames import read_frame, write_frame
from worker.code.reading import FileReader, FileReaders, FileReading, read_file

Job = tuple[str, bytes]


def read_all(
    jobs: Iterable[Job], readers: FileReaders, give: Callable[[str, FileReading, bytes], object]
) -> None:
    """Read each file and give its path, its reading and that encoded, in order.

    Run it as the target of a new thread, here and in a child: how deep an expression may nest before the
    parser gives up depends on the depth of the stack, and a file must read the same everywhere.
    """
    for path, content in jobs:
        reading = read_file(path, content, readers)
        give(path, reading, encode_reading(reading))


def name_readers(readers: FileReaders) -> str:
    """The readers by name, for a child to find."""
    return json.dumps([[_name(reader) for reader in group] for group in (readers.first, readers.also)])


def find_readers(names: str) -> FileReaders:
    """The readers that `name_readers` named."""
    first, also = ([_find(name) for name in group] for group in json.loads(names))
    return FileReaders(first=tuple(first), also=tuple(also))


def _name(reader: FileReader) -> str:
    return f"{reader.__module__}:{reader.__qualname__}"


def _find(name: str) -> FileReader:
    module, function = name.split(":")
    reader: FileReader = getattr(importlib.import_module(module), function)
    return reader


def _jobs(stream: IO[bytes]) -> Iterator[Job]:
    while (path := read_frame(stream)) is not None and (content := read_frame(stream)) is not None:
        yield path.decode(), content


def _serve(names: str) -> None:
    readers = find_readers(names)
    stdin, stdout = sys.stdin.buffer, sys.stdout.buffer
    # Whatever prints must not get into the answers.
    sys.stdout = sys.stderr
    # Nothing here lives longer than a file, and trees have no circles: counting references is enough.
    gc.disable()
    write_frame(stdout, b"")
    stdout.flush()

    def answer(_path: str, _reading: FileReading, encoded: bytes) -> None:
        write_frame(stdout, encoded)
        stdout.flush()

    thread = threading.Thread(target=read_all, args=(_jobs(stdin), readers, answer))
    thread.start()
    thread.join()


if __name__ == "__main__":
    _serve(sys.argv[1])
