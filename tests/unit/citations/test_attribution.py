from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from schemas.bundle import ContextBundle
from schemas.citations import Citations
from schemas.receipt import ReceiptRecord
from tests.support.assembling import bundle_of, wire_request
from tests.unit.citations.test_labels import FULL
from worker.citations.attribution import attribute

WHOLE: dict[str, Any] = FULL | {"include": ["messages", "usage", "layers", "citations", "receipt"]}


@pytest.fixture(scope="module")
def bundle() -> ContextBundle:
    return bundle_of(wire_request(**WHOLE))


def parts(bundle: ContextBundle) -> tuple[ReceiptRecord, Citations]:
    assert bundle.citations is not None
    assert bundle.receipt is not None
    assert bundle.receipt.record is not None
    return bundle.receipt.record, bundle.citations


def test_whoever_cites_all_used_every_kind_of_thing_and_nothing_that_has_no_id(bundle: ContextBundle) -> None:
    record, citations = parts(bundle)
    used = attribute(record, citations, [item.short for item in citations.items])
    assert {source for source, tokens in used.sources.items() if tokens.cited_tokens} == {
        *("artifact", "memory", "pack", "plan", "session")
    }
    assert used.layers["graph"].cited_tokens == used.layers["graph"].tokens
    # Goal, criteria and blockers are read, and have no id to be cited by.
    assert 0 < used.layers["mission"].cited_tokens < used.layers["mission"].tokens


def test_one_citation_counts_for_its_layer_and_source_alone(bundle: ContextBundle) -> None:
    record, citations = parts(bundle)
    [short] = [item.short for item in citations.items if item.id == "D-3"]
    used = attribute(record, citations, [short])
    [line] = [line for line in record.fragments if line.node == "session://decision/D-3"]
    assert {name: tokens.cited_tokens for name, tokens in used.layers.items() if tokens.cited_tokens} == {
        "mission": line.tokens
    }
    assert {name: tokens.cited_tokens for name, tokens in used.sources.items() if tokens.cited_tokens} == {
        "session": line.tokens
    }


@settings(max_examples=30)
@given(st.data())
def test_no_part_used_more_than_it_showed_and_layers_and_sources_add_up_alike(
    bundle: ContextBundle, data: st.DataObject
) -> None:
    record, citations = parts(bundle)
    shorts = [item.short for item in citations.items]
    cited = data.draw(st.lists(st.sampled_from([*shorts, "f:000000", "x"]), unique=True))
    used = attribute(record, citations, cited)
    assert bundle.usage is not None
    for layer, tokens in used.layers.items():
        assert 0 <= tokens.cited_tokens <= tokens.tokens <= bundle.usage.layers[layer].spent
    for field in ("cited_tokens", "tokens"):
        by_layer, by_source = (
            sum(getattr(tokens, field) for tokens in by.values()) for by in (used.layers, used.sources)
        )
        assert by_layer == by_source
    more = attribute(record, citations, [*cited, *shorts[:1]])
    assert all(more.layers[name].cited_tokens >= used.layers[name].cited_tokens for name in used.layers)
