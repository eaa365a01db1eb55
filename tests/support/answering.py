"""A response handler with everything real behind it but the broker: stores, graph, state and assembler."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from schemas.answers import AgentAnswer, Escalation, Verdict
from schemas.bundle import ContextBundle
from schemas.citations import TEMPLATE_SECTIONS
from schemas.request import AssemblyRequest
from schemas.usage import UsageEvent
from schemas.wire import sha256_hex
from tests.support.handling import NOW_MS
from worker.assembly import Assembler
from worker.failpoints import Failpoints
from worker.kafka.plain_handler import Door
from worker.kafka.received import BodyLimits
from worker.kafka.records import Handled, InboundRecord, OutboundRecord
from worker.kafka.replies import Replies, Routes
from worker.kafka.response_handler import ResponseHandler
from worker.outcomes import bundle_outcome
from worker.ports import OutcomeKey, OutcomeStore
from worker.settings import Answers as AnswerSettings
from worker.settings import Graph, Limits, Outcomes, Settings, State
from worker.stores.sqlite import SqliteOutcomeStore
from worker.telemetry import Telemetry
from worker.wiring import build_assembler
from worker.wiring_answers import build_answers
from worker.wiring_graph import GraphSource, build_graph
from worker.wiring_state import StateSource, build_state

ROUTES = Routes(bundles="context.verdicts", usage="context.usage", dead_letters="context.dead-letters")
ESCALATIONS = "context.escalations"
SECTIONS = "\n".join(f"## {name}\nnone" for name in TEMPLATE_SECTIONS)


def complying(bundle: ContextBundle) -> str:
    """An answer that cites all it has to, or one thing where nothing has to be, and has every section."""
    assert bundle.citations is not None
    cited = bundle.citations.must_cite or tuple(item.short for item in bundle.citations.items[:1])
    return f"Done: {' '.join(f'[{short}]' for short in cited)}\n{SECTIONS}"


@dataclass(slots=True, kw_only=True)
class AnswerBench:
    """One worker's answers; `published` is what went out, in order."""

    settings: Settings
    store: OutcomeStore
    graph: GraphSource
    state: StateSource
    assembler: Assembler
    telemetry: Telemetry
    published: list[OutboundRecord] = field(default_factory=list[OutboundRecord])
    made: list[bytes] = field(default_factory=list[bytes])
    """Usage events of retries that were stored first."""
    judged: list[bytes] = field(default_factory=list[bytes])
    """What answers used that were stored first."""

    def handler(self, failpoints: str = "", *, store: OutcomeStore | None = None) -> ResponseHandler:
        """Of a worker with these drills armed."""
        points = Failpoints(failpoints)
        answers = build_answers(
            self.settings,
            assembler=self.assembler,
            graph=self.graph,
            state=self.state,
            outcomes=store or self.store,
            public_url="http://127.0.0.1:8080",
            on_made=self._on_made,
            on_judged=self.judged.append,
            telemetry=self.telemetry,
            failpoints=points,
        )
        door = Door(
            replies=Replies(
                self, ROUTES, telemetry=self.telemetry, failpoints=points, ended=self.telemetry.verdicts
            ),
            reply_topics=ROUTES.allowed_reply_topics,
            limits=BodyLimits(max_bytes=self.settings.answers.max_bytes, max_depth=32),
            telemetry=self.telemetry,
            failpoints=points,
        )
        return ResponseHandler(door, settle=answers.settle, escalations=ESCALATIONS)

    async def ask(self, request_id: str = "r", **more: Any) -> ContextBundle:
        """Assemble a request and store its outcome, as the worker does."""
        request = AssemblyRequest.model_validate(
            {
                "request_id": request_id,
                "project_id": "shop",
                "thread_id": "t1",
                "volk": "smith",
                "subject": "implement",
                "user_message": "Make charge_order in src/shop.py refuse a second charge.",
                "as_of": "2026-01-02T03:04:05Z",
                "deadline_ms": 60_000,
                "layer_timeouts_ms": dict.fromkeys(("graph", "ast", "semantic", "memory"), 50_000),
                **more,
            }
        )
        assert request.as_of is not None
        assembled = await self.assembler.assemble(request, as_of=request.as_of)
        record = bundle_outcome(
            assembled.bundle,
            assembled.usage,
            assembled.trail,
            request_digest=request.digest(),
            as_of=request.as_of,
            max_record_bytes=self.settings.limits.max_record_bytes,
            max_capture_bytes=self.settings.outcomes.max_capture_bytes,
            public_url="http://127.0.0.1:8080",
        )
        key = OutcomeKey(project_id=request.project_id, request_id=request_id)
        assert await self.store.put_if_absent(key, record) is record
        return assembled.bundle

    async def say(
        self, content: str, *, to: str = "r", answer_id: str | None = None, drill: str = "", **more: Any
    ) -> Verdict:
        """Hand an answer in; the verdict on it. An answer that says the same has the same id."""
        handled = await self.hand(answer(content, to=to, answer_id=answer_id, **more), drill=drill)
        assert handled == Handled(), handled
        return Verdict.model_validate_json(self.on(ROUTES.bundles)[-1].value)

    async def hand(self, body: bytes | dict[str, Any], *, drill: str = "") -> Handled:
        """Hand a record in."""
        return await self.handler(drill).handle(record(body))

    def on(self, topic: str) -> list[OutboundRecord]:
        """What was published on a topic, in order."""
        return [item for item in self.published if item.topic == topic]

    @property
    def escalations(self) -> list[Escalation]:
        return [Escalation.model_validate_json(item.value) for item in self.on(ESCALATIONS)]

    def counted(self, verdict: str, code: str) -> float:
        labels = {"verdict": verdict, "code": code}
        return self.telemetry.registry.get_sample_value("context_verdicts_total", labels) or 0.0

    async def publish(self, record: OutboundRecord) -> None:
        self.published.append(record)

    def _on_made(self, usage: UsageEvent, line: bytes) -> None:
        assert usage.parent_request_id is not None
        self.made.append(line)


def answer(content: str, *, to: str = "r", answer_id: str | None = None, **more: Any) -> dict[str, Any]:
    """The fields of an answer in thread t1 of the shop."""
    named = answer_id or f"a-{sha256_hex(f'{to} {content}'.encode())[:12]}"
    fields = {
        "answer_id": named,
        "request_id": to,
        "project_id": "shop",
        "thread_id": "t1",
        "content": content,
        **more,
    }
    return AgentAnswer.model_validate(fields).model_dump(exclude_none=True, mode="json")


def record(body: bytes | dict[str, Any]) -> InboundRecord:
    """As it is consumed."""
    return InboundRecord(
        topic="context.responses",
        partition=1,
        offset=7,
        timestamp_ms=NOW_MS,
        key=b"shop",
        value=body if isinstance(body, bytes) else json.dumps(body).encode(),
        headers=(("correlation_id", b"c"),),
    )


@asynccontextmanager
async def answer_bench(
    folder: Path, stores: Path, *, max_attempts: int = 3, clock: list[float] | None = None, **limits: int
) -> AsyncGenerator[AnswerBench]:
    """Over the graph and state in `folder`, which `tests.support.tooling.fill` fills; outcomes in `stores`.

    `clock` holds the seconds since the epoch that outcomes expire by.
    """
    settings = Settings(
        graph=Graph(sqlite_path=folder / "graph.db"),
        state=State(sqlite_path=folder / "state.db"),
        outcomes=Outcomes(sqlite_path=stores / "outcomes.db"),
        limits=Limits(**limits),
        answers=AnswerSettings(max_attempts=max_attempts),
    )
    telemetry = Telemetry()
    now = clock or [datetime(2026, 3, 1, tzinfo=UTC).timestamp()]
    store = SqliteOutcomeStore(
        stores / "outcomes.db", keep_seconds=7_200, forget_seconds=172_800, clock=lambda: now[0]
    )
    async with (
        aclosing(build_state(settings, telemetry)) as state,
        aclosing(build_graph(settings, telemetry, state.states)) as graph,
    ):
        assembler = build_assembler(settings, telemetry, graph.reader, state.states, outcomes=store)
        yield AnswerBench(
            settings=settings,
            store=store,
            graph=graph,
            state=state,
            assembler=assembler,
            telemetry=telemetry,
        )
        await store.close()
