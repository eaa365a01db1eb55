from __future__ import annotations

import hashlib
import threading
from unittest.mock import patch

from hypothesis import given, settings
from hypothesis import strategies as st

from worker.code import cache
from worker.code.cache import BoundedCache, FactsCache, memory_bytes
from worker.code.extractor import extract
from worker.code.sources import SourceFile


def file(path: str, content: bytes) -> SourceFile:
    return SourceFile(path, content, hashlib.sha256(content).digest())


def test_the_same_content_is_extracted_once() -> None:
    facts = FactsCache(max_bytes=1_000_000)
    with patch.object(cache, "extract", side_effect=extract) as extracted:
        first = facts.facts("p", file("a.py", b"x = 1"))
        assert facts.facts("p", file("a.py", b"x = 1")) is first
    assert extracted.call_count == 1


def test_other_content_another_path_or_another_project_is_extracted_anew() -> None:
    facts = FactsCache(max_bytes=1_000_000)
    with patch.object(cache, "extract", side_effect=extract) as extracted:
        for project, path, content in (
            ("p", "a.py", b"x = 1"),
            ("p", "a.py", b"x = 2"),
            ("p", "b.py", b"x = 1"),
            ("q", "a.py", b"x = 1"),
        ):
            assert facts.facts(project, file(path, content)) == extract(path, content)
    assert extracted.call_count == 4


def test_what_is_larger_than_the_bound_is_given_and_not_kept() -> None:
    facts = FactsCache(max_bytes=1)
    with patch.object(cache, "extract", side_effect=extract) as extracted:
        for _ in range(2):
            assert facts.facts("p", file("a.py", b"def f(): pass")).functions[0].name == "f"
    assert extracted.call_count == 2


def test_the_least_recently_used_goes_first() -> None:
    kept = BoundedCache[str, int](max_bytes=3)
    for name in "abc":
        kept.put(name, 1, size_bytes=1)
    assert kept.get("a") == 1
    kept.put("d", 1, size_bytes=1)
    assert [kept.get(name) for name in "abcd"] == [1, None, 1, 1]
    kept.put("c", 2, size_bytes=2)
    assert [kept.get(name) for name in "abcd"] == [None, None, 2, 1]
    kept.put("c", 3, size_bytes=4)
    assert [kept.get(name) for name in "abcd"] == [None, None, None, 1]


@settings(max_examples=200)
@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 12), st.booleans()), max_size=60))
def test_the_bound_holds_and_what_is_kept_is_what_was_put(steps: list[tuple[int, int, bool]]) -> None:
    kept = BoundedCache[int, int](max_bytes=10)
    put: dict[int, int] = {}
    for number, (key, size, is_put) in enumerate(steps):
        if is_put:
            kept.put(key, number, size_bytes=size)
            put[key] = number
            assert (kept.get(key) == number) == (size <= 10)
        else:
            assert kept.get(key) in {put.get(key), None}
        assert 0 <= kept.size_bytes <= 10


def test_threads_share_it_without_losing_count() -> None:
    kept = BoundedCache[int, int](max_bytes=50)

    def work(seed: int) -> None:
        for number in range(2_000):
            kept.put((number * seed) % 97, number, size_bytes=1 + number % 7)
            kept.get(number % 97)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in (3, 5, 7, 11)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    held = kept.size_bytes
    assert held <= 50
    kept.put(-1, 0, size_bytes=50)
    assert kept.size_bytes == 50


def test_facts_are_charged_more_for_holding_more() -> None:
    empty = memory_bytes(extract("a.py", b""))
    calls = memory_bytes(extract("a.py", b"f()\n" * 100))
    functions = memory_bytes(extract("a.py", b"def f(a): f(a)\n" * 100))
    assert empty < 10_000 < calls < functions
