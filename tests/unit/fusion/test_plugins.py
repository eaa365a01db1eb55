from __future__ import annotations

import json
import math
import os
import select
import sys
import textwrap
from collections.abc import Generator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from structlog.testing import capture_logs

from schemas.codes import PartName
from schemas.fragments import FragmentProvenance
from schemas.request import AssemblyRequest
from tests.support.assembling import assemble, wire_request
from tests.support.explaining import policy, stored
from tests.support.fixed_sources import assembler_over
from worker.assembly import Assembler
from worker.budget.tokens import BytesCounter
from worker.cli_strategies import strategies
from worker.explaining.replay import verify
from worker.fusion.pipeline import FusionPipeline, default_components
from worker.fusion.plugin_child import load
from worker.fusion.plugin_wire import (
    Hello,
    decode_job,
    encode_answer,
    encode_hello,
    encode_job,
    fragments_for,
    read_answer,
    read_hello,
)
from worker.fusion.plugins import StrategyPlugins, find_plugins
from worker.fusion.protocols import BackendSet, PlanContext, StrategyCapabilities, StrategyFailed
from worker.fusion.sections import fence_for
from worker.fusion.strategies.layered import LayeredStrategy
from worker.fusion.strategies.recorded import PluginProposal
from worker.fusion.strategies.registry import BUILT_IN, StrategyRegistry
from worker.ports import Fragment, LayerContribution, Rendering, RequestFrame, Scope, Subject
from worker.providers.proposals import PluginProposals

MODULE = '''
import os, subprocess, sys, time
from dataclasses import replace
from worker.fusion.protocols import StrategyCapabilities

class Moody:
    """Does as the user's message says."""

    name = "moody"
    capabilities = StrategyCapabilities(uses_text=True, uses_temporal=True, quality_score=0.9)

    def can_handle(self, request, backends):
        word, _, number = request.request.user_message.partition(" ")
        return float(number) if word == "confidence" else 1.0

    def assemble(self, request, backends, budget, plan_context):
        message = request.request.user_message
        given = backends.fragments()
        print("noise on standard output")
        os.write(1, b"more of it\\n")
        if message == "spawn":
            held = open(os.path.join(os.path.dirname(__file__), "held"), "w")
            subprocess.Popen(["sleep", "60"], stdout=held)
        if message == "hang":
            time.sleep(60)
        if message == "die":
            os._exit(3)
        if message == "raise":
            raise RuntimeError("secret text of the request")
        if message == "foreign":
            return [replace(given[0], node="of another project")]
        if message == "scores":
            return [replace(f, relevance=r) for f, r in zip(given, (float("nan"), 7.0, -1.0))]
        if message == "nothing":
            return [1, 2]
        if message == "environment":
            return given if any(name.startswith("WORKER_") for name in os.environ) else []
        return sorted(given, key=lambda f: f.renderings[0].text, reverse=True)

    def explain(self):
        print("asked for its words")
        return "By mood."

class Broken:
    name = "broken"

    def __init__(self):
        print("noise before the end")
        raise RuntimeError("no model is there")

class Vectors(Moody):
    name = "vectors"
    capabilities = StrategyCapabilities(uses_vector=True)
'''
JOB_SECONDS = 20
"""Enough on a crowded machine; what is to hang is waited for no longer than `HANGING_SECONDS`."""
HANGING_SECONDS = 0.4


def fragment(node: str, text: str, *, layer: PartName = "memory", source: str = "memory") -> Fragment:
    return Fragment(
        layer=layer,
        node=node,
        renderings=(Rendering(depth=9, text=text), Rendering(depth=0, text=text[:1])),
        provenance=(FragmentProvenance(resource_uri=f"u:{node}", resource_type=source),),
        position=0,
        created_at=datetime(2026, 1, 2, tzinfo=UTC),
        metadata={"k": "v"},
        hops=2,
    )


GIVEN = (fragment("a", "alpha"), fragment("b", "beta"), fragment("c", "gamma\nline two"))
CONTRIBUTIONS: dict[PartName, LayerContribution] = {
    "memory": LayerContribution(layer="memory", status="ok", heading="# MEMORY", fragments=GIVEN)
}


def frame(message: str, **more: Any) -> RequestFrame:
    return RequestFrame(
        request=AssemblyRequest.model_validate(
            {
                "request_id": "r",
                "project_id": "p",
                "volk": "v",
                "subject": "implement",
                "user_message": message,
                **more,
            }
        ),
        subject=Subject(name="implement", inject=True, semantic=True, task_type="BUILD"),
        task_type="BUILD",
        as_of=datetime(2026, 1, 3, tzinfo=UTC),
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("plugins")
    (folder / "moody_strategy.py").write_text(textwrap.dedent(MODULE))
    info = folder / "moody-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: moody\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        "[context_worker.strategies]\nmoody = moody_strategy:Moody\nbroken = moody_strategy:Broken\n"
    )
    return folder


@pytest.fixture(scope="module")
def plugins(folder: Path) -> Generator[StrategyPlugins]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(folder))
        patch.setenv("WORKER_LOG_LEVEL", "debug")
        names = {"moody": "Moody", "broken": "Broken"}
        running = StrategyPlugins(
            {name: f"moody_strategy:{attribute}" for name, attribute in names.items()},
            timeout_seconds=JOB_SECONDS,
        )
        yield running
        ids = running.process_ids
        running.close()
    assert not [pid for pid in ids if Path(f"/proc/{pid}").exists()]
    assert ask(running, "fine").failure == "plugin_died"


def ask(
    plugins: StrategyPlugins, message: str, *, name: str = "moody", wait_seconds: float = 30
) -> PluginProposal:
    return plugins.ask(name, frame(message), CONTRIBUTIONS, budget_tokens=100, wait_seconds=wait_seconds)


def nodes(proposal: PluginProposal) -> list[str]:
    return [key.rpartition(":")[2] for key, _ in proposal.entries]


def test_a_plugin_proposes_from_a_process_of_its_own(plugins: StrategyPlugins) -> None:
    plugins.start()
    started = plugins.process_ids
    proposal = ask(plugins, "fine")
    assert (proposal.failure, nodes(proposal), proposal.confidence) == (None, ["c", "b", "a"], 1.0)
    assert (proposal.capabilities.quality_score, proposal.explanation) == (0.9, "By mood.")
    assert os.getpid() not in plugins.process_ids
    assert set(plugins.process_ids) == set(started)
    assert len(started) == 2


@pytest.mark.parametrize(
    ("message", "code"),
    [
        ("raise", "plugin_error"),
        ("nothing", "plugin_error"),
        ("foreign", "plugin_foreign"),
        ("hang", "plugin_timeout"),
        ("die", "plugin_died"),
    ],
)
def test_whatever_a_plugin_does_is_a_code_and_the_next_request_is_served(
    plugins: StrategyPlugins, message: str, code: str
) -> None:
    assert ask(plugins, "fine").failure is None
    before = plugins.process_ids
    proposal = ask(plugins, message, wait_seconds=HANGING_SECONDS if message == "hang" else 30)
    assert (proposal.failure, proposal.entries) == (code, ())
    is_ended = code in {"plugin_timeout", "plugin_died"}
    assert not is_ended or set(before) - set(plugins.process_ids)
    assert nodes(ask(plugins, "fine")) == ["c", "b", "a"]


@pytest.mark.usefixtures("plugins")
def test_a_plugin_may_take_no_longer_than_is_set_however_long_its_caller_waits() -> None:
    own = StrategyPlugins({"moody": "moody_strategy:Moody"}, timeout_seconds=HANGING_SECONDS)
    proposal = ask(own, "hang")
    assert (proposal.failure, own.process_ids) == ("plugin_timeout", [])
    own.close()


@pytest.mark.usefixtures("plugins")
def test_what_a_plugin_started_ends_with_it(folder: Path) -> None:
    os.mkfifo(folder / "held")
    reader = os.open(folder / "held", os.O_RDONLY | os.O_NONBLOCK)
    own = StrategyPlugins({"moody": "moody_strategy:Moody"}, timeout_seconds=20)
    poll = select.poll()
    poll.register(reader, 0)
    assert ask(own, "spawn").failure is None
    assert poll.poll(0) == []
    own.close()
    # Nobody holds the other end any longer.
    assert poll.poll(10_000) == [(reader, select.POLLHUP)]
    os.close(reader)


def test_scores_out_of_range_are_brought_into_it_and_counted(plugins: StrategyPlugins) -> None:
    proposal = ask(plugins, "scores")
    assert [relevance for _, relevance in proposal.entries] == [0.0, 1.0, 0.0]
    assert proposal.clamped_scores == 3


def test_a_plugin_that_is_not_sure_is_recorded_so(plugins: StrategyPlugins) -> None:
    assert ask(plugins, "confidence 0.25").confidence == 0.25
    assert (ask(plugins, "confidence nan").confidence, ask(plugins, "confidence 0").entries) == (0.0, ())


def test_a_plugin_does_not_see_the_settings(plugins: StrategyPlugins) -> None:
    assert ask(plugins, "environment").entries == ()


def test_a_plugin_that_cannot_be_made_is_not_started_again_at_once(plugins: StrategyPlugins) -> None:
    assert ask(plugins, "fine", name="broken").failure == "plugin_error"
    running = plugins.process_ids
    assert ask(plugins, "fine", name="broken").failure == "plugin_died"
    assert plugins.process_ids == running


@pytest.mark.parametrize(("name", "message"), [("moody", "raise"), ("broken", "fine")])
def test_the_log_names_the_type_of_what_a_plugin_raised_and_nothing_of_its_words(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], name: str, message: str
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(folder))
    own = StrategyPlugins({name: f"moody_strategy:{name.title()}"}, timeout_seconds=JOB_SECONDS)
    with capture_logs() as logs:
        assert ask(own, message, name=name).failure == "plugin_error"
    own.close()
    said = {"event": "strategy.failed", "strategy": name, "code": "plugin_error", "error": "RuntimeError"}
    assert logs == [{**said, "log_level": "warning"}]
    assert capfd.readouterr() == ("", "")


def test_a_process_that_was_heard_is_sent_no_request(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(folder))
    own = StrategyPlugins({"moody": "moody_strategy:Moody"}, timeout_seconds=JOB_SECONDS)
    own.greet("moody")
    heard = own.process_ids
    assert ask(own, "fine").failure is None
    assert own.process_ids != heard
    own.close()
    assert "noise" not in capfd.readouterr().err


def test_who_has_no_time_left_does_not_wait(plugins: StrategyPlugins) -> None:
    ask(plugins, "fine")
    running = plugins.process_ids
    proposal = plugins.ask("moody", frame("fine"), CONTRIBUTIONS, budget_tokens=1, wait_seconds=-1.0)
    assert proposal.failure == "plugin_timeout"
    assert ask(plugins, "fine").failure is None
    assert running


def test_a_strategy_that_needs_vectors_or_has_another_name_is_refused(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "path", [str(folder), *sys.path])
    for name, target, said in (
        ("vectors", "Vectors", "uses vectors"),
        ("other", "Moody", "calls itself 'moody'"),
    ):
        with pytest.raises(ValueError, match=said):
            load(name, f"moody_strategy:{target}")


def test_a_plugin_is_found_by_its_entry_point_and_never_imported_here(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "path", [str(folder), *sys.path])
    assert find_plugins(["moody"]) == {"moody": "moody_strategy:Moody"}
    with pytest.raises(ValueError, match="'absent': no package offers it"):
        find_plugins(["absent"])


# --- On the bundle -----------------------------------------------------------------------------------


def test_the_command_asks_the_plugins_and_says_which_does_not_answer(
    plugins: StrategyPlugins,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    del plugins  # its environment is the one in which plug-ins are found
    # With it nothing would be kept back, and so nothing lost.
    monkeypatch.delenv("PYTHONUNBUFFERED", raising=False)
    monkeypatch.setattr(sys, "path", [str(folder), *sys.path])
    monkeypatch.setenv("WORKER_CONTENT__STRATEGY_PLUGINS", '["moody"]')
    strategies(as_json=True)
    said = capfd.readouterr()
    assert "asked for its words" in said.err
    lines = {line["name"]: line for line in json.loads(said.out)}
    assert list(lines) == ["layered", "relevance", "recency", "tiered", "moody"]
    assert (lines["moody"]["explanation"], lines["moody"]["failure"]) == ("By mood.", None)
    assert [name for name, line in lines.items() if line["is_default"]] == ["layered"]

    monkeypatch.setenv("WORKER_CONTENT__STRATEGY_PLUGINS", '["broken"]')
    with pytest.raises(SystemExit):
        strategies(as_json=True)
    said = capfd.readouterr()
    broken = json.loads(said.out)[-1]
    assert (broken["name"], broken["failure"], broken["error"]) == ("broken", "plugin_error", "RuntimeError")
    assert "noise before the end" in said.err
    assert "RuntimeError: no model is there" in said.err
    with pytest.raises(SystemExit):
        strategies(as_json=False)
    assert "does not answer: plugin_error (RuntimeError)" in " ".join(capfd.readouterr().out.split())

    def silent(self: StrategyPlugins, name: str) -> Hello:
        raise StrategyFailed("plugin_died")

    monkeypatch.setattr(StrategyPlugins, "greet", silent)
    with pytest.raises(SystemExit):
        strategies(as_json=False)
    assert "does not answer: plugin_died" in " ".join(capfd.readouterr().out.split())


async def test_a_plugin_decides_what_there_is_room_for_and_layered_where_it_fails(
    plugins: StrategyPlugins,
) -> None:
    registry = StrategyRegistry(BUILT_IN.in_process, ["moody"])
    given = [replace(fragment(c, c * 300), position=i, relevance=1 - i / 10) for i, c in enumerate("abc")]
    using = assembler_over(given, strategies=registry, proposals=PluginProposals(plugins))
    alone = assembler_over(given, strategies=registry)

    async def shown(message: str, strategy: str, assembler: Assembler = using) -> tuple[str, tuple[str, ...]]:
        request = wire_request(
            user_message=message,
            strategy=strategy,
            encoding="bytes",
            budget={"total": 1_100, "layers": {"output": 300}},
            include=["payload"],
            deadline_ms=30_000,
        )
        payload = (await assemble(request, assembler)).bundle.payload
        assert payload is not None
        return max(payload.fragments, key=lambda f: f.token_count).uko_node, payload.strategies_used

    assert await shown("fine", "moody") == ("c", ("moody",))
    assert await shown("fine", "layered") == ("a", ("layered",))
    for message in ("raise", "foreign", "confidence 0"):
        assert await shown(message, "moody") == ("a", ("layered",))
    assert await shown("raise", "moody+recency") == ("a", ("recency", "layered"))
    assert await shown("fine", "moody", alone) == ("a", ("layered",))


async def test_what_a_plugin_did_is_made_again_from_the_capture_where_it_is_not_installed(
    plugins: StrategyPlugins,
) -> None:
    registry = StrategyRegistry(BUILT_IN.in_process, ["moody"])
    given = [replace(fragment(c, c * 300), position=i, relevance=1 - i / 10) for i, c in enumerate("abc")]
    using = assembler_over(given, strategies=registry, proposals=PluginProposals(plugins))
    bodies: set[bytes] = set()
    for message in ("fine", "scores", "raise", "confidence 0", "confidence 0.5"):
        request = wire_request(user_message=message, strategy="moody+recency", include=["payload", "receipt"])
        item = stored(await assemble(request.model_copy(update={"deadline_ms": 30_000}), using))
        verdict = verify(item, policy())
        assert (verdict.outcome, verdict.detail) == ("same", "")
        bodies.add(item.record_bytes)
    assert len(bodies) == 5


# --- The wire ----------------------------------------------------------------------------------------


def test_a_job_arrives_as_it_was() -> None:
    whole = StrategyCapabilities(uses_text=True, uses_graph=True, uses_temporal=True)
    sent = fragments_for(CONTRIBUTIONS, whole)
    job = decode_job(encode_job(frame("m"), CONTRIBUTIONS, sent, budget_tokens=7))
    assert tuple(job.backends.fragments()) == GIVEN
    assert (job.budget_tokens, job.frame) == (7, frame("m"))


class Listening(LayeredStrategy):
    """Proposes nothing, and keeps what it was told."""

    name = "listening"
    told: PlanContext | None = None

    def assemble(
        self, request: RequestFrame, backends: BackendSet, budget: int, plan_context: PlanContext
    ) -> list[Fragment]:
        self.told = plan_context
        return []


@pytest.mark.parametrize(
    "names",
    [
        {},
        {"must_cite": ["memory://m1", "worker/ports.py"]},
        {"payload": {"files_created": ["worker/errors.py"]}},
        {"must_cite": ["a:b"], "payload": {"files_created": ["c.py", "d.py"]}},
    ],
)
def test_a_strategy_elsewhere_is_told_of_the_request_what_one_here_is(names: dict[str, Any]) -> None:
    framed = frame("m", **names)
    listening = Listening()
    fence, counter = fence_for(Scope(project_id="p", thread_id=None)), BytesCounter()
    components = default_components(fence=fence, counter=counter, default_strategy="listening")
    FusionPipeline(components, {"listening": listening}, fence).rank(framed, CONTRIBUTIONS, budget_tokens=90)
    line = encode_job(framed, CONTRIBUTIONS, {"memory": GIVEN}, budget_tokens=7)
    assert decode_job(line).plan_context == listening.told
    assert listening.told is not None
    assert listening.told.targets == {*framed.request.must_cite, *framed.request.payload.files_created}


def test_a_plugin_is_sent_what_it_makes_use_of_alone() -> None:
    (bare, *_) = fragments_for(CONTRIBUTIONS, StrategyCapabilities())["memory"]
    assert {r.text for r in bare.renderings} == {""}
    assert (bare.metadata, bare.hops, bare.created_at) == ({}, None, None)
    (named, *_) = fragments_for(CONTRIBUTIONS, StrategyCapabilities(uses_text=True, uko_levels=(0,)))[
        "memory"
    ]
    assert [(r.depth, r.text) for r in named.renderings] == [(0, "a")]
    assert fragments_for(CONTRIBUTIONS, StrategyCapabilities(resource_types=("code",)))["memory"] == ()


@pytest.mark.parametrize(
    "said",
    [
        {"order": "other"},
        {"competes": "never"},
        {"quality_score": "high"},
        {"quality_score": 5.0},
        {"uko_levels": ["deep"]},
        {"resource_types": "memory"},
    ],
)
def test_capabilities_that_could_not_be_read_back_are_refused(said: dict[str, object]) -> None:
    hello = json.loads(encode_hello(StrategyCapabilities(), "why"))
    hello["capabilities"] |= said
    with pytest.raises(StrategyFailed, match="plugin_error"):
        read_hello(json.dumps(hello).encode())


def test_an_explanation_is_text_that_can_be_written_down() -> None:
    whole = StrategyCapabilities(resource_types=("code",), uko_levels=(9, 0), quality_score=1.0)
    hello = read_hello(encode_hello(whole, "\ud800 because"))
    assert hello.capabilities == whole
    assert hello.explanation.encode().endswith(b" because")


numbers = st.one_of(
    st.floats(),
    st.integers(-3, 3),
    st.sampled_from([10**400, -(10**400)]),
    st.booleans(),
    st.none(),
    st.text(max_size=2),
)
entries = st.lists(st.one_of(st.tuples(st.sampled_from(["k", "l", "x"]), numbers), numbers), max_size=4)


@settings(max_examples=40)
@given(st.one_of(st.fixed_dictionaries({"confidence": numbers, "entries": entries}), entries, numbers))
def test_whatever_a_plugin_says_is_read_into_range_or_refused(said: object) -> None:
    try:
        answer = read_answer(json.dumps(said).encode(), sent=frozenset({"k", "l"}))
    except StrategyFailed:
        return
    assert 0 <= answer.confidence <= 1
    assert all(0 <= relevance <= 1 for _, relevance in answer.entries)
    assert len({key for key, _ in answer.entries}) == len(answer.entries)
    assert {key for key, _ in answer.entries} <= {"k", "l"}


@pytest.mark.parametrize(
    ("said", "error"),
    [
        ("RuntimeError", "RuntimeError"),
        ("E" * 80, "E" * 80),
        ("E" * 81, None),
        ("", None),
        ("pay 3 invoices", None),
        ("Error\n", None),
        ("\ud800", None),
        (["Error"], None),
    ],
)
def test_what_a_plugin_says_of_its_error_is_the_name_of_a_type_or_nothing(
    said: object, error: str | None
) -> None:
    line = json.dumps({"error": said}).encode()
    with pytest.raises(StrategyFailed, match="plugin_error") as answered:
        read_answer(line, sent=frozenset())
    with pytest.raises(StrategyFailed, match="plugin_error") as greeted:
        read_hello(line)
    assert (answered.value.error, greeted.value.error) == (error, error)


@pytest.mark.parametrize("line", [b"", b"no json", b"[" * 100_000, b'{"error":"E"}', b"\xff"])
def test_a_line_that_is_no_answer_is_refused(line: bytes) -> None:
    with pytest.raises(StrategyFailed, match="plugin_error"):
        read_answer(line, sent=frozenset())
    with pytest.raises(StrategyFailed, match="plugin_error"):
        read_hello(line)


def test_a_key_that_is_proposed_twice_counts_once_as_it_came_first() -> None:
    line = encode_answer(1.0, [*GIVEN[:1], *GIVEN[:1]])
    answer = read_answer(line, sent=frozenset({GIVEN[0].key}))
    assert answer.entries == ((GIVEN[0].key, 0.5),)
    assert not math.isnan(answer.confidence)
