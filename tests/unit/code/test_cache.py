from __future__ import annotations

import hashlib
import threading
from unittest.mock import patch

from hypothesis import given, settings
from hypothesis import strategies as st

from worker.code import cache
from worker.code.cache import MAX_QUICK_WORK, BoundedCache, FactsCache, is_quick, memory_bytes
from worker.code.extracting_pool import Extract, ExtractingPool, Stop
from worker.code.extractor import extract
from worker.code.facts import ModuleFacts, ParseProblem
from worker.code.sources import SourceFile


def file(path: str, content: bytes) -> SourceFile:
    return SourceFile(path, content, hashlib.sha256(content).digest())


def test_the_same_content_is_extracted_once() -> None:
    facts = FactsCache(max_bytes=1_000_000)
    with patch.object(cache, "extract_at_thread_start", side_effect=extract) as extracted:
        first = facts.facts("p", file("a.py", b"x = 1"), stop=Stop())
        assert facts.facts("p", file("a.py", b"x = 1"), stop=Stop()) is first
    assert extracted.call_count == 1


def test_other_content_another_path_or_another_project_is_extracted_anew() -> None:
    facts = FactsCache(max_bytes=1_000_000)
    with patch.object(cache, "extract_at_thread_start", side_effect=extract) as extracted:
        for project, path, content in (
            ("p", "a.py", b"x = 1"),
            ("p", "a.py", b"x = 2"),
            ("p", "b.py", b"x = 1"),
            ("q", "a.py", b"x = 1"),
        ):
            assert facts.facts(project, file(path, content), stop=Stop()) == extract(path, content)
    assert extracted.call_count == 4


def test_what_is_larger_than_the_bound_is_given_and_not_kept() -> None:
    facts = FactsCache(max_bytes=1)
    with patch.object(cache, "extract_at_thread_start", side_effect=extract) as extracted:
        for _ in range(2):
            given = facts.facts("p", file("a.py", b"def f(): pass"), stop=Stop())
            assert given is not None
            assert given.functions[0].name == "f"
    assert extracted.call_count == 2


LONG = b"class A:\n" + b"".join(b"    def f%d(self): return %d\n" % (n, n) for n in range(2_000))


def test_what_would_hold_other_threads_up_is_never_extracted_in_this_process() -> None:
    pool = ExtractingPool()
    facts = FactsCache(max_bytes=10_000_000, pool=pool)
    with patch.object(cache, "extract_at_thread_start") as extracted:
        first = facts.facts("p", file("a.py", LONG), stop=Stop())
        assert facts.facts("p", file("a.py", LONG), stop=Stop()) is first
    pool.close()
    assert first == extract("a.py", LONG)
    assert not extracted.called


def test_a_file_whose_reading_was_stopped_is_read_the_next_time() -> None:
    pool = ExtractingPool()
    facts = FactsCache(max_bytes=10_000_000, pool=pool)
    stopped = Stop()
    stopped.set()
    assert facts.facts("p", file("a.py", LONG), stop=stopped) is None
    assert facts.facts("p", file("a.py", LONG), stop=Stop()) == extract("a.py", LONG)
    pool.close()


def test_facts_of_a_file_that_ends_its_process_are_given_and_not_kept() -> None:
    # A name of 300,000 letters in the ids of 300 methods.
    content = b"class " + b"A" * 300_000 + b":\n" + b"    def f(self): ...\n" * 300
    pool = ExtractingPool()
    facts = FactsCache(max_bytes=10**12, pool=pool)
    first = facts.facts("p", file("a.py", content), stop=Stop())
    assert first is not None
    assert first.parse_problem == ParseProblem("too_complex", 0)
    assert first.line_count == 301
    assert facts.facts("p", file("a.py", content), stop=Stop()) is not first
    pool.close()


def test_the_same_long_file_asked_for_by_many_at_once_is_extracted_once() -> None:
    pool = ExtractingPool(max_processes=1)
    facts = FactsCache(max_bytes=10_000_000, pool=pool)
    with patch.object(Extract, "__call__", autospec=True, side_effect=Extract.__call__) as extracted:
        given: list[ModuleFacts | None] = []
        threads = [
            threading.Thread(target=lambda: given.append(facts.facts("p", file("a.py", LONG), stop=Stop())))
            for _ in range(6)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    pool.close()
    assert extracted.call_count == 1
    assert given == [extract("a.py", LONG)] * 6


@settings(max_examples=100)
@given(st.text("ab=(,[{@.;\n é", max_size=300), st.integers(1, 400))
def test_quick_content_is_short_and_shorter_where_it_is_dense(piece: str, times: int) -> None:
    content = (piece * times).encode()
    marks = sum(byte < 128 and chr(byte) in "=(,[{@.;" for byte in content)
    assert is_quick(content) == (len(content) + 10 * marks <= MAX_QUICK_WORK)


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
