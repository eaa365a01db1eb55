"""The fragment view of a bundle: what was shown, where it stands, and where it comes from."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import Final

from ulid import ULID

from schemas.codes import PARTS
from schemas.fragments import MAX_CONTENT_CHARS, MAX_METADATA, ContextFragment, ContextPayload, FragmentBudget
from schemas.wire import canonical_json, sha256_hex
from worker.budget.layers import ContextBudget
from worker.fusion.finish import Sealed
from worker.fusion.protocols import PackedLayer, Placed
from worker.ports import Fragment, RequestFrame, TokenCounter

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


def build_payload(
    frame: RequestFrame,
    sealed: Sealed,
    *,
    budget: ContextBudget,
    counter: TokenCounter,
    strategies_used: Sequence[str],
    digest: str,
    with_content: bool,
) -> ContextPayload:
    """The fragments in prompt order, with their spans in their layer's part.

    Tokens are counted per fragment, so their sum differs from the ledger by headings, marks and seams.
    """
    fragments = tuple(
        _wire_fragment(frame, placed, span, counter=counter, with_content=with_content)
        for layer in PARTS
        if layer in sealed.packed
        for placed, span in spans_of(sealed.packed[layer])
    )
    total = sum(fragment.token_count for fragment in fragments)
    reserved = budget.system + budget.user + budget.output
    allowed = FragmentBudget(max_tokens=max(budget.total, reserved + total, 1), reserved_tokens=reserved)
    return ContextPayload(
        payload_id="p_" + digest[:24],
        plan_id=frame.request.plan_id or (frame.request.plan.plan_id if frame.request.plan else None),
        fragments=fragments,
        total_tokens=total,
        budget=allowed,
        budget_used=round(total / max(1, allowed.available_tokens), 6),
        strategies_used=tuple(strategies_used),
        context_hash=digest,
        preamble=(sealed.preamble + sealed.template) or None,
        provenance_map={fragment.fragment_id: fragment.provenance for fragment in fragments},
        assembled_at=frame.as_of,
    )


def fragment_id(project_id: str, fragment: Fragment) -> str:
    """A ULID whose time is the content's own and whose random part is a digest: the same on every host."""
    source = fragment.provenance[0]
    created = fragment.created_at or _EPOCH
    if created.tzinfo is None:
        # Else it would be read in the host's own time zone.
        created = created.replace(tzinfo=UTC)
    identity = [
        project_id,
        fragment.layer,
        source.resource_uri,
        source.location,
        fragment.node,
        fragment.renderings[0].text,
    ]
    random_part = bytes.fromhex(sha256_hex(canonical_json(identity)))[:10]
    milliseconds = max(0, int(created.timestamp() * 1_000)) & (2**48 - 1)
    return str(ULID(milliseconds.to_bytes(6, "big") + random_part))


def _wire_fragment(
    frame: RequestFrame,
    placed: Placed,
    span: tuple[int, int],
    *,
    counter: TokenCounter,
    with_content: bool,
) -> ContextFragment:
    fragment = placed.fragment
    return ContextFragment(
        fragment_id=fragment_id(frame.request.project_id, fragment),
        uko_node=fragment.node,
        layer=fragment.layer,
        span=span,
        content=placed.text[:MAX_CONTENT_CHARS] if with_content else None,
        detail_depth=placed.depth,
        token_count=counter.count(placed.text),
        relevance_score=placed.score,
        provenance=fragment.provenance,
        tier=fragment.storage_tier,
        relevance_tier=fragment.relevance_tier,
        metadata=_metadata(fragment),
        created_at=fragment.created_at or _EPOCH,
    )


def _metadata(fragment: Fragment) -> dict[str, str]:
    """As much as a payload may hold, by keys in their order: a source that says more costs no bundle."""
    if len(fragment.metadata) <= MAX_METADATA:
        return dict(fragment.metadata)
    return {key: fragment.metadata[key] for key in sorted(fragment.metadata)[:MAX_METADATA]}


def spans_of(packed: PackedLayer) -> Iterator[tuple[Placed, tuple[int, int]]]:
    """Each fragment with its character span in the section, which is laid out as `compose` lays it out."""
    body = len(packed.frame.opening) + 1
    offset = body + len(packed.frame.heading)
    previous = ""
    for placed in packed.placed:
        group = placed.fragment.group
        if group and group != previous:
            offset += (offset > body) + len(group)
        previous = group
        start = offset + (offset > body)
        offset = start + len(placed.text)
        yield placed, (start, offset)
