"""What every wire model shares: the frozen base, id and time types, and the one canonical JSON form."""

from __future__ import annotations

import ast
import hashlib
import inspect
import json
import textwrap
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from itertools import pairwise
from typing import Annotated, Any, Final, cast

import rfc8785
from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    GetJsonSchemaHandler,
    PlainSerializer,
    PlainValidator,
    StringConstraints,
    ValidationInfo,
    WithJsonSchema,
    model_validator,
)
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

from schemas.times import EXAMPLE, format_time, parse_time

SCHEMA_VERSION: Final = "1.0"


@dataclass(slots=True)
class DecodeNotes:
    """Counts what validation forgave; handed in as the validation context of one body."""

    unknown_fields: int = 0
    naive_times: int = 0


class WireModel(BaseModel):
    """Frozen; unknown fields are ignored.

    What every process pays at its start is kept small: a validator is built when its model is first used (a
    worker builds all before it is ready, see `build_validators`), and the docstrings of the fields are read
    only where a JSON Schema is made of them.
    """

    model_config = ConfigDict(frozen=True, extra="ignore", allow_inf_nan=False, defer_build=True)

    @classmethod
    def __get_pydantic_json_schema__(
        cls, core_schema: CoreSchema, handler: GetJsonSchemaHandler, /
    ) -> JsonSchemaValue:
        schema = handler(core_schema)
        properties = handler.resolve_ref_schema(schema).get("properties", {})
        for model in reversed(cls.__mro__):
            if issubclass(model, WireModel):
                for name, text in _field_docstrings(model).items():
                    properties[name]["description"] = text
        return schema


class RequestModel(WireModel):
    """What callers send: unknown fields are counted where the validation context is `DecodeNotes`.

    A class of its own, since the hook costs a call for each object, and replies are made of many.
    """

    @model_validator(mode="before")
    @classmethod
    def _count_unknown_fields(cls, data: Any, info: ValidationInfo) -> Any:
        if isinstance(data, dict) and isinstance(info.context, DecodeNotes):
            fields = cast("dict[str, object]", data)
            if cls.model_config.get("extra") == "ignore":
                info.context.unknown_fields += len(fields.keys() - cls.model_fields.keys())
        return cast("object", data)


def build_validators() -> None:
    """Build what is left to build of every model that was imported: no message shall wait for it."""
    waiting: list[type[WireModel]] = [WireModel]
    while waiting:
        model = waiting.pop()
        model.model_rebuild()
        waiting.extend(model.__subclasses__())


@cache
def _field_docstrings(model: type[WireModel]) -> Mapping[str, str]:
    """What stands below each field in the source of the class, by field."""
    (found,) = ast.parse(textwrap.dedent(inspect.getsource(model))).body
    body = cast("ast.ClassDef", found).body
    texts: dict[str, str] = {}
    for field, below in pairwise(body):
        match field, below:
            case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(text))):
                texts[name] = inspect.cleandoc(text)
            case _:
                pass
    return texts


def _read_time(value: object, info: ValidationInfo) -> datetime:
    if isinstance(value, str):
        instant, is_naive = parse_time(value)
    elif isinstance(value, datetime):
        if value.tzinfo is UTC:
            return value
        is_naive = value.tzinfo is None
        try:
            instant = value.replace(tzinfo=UTC) if is_naive else value.astimezone(UTC)
        except OverflowError:
            raise ValueError("the time lies outside the years 1 to 9999 in UTC") from None
    else:
        raise ValueError(f"a time is a string such as {EXAMPLE} (RFC 3339)")  # noqa: TRY004  # pydantic reports a ValueError, a TypeError it lets through
    if is_naive and isinstance(info.context, DecodeNotes):
        info.context.naive_times += 1
    return instant


Timestamp = Annotated[
    datetime,
    PlainValidator(_read_time),
    PlainSerializer(format_time, return_type=str),
    WithJsonSchema({"type": "string", "format": "date-time"}),
]
"""An instant in UTC: RFC 3339, never a number. A time without a zone is read as UTC, and counted."""

ProjectId = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9._-]{1,128}$")]
OpaqueId = Annotated[str, StringConstraints(pattern=r"^[^\x00-\x1f\x7f-\x9f]{1,256}$")]
"""1 to 256 characters, no control characters; compared as bytes, never parsed."""

Name = Annotated[str, StringConstraints(max_length=256)]
"""What a table is looked up by. Replies and usage events repeat it, and must stay small."""

Count = Annotated[int, Field(strict=True, ge=0)]
PositiveInt = Annotated[int, Field(strict=True, gt=0)]
Flag = Annotated[bool, Field(strict=True)]
Sha256Hex = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]


def canonical_json(value: Mapping[str, Any] | list[Any] | tuple[Any, ...]) -> bytes:
    """The RFC 8785 form of a JSON value.

    Raises ValueError for a number outside the interoperable range (an integer beyond 2^53 - 1).
    """
    if _is_plain(value):
        # The same bytes as below for such values, some thirty times as fast: a megabyte of text takes
        # the reference implementation 0.2 s, which would hold up the event loop.
        return _encode_plain(value).encode()
    try:
        return rfc8785.dumps(cast("dict[str, Any]", value))
    except rfc8785.CanonicalizationError as error:
        raise ValueError(str(error)) from error


_MAX_INTEROPERABLE_INTEGER: Final = 2**53 - 1
_encode_plain: Final = json.JSONEncoder(ensure_ascii=False, sort_keys=True, separators=(",", ":")).encode


def _is_plain(value: Mapping[str, Any] | list[Any] | tuple[Any, ...]) -> bool:
    """Whether Python's own JSON encoder spells the value as RFC 8785 does.

    It differs in floats, and in the order of keys beyond ASCII (code points against UTF-16 units).
    """
    # A loop over what is still to be seen: a call for each value takes three times as long.
    waiting: list[object] = [(value,)]
    while waiting:
        held = waiting.pop()
        if type(held) is dict:
            fields = cast("dict[object, object]", held)
            for key in fields:
                if type(key) is not str or not key.isascii():
                    return False
            items: Iterable[object] = fields.values()
        else:
            items = cast("Iterable[object]", held)
        for item in items:
            kind = type(item)
            if kind is str or item is None or kind is bool:
                continue
            if kind is dict or kind is list or kind is tuple:
                waiting.append(item)
            elif kind is not int or abs(cast("int", item)) > _MAX_INTEROPERABLE_INTEGER:
                return False
    return True


def sha256_hex(data: bytes) -> str:
    """64 lower-case hex digits."""
    return hashlib.sha256(data).hexdigest()


def derived_id(prefix: str, text: str) -> str:
    """The id of a thing that came without one: `prefix`, then ten hex digits of the text's SHA-256."""
    return prefix + sha256_hex(text.encode())[:10]
