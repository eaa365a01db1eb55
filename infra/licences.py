"""Print name, version and licence of every package that the worker needs, as the package itself says it."""

from __future__ import annotations

import re
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path
from typing import Final

LOCK: Final = Path(__file__).resolve().parents[1] / "requirements.lock"
_PINNED: Final = re.compile(r"^([A-Za-z0-9._-]+)==", re.MULTILINE)
_FIELDS: Final = ("License-Expression", "License", "Classifier")
_CLASSIFIER: Final = "License :: OSI Approved :: "


def licence_of(package: Distribution) -> str:
    """The expression, else the classifiers, else the first line of the text."""
    said: dict[str, list[str]] = {name: package.metadata.get_all(name) or [""] for name in _FIELDS}
    classified = [line.removeprefix(_CLASSIFIER) for line in said["Classifier"] if _CLASSIFIER in line]
    stated: tuple[str, ...] = (said["License-Expression"][0], ", ".join(classified), said["License"][0])
    return next((text.strip().splitlines()[0] for text in stated if text.strip()), "not stated")


def main() -> None:
    """One line a package, in order; one that is not for this platform says so."""
    for name in sorted(set(_PINNED.findall(LOCK.read_text()))):
        try:
            package = distribution(name)
        except PackageNotFoundError:
            print(f"{name}  -  not installed here")
        else:
            print(f"{name}  {package.version}  {licence_of(package)}")


if __name__ == "__main__":
    main()
