"""Why two prompts differ: their inputs, what became of the fragments, and the first differing byte."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, cast

from schemas.bundle import ContextBundle
from schemas.receipt import ReceiptFragment, ReceiptRecord
from schemas.times import format_time
from schemas.wire import sha256_hex
from worker.explaining.stored import Stored
from worker.explaining.view import SHOWN, why
from worker.fusion.sections import fence_for
from worker.ports import Scope
from worker.receipts.capture import CaptureUnreadable

CONTEXT_CHARS: Final = 60
_MAX_VALUE_CHARS: Final = 60


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One value on both sides; None where a side has none."""

    name: str
    before: str | None
    after: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class FragmentChange:
    """A fragment that became something else."""

    layer: str
    node: str
    before: str | None
    """Fate, depth and rule in words; None where that side never had it."""
    after: str | None
    is_shown_before: bool
    is_shown_after: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class FirstByte:
    """Where two prompts part."""

    role: str
    layer: str
    """The part that holds it: of the second prompt where the first ends before; `preamble` above them."""
    offset_bytes: int
    """In that message's UTF-8."""
    same_chars: int
    """What both messages begin with."""
    before: str
    """Text around it, the same beginning first."""
    after: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """Everything that is not the same in two bundles; all empty where the prompts are equal."""

    first: str
    second: str
    is_same_prompt: bool
    inputs: tuple[Change, ...]
    """Settings, code, model, strategies, instant and snapshot."""
    request: tuple[Change, ...]
    request_note: str
    """Why the requests could not be compared field by field; empty where they could."""
    sources: tuple[Change, ...]
    fragments: tuple[FragmentChange, ...]
    first_byte: FirstByte | None
    """None where the prompts are equal, or a bundle holds no messages."""


def difference(first: Stored, second: Stored) -> Difference:
    """What differs, causes before effects."""
    request, note = _request_changes(first, second)
    return Difference(
        first=first.bundle.request_id,
        second=second.bundle.request_id,
        is_same_prompt=first.bundle.context_hash == second.bundle.context_hash,
        inputs=tuple(_inputs(first.record, second.record)),
        request=tuple(request),
        request_note=note,
        sources=tuple(_sources(first.record, second.record)),
        fragments=fragment_changes(first.record, second.record),
        first_byte=first_differing_byte(first.bundle, second.bundle),
    )


def fragment_changes(first: ReceiptRecord, second: ReceiptRecord) -> tuple[FragmentChange, ...]:
    """Those in one prompt and not in the other, or shown otherwise; the first's order, then the second's.

    Only lines are compared: what a receipt counts without a line has no name.
    """
    before, after = by_name(first), by_name(second)
    changes: list[FragmentChange] = []
    for name in dict.fromkeys([*before, *after]):
        old, new = before.get(name), after.get(name)
        was_shown, is_shown = _is_shown(old), _is_shown(new)
        if not (was_shown or is_shown):
            continue
        if old and new and (old.fate, old.depth, old.tokens) == (new.fate, new.depth, new.tokens):
            continue
        layer, node, _ = name
        changes.append(
            FragmentChange(
                layer=layer,
                node=node,
                before=_said(old),
                after=_said(new),
                is_shown_before=was_shown,
                is_shown_after=is_shown,
            )
        )
    return tuple(changes)


def first_differing_byte(first: ContextBundle, second: ContextBundle) -> FirstByte | None:
    """Where the prompts part, message by message."""
    if first.messages is None or second.messages is None:
        return None
    one = {message.role: message.content for message in first.messages}
    two = {message.role: message.content for message in second.messages}
    for role in ("system", "user"):
        before, after = one.get(role, ""), two.get(role, "")
        if before == after:
            continue
        at = _common_chars(before, after)
        bundle, text = (first, before) if at < len(before) else (second, after)
        return FirstByte(
            role=role,
            layer="system" if role == "system" else _layer_at(bundle, text, at),
            offset_bytes=len(before[:at].encode()),
            same_chars=at,
            before=before[max(0, at - CONTEXT_CHARS) : at + CONTEXT_CHARS],
            after=after[max(0, at - CONTEXT_CHARS) : at + CONTEXT_CHARS],
        )
    return None


def _common_chars(before: str, after: str) -> int:
    low, high = 0, min(len(before), len(after))
    while low < high:
        middle = (low + high + 1) // 2
        if before[low:middle] == after[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


def _layer_at(bundle: ContextBundle, content: str, at: int) -> str:
    """The part that holds a character of the user's message, by the marks around the sections."""
    delimiter = fence_for(Scope(project_id=bundle.project_id, thread_id=bundle.thread_id)).delimiter
    opened = rf"^\[\[context (?P<layer>[a-z]+) {delimiter} .*\]\]$"
    layer = "preamble"
    for mark in re.finditer(rf"{opened}|^\[\[end [a-z]+ {delimiter}\]\]\n*", content, re.MULTILINE):
        if mark.group("layer") is not None:
            if at < mark.start():
                break
            layer = mark.group("layer")
        elif mark.end() <= at:
            layer = "user"
    return layer if delimiter in content else "user"


# --- Causes ------------------------------------------------------------------------------------------


def _inputs(first: ReceiptRecord, second: ReceiptRecord) -> Iterator[Change]:
    named: tuple[tuple[str, str | None, str | None], ...] = (
        ("code", first.code_version, second.code_version),
        ("settings", first.settings_digest, second.settings_digest),
        ("model", first.model, second.model),
        ("encoding", first.encoding, second.encoding),
        ("strategies", "+".join(first.strategies), "+".join(second.strategies)),
        ("failed strategies", _failures(first), _failures(second)),
        ("as of", format_time(first.as_of), format_time(second.as_of)),
        ("snapshot", first.snapshot_id, second.snapshot_id),
        ("masking", _masking(first), _masking(second)),
    )
    for name, before, after in named:
        if before != after:
            yield Change(name=name, before=before, after=after)


def _failures(record: ReceiptRecord) -> str:
    return ", ".join([f"{failure.name} ({failure.code})" for failure in record.failures])


def _masking(record: ReceiptRecord) -> str:
    return "off" if record.masked_secrets is None else "on"


def _request_changes(first: Stored, second: Stored) -> tuple[list[Change], str]:
    if first.record.request_digest == second.record.request_digest:
        return [], ""
    try:
        before, after = _fields(first), _fields(second)
    except CaptureUnreadable as error:
        return [], f"the requests differ, and only a capture says where: {error}"
    changes = [
        Change(name=name, before=_shortened(before.get(name)), after=_shortened(after.get(name)))
        for name in dict.fromkeys([*before, *after])
        if before.get(name) != after.get(name)
    ]
    return changes, ""


def _fields(stored: Stored) -> dict[str, Any]:
    """The request's fields, those of its objects by their path."""
    return dict(_flat(stored.capture().fields))


def _flat(fields: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in fields.items():
        if isinstance(value, dict) and value:
            yield from _flat(cast("dict[str, Any]", value), f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def _shortened(value: object) -> str | None:
    """A value as it is where it is short; else how it begins, how long it is, and its digest."""
    if value is None:
        return None
    text = value if isinstance(value, str) else repr(value)
    if len(text) <= _MAX_VALUE_CHARS:
        return text
    return f"{text[:_MAX_VALUE_CHARS]}… ({len(text):,} characters, {sha256_hex(text.encode())[:8]})"


def _sources(first: ReceiptRecord, second: ReceiptRecord) -> Iterator[Change]:
    before = {source.layer: source for source in first.sources}
    after = {source.layer: source for source in second.sources}
    for layer in dict.fromkeys([*before, *after]):
        old, new = before.get(layer), after.get(layer)
        if (old and old.digest) == (new and new.digest):
            continue

        def said(source: Any) -> str | None:
            if source is None:
                return None
            reason = f" ({source.reason})" if source.reason else ""
            return f"{source.status}{reason}, {source.fragments} fragments, {source.digest[:8]}"

        yield Change(name=layer, before=said(old), after=said(new))


# --- Effects -----------------------------------------------------------------------------------------


def by_name(record: ReceiptRecord) -> dict[tuple[str, str, int], ReceiptFragment]:
    """Lines by layer, node, and which of several of one name it is."""
    named: dict[tuple[str, str, int], ReceiptFragment] = {}
    seen: dict[tuple[str, str], int] = {}
    for line in record.fragments:
        number = seen.get((line.layer, line.node), 0)
        seen[line.layer, line.node] = number + 1
        named[line.layer, line.node, number] = line
    return named


def _is_shown(line: ReceiptFragment | None) -> bool:
    return line is not None and line.fate in SHOWN


def _said(line: ReceiptFragment | None) -> str | None:
    if line is None:
        return None
    shown = f" at depth {line.depth}, {line.tokens} tokens" if line.depth is not None else ""
    return f"{line.fate}{shown}: {why(line)}"


def shown_nodes(changes: Sequence[FragmentChange]) -> tuple[int, int]:
    """How many came in, and how many went out."""
    came = sum(change.is_shown_after and not change.is_shown_before for change in changes)
    went = sum(change.is_shown_before and not change.is_shown_after for change in changes)
    return came, went
