from __future__ import annotations

import re
from dataclasses import replace
from itertools import groupby

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from schemas.codes import TaskType
from tests.unit.graph.graphs import edge, function, large_graph, snapshot_of
from worker.budget.tokens import counter_for
from worker.citations.labels import label_fragments, label_tokens, marked
from worker.graph.history import COMMITTED_AT
from worker.graph.links import link_request
from worker.graph.model import Node
from worker.graph.pack_file import parse_pack
from worker.graph.pack_writer import PackHead, WrittenPack, write_empty_pack, write_pack
from worker.graph.packing import NAMES_HEADING, NAMES_SHARE, TextSizes
from worker.graph.sections import FileSections, Layout, is_citable
from worker.graph.selection import EmptyReason, Ranking, Selection, select
from worker.graph.snapshot import Snapshot
from worker.ports import Scope
from worker.providers.contribution import layer_text
from worker.providers.graph import HEADING, build_pack

COUNTER = counter_for("o200k_base")
GRAPH = large_graph(functions=200, calls=500)
LARGE = snapshot_of(GRAPH.nodes, GRAPH.edges)
FUNCTIONS = [node for node in LARGE.nodes if node.label == "Function"]
LEAST_TOKENS = 200
"""More than the front matter of any pack here takes."""


def head(budget_tokens: int, encoding: str = "o200k_base", layout: Layout = "file") -> PackHead:
    return PackHead(
        project_id="shop", requester="volk", encoding=encoding, budget_tokens=budget_tokens, layout=layout
    )


def shown(pack: WrittenPack) -> str:
    """The layer as a prompt has it, below its heading."""
    return layer_text(build_pack(pack.text, project_id="shop")).removeprefix(f"{HEADING}\n") + "\n"


def selection_for(
    text: str, snapshot: Snapshot = LARGE, *, task_type: TaskType = "DEBUG", ranking: Ranking = "graph"
) -> Selection:
    return select(link_request(text, (), snapshot), snapshot, task_type=task_type, ranking=ranking)


def packed(
    text: str, budget_tokens: int, snapshot: Snapshot = LARGE, *, task_type: TaskType = "DEBUG"
) -> WrittenPack:
    selection = selection_for(text, snapshot, task_type=task_type)
    return write_pack(selection, snapshot, head(budget_tokens), sizes=TextSizes(COUNTER))


def request(number: int) -> str:
    node = FUNCTIONS[number % len(FUNCTIONS)]
    return f"Fix {node.name}()\n\n{node.text[:300]}"


@settings(max_examples=15)
@given(
    st.integers(0, 199),
    st.integers(LEAST_TOKENS, 6_000),
    st.sampled_from(["graph", "hop"]),
    st.sampled_from(["o200k_base", "cl100k_base", "bytes"]),
)
def test_the_whole_text_never_takes_more_than_the_budget_and_says_what_it_takes(
    number: int, budget_tokens: int, ranking: Ranking, encoding: str
) -> None:
    counter = counter_for(encoding)
    budget_tokens *= 4 if encoding == "bytes" else 1
    selection = selection_for(request(number), ranking=ranking)
    pack = write_pack(selection, LARGE, head(budget_tokens, encoding), sizes=TextSizes(counter))
    assert pack.spent_tokens == counter.count(pack.text) <= budget_tokens
    assert f"\nspent: {pack.spent_tokens}\n" in pack.text


@settings(max_examples=20)
@given(st.integers(0, 199), st.integers(0, 6_000), st.sampled_from(["o200k_base", "cl100k_base", "bytes"]))
def test_what_a_prompt_shows_of_a_pack_never_takes_more_than_the_budget_and_is_what_it_says(
    number: int, budget_tokens: int, encoding: str
) -> None:
    counter = counter_for(encoding)
    about = head(budget_tokens, encoding, "prompt")
    pack = write_pack(selection_for(request(number)), LARGE, about, sizes=TextSizes(counter))
    spent = counter.count(shown(pack)) if "\n## " in pack.text else 0
    assert pack.spent_tokens == spent <= budget_tokens


@settings(max_examples=20)
@given(st.integers(0, 199), st.integers(0, 4_000), st.sampled_from(["o200k_base", "cl100k_base", "bytes"]))
def test_the_ids_that_a_prompt_adds_are_paid_for_by_the_pack(
    number: int, budget_tokens: int, encoding: str
) -> None:
    counter = counter_for(encoding)
    about = replace(head(budget_tokens, encoding, "prompt"), label_tokens=label_tokens(counter))
    pack = write_pack(selection_for(request(number)), LARGE, about, sizes=TextSizes(counter))
    layer = build_pack(pack.text, project_id="shop")
    labels = label_fragments(
        layer.fragments,
        Scope(project_id="shop", thread_id=None),
        must_cite=[f.about for f in layer.fragments],
    )
    labelled = [
        replace(f, renderings=[replace(r, text=marked(r.text, labels[f.key])) for r in f.renderings])
        if f.key in labels
        else f
        for f in layer.fragments
    ]
    assert len(labels) == (len(pack.packed.bodies) if pack.packed else 0)
    text = layer_text(replace(layer, fragments=tuple(labelled))).removeprefix(f"{HEADING}\n") + "\n"
    spent = counter.count(text) if "\n## " in pack.text else 0
    # An id before a code fence has a token less than one in a heading.
    assert pack.spent_tokens - len(labels) <= spent <= pack.spent_tokens <= budget_tokens


@settings(max_examples=10)
@given(st.integers(0, 199), st.integers(1_000, 4_000))
def test_a_prompt_of_the_same_budget_shows_more_code_than_a_file(number: int, budget_tokens: int) -> None:
    selection, sizes = selection_for(request(number)), TextSizes(COUNTER)
    shorter, longer = (
        write_pack(selection, LARGE, head(budget_tokens, layout=layout), sizes=sizes).packed
        for layout in ("file", "prompt")
    )
    assert shorter is not None
    assert longer is not None
    assert len("".join(b.section.shown for b in longer.bodies)) > len(
        "".join(b.section.shown for b in shorter.bodies)
    )


@settings(max_examples=15)
@given(st.integers(0, 199), st.integers(LEAST_TOKENS, 4_000), st.sampled_from(["file", "prompt"]))
def test_a_pack_reads_back_as_what_was_written(number: int, budget_tokens: int, layout: Layout) -> None:
    selection = selection_for(request(number))
    pack = write_pack(selection, LARGE, head(budget_tokens, layout=layout), sizes=TextSizes(COUNTER))
    read = parse_pack(pack.text, project_id="shop")
    bodies = pack.packed.bodies if pack.packed else ()
    nodes = [section.node for section in read.sections if section.node]
    assert sorted((n.rank, n.node_id, n.score, n.tokens, n.template) for n in nodes) == [
        (b.rank, b.node.id, b.score, b.section.tokens, b.template) for b in bodies
    ]
    paths = [n.node_id.partition("::")[0] for n in nodes]
    assert [path for path, _ in groupby(paths)] == list(dict.fromkeys(b.node.path for b in bodies))
    keys = ("pack_version", "project", "snapshot", "ranking", "relevance", "encoding", "budget")
    assert [read.front_matter[key] for key in keys] == [
        *("1", "shop", "0" * 16, "graph", "off", "o200k_base", str(budget_tokens))
    ]


@settings(max_examples=15)
@given(st.integers(0, 199), st.data())
def test_whatever_sections_are_deleted_the_rest_reads_as_before(number: int, data: st.DataObject) -> None:
    pack = packed(request(number), 2_500)
    sections = re.split(r"(?m)^(?=## )", pack.text)
    before = {s.node.node_id: s for s in parse_pack(pack.text, project_id="shop").sections if s.node}
    kept = [sections[0], *(s for s in sections[1:] if data.draw(st.booleans()))]
    after = parse_pack("".join(kept), project_id="shop").sections
    assert all(before[section.node.node_id] == section for section in after if section.node)
    assert sum(section.node is not None for section in after) == sum("<!-- node: " in s for s in kept)


@settings(max_examples=15)
@given(st.integers(0, 199), st.integers(LEAST_TOKENS, 3_000), st.integers(1, 3_000))
def test_a_node_is_left_out_only_for_its_size(number: int, budget_tokens: int, more: int) -> None:
    """Every better node that is missing had no room when its turn came, under either budget."""
    selection = selection_for(request(number))
    sizes = TextSizes(COUNTER)
    for budget in (budget_tokens, budget_tokens + more):
        pack = write_pack(selection, LARGE, head(budget), sizes=sizes).packed
        assert pack is not None
        room = budget - COUNTER.count(_front(selection, budget, sizes)) - int(NAMES_SHARE * budget)
        in_full = {body.rank: body for body in pack.bodies}
        for rank in range(max(in_full, default=0)):
            if rank in in_full:
                room -= in_full[rank].section.tokens
                continue
            number_at_rank = selection.ranked[rank][0]
            node = LARGE.nodes[number_at_rank]
            if node.label != "Module":
                found = sizes.body(
                    number_at_rank,
                    node,
                    keeps_docstring=False,
                    keeps_comments=False,
                    ending=FileSections.ending,
                    limit_tokens=10**9,
                )
                assert found is not None
                # A heading and provenance take at least twenty tokens.
                assert found[1] + 20 > room - 100


def _front(selection: Selection, budget: int, sizes: TextSizes) -> str:
    text = write_pack(selection, LARGE, head(budget), sizes=sizes).text
    return text[: text.index("\n---\n") + 5]


@settings(max_examples=10)
@given(st.integers(0, 199), st.lists(st.integers(LEAST_TOKENS, 6_000), min_size=1, max_size=3))
def test_what_was_counted_before_changes_no_pack(number: int, budgets: list[int]) -> None:
    selection = selection_for(request(number))
    used = TextSizes(COUNTER)
    for budget in budgets:
        fresh = write_pack(selection, LARGE, head(budget), sizes=TextSizes(COUNTER))
        assert write_pack(selection, LARGE, head(budget), sizes=used).text == fresh.text


def test_more_budget_keeps_the_best_nodes() -> None:
    few, many = packed(request(3), 800).packed, packed(request(3), 8_000).packed
    assert few is not None
    assert many is not None
    assert {few.bodies[0].number} <= {body.number for body in many.bodies}
    assert len(many.bodies) > len(few.bodies)


def test_docstrings_are_left_out_unless_the_work_is_documentation() -> None:
    node = function("a.py", "load_cart", "    return 1", docstring="Reads it.")
    snapshot = snapshot_of([node])
    assert '"""Reads it."""' not in packed("load_cart()", 500, snapshot).text
    assert '"""Reads it."""' in packed("load_cart()", 500, snapshot, task_type="DOCUMENT").text


def test_a_body_that_is_all_docstring_keeps_it() -> None:
    node = function("a.py", "CartError", "", docstring="No cart.", label="Class")
    assert '"""No cart."""' in packed("CartError", 500, snapshot_of([node])).text


def test_what_does_not_fit_is_named_and_the_path_stands_once() -> None:
    big = [function("shop/big.py", f"cart_{n}", "    x = 1\n" * 600) for n in range(3)]
    text = packed("cart_0 cart_1 cart_2", 600, snapshot_of(big)).text
    assert text.endswith(f"{NAMES_HEADING}\nshop/big.py: cart_0, cart_1, cart_2\n")


@settings(max_examples=10)
@given(st.integers(0, 199), st.integers(500, 4_000))
def test_names_come_in_the_order_of_what_speaks_for_them_whatever_their_size(
    number: int, budget_tokens: int
) -> None:
    selection = selection_for(request(number))
    pack = write_pack(selection, LARGE, head(budget_tokens), sizes=TextSizes(COUNTER)).packed
    assert pack is not None
    scores = dict(selection.ranked)
    for file in pack.names:
        sizes = LARGE.documents.log_sizes[LARGE.document_of_node[list(file.numbers)]].tolist()
        evidence = [round(scores[n] + 0.7 * size, 6) for n, size in zip(file.numbers, sizes, strict=True)]
        assert evidence == sorted(evidence, reverse=True)


def test_what_is_left_of_a_module_is_no_body() -> None:
    module = function("shop/cart.py", "<module>", "    import cart", label="Module")
    text = packed("cart", 500, snapshot_of([module, function("shop/cart.py", "cart")])).text
    assert "import cart" not in text


def test_code_that_holds_fences_is_fenced_longer() -> None:
    node = function("a.py", "fence", '    return """\n```python\n## Function evil\n```\n````\n"""')
    read = parse_pack(packed("fence()", 500, snapshot_of([node])).text, project_id="shop")
    assert [section.node.node_id for section in read.sections if section.node] == ["a.py::fence"]
    assert "`````python" in read.sections[0].text


HOSTILE = [
    "a.py::b-->c",
    "a.py::b | template: X | rank: 1",
    "a b/`c`.py::d",
    'a.py::"e"',
    "a.py::f#2",
    "ü.py::größe",
    "a.py::" + "g" * 2_000,
    "a.py::h\x85i",
]


@pytest.mark.parametrize("node_id", HOSTILE)
def test_any_id_reads_back_or_is_shown_without_provenance(node_id: str) -> None:
    plain = function("a.py", "cart")
    node = Node(
        label="Function", id=node_id, name="cart", path=node_id.partition("::")[0], text="def cart(): 1\n"
    )
    snapshot = snapshot_of([plain, node])
    read = parse_pack(packed("cart()", 6_000, snapshot).text, project_id="shop")
    cited = {section.node.node_id for section in read.sections if section.node}
    assert cited == ({plain.id, node_id} if is_citable(node_id) else {plain.id})


@pytest.mark.parametrize("reason", ["graph_unavailable", "not_indexed", "nothing_found"])
def test_an_empty_pack_says_why_and_is_a_pack(reason: EmptyReason) -> None:
    pack = write_empty_pack(head(300), reason=reason, sizes=TextSizes(COUNTER))
    read = parse_pack(pack.text, project_id="shop")
    assert read.front_matter["reason"] == reason
    assert [section.node for section in read.sections] == [None]
    assert pack.spent_tokens == COUNTER.count(pack.text) <= 300


def test_nothing_found_gives_an_empty_pack() -> None:
    pack = packed("\N{SNOWMAN}", 300)
    assert "reason: nothing_found" in pack.text
    assert pack.packed is None


def test_recent_changes_and_similar_patterns_are_listed() -> None:
    base, one, two = (function("a.py", name, label="Class") for name in ("Store", "DiskStore", "NetStore"))
    file = Node(label="File", id="a.py", path="a.py")
    commit = Node(
        label="Commit",
        id="d" * 40,
        name="Keep\ntwo",
        text="Keep two",
        properties=((COMMITTED_AT, "2026-01-01T00:00:00Z"),),
    )
    edges = [
        edge(one, "INHERITS_FROM", base),
        edge(two, "INHERITS_FROM", base),
        edge(commit, "TOUCHES", file),
    ]
    snapshot = snapshot_of([base, one, two, file, commit], edges)
    assert "## Recent changes\n- dddddddddd Keep two\n" in packed("DiskStore fails", 900, snapshot).text


HOSTILE_TEXT = st.text(
    st.sampled_from(" \t\n\r\x85\xa0\u2028\u3000/#-`|'s1234\u0661aZé\u0301😀<>"), max_size=30
)


@settings(max_examples=80)
@given(
    st.lists(st.tuples(HOSTILE_TEXT, HOSTILE_TEXT, HOSTILE_TEXT), min_size=1, max_size=4),
    st.sampled_from(["o200k_base", "cl100k_base", "bytes"]),
    st.sampled_from(["1", "1.1"]),
    st.integers(LEAST_TOKENS, 1_200),
    HOSTILE_TEXT,
)
def test_what_is_said_to_be_spent_is_what_the_whole_text_has(
    parts: list[tuple[str, str, str]], encoding: str, factor: str, budget_tokens: int, project_id: str
) -> None:
    counter = counter_for(encoding, safety_factor=factor)
    nodes = {
        node.ref: node
        for name, text, path in parts
        for node in (Node(label="Function", id=f"{path}::{name}", name=name, path=path, text=text),)
    }
    anchor = function("a.py", "anchor")
    edges = [edge(anchor, "CALLS", node) for node in nodes.values() if node.ref != anchor.ref]
    snapshot = snapshot_of([*nodes.values(), anchor], edges)
    about = PackHead(
        project_id=f"{project_id}\nspent: 0\n",
        requester="volk",
        encoding=encoding,
        budget_tokens=budget_tokens * (4 if encoding == "bytes" else 1),
    )
    pack = write_pack(selection_for("anchor()", snapshot), snapshot, about, sizes=TextSizes(counter))
    assert pack.spent_tokens == counter.count(pack.text)
    assert f"\nspent: {pack.spent_tokens}\n---\n" in pack.text


@settings(max_examples=50)
@given(
    st.integers(0, 10**6),
    st.floats(-99, 99),
    st.integers(0, 10**7),
    st.sampled_from(["o200k_base", "cl100k_base", "bytes"]),
)
def test_figures_are_counted_by_their_length(rank: int, score: float, tokens: int, encoding: str) -> None:
    sizes = TextSizes(counter_for(encoding))
    line = f" | template: DEBUG.tests | rank: {rank} | score: {score:.6f} | tokens: {tokens} -->\n"
    assert sizes.of_figures(line.translate(str.maketrans("0123456789", "9876543210"))) == sizes.of_figures(
        line
    )
    assert sizes.of_figures(line) == counter_for(encoding).count(line)


@settings(max_examples=30)
@given(st.text(max_size=40), st.text(max_size=120), st.text(max_size=20))
def test_any_node_can_be_packed(name: str, text: str, path: str) -> None:
    node = Node(label="Function", id=f"{path}::{name}", name=name, path=path, text=text, language=name[:5])
    anchor = function("a.py", "anchor")
    snapshot = snapshot_of([node, anchor], [edge(anchor, "CALLS", node)] if node.ref != anchor.ref else [])
    pack = packed("anchor()", 1_500, snapshot)
    assert pack.spent_tokens == COUNTER.count(pack.text) <= 1_500
    parse_pack(pack.text, project_id="shop")
