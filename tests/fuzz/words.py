"""Words that the fuzzed parsers read, by target: mutation alone would take long to spell them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from schemas.request import AssemblyRequest
from tests.unit.budget.hostile_text import SNIPPETS
from tests.unit.plans.test_properties import PIECES

_PACK: Final = (
    "---\n",
    "\n---\n",
    "project: shop\n",
    "pack_version: 1\n",
    "## Function a\n",
    "<!-- node: a::b | template: BUILD | rank: 0 | score: 0.910000 | tokens: 42 -->\n",
    "```\n",
    "````\n",
    "~~~\n",
    "&a ",
    "*a",
    "!!python ",
    "\r\n",
    "-->",
)


def _names(schema: Any) -> Iterator[str]:
    if isinstance(schema, dict):
        for key, value in schema.items():  # pyright: ignore[reportUnknownVariableType]  # JSON
            if key == "properties":
                yield from value  # pyright: ignore[reportUnknownMemberType]  # as above
            if key == "enum":
                yield from (item for item in value if isinstance(item, str))  # pyright: ignore[reportUnknownVariableType]  # as above
            yield from _names(value)
    elif isinstance(schema, list):
        for item in schema:  # pyright: ignore[reportUnknownVariableType]  # as above
            yield from _names(item)


def _json() -> tuple[str, ...]:
    names = sorted(set(_names(AssemblyRequest.model_json_schema())))
    quoted = tuple(f'"{name}"' for name in names)
    return (*quoted, *(f"{name}:" for name in quoted), "1e999", "\\ud800", "\\u0000")


WORDS: Final[Mapping[str, Sequence[str]]] = {
    "decode": _json(),
    "pack": _PACK,
    "plan": tuple(piece for piece in PIECES if "\ud800" not in piece),
    "trim": tuple(snippet for snippet in SNIPPETS if len(snippet) <= 60),
}
