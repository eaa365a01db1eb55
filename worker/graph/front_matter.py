"""The fields at the head of a pack file as YAML, as PyYAML would dump them all, in a fraction of its time.

What differs from request to request are a digest and a few names, which need no quotes as a rule; all else
comes again and again, and is dumped once.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any, Final, cast

import yaml

Scalar = str | int
Frame = Mapping[str, str | list[str]]

_KEPT_DUMPS: Final = 256
_PLAIN: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_./]*|(?=[0-9a-f]*[acdf])[0-9a-f]+")
"""What YAML takes for a string without quotes: names and paths, and hexadecimal digits that are no number."""
_WORDS: Final = frozenset({"yes", "no", "true", "false", "on", "off", "null", "y", "n"})
"""Names that it takes for something else."""


def front_matter(fields: Mapping[str, Scalar | Frame]) -> str:
    """The fields in their order, a line each; a frame's own below it, indented. Ends with a newline.

    The same text as `yaml.dump` gives that writes collections of nothing but scalars on one line.
    """
    parts: list[str] = []
    side_by_side: list[tuple[str, Scalar]] = []
    for name, value in fields.items():
        if isinstance(value, str | int):
            side_by_side.append((name, value))
            continue
        parts += (_scalars(tuple(side_by_side)), _frame(name, value))
        side_by_side = []
    return "".join((*parts, _scalars(tuple(side_by_side))))


@lru_cache(_KEPT_DUMPS)
def _scalars(fields: tuple[tuple[str, Scalar], ...]) -> str:
    return _dumped(dict(fields), flow=False) if fields else ""


def _frame(name: str, frame: Frame) -> str:
    lists = [value for value in frame.values() if isinstance(value, list)]
    words = [value for value in frame.values() if isinstance(value, str)]
    # Without a list it stands on one line itself.
    if not lists or not _are_plain(words) or not all(map(_are_plain, lists)):
        return _dumped({name: frame}, flow=None)
    lines = (
        f"  {key}: {value}\n" if isinstance(value, str) else f"  {key}: [{', '.join(value)}]\n"
        for key, value in frame.items()
    )
    return f"{name}:\n{''.join(lines)}"


def _are_plain(texts: Iterable[str]) -> bool:
    return all(_PLAIN.fullmatch(text) is not None and text.lower() not in _WORDS for text in texts)


def _dumped(fields: Mapping[str, object], *, flow: bool | None) -> str:
    dump = cast("Any", yaml.dump)  # pyright: ignore[reportUnknownMemberType]  # PyYAML has no types
    return dump(
        fields,
        Dumper=yaml.CSafeDumper,
        sort_keys=False,
        allow_unicode=True,
        width=10_000,
        default_flow_style=flow,
    )
