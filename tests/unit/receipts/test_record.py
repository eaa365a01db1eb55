"""The receipt agrees with the bundle, and is canonical, whatever was asked."""

from __future__ import annotations

import asyncio
import gc
import json
from collections import Counter
from dataclasses import replace

import pytest
import rfc8785

from schemas.codes import PARTS
from schemas.fragments import FragmentProvenance
from schemas.receipt import (
    MAX_LEFT_OUT_LINES,
    MAX_SHOWN_LINES,
    ReceiptRecord,
    receipt_id,
)
from schemas.wire import canonical_json, sha256_hex
from tests.support.assembling import assemble, wire_request
from tests.support.explaining import crowded, policy, served, stored
from worker.assembly import Assembled
from worker.explaining.view import SHOWN
from worker.fusing import Fusing, fuse_and_seal
from worker.fusion.masking import Admitted, admit
from worker.graph.request import analyze_request
from worker.planning import plan_request
from worker.ports import Fragment, LayerContribution, Rendering, Scope
from worker.receipts.capture import Contributed
from worker.sealing import SealedBundle


@pytest.fixture(scope="module")
def bundles() -> list[Assembled]:
    return asyncio.run(served(seed=5, count=24))


def record_of(assembled: Assembled) -> ReceiptRecord:
    return ReceiptRecord.model_validate_json(assembled.trail.record)


def lines_and_rest(record: ReceiptRecord) -> int:
    return len(record.fragments) + sum(rest.count for rest in record.omitted)


def test_the_record_is_canonical_and_the_id_is_of_it(bundles: list[Assembled]) -> None:
    assert len(bundles) > 15
    for one in bundles:
        record, bundle = one.trail.record, one.bundle
        fields = json.loads(record)
        assert rfc8785.dumps(fields) == record
        digest = sha256_hex(canonical_json([bundle.project_id, bundle.context_hash, fields]))
        assert bundle.receipt.receipt_id == digest[:26]
        assert bundle.receipt.receipt_id == receipt_id(bundle.project_id, bundle.context_hash, record)


def test_every_fragment_considered_is_accounted_for_once(bundles: list[Assembled]) -> None:
    for one in bundles:
        record, counts = record_of(one), one.bundle.receipt.counts
        assert lines_and_rest(record) == counts.considered
        shown = [line for line in record.fragments if line.fate in SHOWN]
        assert len(shown) == counts.kept == counts.considered - counts.dropped
        assert sum(source.fragments + source.capped for source in record.sources) == counts.considered
        assert one.usage.counts is not None
        assert one.usage.counts.fragments_kept == counts.kept


def test_tokens_of_the_lines_are_within_those_of_their_layer(bundles: list[Assembled]) -> None:
    for one in bundles:
        totals = one.usage.usage
        assert totals is not None
        spent = Counter[str]()
        for line in record_of(one).fragments:
            assert (line.tokens is not None) == (line.depth is not None) == (line.fate in SHOWN)
            spent[line.layer] += line.tokens or 0
        for layer, tokens in spent.items():
            # Marks, headings and line breaks are the rest.
            assert tokens <= totals.layers[layer].spent  # pyright: ignore[reportArgumentType]  # a layer's name


def test_a_shown_line_costs_what_its_text_costs() -> None:
    contribution = layer("x y", "some words about retries", "中文字符", relevance=0.5)
    sealed = fused(contribution)
    counter = plan_request(frame(), SCOPE, policy()).counter
    record = ReceiptRecord.model_validate_json(sealed.recorded.record)
    costs = {line.node: line.tokens for line in record.fragments}
    for fragment in contribution.fragments:
        cost = costs[fragment.node]
        assert cost is not None
        assert abs(cost - counter.count(fragment.renderings[0].text)) <= 1  # a seam moves a token at most


# --- What decides ------------------------------------------------------------------------------------

SCOPE = Scope(project_id="p", thread_id=None)


def frame(**more: object):  # a RequestFrame, whose name says no more
    request = wire_request(**more)
    assert request.as_of is not None
    return analyze_request(request, subjects=policy().subjects, as_of=request.as_of)


def layer(*texts: str, relevance: float = 0.5, capped: int = 0) -> LayerContribution:
    fragments = tuple(
        Fragment(
            layer="memory",
            node=f"memory://{number}",
            renderings=(Rendering(depth=9, text=text),),
            provenance=(FragmentProvenance(resource_uri=f"memory://{number}", resource_type="memory"),),
            position=number,
            rank=number,
            relevance=relevance,
        )
        for number, text in enumerate(texts)
    )
    return LayerContribution(layer="memory", status="ok", heading="# M", fragments=fragments, capped=capped)


def fused(contribution: LayerContribution, *, total: int = 8_000, **more: object) -> SealedBundle:
    framed = frame(budget={"total": total}, **more)
    admitted = admit({"memory": contribution}, is_masking=True)
    plan = plan_request(framed, SCOPE, policy())
    return fuse_and_seal(
        Fusing(
            frame=framed,
            plan=plan,
            admitted=admitted,
            request_digest="0" * 64,
            request_line_digest="1" * 64,
        )
    )


def test_what_there_is_no_room_for_and_what_says_the_same_are_told_apart() -> None:
    same = "The payment client must not retry after its deadline has passed, whatever the server says."
    long = "word " * 3_000
    sealed = fused(layer(same, same, long), total=1_500)
    record = ReceiptRecord.model_validate_json(sealed.recorded.record)
    fates = {line.node: (line.fate, line.rule, line.into) for line in record.fragments}
    assert fates["memory://0"][0] == "kept"
    assert fates["memory://1"] == ("merged", "exact", "memory:memory://0")
    assert fates["memory://2"][:2] == ("dropped", "no_room")


def test_nothing_that_sources_gave_is_kept_once_its_bundle_is_gone() -> None:
    """A cache that is keyed by it held a thousand requests' worth, 20 MB, however alike they were."""
    fused(layer("first, which fills what is kept"))
    before = contributions_alive()
    for number in range(5):
        fused(layer(f"Attempt {number} ended at its own deadline.", f"{number} more are to come."))
    assert contributions_alive() <= before


def contributions_alive() -> int:
    gc.collect()
    return sum(type(one) is Contributed for one in gc.get_objects())


def test_what_the_source_itself_left_out_is_counted() -> None:
    sealed = fused(layer("one", capped=7))
    record = ReceiptRecord.model_validate_json(sealed.recorded.record)
    (rest,) = record.omitted
    assert (rest.fate, rest.rule, rest.count) == ("capped", "source_cap", 7)
    assert sealed.bundle.receipt.counts.considered == 8


def test_a_receipt_stays_small_however_many_fragments_there_are() -> None:
    texts = [f"fact number {number} of very many, each unlike the others" for number in range(3_000)]
    sealed = fused(layer(*texts), total=20_000)
    record = ReceiptRecord.model_validate_json(sealed.recorded.record)
    assert lines_and_rest(record) == 3_000
    assert len(record.fragments) <= MAX_SHOWN_LINES + MAX_LEFT_OUT_LINES * len(PARTS)
    assert len(sealed.recorded.record) < 400_000
    assert {rest.fate for rest in record.omitted} <= {"kept", "reduced", "cut", "dropped"}


def test_masks_are_counted_by_fragment_and_no_value_is_kept() -> None:
    token = "ghp_" + "a1B2c3D4e5" * 3 + "f6G7h8"
    framed = frame()
    plan = plan_request(framed, SCOPE, policy())
    admitted = admit({"memory": layer(f"a {token} b {token}", "clean")}, is_masking=True)
    fusing = Fusing(
        frame=framed,
        plan=plan,
        admitted=admitted,
        request_digest="0" * 64,
        request_line_digest="1" * 64,
    )
    sealed = fuse_and_seal(fusing)
    record = ReceiptRecord.model_validate_json(sealed.recorded.record)
    assert [line.masked for line in record.fragments] == [2, 0]
    assert record.masked_secrets == 2
    assert token.encode() not in sealed.recorded.record
    assert token not in sealed.bundle.model_dump_json()
    unmasked = replace(fusing, admitted=Admitted(contributions=admitted.contributions, is_masking=False))
    other = ReceiptRecord.model_validate_json(fuse_and_seal(unmasked).recorded.record)
    assert other.masked_secrets is None


def test_tokens_by_source_are_those_of_the_lines(bundles: list[Assembled]) -> None:
    named = set[str]()
    for one in bundles:
        by_source, lines = one.usage.tokens_by_source, record_of(one).fragments
        assert by_source is not None
        expected = Counter[str]()
        for line in lines:
            if line.fate in SHOWN:
                expected[line.node.partition("://")[0]] += line.tokens or 0
        assert by_source == expected
        assert list(by_source) == sorted(by_source)
        named |= by_source.keys()
    assert len(named) > 2


async def test_the_record_stands_in_the_bundle_where_it_was_asked_for() -> None:
    one = await assemble(crowded(include=["messages", "receipt"]))
    assert one.bundle.receipt.record == record_of(one)
    assert stored(one).record == one.bundle.receipt.record
