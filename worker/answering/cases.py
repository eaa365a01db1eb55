"""What an answer is judged by, read from what is stored of its bundle and from nothing else."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime

from schemas.answers import AgentAnswer, RefusalCode
from schemas.bundle import Message
from schemas.citations import Citations
from schemas.codes import PARTS
from schemas.receipt import ReceiptRecord
from schemas.usage import UsageEvent
from worker.citations.forms import is_short
from worker.citations.labels import citable, label_fragments, shorts_of
from worker.citations.manifest import build_manifest
from worker.citations.retries import Lineage
from worker.errors import Rejected, WorkerError
from worker.explaining.replay import fuse_again
from worker.explaining.stored import NotExplainable, Stored, WasRejected, stored_of
from worker.outcomes import thread_of
from worker.planning import ContentPolicy
from worker.ports import OutcomeRecord, Scope, Tombstone
from worker.receipts.capture import Capture, CaptureUnreadable


class NotJudged(WorkerError):
    """The answer cannot be judged; `code` says why."""

    def __init__(self, code: RefusalCode) -> None:
        """Say why."""
        super().__init__(f"the answer is not judged: {code}")
        self.code: RefusalCode = code


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One bundle that was answered."""

    citations: Citations
    """What could be cited, and what the prompt said has to be."""
    record: ReceiptRecord
    """What was shown, and how many tokens each part of it took."""
    capture: Capture
    """The request that it was made for, and what the sources gave."""
    lineage: Lineage | None
    """Where it comes from; None where it is no retry."""
    prompt: str
    """The text of all its messages, without what a retry says of the answer before."""
    assembled_at: datetime
    """When it was made."""

    @property
    def required_tools(self) -> tuple[str, ...]:
        """Tools that the prompt said have to be called."""
        return self.capture.request.required_tools if self.citations.template is not None else ()

    @property
    def scope(self) -> Scope:
        """Whose bundle it is."""
        request = self.capture.request
        return Scope(project_id=request.project_id, thread_id=request.thread_id)


def read_case(outcome: OutcomeRecord | Tombstone | None, answer: AgentAnswer, policy: ContentPolicy) -> Case:
    """The case that the stored outcome of the answered request makes. Raises NotJudged.

    Whether a bundle is another thread's or never was stays unsaid; of one that has expired no thread is known
    any more. O(bundle), and where the bundle itself has no messages or says nothing of citations, a fusing of
    its sources more.
    """
    if isinstance(outcome, Tombstone):
        raise NotJudged("expired")
    if not isinstance(outcome, OutcomeRecord):
        raise NotJudged("unknown_bundle")
    if thread_of(outcome) != answer.thread_id:
        raise NotJudged("unknown_bundle")
    try:
        stored = stored_of(outcome)
        capture = stored.capture()
        citations, messages = _shown(stored, capture, policy)
    except WasRejected:
        raise NotJudged("not_a_bundle") from None
    except NotExplainable:
        raise NotJudged("unknown_bundle") from None
    except (CaptureUnreadable, Rejected):
        raise NotJudged("not_kept") from None
    lineage = None if outcome.lineage is None else Lineage.from_bytes(outcome.lineage)
    prompt = "\n".join(message.content for message in messages)
    return Case(
        citations=citations,
        record=stored.record,
        capture=capture,
        lineage=lineage,
        # What it says of the last answer was not shown by that: ids that were made up, for one.
        prompt=prompt if lineage is None else prompt.replace(lineage.warning, ""),
        assembled_at=outcome.as_of if stored.usage is None else stored.usage.timestamp,
    )


def left_out(case: Case, cited: Collection[str]) -> dict[str, str]:
    """Of these ids, short or own ones, those of what the bundle's sources gave, each with its own id.

    What came with the request and had no room is known nowhere else. O(fragments).
    """
    if not cited:
        return {}
    contributions = case.capture.admitted.contributions.values()
    fragments = (fragment for contribution in contributions for fragment in contribution.fragments)
    identities = [identity for fragment in fragments if (identity := citable(fragment)) is not None]
    shorts = shorts_of(filter(is_short, cited), identities, case.scope)
    return shorts | {own_id: own_id for _, own_id in identities if own_id in cited}


def assembled_at(outcome: OutcomeRecord | Tombstone | None) -> datetime | None:
    """When the bundle of that outcome was made; None where that is known no more."""
    if not isinstance(outcome, OutcomeRecord) or outcome.usage is None:
        return None
    return UsageEvent.model_validate_json(outcome.usage).timestamp


def _shown(stored: Stored, capture: Capture, policy: ContentPolicy) -> tuple[Citations, Sequence[Message]]:
    """The bundle's own manifest and messages; of a prompt that showed no ids, what nodes' ids could cite.

    Nothing has to be cited where the prompt did not say how: there nobody was told so. Raises Rejected where
    this code refuses what was served.
    """
    said, messages = stored.bundle.citations, stored.bundle.messages
    if said is not None and said.items:
        if messages is None:
            messages = fuse_again(capture, policy).finished.sealed.messages
        return said if said.template is not None else said.model_copy(update={"must_cite": ()}), messages
    sealed = fuse_again(capture, policy).finished.sealed
    sections = sealed.packed
    shown = [placed.fragment for layer in PARTS if layer in sections for placed in sections[layer].placed]
    request = capture.request
    labels = label_fragments(shown, Scope(project_id=request.project_id, thread_id=request.thread_id))
    manifest = build_manifest(shown, labels, must_cite=(), template="")
    template = None if said is None else said.template
    return manifest.model_copy(update={"must_cite": (), "template": template}), sealed.messages
