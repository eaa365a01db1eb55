"""YAML read as text: every scalar stays what was written, so `1.10` is no number and `no` no truth value."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Final, cast

import yaml

MAX_YAML_CHARS: Final = 100_000
"""The pure-Python loader reads some 100 kB a second; items and front matter are far smaller."""
MAX_FLOW_MARKS: Final = 1_000
"""Open brackets make the loader look at each of them again for every character that follows."""

_LINE: Final = re.compile(r"(?P<key>[^\s:#-][^:\n]{0,80}?)\s*:\s(?P<value>.*)")


def load_mapping(text: str) -> Mapping[str, object] | None:
    """The mapping that the text is, its values strings, lists and mappings; None where it is none.

    Tags and types are ignored, aliases are shared and never expanded. The loader in C would overflow its
    stack on deep nesting, so it is not used.
    """
    if len(text) > MAX_YAML_CHARS or text.count("[") + text.count("{") > MAX_FLOW_MARKS:
        return None
    try:
        value: object = yaml.load(text, Loader=yaml.BaseLoader)  # noqa: S506 (builds strings, lists, dicts only)
    except (yaml.YAMLError, RecursionError, ValueError, TypeError):
        return None
    return cast("Mapping[str, object]", value) if isinstance(value, dict) else None


def load_front_matter(text: str) -> Mapping[str, object]:
    """A front matter's fields. Where YAML refuses it, its `key: value` lines."""
    loaded = load_mapping(text)
    if loaded is not None:
        return loaded
    matches = (_LINE.match(f"{line} ") for line in text[:MAX_YAML_CHARS].split("\n"))
    return {match["key"]: match["value"].strip().strip("\"'") for match in matches if match}


def text_of(value: object) -> str:
    """A scalar's text; the empty string for anything else."""
    return value.strip() if isinstance(value, str) else ""


def texts_of(value: object) -> Iterator[str]:
    """The scalars of a list, the keys of one-key mappings in it, or a scalar itself."""
    if isinstance(value, str):
        yield value.strip()
    elif isinstance(value, list):
        for item in cast("list[object]", value):
            if isinstance(item, str):
                yield item.strip()
            elif isinstance(item, dict):
                yield from (str(key) for key in cast("dict[object, object]", item) if isinstance(key, str))


def mappings_of(value: object) -> Iterator[Mapping[str, object]]:
    """The mappings in a list."""
    if isinstance(value, list):
        for item in cast("list[object]", value):
            if isinstance(item, dict):
                yield cast("Mapping[str, object]", item)
