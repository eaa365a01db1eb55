"""Processes that outlive the command that started them, and what is written down about them."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

_BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")
# Positions in /proc/<pid>/stat, counted from the field after the parenthesised name.
_STATE_FIELD: Final = 0
_START_FIELD: Final = 19
_GONE: Final = frozenset({"Z", "X"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Process:
    """A process id with what tells its process from a later one of the same number."""

    pid: int
    started_ticks: int
    boot_id: str

    @classmethod
    def of(cls, pid: int) -> Process:
        """The process that has this id now. Raises OSError when there is none."""
        return cls(pid=pid, started_ticks=int(_stat(pid)[_START_FIELD]), boot_id=_BOOT_ID.read_text().strip())

    @property
    def state(self) -> str | None:
        """The kernel's letter (R, S, T and so on), or None when the process has ended."""
        try:
            fields = _stat(self.pid)
        except OSError:
            return None
        same = (
            int(fields[_START_FIELD]) == self.started_ticks and _BOOT_ID.read_text().strip() == self.boot_id
        )
        return fields[_STATE_FIELD] if same and fields[_STATE_FIELD] not in _GONE else None

    def send(self, *signals: signal.Signals) -> bool:
        """Send signals to this very process; False when it has ended."""
        with self._handle() as handle:
            if handle is None:
                return False
            for number in signals:
                signal.pidfd_send_signal(handle, number)
            return True

    def end(self, *, grace_seconds: float) -> None:
        """Ask it to end, wake it in case it is paused, and kill it when the grace is over."""
        with self._handle() as handle:
            if handle is None:
                return
            ended = select.poll()
            ended.register(handle, select.POLLIN)
            for number in (signal.SIGTERM, signal.SIGCONT):
                signal.pidfd_send_signal(handle, number)
            if not ended.poll(grace_seconds * 1_000):
                signal.pidfd_send_signal(handle, signal.SIGKILL)
                ended.poll()

    @contextmanager
    def _handle(self) -> Generator[int | None]:
        """A handle that cannot come to mean another process, checked after it was opened."""
        try:
            handle = os.pidfd_open(self.pid)
        except ProcessLookupError:
            yield None
            return
        try:
            yield handle if self.state is not None else None
        finally:
            os.close(handle)


def _stat(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()


def resident_megabytes(pid: int) -> int:
    """Memory that a process holds now."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") // 1_000_000


def spawn(command: Sequence[str | Path], *, log: Path, environment: Mapping[str, str]) -> Process:
    """Start a process in a session of its own, so that no terminal and no parent takes it along."""
    with log.open("a") as output:
        child = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**os.environ, **environment},
            start_new_session=True,
        )
    return Process.of(child.pid)


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """What is known of one service between two commands."""

    service: str
    ports: dict[str, int]
    password: str
    is_temporary: bool
    process: Process | None = None

    @property
    def state(self) -> str:
        """For people: running, paused, ended by itself, or stopped on request."""
        if self.process is None:
            return "stopped"
        letter = self.process.state
        return {None: "ended", "T": "paused"}.get(letter, "running")


class Records:
    """The records of one state folder, in a file that only its owner reads (it holds a password)."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / "state.json"

    def load(self) -> dict[str, Record]:
        """All records by service name."""
        if not self._path.exists():
            return {}
        raw: dict[str, dict[str, Any]] = json.loads(self._path.read_text())
        return {name: _record(fields) for name, fields in raw.items()}

    def put(self, record: Record) -> Record:
        """Write one record, replacing the service's earlier one."""
        self._write({**self.load(), record.service: record})
        return record

    def remove(self, service: str) -> None:
        """Forget a service."""
        self._write({name: record for name, record in self.load().items() if name != service})

    def _write(self, records: Mapping[str, Record]) -> None:
        new = self._path.with_suffix(".new")
        new.touch(mode=0o600)
        new.write_text(json.dumps({name: asdict(record) for name, record in records.items()}, indent=2))
        new.replace(self._path)


def _record(fields: dict[str, Any]) -> Record:
    process = fields.pop("process")
    return Record(**fields, process=Process(**process) if process else None)
