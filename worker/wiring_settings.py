"""The settings as the environment gives them: all that a command needs before it knows what to load."""

from __future__ import annotations

import os

from pydantic import ValidationError

from worker.settings import Settings


def read_settings() -> Settings:
    """The settings from the environment. Raises ValueError that says in one line what is wrong with them."""
    known = {f"WORKER_{name.upper()}" for name in Settings.model_fields}
    for variable in sorted(os.environ):
        # A group that is misspelt would else be a setting that nobody reads.
        if variable.startswith("WORKER_") and variable.upper().partition("__")[0] not in known:
            raise ValueError(
                f"{variable}: unknown option; known groups and options: {', '.join(sorted(known))}"
            )
    try:
        return Settings()
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        name = "WORKER_" + "__".join(str(part).upper() for part in first["loc"])
        said = "unknown option" if first["type"] == "extra_forbidden" else first["msg"]
        msg = f"{name}: {said.removeprefix('Value error, ')}"
        raise ValueError(msg) from None
