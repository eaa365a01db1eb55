"""The inputs of fusing and sealing, written down so that a bundle can be made again without live state.

A capture is lines of JSON: a header, the request as its digest reads it, then one line a source. A source's
line is what its digest in the receipt is of, so each can be checked by itself. Credentials were masked
before.

    {"kind":"capture",...}          tables and settings that shaped this bundle, plug-ins' proposals, as_of
    {"request":...,"left_out":...}  the canonical request without what cannot matter (its id among that), and
                                    without what came with it for the sources: that is named by its digest
    {"layer":"mission",...}         what each source contributed, in layer order
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import lru_cache
from typing import Any, Final, Literal, cast

from pydantic import TypeAdapter
from pydantic_core import from_json

from schemas.codes import LayerReason, LayerStatus, PartName, TaskType
from schemas.request import AssemblyRequest
from schemas.times import format_time
from schemas.wire import canonical_json, sha256_hex
from worker.budget.models import ModelSpec
from worker.errors import WorkerError
from worker.fusion.masking import Admitted
from worker.fusion.strategies.recorded import PluginProposal
from worker.planning import ContentPolicy, Plan
from worker.ports import GraphMeasures, LayerContribution, RequestFrame, Subject

CAPTURE_VERSION: Final = 1

_FOR_SOURCES: Final = ("session", "plan", "memory", "artifacts", "pack", "working")
"""Of a request: read by the sources and by nothing that comes after them."""

_CONTRIBUTION: Final = TypeAdapter(LayerContribution)


class CaptureUnreadable(WorkerError):
    """There is no capture to work from; `code` says why."""

    def __init__(
        self,
        code: Literal["capture_expired", "capture_not_kept", "capture_too_large", "capture_foreign"],
        message: str,
    ) -> None:
        """Say why in one line."""
        super().__init__(message)
        self.code = code


@dataclass(frozen=True, slots=True)
class Contributed:
    """One source's contribution written down. Equal ones compare equal by their digest."""

    layer: PartName
    status: LayerStatus
    reason: LayerReason | None
    fragments: int
    capped: int
    digest: str
    line: bytes = field(compare=False, repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class _SharedFields:
    """What a header says of the tables and settings."""

    kind: Literal["capture"] = "capture"
    version: int = CAPTURE_VERSION
    subject: Subject
    task_type: TaskType
    model: str
    spec: ModelSpec | None
    """The model table's row; None for a model that the table lacked."""
    strategy: str
    """Where the request names none."""
    settings_digest: str
    code_version: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Header(_SharedFields):
    """What a capture holds beside the request and the sources."""

    request_digest: str
    as_of: datetime
    is_masking: bool
    masked: Mapping[str, int]
    snapshot_id: str | None
    parent_request_id: str | None = None
    proposals: tuple[PluginProposal, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Capture:
    """A capture read back."""

    header: Header
    request: AssemblyRequest
    """With the id that it came under, and without what came with it for the sources."""
    fields: Mapping[str, Any]
    """Its fields as they were sent; what was left out is a text with its size and digest."""
    admitted: Admitted
    digests: Mapping[PartName, str]
    """Of the sources' lines as they were read."""
    request_line_digest: str
    """Of the request's line as it was read."""

    @property
    def frame(self) -> RequestFrame:
        """The request as it was analysed."""
        header = self.header
        return RequestFrame(
            request=self.request,
            subject=header.subject,
            task_type=header.task_type,
            as_of=header.as_of,
            parent_request_id=header.parent_request_id,
        )


def contributed(contribution: LayerContribution) -> Contributed:
    """What a source gave, as a line, and its digest. What asking took is no part of it."""
    if not contribution.fragments:
        return _nothing(
            contribution.layer,
            contribution.status,
            contribution.reason,
            contribution.heading,
            contribution.capped,
        )
    return _written(contribution)


# Most sources of most requests have nothing to give.
@lru_cache(maxsize=4_096)
def _nothing(
    layer: PartName, status: LayerStatus, reason: LayerReason | None, heading: str, capped: int
) -> Contributed:
    return _written(
        LayerContribution(layer=layer, status=status, reason=reason, heading=heading, capped=capped)
    )


def _written(contribution: LayerContribution) -> Contributed:
    line = _CONTRIBUTION.dump_json(contribution, exclude={"measures"})
    return Contributed(
        layer=contribution.layer,
        status=contribution.status,
        reason=contribution.reason,
        fragments=len(contribution.fragments),
        capped=contribution.capped,
        digest=sha256_hex(line),
        line=line,
    )


_HEADER: Final = TypeAdapter(Header)
_SHARED_FIELDS: Final = TypeAdapter(_SharedFields)
_PROPOSALS: Final = TypeAdapter(tuple[PluginProposal, ...])


def write_capture(
    frame: RequestFrame,
    plan: Plan,
    admitted: Admitted,
    sources: Mapping[PartName, Contributed],
    *,
    line: bytes,
    request_digest: str,
    proposals: Sequence[PluginProposal],
    max_bytes: int,
) -> bytes:
    """The capture, or in its place one line that says why there is none.

    `line` is what `request_line` gave, and `request_digest` the SHA-256 of the request's canonical JSON.
    `max_bytes` are for all of it, line breaks included.
    """
    header = _header(frame, plan, admitted, request_digest=request_digest, proposals=proposals)
    capture = b"\n".join([header, line, *[source.line for source in sources.values()]])
    if len(capture) <= max_bytes:
        return capture
    return canonical_json(
        {
            "kind": "no_capture",
            "code": "capture_too_large",
            "size_bytes": len(capture),
            "max_bytes": max_bytes,
        }
    )


def _header(
    frame: RequestFrame,
    plan: Plan,
    admitted: Admitted,
    *,
    request_digest: str,
    proposals: Sequence[PluginProposal],
) -> bytes:
    graph = admitted.contributions.get("graph")
    snapshot_id = graph.measures.snapshot_id if graph is not None and graph.measures is not None else None
    policy, model = plan.policy, plan.window.model
    shared = _shared_fields(
        subject=frame.subject,
        task_type=frame.task_type,
        model=model,
        spec=policy.models.get(model),
        strategy=policy.default_strategy,
        settings_digest=policy.settings_digest,
        code_version=policy.code_version,
    )
    own = {
        "as_of": format_time(frame.as_of),
        "is_masking": admitted.is_masking,
        "masked": dict(admitted.masked),
        "parent_request_id": frame.parent_request_id,
        "request_digest": request_digest,
        "snapshot_id": snapshot_id,
    }
    said = b',"proposals":' + _PROPOSALS.dump_json(tuple(proposals)) if proposals else b""
    return b"".join([b"{", shared, b",", canonical_json(own)[1:-1], said, b"}"])


# The same for all requests of one subject and model: nine in ten bytes of the header.
@lru_cache(maxsize=1_024)
def _shared_fields(
    *,
    subject: Subject,
    task_type: TaskType,
    model: str,
    spec: ModelSpec | None,
    strategy: str,
    settings_digest: str,
    code_version: str,
) -> bytes:
    """Kind, version, and what the tables and settings say, as JSON without its braces."""
    shared = _SharedFields(
        subject=subject,
        task_type=task_type,
        model=model,
        spec=spec,
        strategy=strategy,
        settings_digest=settings_digest,
        code_version=code_version,
    )
    return _SHARED_FIELDS.dump_json(shared)[1:-1]


def request_line(request: AssemblyRequest, meaning: bytes) -> bytes:
    """The request as a capture keeps it, without a line break; `meaning` is its canonical JSON.

    What came with it for the sources is named by size and digest: they give it, masked. Linear in `meaning`.
    """
    if not _brings_content(request):
        return b'{"left_out":{},"request":' + meaning + b"}"
    payload = request.payload.model_dump(exclude_none=True, exclude={"files_created"})
    fields = cast("dict[str, Any]", from_json(meaning))
    left_out: dict[str, str] = {}
    for name in _FOR_SOURCES:
        if fields.get(name):
            left_out[name] = _named(fields.pop(name))
    for name in payload:
        left_out[f"payload.{name}"] = _named(fields["payload"].pop(name))
    if request.plan is not None and request.plan_id is None:
        # A payload names it.
        fields["plan_id"] = request.plan.plan_id
    return canonical_json({"left_out": left_out, "request": fields})


def _brings_content(request: AssemblyRequest) -> bool:
    payload = request.payload
    return bool(
        request.session
        or request.plan
        or request.memory
        or request.artifacts
        or request.pack
        or request.working
        or payload.task_context is not None
        or payload.file_tree is not None
        or payload.project_dir is not None
        or payload.model_extra
    )


def _named(value: object) -> str:
    data = canonical_json([value])[1:-1]
    return f"{len(data)} bytes, {sha256_hex(data)}"


def read_capture(data: bytes | None, *, project_id: str, request_id: str) -> Capture:
    """What `write_capture` wrote. Raises CaptureUnreadable."""
    if data is None:
        raise CaptureUnreadable("capture_not_kept", "no capture was kept with this bundle")
    lines = data.split(b"\n")
    try:
        head = from_json(lines[0])
        if head.get("kind") == "no_capture":
            raise CaptureUnreadable(
                "capture_too_large",
                f"no capture was kept: its {head['size_bytes']:,} bytes are above the limit of "
                f"{head['max_bytes']:,}",
            )
        if head.get("version") != CAPTURE_VERSION:
            raise CaptureUnreadable("capture_foreign", f"the capture has the form {head.get('version')!r}")
        return _capture(lines, project_id=project_id, request_id=request_id)
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        said = str(error).split("\n", 1)[0]
        raise CaptureUnreadable("capture_foreign", f"the capture cannot be read: {said}") from error


def _capture(lines: Sequence[bytes], *, project_id: str, request_id: str) -> Capture:
    header = _HEADER.validate_json(lines[0])
    line = from_json(lines[1])
    fields, left_out = line["request"], line["left_out"]
    if fields["project_id"] != project_id:
        raise CaptureUnreadable("capture_foreign", "the capture is another project's")
    contributions: dict[PartName, LayerContribution] = {}
    digests: dict[PartName, str] = {}
    for line in lines[2:]:
        contribution = _CONTRIBUTION.validate_json(line)
        if contribution.layer == "graph" and header.snapshot_id is not None:
            contribution = replace(
                contribution, measures=GraphMeasures(is_cache_hit=False, snapshot_id=header.snapshot_id)
            )
        contributions[contribution.layer] = contribution
        digests[contribution.layer] = sha256_hex(line)
    return Capture(
        header=header,
        request=AssemblyRequest.model_validate({**fields, "request_id": request_id}),
        fields={**fields, **left_out},
        admitted=Admitted(contributions=contributions, masked=header.masked, is_masking=header.is_masking),
        digests=digests,
        request_line_digest=sha256_hex(lines[1]),
    )


def policy_of(capture: Capture, base: ContentPolicy) -> ContentPolicy:
    """The tables that the capture was made under; `base` has the strategies that run in this process."""
    header = capture.header
    return replace(
        base,
        models={} if header.spec is None else {header.model: header.spec},
        default_model=header.model,
        subjects={header.subject.name: header.subject},
        default_strategy=header.strategy,
        # What they said is here; they themselves need not be.
        strategies=base.strategies.knowing([proposal.name for proposal in header.proposals]),
        settings_digest=header.settings_digest,
        code_version=header.code_version,
    )
