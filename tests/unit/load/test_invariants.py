"""Each invariant is shown to hold of a clean run, and to catch what is planted against it."""

from __future__ import annotations

import ast
import asyncio
import json
import sys
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from schemas.bundle import Rejection, to_wire
from schemas.request import AssemblyRequest
from schemas.usage import usage_event_id
from schemas.wire import sha256_hex
from tests.support.assembling import AS_OF, assemble, assembler
from tests.support.assembling import settings as worker_settings
from worker.load import invariants
from worker.load.generator import canary_of
from worker.load.invariants import INVARIANTS, Verdict, judge
from worker.load.observations import Case, CountedModel, Letter, Progress, Rules, Seen, Sent
from worker.load.recount import recount
from worker.load.rewriting import Asked, RequestKey

RUN = "run-1"
MESSAGE = "Make the counter faster."
OVERHEAD = 70
RULES = Rules(
    models={
        name: CountedModel(
            window_tokens=row.window, encoding=row.encoding, safety_factor=str(row.safety_factor)
        )
        for name, row in worker_settings().content.models.items()
    },
    default_model="gpt-4o",
    id_prefix=f"{RUN}:",
    canaries={"the shop's own words": "shop"},
)
PROGRESS = (Progress(partition=3, committed=10, sent_end=10),)
BUNDLE, REJECTED, WITHOUT_IDS = range(3)


@cache
def bundle_and_usage(model: str = "gpt-4o") -> tuple[bytes, bytes]:
    request = AssemblyRequest.model_validate(
        {
            "request_id": f"{RUN}:r1",
            "project_id": "shop",
            "volk": "smith",
            "subject": "implement",
            "user_message": MESSAGE,
            "system_prompt": "You count.",
            "model": model,
            "budget": {"total": 3_000, "client_overhead_tokens": OVERHEAD},
            "as_of": AS_OF,
            "memory": {"summary": f"Counting was slow. {canary_of('shop')}"},
        }
    )
    made = asyncio.run(assemble(request, assembler()))
    return to_wire(made.bundle), to_wire(made.usage)


def sent(offset: int, *, model: str = "gpt-4o") -> Sent:
    return Sent(
        partition=3,
        offset=offset,
        asked=Asked(model=model, total_tokens=3_000, client_overhead_tokens=OVERHEAD),
        message_chars=len(MESSAGE),
        message_sha256=sha256_hex(MESSAGE.encode()),
    )


def clean() -> list[Case]:
    """A bundle that was delivered twice, a rejection, and a record without ids."""
    bundle, usage = bundle_and_usage()
    rejected = json.dumps(
        json.loads(usage)
        | {"request_id": f"{RUN}:r2", "event_id": usage_event_id("shop", f"{RUN}:r2", 0)}
        | {"outcome": "rejected", "code": "unknown_model", "usage": None, "overhead": None, "exact": None}
    ).encode()
    return [
        Case(
            key=RequestKey(project_id="shop", request_id=f"{RUN}:r1", generation=0),
            sent=(sent(0), sent(4)),
            replies=(Seen(body=bundle, copies=3, kind="bundle"),),
            usages=(Seen(body=usage, copies=3),),
        ),
        Case(
            key=RequestKey(project_id="shop", request_id=f"{RUN}:r2", generation=0),
            sent=(sent(1),),
            replies=(Seen(body=rejection("unknown_model", request_id=f"{RUN}:r2"), kind="rejection"),),
            usages=(Seen(body=rejected),),
        ),
        Case(
            key=None,
            sent=(sent(2),),
            replies=(Seen(body=rejection("invalid_json", request_id=None), kind="rejection"),),
            letters=(Letter(partition=3, offset=2, code="invalid_json", copies=2),),
        ),
    ]


def rejection(code: Any, *, request_id: str | None, message: str = "no") -> bytes:
    return to_wire(
        Rejection(
            request_id=request_id,
            project_id="shop" if request_id else None,
            code=code,
            message=message,
            details={},
            retryable=False,
        )
    )


def edited(seen: Seen, edit: Callable[[dict[str, Any]], object]) -> Seen:
    fields = json.loads(seen.body)
    edit(fields)
    return replace(seen, body=json.dumps(fields, ensure_ascii=False, separators=(",", ":")).encode())


Run = tuple[list[Case], tuple[Progress, ...]]


def with_case(index: int, **changes: Any) -> Run:
    cases = clean()
    cases[index] = replace(cases[index], **changes)
    return cases, PROGRESS


def with_reply(edit: Callable[[dict[str, Any]], object]) -> Run:
    return with_case(BUNDLE, replies=(edited(clean()[BUNDLE].replies[0], edit),))


def with_usage(edit: Callable[[dict[str, Any]], object], index: int = BUNDLE) -> Run:
    return with_case(index, usages=(edited(clean()[index].usages[0], edit),))


def with_second_outcome() -> Run:
    case = clean()[BUNDLE]
    other = edited(case.replies[0], lambda fields: fields.update(context_hash="0" * 64))
    return with_case(BUNDLE, replies=(*case.replies, other))


def with_respelled(field: str) -> Run:
    case = clean()[BUNDLE]
    (seen,) = getattr(case, field)
    spaced = replace(seen, body=json.dumps(json.loads(seen.body), indent=1).encode())
    return with_case(BUNDLE, **{field: (seen, spaced)})


def stray(**parts: Any) -> Run:
    key = RequestKey(project_id="shop", request_id=f"{RUN}:nobody", generation=0)
    return [*clean(), Case(key=key, **parts)], PROGRESS


def set_in_user_text(fields: dict[str, Any], text: str) -> None:
    message = fields["messages"][-1]
    message["content"] = f"{text}\n{message['content']}"


def spend_more(fields: dict[str, Any]) -> None:
    fields["usage"]["spent"] += 1
    fields["usage"]["layers"]["memory"]["spent"] += 1


def shrink_window(case: Case) -> Case:
    asked = Asked(total_tokens=100, client_overhead_tokens=OVERHEAD)
    return replace(case, sent=tuple(replace(item, asked=asked) for item in case.sent))


PLANTS: dict[str, dict[str, Callable[[], Run]]] = {
    "I1": {
        "two outcomes": with_second_outcome,
        "lost": lambda: with_case(BUNDLE, replies=(), usages=()),
        "a record without ids unanswered": lambda: with_case(WITHOUT_IDS, replies=(), letters=()),
        "only a refusal of a reused id": lambda: with_case(
            REJECTED, replies=(Seen(body=rejection("request_id_reused", request_id=f"{RUN}:r2")),), usages=()
        ),
        "a bundle and a rejection": lambda: with_case(
            REJECTED, replies=(*clean()[REJECTED].replies, *clean()[BUNDLE].replies)
        ),
    },
    "I2": {
        "a bundle for nobody": lambda: stray(replies=clean()[BUNDLE].replies),
        "a rejection for nobody": lambda: stray(replies=clean()[REJECTED].replies),
    },
    "I3": {
        "no usage event": lambda: with_case(REJECTED, usages=()),
        "a usage event for nobody": lambda: stray(usages=clean()[BUNDLE].usages),
        "tokens differ": lambda: with_usage(lambda fields: fields["usage"].update(spent=1)),
        "overhead differs": lambda: with_usage(lambda fields: fields["overhead"].update(preamble=9_999)),
        "another event id": lambda: with_usage(lambda fields: fields.update(event_id="0" * 26)),
        "another outcome": lambda: with_usage(lambda fields: fields.update(outcome="rejected")),
        "another code": lambda: with_usage(lambda fields: fields.update(code="expired"), REJECTED),
        "tokens of a rejection": lambda: with_usage(
            lambda fields: fields.update(usage=json.loads(bundle_and_usage()[1])["usage"]), REJECTED
        ),
        "two usage events": lambda: with_case(
            BUNDLE,
            usages=(
                *clean()[BUNDLE].usages,
                edited(clean()[BUNDLE].usages[0], lambda fields: fields.update(timestamp=AS_OF)),
            ),
        ),
    },
    "I4": {
        "a committed record without any answer": lambda: with_case(BUNDLE, replies=(), usages=()),
        "two records, one answer": lambda: with_case(
            BUNDLE, replies=(replace(clean()[BUNDLE].replies[0], copies=1),)
        ),
        "a record without ids": lambda: with_case(WITHOUT_IDS, replies=(), letters=()),
    },
    "I5": {
        "an outcome spelled twice": lambda: with_respelled("replies"),
        "a usage event spelled twice": lambda: with_respelled("usages"),
        "another kind in the header": lambda: with_case(
            BUNDLE,
            replies=(*clean()[BUNDLE].replies, replace(clean()[BUNDLE].replies[0], kind="rejection")),
        ),
        "two different dead letters": lambda: with_case(
            WITHOUT_IDS, letters=(*clean()[WITHOUT_IDS].letters, *clean()[WITHOUT_IDS].letters)
        ),
    },
    "I6": {
        "more text than counted": lambda: with_reply(lambda fields: set_in_user_text(fields, "and more")),
        "more counted than there is": lambda: with_reply(spend_more),
        "over the window": lambda: (
            [shrink_window(case) if number == BUNDLE else case for number, case in enumerate(clean())],
            PROGRESS,
        ),
        "nothing kept for the client": lambda: with_reply(
            lambda fields: fields["usage"]["overhead"].update(client=0)
        ),
        "layers do not add up": lambda: with_reply(
            lambda fields: fields["usage"]["layers"]["memory"].update(spent=0)
        ),
        "a layer over its budget": lambda: with_reply(
            lambda fields: fields["usage"]["layers"]["memory"].update(budget=0)
        ),
    },
    "I7": {
        "another project's canary": lambda: with_reply(
            lambda fields: set_in_user_text(fields, canary_of("bank"))
        ),
        "a text that was named": lambda: (
            [
                replace(case, key=case.key and replace(case.key, project_id="bank"))
                for case in with_reply(lambda fields: set_in_user_text(fields, "the shop's own words"))[0]
            ],
            PROGRESS,
        ),
        "another project's bundle": lambda: with_reply(lambda fields: fields.update(project_id="bank")),
        "the message of another request": lambda: with_reply(
            lambda fields: fields["messages"][-1].update(content="Ask something else.")
        ),
    },
    "I8": {"behind": lambda: (clean(), (*PROGRESS, Progress(partition=5, committed=6, sent_end=9)))},
}


def verdicts_of(run: Run, rules: Rules = RULES) -> dict[str, Verdict]:
    cases, progress = run
    return {verdict.name: verdict for verdict in judge(cases, progress, rules)}


def test_a_clean_run_holds_and_everything_in_it_was_judged():
    verdicts = verdicts_of((clean(), PROGRESS))
    assert {name: verdict.examples for name, verdict in verdicts.items()} == {key: [] for key in verdicts}
    assert not any(verdict.not_judged for verdict in verdicts.values())


def test_every_invariant_has_a_plant():
    assert [invariant.name for invariant in INVARIANTS] == list(PLANTS)


@pytest.mark.parametrize(
    ("name", "plant"),
    [(name, plant) for name, plants in PLANTS.items() for plant in plants],
)
def test_what_is_planted_is_caught(name: str, plant: str):
    verdict = verdicts_of(PLANTS[name][plant]())[name]
    assert not verdict.holds
    assert verdict.examples


def checks() -> list[int]:
    """The lines on which the invariants find something broken."""
    tree = ast.parse(Path(invariants.__file__).read_text())
    return [node.lineno for node in ast.walk(tree) if isinstance(node, ast.Expr) and _finds(node)]


def _finds(node: ast.Expr) -> bool:
    return ast.unparse(node).startswith("yield Broken(")


class WithoutCheck(ast.NodeTransformer):
    """The module with one of its checks taken out."""

    def __init__(self, line: int) -> None:
        self._line = line

    def visit_Expr(self, node: ast.Expr) -> ast.AST:
        dropped = _finds(node) and node.lineno == self._line
        return ast.parse("yield from ()").body[0] if dropped else node


def test_no_check_can_be_dropped_unnoticed():
    """Each check taken out in turn: some plant must then go unnoticed, else it is held by no test."""
    runs = [
        (name, *run, _broken(judge(*run, RULES), name))
        for name, plants in PLANTS.items()
        for run in (plant() for plant in plants.values())
    ]
    for line in checks():
        tree = WithoutCheck(line).visit(ast.parse(Path(invariants.__file__).read_text()))
        mutant = ModuleType("mutant")
        with mock.patch.dict(sys.modules, mutant=mutant):
            exec(compile(ast.fix_missing_locations(tree), "mutant", "exec"), mutant.__dict__)  # noqa: S102 - our own source
        # Counted, not only caught: most plants are noticed by more than one check.
        assert any(
            _broken(mutant.judge(cases, progress, RULES), name) < broken
            for name, cases, progress, broken in runs
        ), f"invariants.py:{line}"


def _broken(verdicts: Iterable[Verdict], name: str) -> int:
    return next(verdict.broken for verdict in verdicts if verdict.name == name)


def test_a_violation_names_the_request():
    (example,) = verdicts_of(with_second_outcome())["I1"].examples
    assert f"shop {RUN}:r1" in example
    assert "2 distinct outcomes" in example


def test_only_the_first_examples_are_kept_and_all_are_counted():
    cases = [
        replace(
            clean()[BUNDLE], key=RequestKey(project_id="p", request_id=f"{RUN}:{n}", generation=0), replies=()
        )
        for n in range(20)
    ]
    verdict = verdicts_of((cases, PROGRESS))["I1"]
    assert (verdict.broken, len(verdict.examples)) == (20, 5)


KEPT = replace(RULES, id_prefix="")


def test_with_kept_ids_an_outcome_from_before_the_run_must_be_the_same():
    same = with_case(BUNDLE, earlier=clean()[BUNDLE].replies)
    assert all(verdict.holds for verdict in verdicts_of(same, KEPT).values())
    other = with_case(BUNDLE, earlier=with_second_outcome()[0][BUNDLE].replies[1:])
    assert not verdicts_of(other, KEPT)["I1"].holds


def test_with_kept_ids_a_forgotten_outcome_may_be_answered_without_one():
    run = with_case(REJECTED, replies=(Seen(body=rejection("expired", request_id=f"{RUN}:r2")),), usages=())
    assert all(verdict.holds for verdict in verdicts_of(run, KEPT).values())
    assert not verdicts_of(run)["I3"].holds


def test_with_kept_ids_outcomes_of_others_are_theirs():
    run = stray(replies=clean()[BUNDLE].replies, usages=clean()[BUNDLE].usages)
    assert all(verdict.holds for verdict in verdicts_of(run, KEPT).values())


def test_a_bundle_by_reference_is_judged_by_what_it_stands_for():
    bundle = clean()[BUNDLE].replies[0]
    fields = json.loads(bundle.body)
    digest = sha256_hex(bundle.body)
    reference = {
        "kind": "bundle_ref",
        "request_id": fields["request_id"],
        "project_id": "shop",
        "digest": digest,
        "size_bytes": 1,
        "status": fields["status"],
        "url": "http://localhost",
    }
    replies = (Seen(body=json.dumps(reference).encode(), copies=3, kind="bundle_ref"),)
    held = verdicts_of(with_case(BUNDLE, replies=replies, fetched={digest: bundle.body}))
    assert all(verdict.holds and not verdict.not_judged for verdict in held.values())
    lost = verdicts_of(with_case(BUNDLE, replies=replies, fetched={digest: "it answered 404"}))
    assert lost["I6"].not_judged == lost["I7"].not_judged == {"it answered 404": 1}
    leaky = edited(bundle, lambda fields: set_in_user_text(fields, canary_of("bank")))
    broken = verdicts_of(with_case(BUNDLE, replies=replies, fetched={digest: leaky.body}))
    assert {name for name, verdict in broken.items() if not verdict.holds} == {"I6", "I7"}


@pytest.mark.parametrize("model", ["gpt-4-turbo", "claude", "generic-8k"])
def test_every_way_of_counting_is_recounted(model: str):
    bundle, _ = bundle_and_usage(model)
    run = with_case(BUNDLE, sent=(sent(0, model=model),), replies=(Seen(body=bundle, copies=3),))
    verdict = verdicts_of(run)["I6"]
    assert verdict.holds
    assert not verdict.not_judged
    more = edited(Seen(body=bundle, copies=3), lambda fields: set_in_user_text(fields, "some words more"))
    assert not verdicts_of(with_case(BUNDLE, sent=(sent(0, model=model),), replies=(more,)))["I6"].holds


def test_what_cannot_be_recounted_is_said():
    assert recount("x", encoding="file:own.json", safety_factor="1") is None
    assert recount(" " * 1_000_000, encoding="o200k_base", safety_factor="1") is None
    unknown = with_case(BUNDLE, sent=(sent(0, model="nobody's"),))
    assert sum(verdicts_of(unknown)["I6"].not_judged.values()) == 1


def test_a_usage_event_of_a_retry_needs_no_reply_to_a_request() -> None:
    def of_retry(fields: dict[str, Any]) -> None:
        own = f"{RUN}:nobody"
        fields.update(request_id=own, parent_request_id=f"{RUN}:r1", event_id=usage_event_id("shop", own, 0))

    run = stray(usages=(edited(clean()[BUNDLE].usages[0], of_retry),))
    assert all(verdict.holds for verdict in verdicts_of(run).values())


@settings(max_examples=40)
@given(body=st.binary(max_size=60) | st.text(max_size=60).map(str.encode), usage=st.binary(max_size=30))
def test_no_reply_however_broken_stops_the_judging(body: bytes, usage: bytes):
    verdicts = verdicts_of(with_case(BUNDLE, replies=(Seen(body=body),), usages=(Seen(body=usage),)))
    assert not verdicts["I3"].holds
