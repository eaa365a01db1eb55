"""What the contract has at which place of a request, read off its models. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from types import UnionType
from typing import Annotated, Final, Union, get_args, get_origin

from pydantic import BaseModel

from schemas.codes import LAYERS
from schemas.request import AssemblyRequest
from schemas.session import Artifact

_FOREIGN_FIELDS: Final[Mapping[type[BaseModel], Mapping[str, object]]] = {
    Artifact: {
        **dict.fromkeys(("stage_alias", "artifact_type", "file_path", "artifact_id"), str),
        **dict.fromkeys(("timestamp", "created_at"), float),
    },
}
"""Names that a model takes for its own at its door, with what may stand there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A place of a request; one that says nothing is of no interest to the contract, nor what lies below."""

    name: str = ""
    """Of its field."""
    is_numeric: bool = False
    """Whether a number may stand there."""
    fields: Mapping[str, Place] = field(default_factory=dict[str, "Place"])
    """Of an object that may stand there, by name."""
    item: Place | None = None
    """Of a list."""


UNKNOWN: Final = Place()


def _place(name: str, annotation: object) -> Place:
    """That of a field. The contract's models hold none of themselves."""
    kinds = tuple(_kinds(annotation))
    fields: dict[str, Place] = {}
    item: Place | None = None
    for kind in kinds:
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            fields |= {name: _place(name, of.annotation) for name, of in kind.model_fields.items()}
            fields |= {name: _place(name, of) for name, of in _FOREIGN_FIELDS.get(kind, {}).items()}
        elif get_origin(kind) is dict:  # all of them are by layer
            fields |= {layer: _place(layer, get_args(kind)[1]) for layer in LAYERS}
        elif get_origin(kind) is tuple:
            item = _place(name, get_args(kind)[0])
    return Place(name=name, is_numeric=int in kinds or float in kinds, fields=fields, item=item)


def _kinds(annotation: object) -> Iterator[object]:
    """The types that an annotation allows, without what is said of them."""
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        yield from _kinds(arguments[0])
    elif origin in {Union, UnionType}:
        for argument in arguments:
            yield from _kinds(argument)
    else:
        yield annotation


REQUEST: Final = _place("", AssemblyRequest)
