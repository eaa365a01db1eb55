"""The artifacts layer: a digest of what earlier stages produced, in the order in which they did."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, date, datetime
from enum import Enum
from functools import partial
from pathlib import PurePath
from typing import Final, Protocol, cast, runtime_checkable
from uuid import UUID

from schemas.codes import PartName
from schemas.session import Artifact
from schemas.wire import format_time
from worker.budget.utf8 import well_formed
from worker.ports import LayerBudget, LayerContribution, RequestFrame, Scope, StorageTier
from worker.providers.contribution import ContributionBuilder, layer_text, no_content
from worker.providers.offload import run_by_weight
from worker.providers.states import StateReading, ThreadStates
from worker.providers.text import LINE_CHARS, cut
from worker.providers.threads import SourceThreads

HEADING: Final = "# PRIOR ARTIFACTS"
MAX_ITEMS: Final = 10
PREVIEW_CHARS: Final = 200
GIST_CHARS: Final = 60
GIST_DEPTH: Final = 1
DIGEST_DEPTH: Final = 2
"""A line with a preview: more than a name, far from the whole."""

_NEWEST, _SPAN = 0.8, 0.5
_MAX_ID_CHARS: Final = 256


@runtime_checkable
class RanksItsOwnDigest(Protocol):
    """An artifact store that knows better than this module what is worth a line."""

    def render_artifact_digest(self, thread_id: str = "", max_items: int = MAX_ITEMS) -> str:
        """The digest as Markdown; empty where there is nothing to show."""
        ...


class ArtifactsProvider:
    """Artifacts that stand inline in the request, else those of a store, else those known of the thread."""

    layer: PartName = "artifacts"

    def __init__(
        self,
        states: ThreadStates | None = None,
        *,
        store_of: Callable[[Scope], object | None] | None = None,
        threads: SourceThreads | None = None,
    ) -> None:
        """Ask the store that `store_of` gives for a scope, if it is given and gives one; else `states`.

        The store is read as `render_artifact_digest` reads it; its own digest is preferred.
        """
        self._states = states
        self._store_of = store_of
        self._threads = threads or SourceThreads()

    async def provide(self, frame: RequestFrame, scope: Scope, budget: LayerBudget) -> LayerContribution:
        """The digest; `empty` without artifacts. Reading a store leaves the event loop.

        Raises StateUnavailable and StateBehind.
        """
        del budget  # the digest's cap is in items
        artifacts = frame.request.artifacts
        store = self._store_of(scope) if self._store_of is not None and not artifacts else None
        if store is not None:
            build = partial(_build_from_store, store, thread_id=scope.thread_id or "")
            return await self._threads.run(build)
        tier_of: TierOf = _always_warm
        if not artifacts and self._states is not None:
            reading = await self._states.of(frame, scope, layer=self.layer)
            artifacts = reading.artifacts
            tier_of = partial(_tier_in, reading, frame.as_of)
        if not artifacts:
            return no_content(self.layer, "no_data")
        build = partial(build_digest, artifacts, tier_of=tier_of)
        return await run_by_weight(self._threads, build, artifacts)


def render_artifact_digest(store: object | None, thread_id: str = "", max_items: int = MAX_ITEMS) -> str:
    """The digest as text, one line per artifact; empty without a store or artifacts.

    `store` is anything with `by_thread(thread_id)` or `all()`; see `view_artifact` for what they may yield.
    One that cannot be read costs its own line. Of more than `max_items` the newest are kept.
    """
    if store is None:
        return ""
    block = ContributionBuilder("artifacts", heading=HEADING, resource_type="artifact", volatility="step")
    _write_store(block, store, thread_id=thread_id, max_items=max_items)
    return layer_text(block.finish())


TierOf = Callable[[Artifact], StorageTier]


def _always_warm(artifact: Artifact) -> StorageTier:
    """What a request brings along is in no store."""
    del artifact
    return "warm"


def _tier_in(reading: StateReading, as_of: datetime, artifact: Artifact) -> StorageTier:
    return reading.storage_tier(artifact.id, artifact.occurred_at, as_of=as_of)


def build_digest(
    artifacts: Sequence[Artifact], *, max_items: int = MAX_ITEMS, tier_of: TierOf = _always_warm
) -> LayerContribution:
    """The digest as fragments: a line each, with the name line as the shorter rendering.

    Dated ones in time order (ties by id), then undated ones as given. Where there are more than
    `max_items`, the newest dated ones are kept, then the last of the undated.
    """
    block = ContributionBuilder("artifacts", heading=HEADING, resource_type="artifact", volatility="step")
    block.section("digest", partial(_write_digest, block, artifacts, max_items, tier_of))
    return block.finish()


def _write_digest(
    block: ContributionBuilder, artifacts: Sequence[Artifact], max_items: int, tier_of: TierOf = _always_warm
) -> None:
    dated = sorted(
        ((a.occurred_at, a.id, a) for a in artifacts if a.occurred_at is not None), key=lambda d: d[:2]
    )
    undated = [a for a in artifacts if a.occurred_at is None]
    room = max(0, max_items)
    newest = [artifact for *_, artifact in dated[max(0, len(dated) - room) :]]
    shown = newest + undated[max(0, len(undated) - (room - len(newest))) :]
    block.leave_out(len(artifacts) - len(shown))
    for place, artifact in enumerate(shown):
        age = len(shown) - 1 - place
        words = (artifact.stage, artifact.type, artifact.path or "")
        name = cut("- " + " · ".join(word for word in words if word), max_chars=LINE_CHARS)
        preview = cut(artifact.content, max_chars=PREVIEW_CHARS)
        block.add(
            f"artifact://{artifact.id}",
            f"{name}: {preview}" if preview else name,
            brief=name,
            between=[(GIST_DEPTH, f"{name}: {cut(artifact.content, max_chars=GIST_CHARS)}")],
            about=artifact.id,
            relevance=round(_NEWEST - _SPAN * age / len(shown), 6),
            rank=age,
            depth=DIGEST_DEPTH,
            location=artifact.path or "",
            created_at=artifact.occurred_at,
            storage_tier=tier_of(artifact),
        )


# --- Foreign stores ----------------------------------------------------------------------------------


def _build_from_store(store: object, *, thread_id: str) -> LayerContribution:
    block = ContributionBuilder("artifacts", heading=HEADING, resource_type="artifact", volatility="step")
    if isinstance(store, RanksItsOwnDigest):
        own: list[str] = []
        block.section("own_digest", lambda: own.append(store.render_artifact_digest(thread_id, MAX_ITEMS)))
        if own:
            block.section("own_digest", partial(_write_own_digest, block, own[0]))
            return block.finish()
    block.section("store", lambda: _write_store(block, store, thread_id=thread_id, max_items=MAX_ITEMS))
    return block.finish()


def _write_own_digest(block: ContributionBuilder, digest: str) -> None:
    text = digest.strip("\r\n").removeprefix(HEADING).strip("\r\n")
    if text and not text.isspace():
        block.add("artifact://digest", text, relevance=_NEWEST, is_divisible=True, depth=DIGEST_DEPTH)


def _write_store(block: ContributionBuilder, store: object, *, thread_id: str, max_items: int) -> None:
    artifacts: list[Artifact] = []

    def view(item: object) -> None:
        artifacts.append(view_artifact(item))

    for item in _fetch(store, thread_id):
        block.section("artifact", partial(view, item))
    _write_digest(block, artifacts, max_items)


def _fetch(store: object | None, thread_id: str) -> list[object]:
    by_thread, everything = getattr(store, "by_thread", None), getattr(store, "all", None)
    found: object = None
    if thread_id and callable(by_thread):
        found = by_thread(thread_id)
    elif callable(everything):
        found = everything()
    return [] if found is None else list(cast("Iterable[object]", found))


def view_artifact(item: object) -> Artifact:
    """One foreign artifact, an object or a mapping, as this project's own.

    `stage` may be called `stage_alias`, `type` `artifact_type`, the time `timestamp` or `created_at`. A time
    that cannot be read is none. Raises ValueError or TypeError where a field is no text at all.
    """
    artifact_id = _as_text(_field(item, "id", "artifact_id"))
    path = _field(item, "path", "file_path")
    occurred_at = _as_time(_field(item, "occurred_at", "timestamp", "created_at"))
    is_id = 0 < len(artifact_id) <= _MAX_ID_CHARS and artifact_id.isprintable()
    return Artifact.model_validate(
        {
            "id": artifact_id if is_id else None,
            "stage": _as_text(_field(item, "stage", "stage_alias")),
            "type": _as_text(_field(item, "type", "artifact_type")),
            "path": None if path is None else _as_text(path),
            "content": _as_text(_field(item, "content")),
            "occurred_at": None if occurred_at is None else format_time(occurred_at),
        }
    )


def _field(item: object, *names: str) -> object:
    """The first of these attributes, or keys of a mapping, that is there and not None."""
    if isinstance(item, Mapping):
        fields = cast("Mapping[str, object]", item)
        values = (fields.get(name) for name in names)
    else:
        values = (getattr(item, name, None) for name in names)
    return next((value for value in values if value is not None), None)


def _as_text(value: object) -> str:
    """Text whose spelling depends on the value alone: no object's address, no order of hashes."""
    match value:
        case None:
            return ""
        case str():
            return well_formed(value)
        case bytes():
            return value.decode("utf-8", "replace")
        case Enum():
            return _as_text(value.value)
        case dict() | list() | tuple():
            return well_formed(json.dumps(value, ensure_ascii=False, sort_keys=True, default=_as_text))
        case bool() | int() | float() | date() | PurePath() | UUID():
            return str(value)
        case _:
            msg = f"no text: {type(value).__name__}"
            raise TypeError(msg)


def _as_time(value: object) -> datetime | None:
    try:
        match value:
            case bool():
                return None
            case datetime():
                moment = value
            case date():
                moment = datetime(value.year, value.month, value.day, tzinfo=UTC)
            case int() | float():
                moment = datetime.fromtimestamp(value, tz=UTC)
            case str():
                moment = datetime.fromisoformat(value)
            case _:
                return None
        return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)
    except (ValueError, OverflowError, OSError):
        return None
