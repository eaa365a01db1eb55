"""The tool that hands out a large bundle in pieces, for callers that reach Kafka alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Protocol

from schemas.tools import GetBundleArguments
from worker.budget.trimming import trim_to_budget
from worker.ports import Scope, TokenCounter
from worker.retrieval.found import ToolFailed

MAX_PIECE_BYTES: Final = 262_144
"""JSON within JSON is escaped, at most twice as long: a piece stays well below what a record takes."""


class BundleSource(Protocol):
    """What is used of the outcome store."""

    async def get_bundle(self, *, project_id: str, digest: str) -> bytes | None:
        """The bundle of that project with that SHA-256. Raises StoreUnavailable."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class BundlePiece:
    """A part of a bundle's bytes, as text, and where the next one begins; None with the last."""

    content: str
    next_offset: int | None


async def read_bundle(source: BundleSource, scope: Scope, digest: str) -> bytes:
    """The whole bundle. Raises ToolFailed, `not_found`, also for another project's; StoreUnavailable."""
    body = await source.get_bundle(project_id=scope.project_id, digest=digest)
    if body is None:
        raise ToolFailed("not_found", "the project has no such bundle, or it has expired")
    return body


def cut_bundle(
    body: bytes, arguments: GetBundleArguments, *, budget_tokens: int, counter: TokenCounter
) -> BundlePiece:
    """The piece from the offset on that fits, whole characters. The pieces joined are `body`, byte for byte.

    Raises ToolFailed for an offset at which no piece begins, and where not one character fits.
    """
    offset = arguments.offset
    if offset >= len(body) or 0x80 <= body[offset] < 0xC0:  # noqa: PLR2004  bytes that continue a character
        raise ToolFailed("invalid_arguments", f"no piece of the {len(body)} bytes begins at offset {offset}")
    # The end may lie within a character, which is the next piece's then.
    text = body[offset : offset + MAX_PIECE_BYTES].decode(errors="ignore")
    # One line of JSON: no fence can be open, so what is left is a prefix and nothing else.
    content = trim_to_budget(text, budget_tokens, counter)
    if not content:
        raise ToolFailed("budget_too_small", f"not one character fits into {budget_tokens} tokens")
    end = offset + len(content.encode())
    return BundlePiece(content=content, next_offset=end if end < len(body) else None)
