"""Credentials in retrieved text are masked before anything is ranked, counted, shown or kept.

The door through which every fragment comes, whatever its source: files, the graph's packs, state, and what
the caller sent inline as session material. The caller's system prompt and message are the caller's own words
and pass untouched. What is written down from here on, captures included, holds the mask and never the value.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from schemas.codes import PartName
from worker.fusion.secrets import Secret, find_secrets
from worker.ports import Fragment, LayerContribution, Rendering

_REMEMBERED: Final = 100_000
_MOST_PASSES: Final = 8
_SHORTEST: Final = 10
"""Nothing shorter holds a credential that `find_secrets` knows."""
_clean: set[tuple[int, int]] = set()
"""Texts that hold none, by length and hash: the same code comes with every request. No text is kept here."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Admitted:
    """The contributions as they may be shown."""

    contributions: Mapping[PartName, LayerContribution]
    masked: Mapping[str, int] = field(default_factory=dict[str, int])
    """Values masked, by fragment key; those without any are absent."""
    is_masking: bool = True


def admit(contributions: Mapping[PartName, LayerContribution], *, is_masking: bool) -> Admitted:
    """The contributions with their credentials masked, or as they are.

    Masking twice changes nothing. What holds no credential is given back as it is, not copied. Linear in the
    texts, and next to nothing for texts that were looked at before.
    """
    masked: dict[str, int] = {}
    admitted: dict[PartName, LayerContribution] = {
        layer: _admit(contribution, masked, is_masking=is_masking) if contribution.fragments else contribution
        for layer, contribution in contributions.items()
    }
    return Admitted(contributions=admitted, masked=masked, is_masking=is_masking)


def mask_secrets(text: str) -> tuple[str, int]:
    """The text with `[masked:KIND]` in place of each value that looks like a credential; and how many.

    Line breaks, fences and marks stay where they are: no value spans them, a private key's lines apart.
    """
    if len(text) < _SHORTEST:
        return text, 0
    fingerprint = (len(text), hash(text))
    if fingerprint in _clean:
        return text, 0
    found = find_secrets(text)
    if not found:
        if len(_clean) >= _REMEMBERED:
            _clean.clear()
        _clean.add(fingerprint)
        return text, 0
    count = 0
    for _ in range(_MOST_PASSES):
        count += len(found)
        text = _replaced(text, found)
        # What stood beside a value may have kept another one from being seen.
        found = find_secrets(text)
        if not found:
            break
    return text, count


def _replaced(text: str, found: Sequence[Secret]) -> str:
    pieces: list[str] = []
    end = 0
    for secret in found:
        pieces += (text[end : secret.start], f"[masked:{secret.kind}]")
        end = secret.end
    return "".join(pieces) + text[end:]


def _admit(contribution: LayerContribution, masked: dict[str, int], *, is_masking: bool) -> LayerContribution:
    fragments = [_admitted(fragment, masked, is_masking=is_masking) for fragment in contribution.fragments]
    if all(new is old for new, old in zip(fragments, contribution.fragments, strict=True)):
        return contribution
    return replace(contribution, fragments=tuple(fragments))


def _admitted(fragment: Fragment, masked: dict[str, int], *, is_masking: bool) -> Fragment:
    if not math.isfinite(fragment.relevance):
        # No number can be written down that is none; the scorer reads these so, too.
        fragment = replace(fragment, relevance=1.0 if fragment.relevance == math.inf else 0.0)
    return _masked(fragment, masked) if is_masking else fragment


def _masked(fragment: Fragment, masked: dict[str, int]) -> Fragment:
    count = 0
    is_changed = False
    renderings: list[Rendering] = []
    for number, rendering in enumerate(fragment.renderings):
        text, found = mask_secrets(rendering.text)
        is_changed = is_changed or found > 0
        # The same value stands in the shallower renderings again.
        count = found if not number else max(count, found)
        renderings.append(Rendering(depth=rendering.depth, text=text) if found else rendering)
    group, in_group = mask_secrets(fragment.group) if fragment.group else ("", 0)
    metadata = {name: mask_secrets(value) for name, value in fragment.metadata.items()}
    in_metadata = sum(found for _, found in metadata.values())
    if not (is_changed or in_group or in_metadata):
        return fragment
    masked[fragment.key] = count + in_group + in_metadata
    return replace(
        fragment,
        renderings=tuple(renderings),
        group=group,
        metadata={name: text for name, (text, _) in metadata.items()},
    )
