from __future__ import annotations

import random
import re
import tracemalloc
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from schemas.session import MemoryItem
from tests.unit.memory.facts import fact, facts, one_fact
from worker.memory.index import MAX_QUERY_TERMS, MemoryIndex, RankedItem
from worker.memory.supersession import by_id, current, history

QUERIES = ["retry", "port 80", "漢字", "", "the client retries the port", "unknown"]


def ranked(items: Sequence[MemoryItem], query: str, limit: int = 100) -> list[str]:
    return [r.item.id for r in MemoryIndex(items).rank(query, limit=limit)]


def answers(index: MemoryIndex) -> list[list[RankedItem]]:
    return [index.rank(query, limit=limit) for query in QUERIES for limit in (1, 3, 100)]


def test_rank_is_by_likeness_then_newest_then_id() -> None:
    items = [
        fact("old", "nothing in common", day=1),
        fact("b", "nothing in common", day=2),
        fact("a", "nothing in common", day=2),
        fact("none", "nothing in common"),
        fact("hit", "the HTTPClient retries"),
    ]
    expected = ["hit", "a", "b", "old", "none"]
    assert ranked(items, "make http_client retry: retries") == expected
    assert [ranked(items, "http retry", limit) for limit in (0, 1, 2, 4)] == [
        [],
        expected[:1],
        expected[:2],
        expected[:4],
    ]


def test_the_limit_falls_among_equals_by_id() -> None:
    index = MemoryIndex()
    for n in random.Random(1).sample(range(50), 50):
        index.add(fact(f"m{n:02}", "same words", day=1 + n % 2))
    odd, even = ([f"m{n:02}" for n in range(start, 50, 2)] for start in (1, 0))
    for limit in (1, 7, 25, 30, 50):
        assert [r.item.id for r in index.rank("words", limit=limit)] == (odd + even)[:limit]


def test_a_rare_word_speaks_louder_than_two_common_ones() -> None:
    items = [fact(f"c{n}", "the cache of the system") for n in range(20)]
    items.append(fact("rare", "the tombstone of records"))
    assert ranked(items, "why does the system of the cache keep a tombstone")[0] == "rare"


def test_two_shared_words_beat_one_in_a_shorter_fact() -> None:
    items = [fact("one", "jitter"), fact("two", "a retry in the client needs jitter, patience and luck")]
    assert ranked(items, "retry with jitter") == ["two", "one"]


@pytest.mark.parametrize(
    ("asked", "text"),
    [
        ("exeption", "exception"),
        ("autentication", "authentication"),
        ("postgres", "postgresql"),
        ("kubernets", "kubernetes"),
    ],
)
def test_a_misspelt_word_finds_its_fact_where_no_word_is_shared(asked: str, text: str) -> None:
    index = MemoryIndex([fact(f"d{n}", f"colour {n} of the layout", day=9) for n in range(50)])
    index.add(fact("meant", f"{text} handling", day=1))
    assert index.rank(asked, limit=1)[0].item.id == "meant"


def test_a_subject_counts_as_words_of_its_fact() -> None:
    assert ranked([fact("a", "x"), fact("b", "y", "rate_limits")], "raise the rate limits")[0] == "b"


def test_function_words_are_no_likeness() -> None:
    items = [fact("a", "it is what it is of the", day=1), fact("b", "colour", day=2)]
    found = MemoryIndex(items).rank("the what of it is", limit=9)
    assert [(r.item.id, r.score) for r in found] == [("b", 0.0), ("a", 0.0)]


def test_of_a_long_request_the_rarest_terms_decide() -> None:
    common = " ".join(f"common{n:03}" for n in range(2 * MAX_QUERY_TERMS))
    items = [fact(f"c{n}", common, day=1) for n in range(5)] + [fact("rare", "tombstone", day=1)]
    scores = {r.item.id: r.score for r in MemoryIndex(items).rank(f"{common} tombstone", limit=9)}
    assert scores["rare"] > 0


@settings(max_examples=30, deadline=None)
@given(facts, st.lists(st.one_of(one_fact, st.sampled_from(["a", "b", "c", "d", "é", "m1"])), max_size=25))
def test_an_index_that_was_changed_answers_as_a_fresh_one(
    first: list[MemoryItem], changes: list[MemoryItem | str]
) -> None:
    index, held = MemoryIndex(first), {item.id: item for item in by_id(first)}
    for change in changes:
        if isinstance(change, str):
            assert index.remove(change) is (change in held)
            held.pop(change, None)
        else:
            index.add(change)
            held.pop(change.id, None)
            if change.text.strip():
                held[change.id] = change
    fresh = MemoryIndex(held.values())
    assert answers(index) == answers(fresh)
    assert index.current() == fresh.current() == current(held.values())
    assert len(index) == len(index.current())
    for subject in ("s", "S ", "t", "", "unknown"):
        assert index.history(subject) == history(held.values(), subject)


@settings(max_examples=25, deadline=None)
@given(facts, st.integers(0, 2**32))
def test_the_order_in_which_facts_come_changes_nothing(items: list[MemoryItem], seed: int) -> None:
    shuffled = random.Random(seed).sample(items, len(items))
    assert answers(MemoryIndex(items)) == answers(MemoryIndex(shuffled))


def test_many_changes_leave_an_index_as_good_as_new() -> None:
    chance = random.Random(2)
    index = MemoryIndex()
    held: dict[str, MemoryItem] = {}
    for n in range(3_000):
        item_id = f"m{chance.randrange(200)}"
        if chance.random() < 0.3:
            index.remove(item_id)
            held.pop(item_id, None)
        else:
            subject = chance.choice([None, "s", "t", f"u{n % 50}"])
            item = fact(item_id, f"word{n % 7} word{n % 11}", subject, chance.randrange(1, 90))
            index.add(item)
            held[item_id] = item
    fresh = MemoryIndex(held.values())
    for query in ("word1 word2", "word6", ""):
        assert index.rank(query, limit=500) == fresh.rank(query, limit=500)
    assert index.current() == fresh.current()


def test_what_superseded_a_fact_gives_its_place_back_when_it_is_removed() -> None:
    index = MemoryIndex([fact("m1", "port is 80", "port", 1), fact("m2", "port is 443", "port", 2)])
    assert index.current() == [fact("m2", "port is 443", "port", 2)]
    assert index.remove("m2")
    assert [r.item.id for r in index.rank("port", limit=9)] == ["m1"]
    assert not index.remove("m2")


def test_adding_and_removing_for_ever_takes_no_more_memory() -> None:
    index = MemoryIndex([fact(f"m{n}", f"text {n}", day=1) for n in range(100)])

    def churn(rounds: int) -> int:
        for n in range(rounds):
            index.add(fact(f"m{n % 100}", f"text {n % 300}", day=1 + n % 9))
        return tracemalloc.get_traced_memory()[0]

    tracemalloc.start()
    try:
        first = churn(600)
        assert churn(1_800) < first + 300_000
    finally:
        tracemalloc.stop()


QUESTIONS = [
    ("The HTTP client retries three times with jitter", "add retry jitter to http client"),
    ("Authentication uses signed cookies, never tokens", "how do we authenticate users"),
    ("We chose PostgreSQL over MySQL for billing", "which postgres database does billing use"),
    ("worker.kafka.dispatch.OffsetTracker commits the first unfinished offset", "fix OffsetTracker"),
    ("Deployments happen on Tuesdays only", "when may I deploy"),
    ("The customer wants invoices as PDF", "invoicing format for customers"),
    ("Passwords are hashed by argon2", "pasword hashing algoritm"),
    ("漢字の分割は二文字ずつ", "漢字の分割をどうする"),
    ("Паролі зберігаються хешованими", "як зберігаються паролі"),
    ("Naming: use snake_case for columns", "column naming snake case"),
    ("E1042 means that the license has expired", "error E1042 in the log"),
    ("Step 3 failed on Windows", "what happened in step 3"),
]


@pytest.fixture(scope="module")
def distracted() -> MemoryIndex:
    """The facts asked for among a thousand of the same field's words."""
    chance = random.Random(3)
    words = re.findall(
        r"\w+",
        """
        layer budget prompt token offset broker client user database column error step format table query
        deadline cache worker store graph plan goal thread message agent review design test fix name index
        number page cookie session hash log version release server time times use uses happen want mean
        """,
    )
    distractors = [
        fact(f"d{n}", " ".join(chance.choices(words, k=chance.randrange(5, 18))), day=1 + n % 300)
        for n in range(1_000)
    ]
    return MemoryIndex([*distractors, *(fact(text, text, day=1) for text, _ in QUESTIONS)])


@pytest.mark.parametrize(("text", "question"), QUESTIONS)
def test_a_question_finds_its_fact_among_a_thousand(
    distracted: MemoryIndex, text: str, question: str
) -> None:
    assert distracted.rank(question, limit=1)[0].item.text == text


def test_an_exact_identifier_beats_its_parts() -> None:
    items = [fact(f"p{n}", f"the offset and the tracker of part {n}", day=9) for n in range(40)]
    items.append(
        fact("exact", "a long story, in the end of which offset_tracker was renamed by everybody", day=1)
    )
    assert ranked(items, "OffsetTracker")[0] == "exact"
