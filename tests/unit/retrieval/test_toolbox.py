from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from schemas.tools import MAX_DEPTH, MAX_NEAR, GetBundleArguments
from schemas.wire import sha256_hex
from tests.support.tooling import FILES, KEY, LONG, POLICY, Shop, open_shop
from worker.budget.tokens import counter_for
from worker.ports import OutcomeKey, OutcomeRecord, Scope
from worker.retrieval.bundles import cut_bundle
from worker.retrieval.found import Found, Piece, ToolFailed, write
from worker.retrieval.toolbox import ToolAnswer

CHARGE = "src/shop.py::charge_order"
COUNTER = counter_for("o200k_base")


def content(answer: ToolAnswer) -> str:
    assert answer.error is None, answer.error
    assert answer.content is not None
    return answer.content


def nodes(answer: ToolAnswer) -> tuple[str, ...]:
    assert answer.receipt is not None
    return answer.receipt.nodes


# --- What each tool shows --------------------------------------------------------------------------------


async def test_code_is_shown_whole_with_where_it_stands_and_what_it_is_made_of(shop: Shop) -> None:
    answer = await shop.call("get_code", entity_id=CHARGE)
    text = content(answer)
    assert text.startswith(f"## Function {CHARGE} (src/shop.py:")
    assert 'return retry_payment(order, "declined")' in text
    assert nodes(answer) == (CHARGE,)
    assert answer.receipt is not None
    assert answer.receipt.snapshot_id
    assert answer.receipt.graph_version == 1
    assert answer.tokens == COUNTER.count(text)
    assert not answer.is_truncated


async def test_callers_come_nearest_first_and_no_farther_than_asked(shop: Shop) -> None:
    near = await shop.call("get_code", entity_id=CHARGE, include_callers=True)
    assert nodes(near)[:2] == (CHARGE, "src/shop.py::checkout")
    assert "src/shop.py::kiosk" not in nodes(near)
    far = await shop.call("get_code", entity_id=CHARGE, include_callers=True, depth=2)
    assert nodes(far)[-1] == "src/shop.py::kiosk"
    assert "2 calls away" in content(far)


async def test_a_class_is_shown_with_its_methods_and_a_file_with_all_that_it_defines(shop: Shop) -> None:
    assert "def post(self, amount)" in content(await shop.call("get_code", entity_id="src/shop.py::Ledger"))
    whole = content(await shop.call("get_code", entity_id="src/shop.py"))
    assert all(line in whole for line in ("class Ledger", "def checkout", "def kiosk"))


async def test_the_context_names_what_lies_around_by_how_it_is_related(shop: Shop) -> None:
    text = content(await shop.call("get_context", entity=CHARGE))
    assert "- calls Function src/shop.py::retry_payment `def retry_payment(order, reason)`" in text
    assert "- called by Function src/shop.py::checkout" in text
    assert "- traces to RequirementItem REQ-1" in text
    assert "tests/test_shop.py::test_charging_twice_is_refused" in text
    assert "kiosk" not in text
    assert "kiosk" in content(await shop.call("get_context", entity=CHARGE, depth=2))


async def test_tests_and_requirements_are_found_from_either_end(shop: Shop) -> None:
    for entity in (CHARGE, "src/shop.py", "REQ-1"):
        tests = await shop.call("get_tests", entity_id=entity)
        assert "assert charge_order(1)" in content(tests), entity
        served = content(await shop.call("get_requirements", entity_id=entity))
        assert "An order is charged once" in served, entity
        assert "A refund is booked" not in served, entity


async def test_what_has_no_tests_says_so(shop: Shop) -> None:
    answer = await shop.call("get_tests", entity_id="src/util/same.py::twin")
    assert "No test is known" in content(answer)
    assert "traces to no requirement" in content(
        await shop.call("get_requirements", entity_id="src/util/same.py::twin")
    )


async def test_search_finds_by_words_as_selection_ranks_and_keeps_to_the_limit(shop: Shop) -> None:
    answer = await shop.call("search_code", query="retry a declined payment", limit=2)
    assert nodes(answer)[0] == "src/shop.py::retry_payment"
    assert len(nodes(answer)) == 2
    assert "Nothing in the project" in content(await shop.call("search_code", query="zzqx"))


async def test_an_artifact_is_shown_whole_and_another_threads_is_not_known(shop: Shop) -> None:
    assert content(await shop.call("get_artifact", artifact_id="design-1", budget=9_000)).endswith(
        LONG.rstrip("\n")[-40:] + "\n"
    )
    assert "Be kind." in content(await shop.call("get_artifact", artifact_id="house-rules"))
    for foreign in ("design-2", "design-9"):
        answer = await shop.call("get_artifact", artifact_id=foreign)
        assert answer.error is not None
        assert (answer.error.code, answer.error.near) == ("not_found", ("design-1",))


async def test_the_pieces_of_a_bundle_are_the_bundle_and_another_project_has_none(shop: Shop) -> None:
    body = ('{"text":"' + "ключ 🙂 of the bundle, " * 300 + '"}').encode()
    digest = sha256_hex(body)
    await shop.outcomes.put_if_absent(
        OutcomeKey(project_id="shop", request_id="r", generation=0),
        OutcomeRecord(
            request_digest="d",
            as_of=datetime(2026, 3, 1, tzinfo=UTC),
            reply=b"{}",
            usage=None,
            receipt=None,
            bundle=body,
        ),
    )
    pieces, offset = list[str](), 0
    while True:
        answer = await shop.call("get_bundle", digest=digest, offset=offset, budget=300)
        assert answer.tokens <= 300
        pieces.append(content(answer))
        assert answer.is_truncated == (answer.next_offset is not None)
        if answer.next_offset is None:
            break
        offset = answer.next_offset
    assert "".join(pieces).encode() == body
    assert len(pieces) > 2
    foreign = await shop.toolbox.call(
        Scope(project_id="bank", thread_id=None), "get_bundle", {"digest": digest}
    )
    assert foreign.error is not None
    assert foreign.error.code == "not_found"


# --- Which entity is meant -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "spelled",
    ["charge_order", "chargeOrder", "shop.charge_order", "src/shop.py::charge_order", "Charge_Order"],
)
async def test_a_name_that_means_one_thing_is_understood(shop: Shop, spelled: str) -> None:
    assert nodes(await shop.call("get_code", entity_id=spelled)) == (CHARGE,)


@pytest.mark.parametrize("path", ["src/shop.py", "shop.py", "./src/shop.py", "/home/me/project/src/shop.py"])
async def test_a_path_means_its_module_where_no_other_file_ends_so(shop: Shop, path: str) -> None:
    assert nodes(await shop.call("get_code", entity_id=path))[0].startswith("src/shop.py::")


@pytest.mark.parametrize("spelled", ["same.py", "twin"])
async def test_what_means_several_things_is_answered_with_all_of_them(shop: Shop, spelled: str) -> None:
    error = (await shop.call("get_code", entity_id=spelled)).error
    assert error is not None
    assert error.code == "not_found"
    assert len(error.near) == 2
    for near in error.near:
        assert (await shop.call("get_code", entity_id=near)).error is None


@pytest.mark.parametrize(
    ("spelled", "meant"),
    [
        ("src/shop.py::chrage_order", CHARGE),
        ("chrage_order", CHARGE),
        ("src/shp.py", "src/shop.py"),
        ("REQ-11", "REQ-1"),
        ("src/shop.py::Leger.post", "src/shop.py::Ledger.post"),
        ("retry-payments", "src/shop.py::retry_payment"),
    ],
)
async def test_a_misspelled_id_is_answered_with_the_one_that_was_meant(
    shop: Shop, spelled: str, meant: str
) -> None:
    error = (await shop.call("get_context", entity=spelled)).error
    assert error is not None
    assert error.code == "not_found"
    assert meant in error.near
    assert len(error.near) <= MAX_NEAR


async def test_another_projects_ids_are_neither_found_nor_near(shop: Shop) -> None:
    for tool, name in (("get_code", "entity_id"), ("get_context", "entity")):
        error = (await shop.ask(tool, {name: "src/vault.py::open_secret_vault"})).error
        assert error is not None
        assert error.code == "not_found"
        assert not [near for near in error.near if near not in FILES and "::" not in near]
        assert not any("vault" in near for near in error.near)
    assert "vault" not in content(await shop.call("search_code", query="open_secret_vault code"))


@given(st.text(min_size=1, max_size=40))
@settings(max_examples=40)
def test_whatever_is_asked_for_is_answered_and_what_is_near_can_be_asked_for(folder: Path, text: str) -> None:
    async def ask() -> None:
        async with open_shop(folder) as shop:
            answer = await shop.call("get_context", entity=text)
            for near in answer.error.near if answer.error is not None else ():
                again = await shop.call("get_context", entity=near)
                assert again.error is None or again.error.near

    asyncio.run(ask())


# --- Calls that cannot be served -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("tool", "arguments", "said"),
    [
        ("get_context", {"entity": CHARGE, "depth": 10**9}, f"less than or equal to {MAX_DEPTH}"),
        ("get_context", {"entity": CHARGE, "depth": True}, "valid integer"),
        ("get_context", {"entity": CHARGE, "depth": 0}, "greater than or equal to 1"),
        ("get_code", {"entity": CHARGE}, "entity_id: Field required"),
        ("get_code", {"entity_id": ""}, "at least 1"),
        ("get_code", {"entity_id": "x" * 5_000}, "at most 4096"),
        ("search_code", {"query": "x", "limit": 1_000_000}, "less than or equal to 50"),
        ("get_bundle", {"digest": "nope"}, "digest"),
        ("get_tests", {"entity_id": ["a"]}, "valid string"),
        ("get_tests", {"entity_id": "\ud800"}, "valid string"),
    ],
)
async def test_wrong_arguments_are_told_with_what_is_allowed(
    shop: Shop, tool: str, arguments: dict[str, object], said: str
) -> None:
    error = (await shop.ask(tool, arguments)).error
    assert error is not None
    assert error.code == "invalid_arguments"
    assert said in error.message
    assert len(error.message) < 2_200


async def test_an_unknown_tool_is_told_which_there_are(shop: Shop) -> None:
    error = (await shop.call("rm_rf")).error
    assert error is not None
    assert error.code == "unknown_tool"
    assert "get_context" in error.message


async def test_a_project_without_an_index_says_so(shop: Shop) -> None:
    answer = await shop.toolbox.call(
        Scope(project_id="nowhere", thread_id=None), "get_code", {"entity_id": "x"}
    )
    assert answer.error is not None
    assert answer.error.code == "not_indexed"


# --- Budget ----------------------------------------------------------------------------------------------


@given(
    st.lists(st.text(st.sampled_from("ab \n`#é🙂"), max_size=60), max_size=12),
    st.integers(1, 80),
)
@settings(max_examples=40)
def test_a_content_never_exceeds_its_budget_and_shows_what_the_receipt_names(
    texts: list[str], budget: int
) -> None:
    pieces = tuple(Piece(text=f"## n{n}\n{text}", node_id=f"n{n}") for n, text in enumerate(texts))
    try:
        written = write(
            Found(pieces=pieces), budget_tokens=budget, counter=COUNTER, mask=lambda text: (text, 0)
        )
    except ToolFailed:  # not one character fits
        return
    assert COUNTER.count(written.content) <= budget
    whole = "\n\n".join(piece.text for piece in pieces)
    assert written.is_truncated == (written.content != whole)
    for node in written.nodes:
        assert f"## {node}\n" in written.content


@given(
    st.lists(
        st.tuples(st.text(st.sampled_from("ab \n"), max_size=9), st.sampled_from(["", KEY]), st.booleans())
    ),
    st.integers(10, 400),
)
@settings(max_examples=40)
def test_lines_are_masked_together_and_read_as_if_each_were_masked_for_itself(
    parts: list[tuple[str, str, bool]], budget: int
) -> None:
    pieces = tuple(
        Piece(text=f"n{n} {text}{key}", node_id=f"n{n}", is_line=is_line)
        for n, (text, key, is_line) in enumerate(parts)
    )

    def mask(text: str) -> tuple[str, int]:
        asked.append(text)
        return text.replace(KEY, "[masked]"), text.count(KEY)

    asked: list[str] = []
    written = write(Found(pieces=pieces), budget_tokens=10_000, counter=COUNTER, mask=mask)
    joined = ""
    for before, piece in zip((None, *pieces), pieces, strict=False):
        is_next_line = before is not None and before.is_line and piece.is_line
        joined += ("\n" if is_next_line else "\n\n" if before else "") + mask(piece.text)[0]
    assert written.content == joined
    assert written.masked == sum(piece.text.count(KEY) for piece in pieces)
    assert written.nodes == tuple(piece.node_id for piece in pieces)
    assert KEY not in write(Found(pieces=pieces), budget_tokens=budget, counter=COUNTER, mask=mask).content


async def test_a_small_budget_cuts_and_says_so_and_the_maximum_holds(shop: Shop) -> None:
    small = await shop.call("get_code", entity_id="src/shop.py", budget=60)
    assert small.tokens <= 60
    assert small.is_truncated
    large = await shop.call("get_artifact", artifact_id="design-1", budget=10**9)
    assert large.tokens <= POLICY.max_budget_tokens


async def test_a_credential_in_the_source_is_masked_and_counted(shop: Shop) -> None:
    answer = await shop.call("get_code", entity_id="src/shop.py")
    assert KEY not in content(answer)
    assert "[masked:" in content(answer)
    assert answer.receipt is not None
    assert answer.receipt.masked_secrets == 1


async def test_the_same_call_gives_the_same_answer(shop: Shop, folder: Path) -> None:
    async with open_shop(folder) as other:
        for tool, arguments in (
            ("get_context", {"entity": CHARGE, "depth": 3}),
            ("search_code", {"query": "order"}),
            ("get_tests", {"entity_id": "REQ-1"}),
        ):
            assert await shop.ask(tool, arguments) == await other.ask(tool, arguments)


@given(st.text(max_size=200), st.integers(1, 40))
@settings(max_examples=40)
def test_pieces_of_any_bundle_join_to_its_bytes(text: str, budget: int) -> None:
    body = text.encode().replace(b"\n", b" ") or b"{}"
    joined, offset = b"", 0
    while offset is not None:
        arguments = GetBundleArguments(digest="0" * 64, offset=offset)
        try:
            piece = cut_bundle(body, arguments, budget_tokens=budget, counter=COUNTER)
        except ToolFailed:  # not one character fits
            return
        assert COUNTER.count(piece.content) <= budget
        joined += piece.content.encode()
        offset = piece.next_offset
    assert joined == body
