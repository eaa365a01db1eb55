from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import replace
from functools import cache
from html.parser import HTMLParser

from hypothesis import given, settings
from hypothesis import strategies as st

from schemas.receipt import ReceiptFragment, ReceiptRecord
from tests.support.explaining import bare, crowded, policy, stored_of
from worker.explaining.difference import Change, Difference, difference
from worker.explaining.page import (
    MAX_OPEN_ROWS,
    MAX_PAGE_TEXT_CHARS,
    MAX_TEXT_CHARS,
    difference_page,
    explanation_page,
    supposed_page,
)
from worker.explaining.replay import Verdict
from worker.explaining.stored import Stored
from worker.explaining.supposing import Supposed, Supposition, suppose
from worker.explaining.view import Explanation, explain, layer_views

MARKUP = st.text(st.sampled_from("<>\"'&/=!-{}%# \n`abconscriptstyle\0\u202e]"), min_size=1, max_size=40)
BENIGN = "x"


class _Read(HTMLParser):
    """Elements with the names of their attributes, and all text."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.elements: Counter[tuple[str, ...]] = Counter()
        self.text = ""
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements[tag, *[name for name, _ in attrs]] += 1

    def handle_data(self, data: str) -> None:
        self.text += data


@cache
def one() -> Stored:
    return asyncio.run(stored_of(crowded()))


@cache
def two() -> Stored:
    return asyncio.run(stored_of(crowded(request_id="r-18", budget={"total": 800})))


@cache
def explained() -> Explanation:
    return explain(one())


@cache
def found() -> Difference:
    return difference(one(), two())


@cache
def supposed() -> Supposed:
    return suppose(one().capture(), policy(), Supposition(), steps=0)


def brought(words: str) -> Explanation:
    """With these words wherever a request may have brought some."""
    whole = explained()
    layers = tuple(
        replace(
            layer,
            fragments=tuple(
                replace(f, node=words, why=words, text=words, strategies=(words,), also_from=(words,))
                for f in layer.fragments[:2]
            ),
        )
        for layer in whole.layers
    )
    return replace(
        whole,
        layers=layers,
        request_id=words,
        thread_id=words,
        volk=words,
        subject=words,
        model=words,
        snapshot_id=words,
        failures=(words,),
    )


def pages(words: str) -> list[str]:
    whole, first_byte = brought(words), found().first_byte
    assert first_byte is not None
    differs = replace(
        found(),
        first=words,
        second=words,
        request=(Change(name=words, before=words, after=words),),
        request_note=words,
        fragments=tuple(replace(c, node=words, before=words, after=words) for c in found().fragments),
        first_byte=replace(first_byte, same_chars=0, before=words, after=words),
    )
    verdict = Verdict(outcome="differs", detail=words, code_version=words, code_version_now=words * 2)
    return [
        explanation_page(whole, verdict=verdict),
        difference_page(differs, first=whole, second=whole),
        supposed_page(
            replace(supposed(), fragments=differs.fragments, worth_end=words),
            Supposition(strategy=words),
            explanation=whole,
        ),
    ]


@settings(max_examples=15)
@given(MARKUP)
def test_no_words_become_markup(words: str) -> None:
    for page, benign in zip(pages(words), benign_pages(), strict=True):
        assert _Read(page).elements == _Read(benign).elements
        assert "\u202e" not in page
        assert "\0" not in page


@cache
def benign_pages() -> list[str]:
    return pages(BENIGN)


@settings(max_examples=15)
@given(st.text(st.characters(codec="utf-8", exclude_categories=["Cc", "Cf", "Zl", "Zp", "Cn"]), min_size=1))
def test_a_name_is_shown_as_it_is(words: str) -> None:
    for page in pages(words):
        assert words in _Read(page).text


def test_the_same_answer_makes_the_same_page() -> None:
    assert explanation_page(explained()) == explanation_page(explain(one()))


def test_a_bundle_alone_is_explained_without_ledger_and_texts() -> None:
    whole = explain(bare(one()))
    layers = tuple(
        replace(layer, tokens=None, budget_tokens=None, reserved_tokens=None) for layer in whole.layers
    )
    page = explanation_page(replace(whole, layers=layers, spent_tokens=None, total_tokens=None))
    assert "capture_not_kept" in page
    assert "<rect" not in page
    assert "<pre" not in page


def test_long_texts_are_cut_and_say_so_and_a_page_holds_no_more_than_its_limit() -> None:
    whole = explained()
    fragment = whole.layers[1].fragments[0]
    text = "z" * (MAX_TEXT_CHARS + 5)
    many = tuple(replace(fragment, text=text) for _ in range(MAX_PAGE_TEXT_CHARS // MAX_TEXT_CHARS + 9))
    page = explanation_page(replace(whole, layers=(replace(whole.layers[1], fragments=many),)))
    assert (
        page.count("z" * MAX_TEXT_CHARS + "<i> … 5 characters more") == MAX_PAGE_TEXT_CHARS // MAX_TEXT_CHARS
    )
    assert MAX_PAGE_TEXT_CHARS <= page.count("z") < MAX_PAGE_TEXT_CHARS + 100


def test_a_long_list_begins_closed_and_a_short_one_open() -> None:
    whole = explained()
    fragment = whole.layers[1].fragments[0]
    for count, is_open in ((MAX_OPEN_ROWS, 1), (MAX_OPEN_ROWS + 1, 0)):
        layer = replace(whole.layers[1], fragments=(fragment,) * count, rest=())
        page = explanation_page(replace(whole, layers=(layer,)))
        assert page.count('<details class="group" open>') == is_open


def line(layer: str, node: str, into: str | None = None) -> ReceiptFragment:
    fate, rule = ("kept", "whole") if into is None else ("merged", "exact")
    return ReceiptFragment.model_validate(
        {"layer": layer, "node": node, "rank": 0, "size_bytes": 1, "fate": fate, "rule": rule, "into": into}
    )


def test_a_fragment_names_all_that_it_speaks_for_and_no_other_ones() -> None:
    lines = (
        line("graph", "a"),
        line("ast", "a1", into="graph:a"),
        line("memory", "a2", into="graph:a"),
        line("graph", "b"),
        line("ast", "c1", into="graph:only-counted"),
        line("graph", "a"),
    )
    record: ReceiptRecord = one().record.model_copy(update={"fragments": lines})
    named = [
        (fragment.node, fragment.also_from)
        for layer in layer_views(record, {}, None)
        for fragment in layer.fragments
        if layer.layer == "graph"
    ]
    assert named == [("a", ("ast:a1", "memory:a2")), ("b", ()), ("a", ())]
