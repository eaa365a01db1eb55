"""What was sent and not answered yet, with the instant at which each was due."""

from __future__ import annotations

from collections.abc import Iterator


class Pending:
    """Due times by key; some 150 bytes for each request that waits, and nothing for those answered.

    A request that is sent again while it waits is one, due when it was first: its answer answers both.
    """

    def __init__(self) -> None:
        """Nothing waits."""
        self._due: dict[bytes, float] = {}

    def __len__(self) -> int:
        return len(self._due)

    def __iter__(self) -> Iterator[float]:
        """The due times of what still waits."""
        return iter(self._due.values())

    def sent(self, digest: bytes, *, due: float) -> None:
        """It waits from now on."""
        self._due.setdefault(digest, due)

    def answered(self, digest: bytes) -> float | None:
        """When it was due; None where nothing waits for that answer."""
        return self._due.pop(digest, None)
