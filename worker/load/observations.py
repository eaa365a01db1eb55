"""What was seen of one run, as values: all that the invariants are judged by."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from worker.load.rewriting import Asked, RequestKey


@dataclass(frozen=True, slots=True, kw_only=True)
class Sent:
    """One record that the broker has acknowledged."""

    partition: int
    offset: int
    asked: Asked
    message_chars: int | None
    """Of the user's message, and its digest; None where the body shows none."""
    message_sha256: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """One distinct value on a topic, and how often it stood there."""

    body: bytes
    copies: int = 1
    kind: str = ""
    """As the header says; together with the body it is what is compared."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Letter:
    """One distinct dead letter of one record."""

    partition: int
    """Of the record that it is about, as the offset."""
    offset: int
    code: str
    copies: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """Everything that belongs to one project, request id and generation.

    Or, with `key` None, to one record whose ids cannot be read, joined by its correlation id and place.
    """

    key: RequestKey | None
    sent: tuple[Sent, ...] = ()
    replies: tuple[Seen, ...] = ()
    earlier: tuple[Seen, ...] = ()
    """Replies from before the run, where its ids are not its own."""
    usages: tuple[Seen, ...] = ()
    letters: tuple[Letter, ...] = ()
    fetched: Mapping[str, bytes | str] = field(default_factory=dict[str, bytes | str])
    """Of bundles by reference, by digest: the bytes, or why they could not be had."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """How far the worker's group has come on one partition of the requests."""

    partition: int
    committed: int
    """The offset at which it would go on; 0 where it never committed."""
    sent_end: int
    """Behind the last record of this run."""

    @property
    def lag(self) -> int:
        """Up to the last record of this run, those of others between them included."""
        return max(0, self.sent_end - self.committed)


@dataclass(frozen=True, slots=True, kw_only=True)
class CountedModel:
    """How the tokens of one model are counted, as the settings promise it."""

    window_tokens: int
    encoding: str
    safety_factor: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """What else must be known to judge."""

    models: Mapping[str, CountedModel]
    default_model: str
    id_prefix: str
    """With what every request id of the run begins; empty where ids were kept."""
    canaries: Mapping[str, str] = field(default_factory=dict[str, str])
    """Texts that belong to one project alone, with its id."""

    @property
    def keeps_ids(self) -> bool:
        """Whether requests of others, and earlier outcomes, cannot be told from the run's own."""
        return not self.id_prefix
