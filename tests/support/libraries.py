"""Assemblers as library users build them, with stores of a test's own, and what they wire into them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from schemas.codes import PartName
from worker.library import UnifiedContextAssembler
from worker.ports import LayerBudget, LayerContribution, Provider, RequestFrame, Scope
from worker.settings import Content, Graph, Settings, State
from worker.wiring import build_library, content_policy


def own_settings(folder: Path, **content: Any) -> Settings:
    return Settings(
        graph=Graph(sqlite_path=folder / "graph.db"),
        state=State(sqlite_path=folder / "state.db"),
        content=Content(**content),
    )


def library(folder: Path, **options: Any) -> UnifiedContextAssembler:
    """What `build_library` builds, reading and writing below `folder` alone."""
    return build_library(
        options.pop("settings", None) or own_settings(folder),
        usage_log=options.pop("usage_log", folder / "usage.jsonl"),
        **options,
    )


def of_sources(folder: Path, *providers: Provider, **options: Any) -> UnifiedContextAssembler:
    """An assembler with these sources and no other, unless it is told how to make some."""

    def providers_for(store: object | None) -> Sequence[Provider]:
        return providers

    return UnifiedContextAssembler(
        providers_for=options.pop("providers_for", providers_for),
        policy=content_policy(Settings()),
        usage_log=folder / "usage.jsonl",
        **options,
    )


class Broken:
    """A source that makes every assembly fail, as nothing should."""

    layer: PartName = "mission"

    async def provide(self, frame: RequestFrame, scope: Scope, budget: LayerBudget) -> LayerContribution:
        nonsense: Any = ("no fragment",)
        return LayerContribution(layer="mission", status="ok", fragments=nonsense)


class Injector:
    """What older runners wire: it writes into the payload that it is given."""

    def __init__(self) -> None:
        self.seen: list[dict[str, Any]] = []

    def should_inject(self, subject: str) -> bool:
        return subject == "implement"

    def inject(self, payload: dict[str, Any], subject: str) -> dict[str, Any]:
        payload["graph_context"] = f"def found_for_{subject}(): ..."
        self.seen.append(payload)
        return payload
