"""Errors, grouped by what happens next.

WorkerError
├── Rejected             can never succeed as it is: reply with the code, no retry by the worker
│   ├── InvalidJson, InvalidEncoding, TooLarge, UnsupportedVersion    the body itself; dead letter too
│   ├── InvalidRequest                                                a field; dead letter too
│   ├── InternalError, WorkerDied                                     our fault; dead letter too
│   ├── UnknownLayer, UnknownModel, UnknownSubject, UnknownStrategy   a name that is not known
│   ├── NotSupported, ReplyToNotAllowed, RequestIdReused, Expired
│   └── BudgetTooSmall, PinsExceedWindow                              the window cannot hold what must be in
├── Unavailable          a dependency is away: a content layer degrades; without the outcome store or
│   ├── StoreUnavailable Kafka the worker pauses
│   │   └── HeldBack           what asks for this one thing waits, and the worker does not pause
│   │       └── OutcomeTooNew, GraphChanging
│   ├── GraphBehind            a version that was asked for has not come yet
│   └── RelevanceUnavailable   the plain order stays
├── OutcomeDamaged       what concerns this one outcome meets a defect: few attempts, then a dead letter
└── GraphConflict        another writer was faster: compute the change again from what is there now

`code` is stable: replies, dead letters and metrics carry it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar, Final

from schemas.codes import DEAD_LETTER_CODES, RETRYABLE_CODES

if TYPE_CHECKING:
    from schemas.codes import PartName, RejectionCode


_MAX_NAME_CHARS: Final = 256

_MAX_PIN_CHARS: Final = 80
_NAMES_BYTES: Final = 1_000
"""Of each layer's pins in a rejection; eight layers can hold some."""
_TOLD_PINS: Final = 3
_MAX_TOLD_CHARS: Final = 40
"""In the sentence for people; programs read more of them in the details."""


class WorkerError(Exception):
    """Anything this project raises on purpose."""


class Rejected(WorkerError):
    """A request that is answered with a rejection; `details` go into the reply as they are."""

    code: ClassVar[RejectionCode]

    def __init__(self, message: str, **details: object) -> None:
        """Keep `message` for people and `details` (JSON values) for programs."""
        super().__init__(message)
        self.message = message
        self.details: dict[str, object] = details

    @property
    def is_retryable(self) -> bool:
        """Whether the same request under a new id may succeed."""
        return self.code in RETRYABLE_CODES

    @property
    def is_dead_letter(self) -> bool:
        """Whether the record is kept on the dead-letter topic as well."""
        return self.code in DEAD_LETTER_CODES


class InvalidJson(Rejected):
    """The body is not one JSON object."""

    code = "invalid_json"


class InvalidEncoding(Rejected):
    """The body is not UTF-8, or its text holds NUL or a lone surrogate."""

    code = "invalid_encoding"


class TooLarge(Rejected):
    """The body is over the byte limit, or nested deeper than the limit."""

    code = "too_large"


class UnsupportedVersion(Rejected):
    """Another major `schema_version` than this worker speaks."""

    code = "unsupported_version"


class InvalidRequest(Rejected):
    """A field is missing, has the wrong type, or contradicts another one."""

    code = "invalid_request"


class InternalError(Rejected):
    """A defect of this program, met while working on the request."""

    code = "internal_error"


class WorkerDied(Rejected):
    """The record ended the worker process each time it was tried."""

    code = "worker_died"


class _UnknownName(Rejected):
    """A name that settings or code do not know; the message says which are known."""

    noun: ClassVar[str]

    def __init__(self, name: str, *, known: Iterable[str]) -> None:
        """Say which names would have been understood, sorted; of a long unknown one, its beginning."""
        names = sorted(known)
        if len(name) > _MAX_NAME_CHARS:
            # Else the known names, which help the caller, would not fit beside it.
            name = name[: _MAX_NAME_CHARS - 1] + "…"
        super().__init__(f"unknown {self.noun} {name!r}; known: {', '.join(names)}", name=name, known=names)


class UnknownLayer(_UnknownName):
    """A layer that is not one of the eleven."""

    code = "unknown_layer"
    noun = "layer"


class UnknownModel(_UnknownName):
    """A model that the table lacks, without a total and an encoding to go by."""

    code = "unknown_model"
    noun = "model"


class UnknownSubject(_UnknownName):
    """A subject that the settings table lacks."""

    code = "unknown_subject"
    noun = "subject"


class UnknownStrategy(_UnknownName):
    """A strategy that nobody registered."""

    code = "unknown_strategy"
    noun = "strategy"


class NotSupported(Rejected):
    """A part of the contract that this build does not have, or that is switched off."""

    code = "not_supported"

    def __init__(self, field: str, *, reason: str) -> None:
        """Name the field that asks for it."""
        super().__init__(f"{field} is not supported: {reason}", field=field)


class ReplyToNotAllowed(Rejected):
    """The `reply_to` header names a topic off the allow-list."""

    code = "reply_to_not_allowed"


class RequestIdReused(Rejected):
    """The same project and request id came before with another body."""

    code = "request_id_reused"


class Expired(Rejected):
    """The request was met after `expires_at`, or after its outcome was forgotten."""

    code = "expired"


class BudgetTooSmall(Rejected):
    """The window cannot hold the layers that are never trimmed."""

    code = "budget_too_small"

    def __init__(self, *, layer: str, overage_tokens: int, total_tokens: int) -> None:
        """Name the layer that overflows and by how many tokens."""
        super().__init__(
            f"layer {layer!r} exceeds the window of {total_tokens} tokens by {overage_tokens}",
            layer=layer,
            overage_tokens=overage_tokens,
            total_tokens=total_tokens,
        )
        self.layer = layer
        self.overage_tokens = overage_tokens


class PinsExceedWindow(Rejected):
    """The floors of the pinned fragments do not fit, even after borrowing."""

    code = "pins_exceed_window"

    def __init__(
        self,
        *,
        pins: Mapping[PartName, Sequence[str]],
        overage_tokens: int,
        floors: Mapping[str, int] | None = None,
    ) -> None:
        """Name the pins by layer, in packing order, and how many tokens are missing.

        `floors` are the tokens that each layer's pins need. However many pins there are, the details stay
        within a few kilobytes: of each layer the first ones are named, and the others counted.
        """
        named: dict[PartName, list[str]] = {layer: _first_names(names) for layer, names in pins.items()}
        more: dict[PartName, int] = {layer: len(names) - len(named[layer]) for layer, names in pins.items()}
        listed = "; ".join(f"{layer}: {_listed(names)}" for layer, names in pins.items())
        super().__init__(
            f"pinned content exceeds the window by {overage_tokens} tokens ({listed})",
            pins=named,
            more_pins={layer: count for layer, count in more.items() if count},
            floor_tokens={layer: tokens for layer, tokens in (floors or {}).items() if layer in pins},
            overage_tokens=overage_tokens,
        )
        self.overage_tokens = overage_tokens


def _first_names(names: Iterable[str]) -> list[str]:
    """As many as a reply has room for, one at the least where there is one."""
    first: list[str] = []
    size_bytes = 0
    for name in names:
        short = _shortened(name, _MAX_PIN_CHARS)
        size_bytes += len(json.dumps(short))
        if first and size_bytes > _NAMES_BYTES:
            break
        first.append(short)
    return first


def _listed(names: Sequence[str]) -> str:
    told = [_shortened(name, _MAX_TOLD_CHARS) for name in names[:_TOLD_PINS]]
    more = len(names) - len(told)
    return ", ".join(told) + (f" and {more} more" if more else "")


def _shortened(name: str, limit: int) -> str:
    return name if len(name) <= limit else name[: limit - 1] + "…"


class Unavailable(WorkerError):
    """A dependency failed."""


class StoreUnavailable(Unavailable):
    """A store did not answer, or answered that it cannot."""

    def __init__(self, store: str, reason: str = "") -> None:
        """Name the product, and what it said."""
        super().__init__(f"{store} is unavailable{': ' + reason if reason else ''}")
        self.store = store


class HeldBack(StoreUnavailable):
    """The store is there for all others; who asks for this one thing asks again later."""


class OutcomeTooNew(HeldBack):
    """The store answers, and what it holds under this id was written by a newer worker, which can read it."""


class RelevanceUnavailable(Unavailable):
    """The relevance rules cannot be asked now; ranking goes on without them, and says so."""


class GraphBehind(Unavailable):
    """The graph has not reached the version that a request wants to see."""

    def __init__(self, version: int) -> None:
        """`version` is what was asked for."""
        super().__init__(f"graph version {version} has not come in time")


class StateUnavailable(Unavailable):
    """What is known of a thread cannot be read now."""


class StateBehind(Unavailable):
    """Events that a request wants to see have not been applied in time."""

    def __init__(self, events: int) -> None:
        """`events` is how many were asked for."""
        super().__init__(f"not all of {events} events have been applied in time")


class OutcomeDamaged(WorkerError):
    """What the store holds under this id is no outcome any more, and no waiting makes it one."""

    def __init__(self, store: str, reason: str) -> None:
        """Name the product, and what is wrong."""
        super().__init__(f"{store} holds a damaged record: {reason}")


class GraphConflict(WorkerError):
    """A project's graph is no longer the version that a change was computed from."""

    def __init__(self, *, project_id: str, expected_version: int, found_version: int) -> None:
        """`found_version` is what the store holds; 0 where it holds nothing."""
        super().__init__(
            f"the graph of {project_id} is at version {found_version}, the change is for {expected_version}"
        )
        self.found_version = found_version
