"""What passes between the worker and the process of a plug-in strategy: one JSON text a line.

The process says first what it is (`Hello`). Then each job, the request and its fragments, gets one answer:
how sure the strategy is, and the keys that it proposes, best first, each with a relevance. Nothing that comes
back is trusted: `read_answer` takes keys that were sent and numbers, and no text but the name of a type.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from typing import Any, Final, cast

from pydantic import TypeAdapter

from schemas.codes import PartName
from schemas.fragments import FragmentProvenance
from schemas.request import AssemblyRequest
from worker.budget.utf8 import well_formed
from worker.fusion.protocols import BackendSet, PlanContext, StrategyCapabilities, StrategyFailed
from worker.ports import Fragment, LayerContribution, Rendering, RequestFrame, Subject

_MAX_EXPLANATION_CHARS: Final = 500
_MAX_TYPE_CHARS: Final = 80
_CAPABILITIES: Final = TypeAdapter(StrategyCapabilities)


@dataclass(frozen=True, slots=True, kw_only=True)
class Hello:
    """What a plug-in says of itself."""

    capabilities: StrategyCapabilities
    explanation: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One request, as a strategy is asked about it."""

    frame: RequestFrame
    backends: BackendSet
    budget_tokens: int

    @property
    def plan_context(self) -> PlanContext:
        """The frame's facts."""
        return PlanContext.of(self.frame)


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What a plug-in says to a job, brought into its range."""

    confidence: float
    entries: tuple[tuple[str, float], ...]
    clamped_scores: int


def encode_hello(capabilities: StrategyCapabilities, explanation: str) -> bytes:
    """The first line of a plug-in that was found and is fit."""
    return _line({"capabilities": asdict(capabilities), "explanation": explanation})


def encode_error(error: BaseException) -> bytes:
    """A line that says what kind of error there was; its message may quote what the plug-in was sent."""
    return _line({"error": type(error).__name__})


def read_hello(line: bytes) -> Hello:
    """Raises StrategyFailed where it is none."""
    said = _said(line)
    try:
        capabilities = _CAPABILITIES.validate_python(said["capabilities"])
        if not 0 < capabilities.quality_score <= 1:
            raise StrategyFailed("plugin_error")
        # Both are written down with the bundle, so they have to be what can be read back.
        return Hello(
            capabilities=capabilities,
            explanation=well_formed(str(said["explanation"])[:_MAX_EXPLANATION_CHARS]),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise StrategyFailed("plugin_error") from error


# --- Jobs --------------------------------------------------------------------------------------------


def fragments_for(
    contributions: Mapping[PartName, LayerContribution], capabilities: StrategyCapabilities
) -> dict[PartName, tuple[Fragment, ...]]:
    """By layer, what a strategy with these capabilities is sent: of its types of source, what it uses.

    Without `uses_text` the renderings are there and empty.
    """
    types = capabilities.resource_types
    return {
        layer: tuple(
            _as_used(fragment, capabilities)
            for fragment in contribution.fragments
            if not types or any(p.resource_type in types for p in fragment.provenance)
        )
        for layer, contribution in contributions.items()
    }


def _as_used(fragment: Fragment, capabilities: StrategyCapabilities) -> Fragment:
    levels = capabilities.uko_levels
    renderings = tuple(r for r in fragment.renderings if r.depth in levels) if levels else fragment.renderings
    renderings = renderings or fragment.renderings[:1]
    if not capabilities.uses_text:
        renderings = tuple(replace(rendering, text="") for rendering in renderings)
    fragment = replace(fragment, renderings=renderings)
    if not capabilities.uses_graph:
        fragment = replace(fragment, metadata={}, hops=None, relevance_tier=None)
    return fragment if capabilities.uses_temporal else replace(fragment, created_at=None)


def encode_job(
    frame: RequestFrame,
    contributions: Mapping[PartName, LayerContribution],
    fragments: Mapping[PartName, Sequence[Fragment]],
    *,
    budget_tokens: int,
) -> bytes:
    """The job's line; `fragments` take the place of the contributions' own."""
    return _line(
        {
            "request": frame.request.model_dump(mode="json", exclude_none=True),
            "subject": asdict(frame.subject),
            "task_type": frame.task_type,
            "as_of": frame.as_of.isoformat(),
            "budget_tokens": budget_tokens,
            "contributions": [
                {
                    "layer": layer,
                    "status": contribution.status,
                    "heading": contribution.heading,
                    "fragments": [_to_wire(fragment) for fragment in fragments[layer]],
                }
                for layer, contribution in contributions.items()
            ],
        }
    )


def decode_job(line: bytes) -> Job:
    """The job that `encode_job` wrote."""
    said = json.loads(line)
    frame = RequestFrame(
        request=AssemblyRequest.model_validate(said["request"]),
        subject=Subject(**said["subject"]),
        task_type=said["task_type"],
        as_of=datetime.fromisoformat(said["as_of"]),
    )
    contributions: dict[PartName, LayerContribution] = {
        given["layer"]: LayerContribution(
            layer=given["layer"],
            status=given["status"],
            heading=given["heading"],
            fragments=tuple(_from_wire(given["layer"], fields) for fields in given["fragments"]),
        )
        for given in said["contributions"]
    }
    return Job(
        frame=frame,
        backends=BackendSet(contributions=contributions),
        budget_tokens=said["budget_tokens"],
    )


def _to_wire(fragment: Fragment) -> dict[str, Any]:
    return {
        "node": fragment.node,
        "renderings": [[rendering.depth, rendering.text] for rendering in fragment.renderings],
        "provenance": [[p.resource_uri, p.location, p.resource_type] for p in fragment.provenance],
        "position": fragment.position,
        "relevance": fragment.relevance,
        "rank": fragment.rank,
        "group": fragment.group,
        "is_pinned": fragment.is_pinned,
        "is_divisible": fragment.is_divisible,
        "storage_tier": fragment.storage_tier,
        "relevance_tier": fragment.relevance_tier,
        "hops": fragment.hops,
        "created_at": fragment.created_at.isoformat() if fragment.created_at else None,
        "metadata": dict(fragment.metadata),
    }


def _from_wire(layer: PartName, fields: dict[str, Any]) -> Fragment:
    created_at = fields.pop("created_at")
    return Fragment(
        layer=layer,
        renderings=tuple(Rendering(depth=depth, text=text) for depth, text in fields.pop("renderings")),
        provenance=tuple(
            FragmentProvenance(resource_uri=uri, location=location, resource_type=resource_type)
            for uri, location, resource_type in fields.pop("provenance")
        ),
        created_at=None if created_at is None else datetime.fromisoformat(created_at),
        **fields,
    )


# --- Answers -----------------------------------------------------------------------------------------


def encode_answer(confidence: float, proposed: Sequence[Fragment]) -> bytes:
    """The answer's line."""
    return _line({"confidence": confidence, "entries": [[f.key, f.relevance] for f in proposed]})


def read_answer(line: bytes, *, sent: frozenset[str]) -> Answer:
    """The answer, each key once.

    Raises StrategyFailed: `plugin_foreign` for a key that is not among those sent, `plugin_error` for what is
    no answer. A confidence or relevance out of range counts as the nearer end, as 0 where it is no number.
    """
    said = _said(line)
    entries: dict[str, float] = {}
    clamped_scores = 0
    try:
        confidence, _ = clamped(_number(said["confidence"]))
        for key, relevance in said["entries"]:
            if key not in sent:
                raise StrategyFailed("plugin_foreign")
            if key not in entries:
                entries[key], is_clamped = clamped(_number(relevance))
                clamped_scores += is_clamped
    except (KeyError, TypeError, ValueError) as error:
        raise StrategyFailed("plugin_error") from error
    return Answer(confidence=confidence, entries=tuple(entries.items()), clamped_scores=clamped_scores)


def clamped(relevance: float) -> tuple[float, bool]:
    """The relevance within 0 to 1, 0 for what is no number; and whether it had to be brought there."""
    if math.isnan(relevance):
        return 0.0, True
    return min(1.0, max(0.0, relevance)), not 0 <= relevance <= 1


def _number(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError("not a number")
    try:
        return float(value)
    except OverflowError:
        return math.copysign(math.inf, value > 0 or -1)


def _line(said: dict[str, Any]) -> bytes:
    return json.dumps(said, separators=(",", ":")).encode() + b"\n"


def _said(line: bytes) -> dict[str, Any]:
    """Raises StrategyFailed for what is no object, or says that something failed."""
    try:
        said: object = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise StrategyFailed("plugin_error") from error
    if not isinstance(said, dict):
        raise StrategyFailed("plugin_error")
    fields = cast("dict[str, Any]", said)
    if "error" in fields:
        raise StrategyFailed("plugin_error", error=_type_name(fields["error"]))
    return fields


def _type_name(said: object) -> str | None:
    """The name, where it is one: it goes into logs, and whoever sent it has read the prompt."""
    if isinstance(said, str) and len(said) <= _MAX_TYPE_CHARS and said.isidentifier():
        return said
    return None
