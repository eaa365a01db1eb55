"""Waiting for a store without which nothing may be published."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextvars import Context
from typing import Final

import structlog

from worker.errors import StoreUnavailable

_log = structlog.get_logger(__name__)

_FIRST_PAUSE_SECONDS: Final = 0.1
_LONGEST_PAUSE_SECONDS: Final = 5.0
_STABLE_AFTER_SECONDS: Final = 30.0


class StoreGate:
    """Closed while the outcome store is away; whoever met the outage waits here, however many they are.

    One probe runs, with growing pauses. A store that answers the probe and fails the work soon after
    finds the pauses as long as they were, so that a flapping store is not hammered.
    """

    def __init__(
        self,
        probe: Callable[[], Awaitable[None]],
        *,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`probe` returns when the store works and raises StoreUnavailable while it does not."""
        self._probe = probe
        self._sleep = sleep
        self._clock = clock
        self._listeners: list[Callable[[], None]] = []
        self._is_back = asyncio.Event()
        self._is_back.set()
        self._probing: asyncio.Task[None] | None = None
        self._opened_at = float("-inf")
        self._pause_seconds = _FIRST_PAUSE_SECONDS

    @property
    def is_closed(self) -> bool:
        """Whether the store is away."""
        return not self._is_back.is_set()

    def subscribe(self, on_change: Callable[[], None]) -> None:
        """Call `on_change` when `is_closed` has changed, in order of subscription."""
        self._listeners.append(on_change)

    def report(self, error: StoreUnavailable) -> None:
        """Close, where it is not closed yet."""
        if not self.is_closed:
            self._close(error)

    async def wait(self, error: StoreUnavailable) -> None:
        """Report the outage and return when the store is back."""
        self.report(error)
        await self._is_back.wait()

    def stop(self) -> None:
        """End the probe; who still waits must be cancelled by its owner."""
        if self._probing is not None:
            self._probing.cancel()

    def _close(self, error: StoreUnavailable) -> None:
        if self._clock() - self._opened_at > _STABLE_AFTER_SECONDS:
            self._pause_seconds = _FIRST_PAUSE_SECONDS
        _log.warning("store.away", store=error.store, error=str(error))
        self._is_back.clear()
        # In a context of its own: the record that met the outage is one of many that wait.
        self._probing = asyncio.create_task(self._probe_until_back(), context=Context())
        self._tell()

    async def _probe_until_back(self) -> None:
        while True:
            await self._sleep(self._pause_seconds)
            self._pause_seconds = min(2 * self._pause_seconds, _LONGEST_PAUSE_SECONDS)
            try:
                await self._probe()
            except StoreUnavailable as error:
                _log.info("store.still_away", store=error.store, error=str(error))
            except Exception:  # noqa: BLE001  a defect of the probe must not close the gate for ever
                _log.exception("store.probe_failed")
            else:
                break
        self._opened_at = self._clock()
        _log.info("store.back")
        self._is_back.set()
        self._tell()

    def _tell(self) -> None:
        for listener in self._listeners:
            listener()
