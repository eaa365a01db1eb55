"""The relevance rules on the real SWI-Prolog: what they deduce, and that nothing is left behind."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncGenerator
from pathlib import Path
from time import monotonic

import pytest
import pytest_asyncio
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from schemas.codes import TaskType
from schemas.fragments import RelevanceTier
from tests.support.halting import stop
from tests.unit.graph.graphs import edge, function, snapshot_of
from worker.errors import RelevanceUnavailable
from worker.graph.links import link_request
from worker.graph.model import Node, NodeRef
from worker.graph.refining import relevance_facts
from worker.graph.relevance import RelevanceFacts
from worker.graph.selection import select
from worker.stores.swipl import SwiPrologRelevance

pytestmark = [pytest.mark.services, pytest.mark.asyncio(loop_scope="module")]


def node(number: int) -> NodeRef:
    return NodeRef("Function", f"a.py::f{number}")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def engine(swipl: Path) -> AsyncGenerator[SwiPrologRelevance]:
    # Slow machines are not what these tests are about.
    prolog = SwiPrologRelevance(executable=str(swipl), timeout_seconds=20)
    yield prolog
    await prolog.close()


async def tiers(engine: SwiPrologRelevance, facts: RelevanceFacts) -> list[str]:
    found = (await engine.refine(facts)).tiers
    return [found[ref] for ref in sorted(found)]


def line(task_type: TaskType, **known: object) -> RelevanceFacts:
    """Four nodes; the first is the root, the others one, two and three edges away."""
    return RelevanceFacts(
        task_type=task_type,
        hops={node(n): n for n in range(4)},
        roots=[node(0)],
        **known,  # type: ignore[arg-type]  # the tests below give fields of their own types
    )


async def test_a_root_is_core_and_what_nothing_links_is_peripheral(engine: SwiPrologRelevance) -> None:
    assert await tiers(engine, line("DOCUMENT")) == ["core", "peripheral", "peripheral", "peripheral"]


async def test_a_chain_of_shared_requirements_makes_related(engine: SwiPrologRelevance) -> None:
    traces = [(node(0), "A"), (node(2), "A"), (node(2), "B"), (node(3), "B")]
    assert await tiers(engine, line("REFACTOR", traces=traces)) == [
        *("core", "peripheral", "related", "related")
    ]


async def test_what_a_root_serves_reaches_the_requirement_that_defines_it(engine: SwiPrologRelevance) -> None:
    root, sibling, other = (function(f"{name}.py", f"{name}_it") for name in ("root", "near", "away"))
    requirement = Node(label="Requirement", id="REQ-7", name="Deadlines", text="root_it near_it")
    first, second = (
        Node(label="RequirementItem", id=f"REQ-7-{n}", name="item", text="root_it near_it") for n in (1, 2)
    )
    snapshot = snapshot_of(
        [root, sibling, other, requirement, first, second],
        [
            edge(requirement, "DEFINES", first),
            edge(requirement, "DEFINES", second),
            edge(root, "TRACES_TO", first),
            edge(sibling, "TRACES_TO", second),
        ],
    )
    links = link_request("`root_it` fails\nnear it, away it", (), snapshot)
    selection = select(links, snapshot, task_type="REFACTOR")
    facts = relevance_facts(selection, snapshot, task_type="REFACTOR")
    assert set(facts.hops) >= {node.ref for node in (root, sibling, other, requirement, first, second)}
    found = (await engine.refine(facts)).tiers
    assert found[root.ref] == "core"
    # Through the requirement its items are shared, and so is what serves the other one.
    assert {found[node.ref] for node in (requirement, first, second, sibling)} == {"related"}
    assert found[other.ref] == "peripheral"


@pytest.mark.parametrize(
    ("task_type", "known", "expected"),
    [
        ("DEBUG", {}, ["core", "core", "peripheral", "peripheral"]),
        ("DEBUG", {"failing": [node(3)]}, ["core", "core", "peripheral", "core"]),
        ("DEBUG", {"tested": [node(2), node(3)]}, ["core", "core", "core", "peripheral"]),
        ("TEST", {"tested": [node(3)]}, ["core", "peripheral", "peripheral", "core"]),
        ("TEST", {"traces": [(node(0), "A"), (node(1), "A")]}, ["core", "core", "peripheral", "peripheral"]),
        ("BUILD", {"defines": [(node(1), node(0))]}, ["core", "core", "peripheral", "peripheral"]),
        (
            "REFACTOR",
            {"defines": [(node(1), node(0)), (node(1), node(3))]},
            ["core", "core", "peripheral", "core"],
        ),
        ("REFACTOR", {"tested": [node(1), node(2)]}, ["core", "core", "peripheral", "peripheral"]),
        ("DOCUMENT", {"defines": [(node(0), node(2))]}, ["core", "peripheral", "core", "peripheral"]),
        (
            "REVIEW",
            {"traces": [(node(0), "A"), (node(3), "A")]},
            ["core", "peripheral", "peripheral", "core"],
        ),
    ],
)
async def test_a_task_promotes_what_it_needs(
    engine: SwiPrologRelevance, task_type: TaskType, known: dict[str, object], expected: list[str]
) -> None:
    assert await tiers(engine, line(task_type, **known)) == expected


async def test_an_ambiguous_name_is_not_promoted_to_core(engine: SwiPrologRelevance) -> None:
    assert await tiers(engine, line("DEBUG", ambiguous=[node(1)])) == [
        *("core", "related", "peripheral", "peripheral")
    ]


async def test_in_a_review_the_owner_of_a_root_answers_for_what_that_depends_on(
    engine: SwiPrologRelevance,
) -> None:
    known = {
        "owners": [("@a", node(0)), ("@b", node(3))],
        "depends": [(node(0), node(1)), (node(1), node(0))],
    }
    assert await tiers(engine, line("REVIEW", **known)) == ["core", "related", "peripheral", "peripheral"]
    assert await tiers(engine, line("BUILD", **known)) == ["core", "peripheral", "peripheral", "peripheral"]


async def test_ownership_beyond_the_bound_is_denied_and_counted(engine: SwiPrologRelevance) -> None:
    count = 400
    refinement = await engine.refine(
        RelevanceFacts(
            task_type="REVIEW",
            hops={node(n): 2 for n in range(count)},
            roots=[node(0)],
            owners=[("@a", node(0))],
            depends=[(node(n), node((n + 1) % count)) for n in range(count)],
        )
    )
    counts = refinement.counts()
    assert refinement.undecided_owners == counts["peripheral"] > 0
    assert counts["core"] == 1
    # The bound is on answers, and the root is one of them.
    assert counts["related"] == 255


async def test_facts_do_not_outlive_their_refinement(engine: SwiPrologRelevance) -> None:
    before = line("BUILD")
    rich = line("BUILD", traces=[(node(n), "A") for n in range(4)], tested=[node(1)], failing=[node(2)])
    plain = await tiers(engine, before)
    assert await tiers(engine, rich) == ["core"] * 4
    assert await tiers(engine, before) == plain


async def test_a_refinement_over_its_bound_fails_and_leaves_nothing_behind(swipl: Path) -> None:
    prolog = SwiPrologRelevance(executable=str(swipl), timeout_seconds=20, max_inferences=2_000)
    try:
        heavy = RelevanceFacts(
            task_type="TEST",
            hops={node(n): 1 for n in range(300)},
            roots=[node(0)],
            traces=[(node(n), f"R{n // 2}") for n in range(300)],
        )
        with pytest.raises(RelevanceUnavailable):
            await prolog.refine(heavy)
        assert await tiers(prolog, line("DOCUMENT")) == ["core", "peripheral", "peripheral", "peripheral"]
    finally:
        await prolog.close()


async def test_a_process_that_died_is_replaced(engine: SwiPrologRelevance) -> None:
    await engine.check()
    first = engine.process_id
    assert first is not None
    os.kill(first, signal.SIGKILL)
    assert await tiers(engine, line("DOCUMENT")) == ["core", "peripheral", "peripheral", "peripheral"]
    assert engine.process_id not in {None, first}


async def test_a_process_that_hangs_is_given_up_in_time_and_replaced(swipl: Path) -> None:
    prolog = SwiPrologRelevance(executable=str(swipl), timeout_seconds=1.0)
    try:
        await prolog.check()
        hung = prolog.process_id
        assert hung is not None
        stop(hung)
        with pytest.raises(RelevanceUnavailable):
            await asyncio.wait_for(prolog.refine(line("DOCUMENT")), 10)
        await prolog.check()
        assert prolog.process_id != hung
    finally:
        await prolog.close()


@pytest.mark.parametrize("sent", [signal.SIGSTOP, signal.SIGKILL])
async def test_a_process_that_hangs_or_dies_over_a_question_that_it_has_read_is_given_up_too(
    swipl: Path, sent: signal.Signals
) -> None:
    """The end of a connection with nothing unread on it is no error to who reads it."""
    prolog = SwiPrologRelevance(executable=str(swipl), timeout_seconds=1.0)
    try:
        await prolog.check()
        first = prolog.process_id
        assert first is not None
        thinking = asyncio.create_task(
            prolog._talk(lambda: prolog._running().ask("sleep(30)"))  # pyright: ignore[reportPrivateUsage]  # no rule thinks for so long
        )
        await asyncio.sleep(0.3)  # it reads
        os.kill(first, sent)
        with pytest.raises(RelevanceUnavailable):
            await asyncio.wait_for(thinking, 15)
        await prolog.check()
        assert prolog.process_id != first
    finally:
        await prolog.close()


async def test_what_is_answered_in_time_costs_no_process(swipl: Path) -> None:
    prolog = SwiPrologRelevance(executable=str(swipl), timeout_seconds=1.0)
    try:
        await prolog.check()
        first, started = prolog.process_id, monotonic()
        # Past the moment at which the first question would have been too slow.
        while monotonic() < started + 1.4:
            await prolog.check()
        assert prolog.process_id == first
    finally:
        await prolog.close()


async def test_without_prolog_it_says_so_and_does_not_try_for_every_request(tmp_path: Path) -> None:
    clock = [0.0]
    prolog = SwiPrologRelevance(executable=str(tmp_path / "swipl"), now=lambda: clock[0])
    with pytest.raises(RelevanceUnavailable, match="cannot be started"):
        await prolog.check()
    with pytest.raises(RelevanceUnavailable, match="a moment ago"):
        await prolog.check()
    clock[0] = 60.0
    with pytest.raises(RelevanceUnavailable, match="cannot be started"):
        await prolog.check()
    await prolog.close()


async def test_a_process_that_hangs_at_its_start_is_given_up_and_not_started_for_every_request(
    tmp_path: Path,
) -> None:
    hung = tmp_path / "swipl"
    hung.write_text("#!/bin/sh\nexec sleep 1000\n")
    hung.chmod(0o700)
    clock = [0.0]
    prolog = SwiPrologRelevance(executable=str(hung), start_seconds=0.2, now=lambda: clock[0])
    async with asyncio.timeout(20):
        # One after the other: whoever waits behind a start that hangs is not answered by a second one.
        results = await asyncio.gather(
            *(prolog.refine(line("DOCUMENT")) for _ in range(8)), return_exceptions=True
        )
        assert {type(result) for result in results} == {RelevanceUnavailable}
        said = [str(result) for result in results]
        assert said[0].endswith("cannot be started: TimeoutError")
        assert {text.endswith("a moment ago") for text in said[1:]} == {True}
        clock[0] = 59.0
        with pytest.raises(RelevanceUnavailable, match="a moment ago"):
            await prolog.check()
        await prolog.close()


async def test_prolog_ends_with_a_worker_that_is_killed(swipl: Path) -> None:
    script = (
        "import asyncio, sys\n"
        "from worker.stores.swipl import SwiPrologRelevance\n"
        "async def main():\n"
        "    engine = SwiPrologRelevance(executable=sys.argv[1], timeout_seconds=20)\n"
        "    await engine.check()\n"
        "    print(engine.process_id, flush=True)\n"
        "    await asyncio.Event().wait()\n"
        "asyncio.run(main())\n"
    )
    worker = subprocess.Popen(  # noqa: ASYNC220 - it is to be killed at once; our own script
        [sys.executable, "-c", script, swipl], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    assert worker.stdout is not None
    # Talk of the log goes to the same stream; the number is a line of its own.
    prolog = next(int(text) for text in worker.stdout if text.strip().isdigit())
    worker.kill()
    worker.wait()
    worker.stdout.close()
    for _ in range(200):
        if not _is_running(prolog):
            return
        await asyncio.sleep(0.05)
    os.kill(prolog, signal.SIGKILL)
    pytest.fail("the Prolog process outlived its worker")


def _is_running(process_id: int) -> bool:
    try:
        status = Path(f"/proc/{process_id}/stat").read_text()
    except FileNotFoundError:
        return False
    return status.rsplit(")", 1)[1].split()[0] != "Z"


# --- Against the rules as Python would say them ----------------------------------------------------------

NUMBERS = st.integers(0, 6)
PAIRS = st.frozensets(st.tuples(NUMBERS, NUMBERS), max_size=8)
SETS = st.frozensets(NUMBERS, max_size=3)


def expected_tier(
    n: int,
    task: TaskType,
    hops: dict[int, int],
    *,
    known: dict[str, frozenset[int]],
    traces: frozenset[tuple[int, int]],
    defines: frozenset[tuple[int, int]],
) -> RelevanceTier:
    roots = known["roots"]
    near = {item for who, item in traces if who in roots}
    while True:
        more = near | {b for w, a in traces for v, b in traces if w == v and a in near}
        if more == near:
            break
        near = more
    shares = any(who == n and item in near for who, item in traces)
    contained = any(
        (root, n) in defines
        or (n, root) in defines
        or any((p, root) in defines and (p, n) in defines for p in hops)
        for root in roots
    )
    tested, hop = n in known["tested"], hops[n]
    promoted = {
        "DEBUG": hop <= 1 or n in known["failing"] or (tested and hop <= 2),
        "TEST": tested or shares,
        "BUILD": contained or shares,
        "REFACTOR": contained or (tested and hop <= 1),
        "DOCUMENT": contained,
        "REVIEW": shares or (tested and hop <= 1),
    }[task]
    if n in roots or (promoted and n not in known["ambiguous"]):
        return "core"
    return "related" if shares or promoted else "peripheral"


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    task=st.sampled_from(["BUILD", "REFACTOR", "DEBUG", "DOCUMENT", "TEST", "REVIEW"]),
    distances=st.lists(st.integers(0, 3), min_size=7, max_size=7),
    known=st.fixed_dictionaries(dict.fromkeys(("roots", "tested", "failing", "ambiguous"), SETS)),
    pairs=st.tuples(PAIRS, PAIRS),
)
async def test_the_rules_say_what_their_words_say(
    engine: SwiPrologRelevance,
    task: TaskType,
    distances: list[int],
    known: dict[str, frozenset[int]],
    pairs: tuple[frozenset[tuple[int, int]], frozenset[tuple[int, int]]],
) -> None:
    traces, defines = pairs
    hops = dict(enumerate(distances))
    refinement = await engine.refine(
        RelevanceFacts(
            task_type=task,
            hops={node(n): hop for n, hop in hops.items()},
            roots=[node(n) for n in known["roots"]],
            tested=[node(n) for n in known["tested"]],
            failing=[node(n) for n in known["failing"]],
            ambiguous=[node(n) for n in known["ambiguous"]],
            traces=[(node(n), f"R{item}") for n, item in traces],
            defines=[(node(a), node(b)) for a, b in defines],
        )
    )
    assert {n: refinement.tiers[node(n)] for n in hops} == {
        n: expected_tier(n, task, hops, known=known, traces=traces, defines=defines) for n in hops
    }
