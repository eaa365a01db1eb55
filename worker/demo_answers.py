"""The demo's loop: a bundle, an answer that invents an id, a verdict with the next bundle, a better answer.

The agent is scripted. What is said of its answers is not: it comes from the worker.
"""

from __future__ import annotations

from typing import Final

from rich.console import Console, Group, RenderableType
from rich.panel import Panel
from rich.text import Text

from schemas.answers import AgentAnswer, Verdict
from schemas.bundle import ContextBundle
from schemas.citations import TEMPLATE_SECTIONS, Citations
from schemas.request import AssemblyRequest
from worker.client import ContextClient
from worker.demo_requests import PROJECT
from worker.errors import WorkerError

THREAD: Final = "demo-answers"
REPLY_SECONDS: Final = 20.0

_REQUEST: Final = AssemblyRequest.model_validate(
    {
        "request_id": "demo-answers",
        "project_id": PROJECT,
        "thread_id": THREAD,
        "volk": "smith",
        "subject": "implement",
        "user_message": "Let next_step in worker/citations/ladder.py say why it escalates.",
        "budget": {"total": 6_000},
        "session": {
            "handoff": {"decisions": [{"id": "D-9", "title": "The ladder is a pure function of its steps"}]}
        },
    }
)


class DemoFailed(WorkerError):
    """The worker answered as it never should."""


async def play_answers(console: Console, client: ContextClient) -> int:
    """Show the loop; how many requests and answers were answered. Raises DemoFailed."""
    console.rule("an agent's answer is judged by what its prompt showed")
    bundle = await client.assemble(_REQUEST, timeout_seconds=REPLY_SECONDS)
    if not isinstance(bundle, ContextBundle):
        raise DemoFailed(bundle.message)
    console.print(Panel(_citations(bundle), title="the bundle", title_align="left"))
    invented = await _answer(client, bundle, "demo-answer-1", cited=(_unknown(_manifest(bundle)),))
    console.print(Panel(_verdict(invented), title="an answer that invents an id", title_align="left"))
    if not isinstance(invented.bundle, ContextBundle):
        raise DemoFailed(invented.code)
    again = invented.bundle
    complied = await _answer(client, again, "demo-answer-2", cited=_manifest(again).must_cite)
    console.print(Panel(_verdict(complied), title="an answer that complies", title_align="left"))
    if complied.verdict != "accepted":
        raise DemoFailed(complied.code)
    return 3


async def _answer(
    client: ContextClient, bundle: ContextBundle, answer_id: str, *, cited: tuple[str, ...]
) -> Verdict:
    """The verdict on an answer that cites these ids and has all sections."""
    said = " ".join(f"[{short}]" for short in cited)
    sections = "\n\n".join(f"## {name}\n{said}" for name in TEMPLATE_SECTIONS)
    answer = AgentAnswer(
        answer_id=answer_id,
        request_id=bundle.request_id,
        project_id=bundle.project_id,
        thread_id=bundle.thread_id,
        content=f"It returns the reason now.\n\n{sections}",
    )
    verdict = await client.answer(answer, timeout_seconds=REPLY_SECONDS)
    if not isinstance(verdict, Verdict):
        raise DemoFailed(verdict.message)
    return verdict


def _manifest(bundle: ContextBundle) -> Citations:
    if bundle.citations is None:
        raise DemoFailed("it has no citations")
    return bundle.citations


def _unknown(citations: Citations) -> str:
    """A short id of a function that the bundle does not show."""
    known = {item.short for item in citations.items}
    return next(short for number in range(len(known) + 1) if (short := f"f:{number:06}") not in known)


def _citations(bundle: ContextBundle) -> RenderableType:
    citations = _manifest(bundle)
    own_id = {item.short: item.id for item in citations.items}
    musts = [Text(f"  [{short}!]  {own_id[short]}") for short in citations.must_cite]
    head = f"{bundle.request_id}: {len(own_id)} things can be cited, {len(musts)} have to be"
    return Group(Text(head, style="bold"), *musts)


def _verdict(verdict: Verdict) -> RenderableType:
    style = "bold green" if verdict.verdict == "accepted" else "bold yellow"
    lines = [
        Text.assemble(
            (verdict.verdict, style),
            f"  {verdict.code}, coverage {verdict.score:g}, attempt {verdict.attempt}",
        )
    ]
    if verdict.instructions is not None:
        lines.append(Text(verdict.instructions))
    if isinstance(verdict.bundle, ContextBundle):
        lines.append(Text(f"the next bundle: {verdict.bundle.request_id}", style="dim"))
    if verdict.used is not None:
        used = ", ".join(
            f"{layer} {tokens.cited_tokens:,} of {tokens.tokens:,}"
            for layer, tokens in verdict.used.layers.items()
        )
        lines.append(Text(f"cited tokens: {used}", style="dim"))
    return Group(*lines)
