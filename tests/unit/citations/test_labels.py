from __future__ import annotations

import random
import re
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from schemas.bundle import ContextBundle
from schemas.citations import LETTERS
from schemas.fragments import FragmentProvenance
from schemas.request import AssemblyRequest
from tests.support.assembling import bundle_of, wire_request
from tests.support.recounting import check_ledger
from worker.budget.tokens import counter_for
from worker.citations.labels import Label, label_fragments, marked, unmarked
from worker.demo_requests import ARTIFACTS, MEMORY, SESSION
from worker.errors import Rejected
from worker.fusion.compressor import FocusSkeletonCompressor
from worker.fusion.cutting import cut_into
from worker.fusion.protocols import Placed
from worker.ports import Fragment, Rendering, Scope

SCOPE = Scope(project_id="p", thread_id="t")
PACK = """---
pack_version: 1
project: p
---
## function retry
<!-- node: pay/client.py::retry | template: IMPLEMENT | rank: 1 | score: 0.900000 | tokens: 20 -->
```python
def retry(deadline: float) -> None:
    attempt(deadline)
```
## function send
<!-- node: pay/client.py::send | template: IMPLEMENT | rank: 2 | score: 0.800000 | tokens: 20 -->
```python
def send(body: bytes) -> None:
    connect().write(body)
```
## requirement REQ-7
<!-- node: REQ-7 | template: IMPLEMENT | rank: 3 | score: 0.500000 | tokens: 9 -->
```
A retry never outlives its deadline.
```
"""
FULL: dict[str, Any] = {
    "thread_id": "t",
    "session": SESSION,
    "memory": MEMORY,
    "artifacts": ARTIFACTS,
    "pack": PACK,
}


@settings(max_examples=25, deadline=None)
@given(st.integers(60, 900), st.integers(0, 60), st.sampled_from(["implement", "chat"]))
def test_asking_for_ids_refuses_no_window_that_would_do_without_them(
    total: int, words: int, subject: str
) -> None:
    body = FULL | {
        "subject": subject,
        "model": "gpt-4o",
        "user_message": "word " * words,
        "budget": {"total": total, "layers": {"output": 20}},
    }
    plain = wire_request(**body, include=["messages", "layers", "usage"])
    request = wire_request(**body)
    without, bundle = bundle_or_code(plain), bundle_or_code(request)
    if isinstance(bundle, str):
        assert bundle == without
        return
    assert isinstance(without, ContextBundle)
    check_ledger(request, bundle)
    assert bundle.citations is not None
    assert {*re.findall(r"\[(\w:\d{6})!?\][ \n]", shown(bundle))} == {i.short for i in bundle.citations.items}
    for pinned in ("Every token is counted", "D-3"):
        assert (pinned in shown(bundle)) == (pinned in shown(without))


def bundle_or_code(request: AssemblyRequest) -> ContextBundle | str:
    try:
        return bundle_of(request)
    except Rejected as refused:
        return refused.code


def artifact(name: str, *, position: int = 0, is_pinned: bool = False) -> Fragment:
    return Fragment(
        layer="artifacts",
        node=f"artifact://{name}",
        renderings=(Rendering(depth=9, text=f"- {name}"),),
        provenance=(FragmentProvenance(resource_uri=f"artifact://{name}", resource_type="artifact"),),
        position=position,
        about=name,
        is_pinned=is_pinned,
    )


def shown(bundle: ContextBundle) -> str:
    assert bundle.messages is not None
    return bundle.messages[-1].content


def test_what_the_manifest_names_stands_in_the_prompt_and_nothing_else_does() -> None:
    bundle = bundle_of(wire_request(**FULL))
    assert bundle.citations is not None
    kinds = {item.kind for item in bundle.citations.items}
    assert kinds == {"function", "requirement", "decision", "artifact", "memory", "step"}
    musts = {*bundle.citations.must_cite}
    for item in bundle.citations.items:
        mark = f"[{item.short}!]" if item.short in musts else f"[{item.short}]"
        assert shown(bundle).count(mark) == 1
        assert item.short.startswith(LETTERS[item.kind])
    assert shown(bundle).count("!] ") == len(musts)
    assert (bundle.citations.template or "no template") in shown(bundle)


def test_the_pins_what_the_message_names_in_its_files_and_what_is_asked_for_must_be_cited() -> None:
    body = FULL | {
        "user_message": "Make retry in pay/client.py give up in time.",
        "must_cite": ["REQ-7", "REQ-8"],
    }
    citations = bundle_of(wire_request(**body)).citations
    assert citations is not None
    ids = {item.short: item.id for item in citations.items}
    assert {ids[short] for short in citations.must_cite} == {
        "D-3",
        "D-7",
        "pay/client.py::retry",
        "REQ-7",
        *(item.id for item in citations.items if item.kind == "step" and item.id.endswith("/3")),
    }
    assert citations.unresolved == ("REQ-8",)


def test_ids_are_those_of_the_thread_in_all_its_prompts_and_of_no_other() -> None:
    def shorts(**more: Any) -> dict[str, str]:
        citations = bundle_of(wire_request(**(FULL | more))).citations
        assert citations is not None
        return {item.id: item.short for item in citations.items}

    first = shorts()
    again = shorts(user_message="Something else.", memory=None, request_id="r2")
    assert again.items() <= first.items()
    assert not {*first.values()} & {*shorts(thread_id="u").values()}


def test_without_citations_in_the_request_there_are_no_ids_and_no_template() -> None:
    bundle = bundle_of(wire_request(**FULL, include=["messages", "usage"]))
    assert bundle.citations is None
    assert bundle.usage is not None
    assert bundle.usage.overhead.template is None
    assert "[d:" not in shown(bundle)
    assert "Cite" not in shown(bundle)


def test_a_subject_without_injection_is_not_told_how_to_answer() -> None:
    bundle = bundle_of(wire_request(**(FULL | {"subject": "chat"})))
    assert bundle.citations is not None
    assert bundle.citations.template is None
    assert "End your answer" not in shown(bundle)


def test_the_prompt_names_each_tool_that_has_to_be_called_once_and_pays_for_it() -> None:
    tools = ["get_tests", "get_code", "get_tests"]
    request = wire_request(**(FULL | {"required_tools": tools}), model="gpt-4o")
    bundle, plain = bundle_of(request), bundle_of(wire_request(**FULL, model="gpt-4o"))
    check_ledger(request, bundle)
    assert bundle.citations is not None
    assert plain.citations is not None
    said = bundle.citations.template
    assert said is not None
    assert said.startswith(f"{plain.citations.template}\n")
    assert said.endswith("call these tools: get_tests, get_code.")
    assert shown(bundle).count(said) == 1
    assert bundle.usage is not None
    assert plain.usage is not None
    assert (bundle.usage.overhead.template or 0) > (plain.usage.overhead.template or 0) > 0


@pytest.mark.parametrize("total", [700, 900, 1_100, 1_500, 3_000])
def test_ids_and_template_are_within_the_budget(total: int) -> None:
    request = wire_request(**FULL, model="gpt-4o", budget={"total": total, "layers": {"output": 100}})
    bundle = bundle_of(request)
    check_ledger(request, bundle)
    assert bundle.citations is not None
    assert all(item.short in shown(bundle) for item in bundle.citations.items)


def test_alike_ids_get_more_digits_whatever_their_order() -> None:
    """Among 3,000 of a kind some have the same six digits."""
    fragments = [artifact(f"a{n}", position=n) for n in range(3_000)]
    labels = label_fragments(fragments, SCOPE)
    shorts = {labels[fragment.key].short for fragment in fragments}
    assert len(shorts) == len(fragments)
    assert {len(short) for short in shorts} == {8, 11}
    random.Random(1).shuffle(fragments)
    assert label_fragments(fragments, SCOPE) == labels


def test_one_thing_in_two_places_has_one_id_and_must_be_cited_if_one_is_pinned() -> None:
    both = label_fragments([artifact("a"), artifact("a", position=1, is_pinned=True)], SCOPE)
    assert len(both) == 2
    assert {*both.values()} == {Label(next(iter(both.values())).short, "artifact", "a", is_must=True)}


def test_what_a_child_inherits_comes_without_the_parents_labels() -> None:
    label = Label("a:483921", "artifact", "a")
    plain, noted = artifact("a"), replace(artifact("b", position=1), about="")
    parent = [
        Placed(fragment=plain, score=0.5, depth=9, text=marked("- a", label), rule="whole"),
        Placed(fragment=noted, score=0.4, depth=9, text="- [a:483921] is quoted", rule="whole"),
    ]
    heirs = FocusSkeletonCompressor(counter_for("bytes")).compress(
        parent, ["artifact://a", "artifact://b"], 99
    )
    assert [heir.renderings[0].text for heir in heirs] == ["- a", "- [a:483921] is quoted"]


@pytest.mark.parametrize("name_shown", ["", "### [f:483921] retry"])
@pytest.mark.parametrize("encoding", ["o200k_base", "bytes"])
def test_what_is_cut_off_leaves_an_id_once_and_something_behind_it(encoding: str, name_shown: str) -> None:
    counter = counter_for(encoding)
    whole = "[f:483921]\n```python\ndef retry(deadline: float) -> None:\n    attempt(deadline)\n```"
    cuts = {cut_into(whole, name_shown, left, counter=counter) for left in range(90)} - {""}
    assert len(cuts) > 2
    for cut in cuts:
        assert cut.count("[f:483921]") == 1
        assert cut.startswith(name_shown)
        assert name_shown or "def" in cut


@settings(max_examples=60, deadline=None)
@given(st.text(alphabet="#-*1. `~[]f:0\nab", max_size=20), st.booleans())
def test_a_label_can_be_taken_off_again(text: str, is_must: bool) -> None:  # noqa: FBT001  # hypothesis gives it
    label = Label("f:483921", "function", "x.py::y", is_must=is_must)
    assert label.mark in marked(text, label)
    assert unmarked(marked(text, label)) == text


def test_a_label_stands_behind_the_mark_of_a_list_or_heading_and_above_a_fence() -> None:
    label = Label("f:483921", "function", "x.py::y")
    assert marked("- item", label) == "- [f:483921] item"
    assert marked("### y", label) == "### [f:483921] y"
    assert marked("```python\nx\n```", label) == "[f:483921]\n```python\nx\n```"
