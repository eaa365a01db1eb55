"""What explain, diff and what-if say."""

from __future__ import annotations

import asyncio
import io
import json
from dataclasses import asdict
from typing import Any, get_args

import pytest
from rich.console import Console

from schemas.fragments import FragmentProvenance
from schemas.receipt import Fate, ReceiptRest
from tests.support.assembling import assemble, wire_request
from tests.support.explaining import CROWDED, bare, crowded, policy, stored, stored_of
from tests.support.fixed_sources import assembler_over
from worker.errors import InvalidRequest, UnknownStrategy
from worker.explaining.difference import difference, first_differing_byte
from worker.explaining.replay import fuse_again
from worker.explaining.stored import Stored
from worker.explaining.supposing import Supposition, is_shown_whole, suppose
from worker.explaining.view import Explanation, explain
from worker.ports import Fragment, Rendering
from worker.receipt_views import print_difference, print_explanation, print_supposed


@pytest.fixture(scope="module")
def one() -> Stored:
    return asyncio.run(stored_of(crowded()))


def made(**more: Any) -> Stored:
    return asyncio.run(stored_of(crowded(**more)))


def screen(print_it: Any, value: Any, **more: Any) -> str:
    console = Console(width=200, record=True, file=io.StringIO())
    print_it(value, console, **more)
    return console.export_text()


# --- explain -----------------------------------------------------------------------------------------


def test_an_explanation_has_every_part_with_its_budget(one: Stored) -> None:
    explanation = explain(one)
    assert [view.layer for view in explanation.layers][0::9] == ["system", "user"]
    assert sum(view.tokens or 0 for view in explanation.layers) == explanation.spent_tokens
    shown = sum(len(view.shown) for view in explanation.layers)
    assert (shown, explanation.kept) == (explanation.kept, one.bundle.receipt.counts.kept)
    assert explanation.dropped > 0
    assert explanation.capture == "kept"


def test_what_stayed_out_says_what_it_would_have_taken(one: Stored) -> None:
    left_out = [row for view in explain(one).layers for row in view.left_out]
    assert left_out
    for row in left_out:
        assert row.tokens is None
        assert row.whole_tokens is not None
        assert row.text


def test_without_a_capture_the_receipt_alone_still_explains(one: Stored) -> None:
    explanation = explain(bare(one))
    assert explanation.capture == "capture_not_kept"
    assert all(row.whole_tokens is None for view in explanation.layers for row in view.fragments)
    assert explanation.kept == explain(one).kept


def test_the_screen_names_every_layer_the_rule_and_the_masks() -> None:
    token = "ghp_" + "a1B2c3D4e5" * 3 + "f6G7h8"
    text = screen(print_explanation, explain(made(payload={"task_context": f"use {token}\x1b[31m"})))
    assert "the room went to better ones" in text or "by name: no more of it fitted" in text
    assert "task://context [1 masked]" in text
    assert "1 credentials masked" in text
    assert token not in text
    for layer in ("system", "mission", "plan", "memory", "artifacts", "graph", "task", "user"):
        assert f"\n{layer}" in text


def test_long_lists_are_cut_unless_all_is_asked_for(one: Stored) -> None:
    explanation: Explanation = explain(one)
    longest = max(explanation.layers, key=lambda view: len(view.fragments))
    assert len(longest.fragments) > 12
    assert "more (--all)" in screen(print_explanation, explanation)
    whole = screen(print_explanation, explanation, all_lines=True)
    assert all(row.node in whole for row in longest.fragments)


# --- diff --------------------------------------------------------------------------------------------


def test_a_bundle_differs_in_nothing_from_itself(one: Stored) -> None:
    found = difference(one, one)
    assert found.is_same_prompt
    assert (found.inputs, found.request, found.sources, found.fragments, found.first_byte) == (
        (),
        (),
        (),
        (),
        None,
    )


def test_a_smaller_window_says_what_went_out_and_by_which_rule() -> None:
    # Memory gives as much as its room asks for; the other sources do not look at their room.
    wide, narrow = (made(memory=None, budget={"total": n, "layers": {"output": 100}}) for n in (1_000, 800))
    found = difference(wide, narrow)
    assert [(change.name, change.before, change.after) for change in found.request] == [
        ("budget.total", "1000", "800")
    ]
    assert found.sources == ()
    went = [change for change in found.fragments if change.is_shown_before and not change.is_shown_after]
    assert went
    assert all("the room went to better ones" in (change.after or "") for change in went)
    text = screen(print_difference, found)
    assert "budget.total" in text
    assert "the first differing byte is byte" in text


def test_another_fact_shows_as_another_source_and_another_fragment(one: Stored) -> None:
    items = [
        *CROWDED["memory"]["items"],
        {
            "id": "new",
            "text": "The retry loop has a deadline of 30 s.",
            "occurred_at": "2026-01-01T00:00:00Z",
        },
    ]
    found = difference(one, made(memory={**CROWDED["memory"], "items": items}))
    assert [change.name for change in found.sources] == ["memory"]
    assert any(change.name == "memory" for change in found.request)


def test_without_captures_the_requests_are_only_known_to_differ(one: Stored) -> None:
    found = difference(bare(one), made(user_message="Other."))
    assert found.request == ()
    assert "only a capture says where" in found.request_note


@pytest.mark.parametrize(
    ("more", "role", "layer"),
    [
        ({"system_prompt": "You are smyth."}, "system", "system"),
        ({"user_message": "Make the retry loop respect its límits."}, "user", "user"),
        ({"working": {"current_diff": "diff --git a/x b/x"}}, "user", "task"),
    ],
)
def test_the_first_differing_byte_is_placed(one: Stored, more: dict[str, Any], role: str, layer: str) -> None:
    other = made(**more)
    first = first_differing_byte(one.bundle, other.bundle)
    assert first is not None
    assert (first.role, first.layer) == (role, layer)
    number = 0 if role == "system" else 1
    assert one.bundle.messages is not None
    assert other.bundle.messages is not None
    before = one.bundle.messages[number].content.encode()
    after = other.bundle.messages[number].content.encode()
    assert before[: first.offset_bytes] == after[: first.offset_bytes]
    assert (
        before[first.offset_bytes : first.offset_bytes + 1]
        != after[first.offset_bytes : first.offset_bytes + 1]
    )


def test_a_prompt_that_goes_on_differs_where_the_other_ends(one: Stored) -> None:
    first = first_differing_byte(one.bundle, made(user_message=CROWDED["user_message"] + " Now.").bundle)
    assert first is not None
    assert (first.layer, first.after.endswith(" Now.")) == ("user", True)


# --- what-if -----------------------------------------------------------------------------------------


def test_supposing_is_what_the_worker_does_with_that_request() -> None:
    capture = made(memory=None).capture()
    request = Supposition(total_tokens=1_400).applied(capture.request)
    again = fuse_again(capture, policy(), request=request)
    real = made(memory=None, budget={"total": 1_400, "layers": {"output": 100}})
    assert again.bundle.messages == real.bundle.messages
    assert again.bundle.layers == real.bundle.layers


@pytest.mark.parametrize("fate", get_args(Fate))
@pytest.mark.parametrize("has_line", [True, False])
def test_all_is_shown_whole_only_where_nothing_else_became_of_any_fragment(
    fate: Fate, *, has_line: bool
) -> None:
    record = made(budget={"total": 20_000, "layers": {"output": 100}}).record
    assert is_shown_whole(record)
    line, rule = record.fragments[0], "not_proposed"
    rest = ReceiptRest(layer=line.layer, fate=fate, rule=rule, count=1, size_bytes=1)
    # What no strategy proposed has no score.
    other = line.model_copy(update={"fate": fate, "rule": rule, "score": None})
    more = {"fragments": (*record.fragments, other)} if has_line else {"omitted": (*record.omitted, rest)}
    is_whole = fate in {"kept", "merged", "capped"}
    assert is_shown_whole(record.model_copy(update=more)) is is_whole


def test_a_larger_window_brings_in_the_best_that_stayed_out_until_all_is_shown() -> None:
    small = made(budget={"total": 830, "layers": {"output": 100}})
    supposed = suppose(small.capture(), policy(), Supposition(total_tokens=930), steps=32)
    assert supposed.total_after - supposed.total_before == 100
    assert any(change.is_shown_after and not change.is_shown_before for change in supposed.fragments)
    assert supposed.spent_after > supposed.spent_before
    capped = sum(source.capped for source in small.record.sources)
    assert capped > 0
    said = f"everything that the sources gave is shown whole; {capped} more they left out themselves"
    assert supposed.worth_end == said
    scores = [[arrival.score for arrival in worth.arrivals] for worth in supposed.worth]
    assert all(each == sorted(each, reverse=True) for each in scores)
    assert any(scores)
    text = screen(print_supposed, supposed)
    assert "up to 1,930:" in text
    assert "the sources gave what they gave" in text


async def test_of_several_fragments_of_one_node_each_arrives_for_itself() -> None:
    given = [
        Fragment(
            layer="memory",
            node="same",
            renderings=(Rendering(depth=9, text=f"text {n} " + "word " * 200),),
            provenance=(FragmentProvenance(resource_uri=f"u{n}"),),
            position=n,
        )
        for n in range(20)
    ]
    small = {"total": 1_500, "layers": {"output": 100}}
    one = stored(await assemble(wire_request(budget=small), assembler_over(given)))
    found = suppose(one.capture(), policy(), Supposition(), steps=1)
    assert len(found.worth[0].arrivals) >= 3
    assert {arrival.depth_before for arrival in found.worth[0].arrivals} == {None}


def test_nothing_supposed_changes_nothing(one: Stored) -> None:
    supposed = suppose(one.capture(), policy(), Supposition(), steps=0)
    assert (supposed.layers, supposed.fragments, supposed.worth) == ((), (), ())
    assert "no fragment would be shown otherwise" in screen(print_supposed, supposed)


def test_a_layer_and_a_strategy_can_be_supposed(one: Stored) -> None:
    capture = one.capture()
    narrow = suppose(capture, policy(), Supposition(layers={"mission": 40, "memory": 0}), steps=0)
    # What the two lose goes to who lacks most, and to what nobody has.
    assert "artifacts" in {layer.layer for layer in narrow.layers}
    recent = suppose(capture, policy(), Supposition(strategy="recency"), steps=0)
    assert recent.total_before == recent.total_after


def test_what_the_worker_would_refuse_is_refused(one: Stored) -> None:
    with pytest.raises(InvalidRequest):
        suppose(one.capture(), policy(), Supposition(total_tokens=10))
    with pytest.raises(UnknownStrategy):
        suppose(one.capture(), policy(), Supposition(strategy="nonsense"))


def test_steps_end_at_the_window() -> None:
    near = made(model="generic-8k", encoding=None, budget={"total": 7_500, "layers": {"task": 10}})
    supposed = suppose(near.capture(), policy(), Supposition(), steps=5)
    assert supposed.worth_end
    assert len(supposed.worth) < 5


def test_every_answer_is_json(one: Stored) -> None:
    for answer in (explain(one), difference(one, one), suppose(one.capture(), policy(), Supposition())):
        json.dumps(asdict(answer), allow_nan=False)
