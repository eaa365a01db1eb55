"""Start and end the services of one state folder, and wait until they really answer."""

from __future__ import annotations

import fcntl
import os
import random
import secrets
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Final

from catalogue import SERVICES, TOOLS, Place, Service, tool_exports
from processes import Record, Records, resident_megabytes, spawn
from provision import ServiceError, file_lock, install_missing, say, tail

START_TIMEOUT_SECONDS: Final = 180.0
STOP_GRACE_SECONDS: Final = 20.0
_POLL_SECONDS: Final = 0.1
_PROGRESS_SECONDS: Final = 15.0
# Below the range from which the kernel takes the near end of a connection: a service that is stopped
# finds its port still free when it is started again.
_PORT_RANGE: Final = range(20_000, 30_000)
_PORT_ATTEMPTS: Final = 100


class Runner:
    """The services of one state folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self._records = Records(folder)

    def up(self, names: Iterable[str], *, is_temporary: bool = False) -> None:
        """Start what does not run and wait until each answers. Raises ServiceError."""
        names = list(names)
        services = [SERVICES[name] for name in SERVICES if name in names]
        with file_lock(self._folder / "lock"):
            _prepare(services, tools=[name for name in names if name in TOOLS])
            started = time.monotonic()
            records = [self._started(service, is_temporary=is_temporary) for service in services]
            self._wait(records, since=started)

    def _started(self, service: Service, *, is_temporary: bool) -> Record:
        old = self._records.load().get(service.name)
        record = old or Record(
            service=service.name,
            ports=_choose_ports(service),
            password=secrets.token_hex(16),
            is_temporary=is_temporary,
        )
        # An older runner may have given it fewer ports.
        record = replace(record, ports={**_choose_ports(service), **record.ports})
        # What `run` started is kept when somebody asks for it to stay.
        record = replace(record, is_temporary=record.is_temporary and is_temporary)
        if record.process is not None and record.process.send(signal.SIGCONT):
            return self._records.put(record)
        for port in record.ports.values():
            if _is_taken(port):
                raise ServiceError(f"{service.name} cannot start: port {port} is taken")
        place = self._place(record)
        if not place.data.exists():
            place.log.parent.mkdir(parents=True, exist_ok=True)
            place.log.unlink(missing_ok=True)
            place.data.mkdir()
        launch = service.launch(place)
        process = spawn(launch.command, log=place.log, environment=launch.environment)
        return self._records.put(replace(record, process=process))

    def _wait(self, records: Iterable[Record], *, since: float) -> None:
        waiting = {record.service: record for record in records}
        told = since
        while waiting:
            for name, record in list(waiting.items()):
                if record.state == "ended":
                    raise ServiceError(f"{name} ended at its start:\n{tail(self._place(record).log)}")
                if _is_ready(SERVICES[name], self._place(record)):
                    del waiting[name]
                    address = next(iter(record.ports.values()))
                    say(f"{name} is ready on 127.0.0.1:{address} ({time.monotonic() - since:.1f} s)")
            now = time.monotonic()
            if waiting and now - since > START_TIMEOUT_SECONDS:
                logs = ", ".join(str(self._place(record).log) for record in waiting.values())
                raise ServiceError(
                    f"{', '.join(waiting)} did not answer within {START_TIMEOUT_SECONDS:g} s: {logs}"
                )
            if waiting and now - told > _PROGRESS_SECONDS:
                told = now
                say(f"waiting for {', '.join(waiting)}")
            time.sleep(_POLL_SECONDS if waiting else 0)

    def stop(self, names: Iterable[str]) -> None:
        """End processes; ports and data stay for `up` and `start`."""
        with file_lock(self._folder / "lock"):
            self._end([record for record in self._records.load().values() if record.service in names])

    def down(self, names: Iterable[str]) -> None:
        """End processes and remove their data; logs stay."""
        with file_lock(self._folder / "lock"):
            self._remove([record for record in self._records.load().values() if record.service in names])

    def down_temporary(self) -> None:
        """Take down what `run` started and nobody asked to keep."""
        with file_lock(self._folder / "lock"):
            self._remove([record for record in self._records.load().values() if record.is_temporary])

    def _remove(self, records: Sequence[Record]) -> None:
        for record in self._end(records):
            shutil.rmtree(self._place(record).data, ignore_errors=True)
            self._records.remove(record.service)

    def _end(self, records: Sequence[Record]) -> list[Record]:
        def end(record: Record) -> None:
            if record.process is not None:
                record.process.end(grace_seconds=STOP_GRACE_SECONDS)

        with ThreadPoolExecutor() as pool:
            list(pool.map(end, records))
        return [self._records.put(replace(record, process=None)) for record in records]

    def send(self, names: Iterable[str], number: signal.Signals) -> None:
        """Signal running services. Raises ServiceError when one does not run."""
        records = self._records.load()
        for name in names:
            record = records.get(name)
            if record is None or record.process is None or not record.process.send(number):
                raise ServiceError(f"{name} is not running")

    def exports(self) -> dict[str, str]:
        """The variables of all that runs, paused or not, and of the tools that are there."""
        variables: dict[str, str] = {}
        for name, record in self._records.load().items():
            if record.state in {"running", "paused"}:
                variables |= SERVICES[name].exports(self._place(record))
        return variables | tool_exports()

    def status(self) -> list[tuple[str, ...]]:
        """A table: one row a service, the heading first."""
        rows: list[tuple[str, ...]] = [("service", "version", "state", "pid", "address", "memory", "log")]
        records = self._records.load()
        for name, service in SERVICES.items():
            record = records.get(name)
            if record is None:
                rows.append((name, service.version, "down", "-", "-", "-", "-"))
                continue
            runs = record.process is not None and record.process.state is not None
            pid = record.process.pid if record.process is not None and runs else None
            rows.append(
                (
                    name,
                    service.version,
                    record.state,
                    str(pid or "-"),
                    f"127.0.0.1:{next(iter(record.ports.values()))}",
                    f"{resident_megabytes(pid)} MB" if pid else "-",
                    str(self._place(record).log),
                )
            )
        for tool in TOOLS:
            path = shutil.which(tool)
            rows.append((tool, "Debian's", "installed" if path else "missing", "-", path or "-", "-", "-"))
        return rows

    def run(self, names: Iterable[str], command: Sequence[str]) -> int:
        """Run a command with the services up, then take down what was started for it; its exit code.

        When several run at once the last one to end takes the services down.
        """
        with (self._folder / "users").open("w") as users:
            fcntl.flock(users, fcntl.LOCK_SH)
            try:
                self.up(names, is_temporary=True)
                return _run_to_its_end(command, environment=self.exports())
            finally:
                if _is_last(users.fileno()):
                    self.down_temporary()

    def _place(self, record: Record) -> Place:
        return Place(folder=self._folder / record.service, ports=record.ports, password=record.password)


def _prepare(services: Sequence[Service], *, tools: Iterable[str]) -> None:
    packages = {program: package for service in services for program, package in service.packages.items()}
    install_missing(packages | {tool: TOOLS[tool] for tool in tools})
    with ThreadPoolExecutor() as pool:
        for done in [pool.submit(service.prepare) for service in services]:
            done.result()


def _is_ready(service: Service, place: Place) -> bool:
    try:
        return service.is_ready(place)
    except OSError:
        return False


def _choose_ports(service: Service) -> dict[str, int]:
    """A port per name; the first may be fixed by the environment."""
    first, *others = service.ports
    fixed = os.environ.get(f"CONTEXT_{service.name.upper()}_PORT")
    if fixed is not None and not fixed.isdecimal():
        raise ServiceError(f"CONTEXT_{service.name.upper()}_PORT is no port number: {fixed!r}")
    chosen = {first: int(fixed) if fixed else _free_port()}
    for name in others:
        chosen[name] = _free_port(besides=chosen.values())
    return chosen


def _free_port(*, besides: Iterable[int] = ()) -> int:
    for _ in range(_PORT_ATTEMPTS):
        port = random.choice(_PORT_RANGE)
        if port not in besides and not _is_taken(port):
            return port
    raise ServiceError(f"no free port among {_PORT_ATTEMPTS} tries from {_PORT_RANGE}")


def _is_taken(port: int) -> bool:
    with socket.socket() as probe:
        # As servers do: a port whose last connections are only timing out is free.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return True
        return False


def _is_last(users: int) -> bool:
    """Give up our share of the lock; whether nobody else holds one."""
    try:
        fcntl.flock(users, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _run_to_its_end(command: Sequence[str], *, environment: Mapping[str, str]) -> int:
    child = subprocess.Popen(command, env={**os.environ, **environment})
    # Ctrl-C reaches the whole foreground group: the command decides what it means. Other requests to
    # end are for the command too; the services go when it has gone.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda received, _frame: child.send_signal(received))
    code = child.wait()
    return code if code >= 0 else 128 - code
