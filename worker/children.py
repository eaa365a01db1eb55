"""What child processes see of this one's environment."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import worker

_SETTINGS: Final = "WORKER_"


def without_settings(own: Mapping[str, str]) -> dict[str, str]:
    """The environment without the worker's settings, which hold passwords.

    For every child but the one that indexes for a sync: that one reads the settings itself.
    """
    return {name: value for name, value in own.items() if not name.upper().startswith(_SETTINGS)}


def finding_this_package(own: Mapping[str, str]) -> dict[str, str]:
    """The environment with this package's folder first on Python's path."""
    root = str(Path(worker.__file__).parent.parent)
    return {**own, "PYTHONPATH": os.pathsep.join(filter(None, (root, own.get("PYTHONPATH", ""))))}
