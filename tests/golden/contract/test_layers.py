"""How a layer may fare, by example: each fixture is a bundle that the assembler makes of such sources."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import pytest

from schemas.bundle import ContextBundle, LayerReport, to_wire
from schemas.codes import LayerReason, LayerStatus, PartName
from tests.support.assembling import assemble, settings, wire_request
from worker.assembly import Assembler
from worker.errors import GraphBehind, StateBehind, StateUnavailable, StoreUnavailable
from worker.failpoints import Failpoints
from worker.ports import LayerBudget, LayerContribution, Provider, RequestFrame, Scope
from worker.providers.contribution import ContributionBuilder
from worker.providers.gather import Abandonment
from worker.providers.graph import build_pack, with_unindexed
from worker.telemetry import Telemetry
from worker.wiring import build_providers, content_policy, utc_now

HERE = Path(__file__).parent
PACK = """---
pack_version: 1
project: p
---
## Function retry
<!-- node: client.py::retry | template: BUILD | rank: 0 | score: 0.900000 | tokens: 20 -->
```python
def retry(deadline: float) -> None: ...
```
"""


class Source:
    """A source that does what it is told."""

    def __init__(self, layer: PartName, give: Callable[[], Awaitable[LayerContribution]]) -> None:
        self.layer: PartName = layer
        self._give = give

    async def provide(self, frame: RequestFrame, scope: Scope, budget: LayerBudget) -> LayerContribution:
        return await self._give()


def giving(contribution: LayerContribution) -> Source:
    async def give() -> LayerContribution:
        return contribution

    return Source(contribution.layer, give)


def raising(layer: PartName, error: Exception) -> Source:
    async def give() -> LayerContribution:
        raise error

    return Source(layer, give)


def using(root: Path, sources: Sequence[Provider]) -> Assembler:
    """The real assembler and its real providers, these in the place of some."""
    own = {source.layer: source for source in sources}
    chosen = settings({"p": (root,)})
    providers = [own.get(provider.layer, provider) for provider in build_providers(chosen)]
    return Assembler(
        providers=providers,
        policy=content_policy(chosen),
        telemetry=Telemetry(),
        abandonment=Abandonment(cap=4),
        now=utc_now,
        failpoints=Failpoints(),
    )


def pretty(bundle: ContextBundle) -> bytes:
    return json.dumps(json.loads(to_wire(bundle)), indent=2, ensure_ascii=False).encode() + b"\n"


async def test_what_fails_names_its_reason(tmp_path: Path, golden: Callable[[str, bytes], None]) -> None:
    released = asyncio.Event()

    async def hang() -> LayerContribution:
        await released.wait()
        raise AssertionError

    async def hang_on() -> LayerContribution:
        while not released.is_set():
            try:
                await released.wait()
            except asyncio.CancelledError:
                continue
        return LayerContribution(layer="artifacts", status="ok")

    sources = [
        raising("mission", StateUnavailable("neo4j")),
        raising("plan", StateBehind(2)),
        raising("memory", StoreUnavailable("neo4j")),
        Source("artifacts", hang_on),
        raising("graph", StoreUnavailable("neo4j")),
        Source("ast", hang),
        raising("semantic", GraphBehind(7)),
        raising("task", ZeroDivisionError()),
    ]
    request = wire_request(
        request_id="run-7/step-10", layer_timeouts_ms={"artifacts": 1, "ast": 1}, deadline_ms=20_000
    )
    bundle = (await assemble(request, using(tmp_path, sources))).bundle
    released.set()
    golden("contract/bundle_failed.json", pretty(bundle))


async def test_what_is_partly_there_names_what_is_missing(
    tmp_path: Path, golden: Callable[[str, bytes], None]
) -> None:
    (tmp_path / "client.py").write_text("def retry(deadline: float) -> None:\n    raise TimeoutError\n")
    mission = ContributionBuilder("mission", heading="# MISSION CONTEXT", resource_type="session")
    mission.section("goal", lambda: mission.add("goal", "Goal: Requests end in time", relevance=1.0))
    mission.section("items", lambda: mission.add("item", str(1 // 0), relevance=1.0))
    sources = [
        giving(mission.finish()),
        giving(LayerContribution(layer="plan", status="off", reason="not_requested")),
        giving(with_unindexed(build_pack(PACK, project_id="p"), ["server.py"])),
    ]
    request = wire_request(
        request_id="run-7/step-11",
        subject="scope_review",
        layer_timeouts_ms={"ast": 20_000},
        deadline_ms=20_000,
        artifacts=[{"id": "a", "stage": "s", "type": "t", "content": "c" * 50}],
        payload={"task_context": "Mind the deadline. " * 900, "files_created": ["client.py", "../x.py"]},
        budget={"total": 1_400, "layers": {"artifacts": 3}},
    )
    bundle = (await assemble(request, using(tmp_path, sources))).bundle
    golden("contract/bundle_partial.json", pretty(bundle))


async def test_a_plain_order_is_said(tmp_path: Path, golden: Callable[[str, bytes], None]) -> None:
    unrefined = replace(build_pack(PACK, project_id="p"), status="partial", reason="relevance_unavailable")
    request = wire_request(request_id="run-7/step-12")
    bundle = (await assemble(request, using(tmp_path, [giving(unrefined)]))).bundle
    golden("contract/bundle_unrefined.json", pretty(bundle))


def reports() -> list[LayerReport]:
    bundles = [
        ContextBundle.model_validate_json(path.read_bytes())
        for path in HERE.glob("bundle_*.json")
        if path.stem != "bundle_ref"
    ]
    return [report for bundle in bundles for report in (bundle.layers or {}).values()]


@pytest.mark.parametrize(
    ("field", "names"), [("status", LayerStatus), ("reason", LayerReason)], ids=["status", "reason"]
)
def test_each_status_and_each_reason_has_an_example(field: str, names: Any) -> None:
    assert {getattr(report, field) for report in reports()} - {None} == set(get_args(names))


def test_a_reason_stands_with_one_status() -> None:
    statuses: dict[LayerReason, set[LayerStatus]] = {}
    for report in reports():
        if report.reason is not None:
            statuses.setdefault(report.reason, set()).add(report.status)
    assert all(len(found) == 1 for found in statuses.values()), statuses
    assert {report.status for report in reports() if report.reason is None} == {"ok", "trimmed"}
