"""Making a bundle again from its capture: fusing and sealing, with nothing read from anywhere."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from schemas.bundle import to_wire
from schemas.receipt import receipt_id
from schemas.request import AssemblyRequest
from worker.explaining.stored import Stored
from worker.fusing import Fusing, fuse_and_seal
from worker.planning import ContentPolicy, plan_request
from worker.ports import Scope
from worker.receipts.capture import Capture, policy_of
from worker.sealing import SealedBundle


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """Whether a stored bundle is what its capture makes."""

    outcome: Literal["same", "differs", "damaged"]
    """`damaged`: bundle, receipt and capture do not belong together, so nothing was made again."""
    detail: str
    """What differs, in words; empty where nothing does."""
    code_version: str
    """Of the code that made the bundle."""
    code_version_now: str


def fuse_again(
    capture: Capture, policy: ContentPolicy, *, request: AssemblyRequest | None = None
) -> SealedBundle:
    """The bundle that the capture makes, or would make of another request with the same sources.

    `policy` has the strategies of this process; tables and settings are the capture's own. Raises Rejected
    where the request cannot be served, and CaptureUnreadable's relatives never: the capture was read already.
    """
    frame = capture.frame if request is None else replace(capture.frame, request=request)
    scope = Scope(project_id=frame.request.project_id, thread_id=frame.request.thread_id)
    fusing = Fusing(
        frame=frame,
        plan=plan_request(frame, scope, policy_of(capture, policy)),
        admitted=capture.admitted,
        request_digest=capture.header.request_digest,
        request_line_digest=capture.request_line_digest,
        proposals=capture.header.proposals,
    )
    return fuse_and_seal(fusing)


def verify(stored: Stored, policy: ContentPolicy) -> Verdict:
    """Make the bundle again and compare every byte of it and of its record.

    Raises CaptureUnreadable, and Rejected where this code refuses what was served.
    """
    capture = stored.capture()

    def verdict(outcome: Literal["same", "differs", "damaged"], detail: str) -> Verdict:
        return Verdict(
            outcome=outcome,
            detail=detail,
            code_version=stored.record.code_version,
            code_version_now=policy.code_version,
        )

    foreign = _foreign(stored, capture)
    if foreign:
        return verdict("damaged", foreign)
    sealed = fuse_again(capture, policy)
    body, record = to_wire(sealed.bundle), sealed.recorded.record
    if body != stored.body:
        return verdict("differs", _where("bundle", stored.body, body))
    if record != stored.record_bytes:
        return verdict("differs", _where("receipt", stored.record_bytes, record))
    return verdict("same", "")


def _foreign(stored: Stored, capture: Capture) -> str:
    """Why the three do not belong together; empty where they do."""
    bundle, record = stored.bundle, stored.record
    if receipt_id(bundle.project_id, bundle.context_hash, stored.record_bytes) != bundle.receipt.receipt_id:
        return "the receipt's record is not the one that the bundle names"
    # The header's digest is of more than the line holds: each is compared with the receipt's own.
    claimed = (capture.header.request_digest, capture.request_line_digest)
    if claimed != (record.request_digest, record.request_line_digest):
        return "the captured request is not the receipt's"
    for source in record.sources:
        if capture.digests.get(source.layer) != source.digest:
            return f"what {source.layer} contributed is not what the receipt says"
    return ""


def _where(what: str, before: bytes, after: bytes) -> str:
    shorter = min(len(before), len(after))
    at = next((i for i in range(shorter) if before[i] != after[i]), shorter)
    return f"the {what} differs from byte {at:,} on ({len(before):,} bytes stored, {len(after):,} made again)"
