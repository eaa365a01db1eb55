"""Composition by hand for the commands that explain: the outcome store, and what makes bundles again."""

from __future__ import annotations

from worker.explaining.stored import NotExplainable, Stored, stored_of
from worker.planning import ContentPolicy
from worker.ports import OutcomeKey, Tombstone
from worker.receipts.capture import CaptureUnreadable
from worker.settings import Settings
from worker.wiring import content_policy
from worker.wiring_kafka import build_store, outcomes_place


def explaining_policy(settings: Settings) -> ContentPolicy:
    """The strategies and the code version of this process; the rest comes from captures."""
    return content_policy(settings)


async def read_stored(settings: Settings, key: OutcomeKey) -> Stored:
    """What the outcome store that the settings name holds of a request.

    Raises NotExplainable, WasRejected, StoreUnavailable, and CaptureUnreadable where all of it has expired.
    """
    outcomes = settings.outcomes
    if outcomes.store == "sqlite" and not outcomes.sqlite_path.exists():
        # Asking must not make one.
        raise NotExplainable(f"no outcome store at {outcomes_place(outcomes)}")
    store = build_store(settings)
    try:
        held = await store.get(key)
    finally:
        await store.close()
    if held is None:
        raise NotExplainable(
            f"project {key.project_id!r} has no outcome of request {key.request_id!r}, generation"
            f" {key.generation}, in the outcome store at {outcomes_place(outcomes)}: ids belong to their"
            f" project; receipts are kept {outcomes.keep_seconds / 3_600:g} h, outcomes forgotten after"
            f" {outcomes.forget_seconds / 3_600:g} h"
        )
    if isinstance(held, Tombstone):
        raise CaptureUnreadable(
            "capture_expired",
            f"bundle, receipt and capture of {key.request_id!r} are kept for"
            f" {outcomes.keep_seconds / 3_600:g} h (outcomes.keep_seconds); of its request the"
            f" digest is left, {held.request_digest[:16]}…",
        )
    return stored_of(held)
