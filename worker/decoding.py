"""From the bytes of a record to a validated request, or the code that says why there is none.

Pure and thread-safe: no broker, no clock, no settings. The checks go from cheap to dear, and what bounds
the later ones (bytes, depth, number of values) comes first, so that no body costs more than linear time.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final, TypeVar, cast

import rfc8785
from pydantic import TypeAdapter, ValidationError
from pydantic_core import ErrorDetails, from_json

from schemas.codes import LAYERS
from schemas.request import AssemblyRequest
from schemas.wire import SCHEMA_VERSION, DecodeNotes, OpaqueId, ProjectId, sha256_hex
from worker.errors import (
    InvalidEncoding,
    InvalidJson,
    InvalidRequest,
    Rejected,
    TooLarge,
    UnknownLayer,
    UnsupportedVersion,
)

T = TypeVar("T")

MAX_VALUES: Final = 50_000
"""Validating and hashing ten times as many small values held the interpreter, and with it the event loop of
another thread, for more than a second."""
MAX_EXACT_INTEGER: Final = 2**53 - 1
_MAX_LISTED_PROBLEMS: Final = 10
_MAX_COUNTED_PROBLEMS: Final = 1_000
_MAX_FIELD_CHARS: Final = 200
_LIGHT_BYTES: Final = 8 * 1024
_HEAVY_BYTES: Final = 64 * 1024
_HEAVY_VALUES: Final = 4_000
_MAX_TOKENS_PER_VALUE: Final = 6
"""A key, its colon, the value's two brackets, a comma; and one for the brackets of the whole."""
_MAX_ID_TOKENS: Final = 50_000
_MAX_ID_TOKEN_BYTES: Final = 2 + 256 * 12
"""256 characters, each as a pair of escapes, and the quotes."""
_BYTE_ORDER_MARK: Final = b"\xef\xbb\xbf"

_STEP_BYTES: Final = 65_536
"""How far one call into `re` looks: no other thread runs meanwhile, and 8 MB take it 0.15 s."""
_TOKEN_START: Final = re.compile(rb'["{}\[\]:,]')
_STRING_PART: Final = re.compile(rb'(?:[^"\\]++|\\.)*+', re.DOTALL)  # possessive: linear on any input
_QUOTE: Final = ord('"')
_COMMA: Final = ord(",")
_OPENERS: Final = b"{["
_NO_STRUCTURE: Final = bytes(code for code in range(256) if code not in b",{[")
_CLOSERS: Final = b"}]"
_SURROGATE_ESCAPE: Final = re.compile(rb"\\u[dD][89a-fA-F]")
_DIGIT_SHAPES: Final = bytes.maketrans(b"123456789E", b"000000000e")
_HUGE_NUMBER_SHAPES: Final = (b"e000", b"e+000", b"0" * 300)
_VERSION: Final = re.compile(r"0*([0-9]{1,9})(?:\.[0-9]{1,9}){0,3}")
_CLOSES: Final = {b"}": b"{", b"]": b"["}


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodedRequest:
    """A request that the contract allows, what it means as a digest, and what was forgiven."""

    request: AssemblyRequest
    digest: str
    meaning: bytes
    """What the digest is of: the request's canonical JSON."""
    notes: DecodeNotes


def decode_request(
    body: bytes | None, *, max_bytes: int, max_depth: int, max_values: int = MAX_VALUES
) -> DecodedRequest:
    """The request in `body`, validated.

    A leading byte order mark is ignored; of a repeated key the last counts. Raises InvalidJson,
    InvalidEncoding, TooLarge, UnsupportedVersion or InvalidRequest, and nothing else; none of them quotes a
    value of the body. `max_depth` above 190 has no effect: the parser stops at 200 levels.
    Linear in the size of the body; see `is_heavy` for what should leave the event loop.
    """
    fields = decode_fields(body, max_bytes=max_bytes, max_depth=max_depth, max_values=max_values)
    notes = DecodeNotes()
    request = _validate(fields, notes)
    meaning = _meaning(request)
    return DecodedRequest(request=request, digest=sha256_hex(meaning), meaning=meaning, notes=notes)


def decode_fields(
    body: bytes | None, *, max_bytes: int, max_depth: int, max_values: int = MAX_VALUES
) -> Mapping[str, Any]:
    """The one JSON object in `body`, of a version that is spoken here; its fields are not looked at.

    Everything that `decode_request` says of bytes, depth, encoding and version holds here.
    """
    if not body:
        raise InvalidJson("the record has no body")
    if len(body) > max_bytes:
        raise TooLarge(
            f"the body has {len(body)} bytes, the limit is {max_bytes}",
            size_bytes=len(body),
            limit_bytes=max_bytes,
        )
    body = body.removeprefix(_BYTE_ORDER_MARK)
    _check_encoding(body)
    _check_structure(body, max_depth=max_depth, max_values=max_values)
    fields = _parse_object(body)
    _check_version(fields)
    return fields


def is_heavy(body: bytes | None) -> bool:
    """Whether decoding `body` may take milliseconds, so that it belongs in a thread. Costs microseconds."""
    size_bytes = 0 if body is None else len(body)
    if body is None or size_bytes <= _LIGHT_BYTES:
        return False
    return size_bytes > _HEAVY_BYTES or len(_structure_of(body)) > _HEAVY_VALUES


# --- Bytes -------------------------------------------------------------------------------------------


def _check_encoding(body: bytes) -> None:
    if b"\x00" in body:
        raise InvalidEncoding("the body holds a NUL byte")
    try:
        body.decode()
    except UnicodeDecodeError as error:
        raise InvalidEncoding(f"the body is not UTF-8 at byte {error.start}", byte=error.start) from None


def _structure_of(body: bytes) -> bytes:
    """The commas and opening brackets; no fewer than the body has values, more where text has some."""
    return body.translate(None, delete=_NO_STRUCTURE)


def _check_structure(body: bytes, *, max_depth: int, max_values: int) -> None:
    """Depth and number of values, without recursion and without building a single object."""
    structure = _structure_of(body)
    if len(structure) <= max_values and len(structure) - structure.count(b",") <= max_depth:
        return
    depth = values = strings = 0
    for count, (start, _) in enumerate(_tokens(body)):
        if count > _MAX_TOKENS_PER_VALUE * max_values:
            return  # no JSON with so few values has so many; the parser says so sooner
        code = body[start]
        if code == _QUOTE:
            strings += 1
        elif code in _OPENERS:
            depth += 1
            values += 1
        elif code in _CLOSERS:
            depth -= 1
        elif code == _COMMA:
            values += 1
        if depth > max_depth:
            raise _too_deep(max_depth)
        if values > max_values or strings > 2 * max_values:
            raise TooLarge(f"the body holds more than {max_values} values", limit_values=max_values)


def _tokens(body: bytes) -> Iterator[tuple[int, int]]:
    """Start and end of each bracket, colon, comma and string, in order; what lies between is skipped.

    A string that never ends is left out, and is the end. Linear, in steps between which others may run.
    """
    at = 0
    while at < len(body):
        match = _TOKEN_START.search(body, at, at + _STEP_BYTES)
        if match is None:
            at += _STEP_BYTES
            continue
        start, end = match.span()
        if body[start] == _QUOTE:
            end = _string_end(body, end)
            if end < 0:
                return
        yield start, end
        at = end


def _string_end(body: bytes, at: int) -> int:
    """The place after the quote that closes the string around `at`; -1 where there is none."""
    while at < len(body):
        match = _STRING_PART.match(body, at, at + _STEP_BYTES)
        end = at if match is None else match.end()
        if end < len(body) and body[end] == _QUOTE:
            return end + 1
        if end == at:
            return -1  # a backslash with nothing behind it
        at = end
    return -1


def _too_deep(max_depth: int) -> TooLarge:
    return TooLarge(f"the body is nested more than {max_depth} levels deep", limit_depth=max_depth)


# --- JSON --------------------------------------------------------------------------------------------


def _parse_object(body: bytes) -> Mapping[str, Any]:
    try:
        value: object = from_json(body, allow_inf_nan=False)
    except ValueError as error:
        raise _syntax_refusal(body, str(error)) from None
    if not isinstance(value, dict):
        raise InvalidJson("the body is not a JSON object")
    fields = cast("dict[str, Any]", value)
    if b"\\u0000" in body and any("\x00" in leaf for leaf in _leaves(fields, str)):
        raise InvalidEncoding("a string holds NUL")
    if _may_hold_infinity(body) and any(math.isinf(leaf) for leaf in _leaves(fields, float)):
        raise InvalidRequest("a number is too large")
    return fields


def _syntax_refusal(body: bytes, message: str) -> Rejected:
    """Why the parser stopped; its message names a line and a column, never the text there."""
    if message.startswith("recursion limit"):
        return _too_deep(200)
    if message.startswith("number out of range"):
        return InvalidRequest("a number has too many digits")
    if _SURROGATE_ESCAPE.search(body) and _is_json_but_for_surrogates(body):
        return InvalidEncoding("a string holds a lone surrogate")
    return InvalidJson(f"the body is not JSON: {message}")


def _is_json_but_for_surrogates(body: bytes) -> bool:
    """Python's own parser lets lone surrogates pass; the depth was checked before."""
    try:
        json.loads(body.decode(), parse_constant=_refuse_constant)
    except (ValueError, RecursionError):
        return False
    return True


def _refuse_constant(name: str) -> None:
    raise ValueError(name)


def _may_hold_infinity(body: bytes) -> bool:
    """Whether some digits could be a number that no float holds; text that looks like one counts too.

    By its shape, for a regular expression costs forty times as much and this runs on every body.
    """
    shapes = body.translate(_DIGIT_SHAPES)
    return b"000" in shapes and any(shape in shapes for shape in _HUGE_NUMBER_SHAPES)


def _leaves(value: object, kind: type[T]) -> Iterator[T]:
    """The keys and values of that kind, in no particular order; no recursion."""
    rest = [value]
    while rest:
        item = rest.pop()
        if isinstance(item, kind):
            yield item
        elif isinstance(item, dict):
            fields = cast("dict[str, object]", item)
            rest.extend(fields.keys())
            rest.extend(fields.values())
        elif isinstance(item, list):
            rest.extend(cast("list[object]", item))


# --- The contract ------------------------------------------------------------------------------------


def _check_version(fields: Mapping[str, Any]) -> None:
    """Before anything else is looked at: another major version may mean anything by its fields."""
    version = fields.get("schema_version", SCHEMA_VERSION)
    if not isinstance(version, str):
        return  # the model says so with the field's name
    match = _VERSION.fullmatch(version)
    if match is None:
        raise _invalid("schema_version", "is not a version")
    major = SCHEMA_VERSION.split(".", maxsplit=1)[0]
    if match[1] != major:
        raise UnsupportedVersion(
            f"schema version {match[1]} is not spoken here; known: {major}", major=match[1], known=[major]
        )


def _validate(fields: Mapping[str, Any], notes: DecodeNotes) -> AssemblyRequest:
    try:
        request = AssemblyRequest.model_validate(fields, context=notes)
    except ValidationError as error:
        raise validation_refusal(error) from None
    if max((request.deadline_ms, *request.layer_timeouts_ms.values())) > MAX_EXACT_INTEGER:
        # The digest leaves these fields out, so its own check of numbers does not see them.
        raise _invalid("deadline_ms or layer_timeouts_ms", f"is above {MAX_EXACT_INTEGER}")
    return request


def _meaning(request: AssemblyRequest) -> bytes:
    try:
        return request.meaning()
    except ValueError:
        raise InvalidRequest("a number is beyond what canonical JSON can carry") from None


def _invalid(field: str, problem: str) -> InvalidRequest:
    return InvalidRequest(f"{field}: {problem}", errors=[{"field": field, "message": problem}], error_count=1)


def validation_refusal(error: ValidationError) -> InvalidRequest:
    """What is wrong, by field, without a value of the body; the first ten problems and their number."""
    count = error.error_count()
    # Listing is all or nothing and costs 7 microseconds a problem, during which no other thread runs.
    listed = error.errors(include_url=False, include_input=False) if count <= _MAX_COUNTED_PROBLEMS else []
    problems = [
        {"field": _field_path(detail["loc"]), "message": _problem(detail)}
        for detail in listed[:_MAX_LISTED_PROBLEMS]
    ]
    head = (
        f"{problems[0]['field']}: {problems[0]['message']}" if problems else "too many wrong fields to list"
    )
    more = f" (and {count - 1} more)" if count > 1 else ""
    return InvalidRequest(head + more, errors=problems, error_count=count)


def _field_path(location: tuple[int | str, ...]) -> str:
    return ".".join(str(part)[:_MAX_FIELD_CHARS] for part in location)[:_MAX_FIELD_CHARS]


def _problem(detail: ErrorDetails) -> str:
    cause = detail.get("ctx", {}).get("error")
    if isinstance(cause, Exception) and isinstance(cause.__cause__, rfc8785.CanonicalizationError):
        return "holds a number beyond what canonical JSON can carry"  # its own message quotes the number
    return detail["msg"].removeprefix("Value error, ")


# --- What one request must not ask -------------------------------------------------------------------


def check_request(request: AssemblyRequest) -> None:
    """Whether a valid request can be served, as far as that can be told without settings.

    Raises UnknownLayer, or InvalidRequest (shares above the total).
    """
    budget = request.budget
    layers = budget.layers if budget is not None else {}
    if layers or request.layer_timeouts_ms:
        unknown = sorted((layers.keys() | request.layer_timeouts_ms.keys()) - set(LAYERS))
        if unknown:
            raise UnknownLayer(unknown[0], known=LAYERS)
    if budget is not None and budget.total is not None and sum(layers.values()) > budget.total:
        raise _invalid("budget.layers", "the layers ask for more than `budget.total`")


# --- What can still be read --------------------------------------------------------------------------

_REQUEST_ID: Final = TypeAdapter[str](OpaqueId)
_PROJECT_ID: Final = TypeAdapter[str](ProjectId)


def read_ids(body: bytes | None, *, id_field: str = "request_id") -> tuple[str | None, str | None]:
    """`(request_id, project_id)` as far as a body that cannot be decoded still shows them.

    Of another message than a request, `id_field` is where its own id stands.

    Only the top level of one object counts, up to the first place where its structure breaks, and only ids
    that the contract allows; two different ones under one name are none. Looks at no more than the first
    50,000 tokens; strings are skipped as a whole.
    """
    found = _read_top_level_strings(body or b"", names=(id_field, "project_id"))
    return _valid(_REQUEST_ID, found.get(id_field)), _valid(_PROJECT_ID, found.get("project_id"))


def _valid(adapter: TypeAdapter[str], value: str | None) -> str | None:
    try:
        return None if value is None else adapter.validate_python(value)
    except ValidationError:
        return None


def _read_top_level_strings(body: bytes, *, names: tuple[str, ...]) -> dict[str, str | None]:
    found: dict[str, str | None] = {}
    stack: list[bytes] = []
    key: str | None = None
    last_string: bytes | None = None
    body = body.removeprefix(_BYTE_ORDER_MARK)
    last_end = 0
    for start, end in islice(_tokens(body), _MAX_ID_TOKENS):
        # Of a string that is no id, a piece is enough.
        token = body[start : min(end, start + _MAX_ID_TOKEN_BYTES + 1)]
        is_adjacent, last_end = _is_blank(body, last_end, start), end
        if not stack and (token != b"{" or not is_adjacent):
            break
        is_top = len(stack) == 1
        if token in {b"{", b"["}:
            if is_top and key in names:
                found[key] = None
            stack.append(token)
            key = last_string = None
        elif token in _CLOSES:
            if stack.pop() != _CLOSES[token] or not stack:
                break
        elif not is_top:
            continue
        elif token == b":":
            key = _text(last_string) if last_string is not None and is_adjacent else None
            last_string = None
        elif token == b",":
            key = last_string = None
        elif key is None:
            last_string = token
        elif key in names:
            value = _text(token) if is_adjacent else None
            found[key] = value if found.get(key, value) == value else None
            key = None
    return found


def _is_blank(body: bytes, start: int, end: int) -> bool:
    return all(
        not body[at : min(at + _STEP_BYTES, end)].strip(b" \t\r\n") for at in range(start, end, _STEP_BYTES)
    )


def _text(token: bytes) -> str | None:
    """The string that a JSON string token spells; None where it is broken, or too long for an id."""
    try:
        return cast("str", json.loads(token.decode())) if len(token) <= _MAX_ID_TOKEN_BYTES else None
    except ValueError:
        return None
