"""Composition by hand, the part of syncs: the process that carries them out, from both sides."""

from __future__ import annotations

import pickle
import sys
from typing import Final

from worker.code.indexing import IndexCache
from worker.code.sources import SourceRoots
from worker.code.syncing import ProjectSyncer
from worker.code.syncing_child import SyncingChild
from worker.code.syncing_process import serve_standard
from worker.logs import configure_logs
from worker.settings import Settings
from worker.wiring_graph_store import build_graph_store

_COMMAND: Final = (sys.executable, "-P", "-m", "worker.wiring_sync")


def build_syncs(settings: Settings) -> SyncingChild:
    """What carries out a worker's syncs; nothing is started before the first."""
    # Through a pipe of this process to a child of its own: secrets stay between the two.
    return SyncingChild(_COMMAND, setup=pickle.dumps(settings))


def _build_syncer(setup: bytes) -> ProjectSyncer:
    settings: Settings = pickle.loads(setup)  # noqa: S301 - from the parent alone
    configure_logs(level=settings.log_level, log_format=settings.log_format)
    store = build_graph_store(settings)
    return ProjectSyncer(store, SourceRoots(settings.content.roots), cache=IndexCache())


if __name__ == "__main__":
    serve_standard(_build_syncer)
