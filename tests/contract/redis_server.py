"""A Redis server of the test's own, for what must not be done to a shared one: kill, stop, reconfigure."""

from __future__ import annotations

import shutil
import signal
import socket
import subprocess
from pathlib import Path

import pytest

from tests.support.halting import stop


class RedisServer:
    """Always on the same loopback port and the same socket; each start keeps what was on disk."""

    def __init__(self, directory: Path) -> None:
        program = shutil.which("redis-server")
        if program is None:
            pytest.fail("redis-server is needed on the PATH: run `make up`", pytrace=False)
        self._program = program
        self._directory = directory
        self._process: subprocess.Popen[bytes] | None = None
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port: int = probe.getsockname()[1]

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    @property
    def socket(self) -> Path:
        """Where it listens as well; the directory must be there, with a path that a socket may have."""
        return self._directory / "redis.sock"

    def start(self) -> None:
        """Return when it accepts connections and has loaded its data."""
        process = self._launch("")
        assert process.stdout is not None
        for line in process.stdout:
            if b"Ready to accept connections" in line:
                return
        pytest.fail("redis-server ended at once", pytrace=False)

    def start_loading(self, *, key_microseconds: int) -> None:
        """Return at once; it loads what it has for so long a key, and says so to whoever asks."""
        self._launch(f"key-load-delay {key_microseconds}\n")

    def _launch(self, options: str) -> subprocess.Popen[bytes]:
        self._process = subprocess.Popen(
            [self._program, "-"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(
            f"port {self.port}\nbind 127.0.0.1\nunixsocket redis.sock\ndir {self._directory}\n"
            f'save ""\nappendonly yes\nappendfsync no\n{options}'.encode()
        )
        self._process.stdin.close()
        return self._process

    def kill(self) -> None:
        """SIGKILL, and wait until it is gone."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            assert self._process.stdout is not None
            self._process.stdout.close()
            self._process = None

    def pause(self) -> None:
        """Stop it without closing anything: connections stay open and nothing answers."""
        assert self._process is not None
        stop(self._process.pid)

    def resume(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)
