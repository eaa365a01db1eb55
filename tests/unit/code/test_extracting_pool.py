from __future__ import annotations

import gc
import io
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Generator, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.processes import gone, wait_until_extracting
from worker.code import extracting_pool, extracting_process
from worker.code.extracting_pool import ExtractingPool, Stop, count_lines
from worker.code.extracting_process import FAILED, extract_at_thread_start, serve
from worker.code.extractor import extract
from worker.code.facts import ModuleFacts, ParseProblem
from worker.code.frames import read_frame, write_frame

ROOT = Path(__file__).parents[3]
ENDLESS = b"x = [" + b"1, " * 10_000_000 + b"]\n"
"""Takes the parser seconds, if not the memory that it may have."""

ODD = {
    "nothing": b"",
    "one line": b"x = 1",
    "no text": b"\xff\xfe\x00",
    "another encoding": b"# coding: latin-1\ndef caf\xe9(): pass\n",
    "half a pair": b"def f():\n    '\\ud800'\n",
    "a syntax error": b"def f(:\n",
    "5,000 terms": b"x = 1" + b" + 1" * 5_000,
    "as deep as it goes": b"x = " + b"-" * 900 + b"1",
    "deeper than it goes": b"x = " + b"-" * 5_000 + b"1",
    "too much for a parser": b"f'" + b"{a}" * 100_000 + b"'",
}


@pytest.fixture(scope="module")
def pool() -> Iterator[ExtractingPool]:
    with closing(ExtractingPool()) as pool:
        yield pool


def extracted(pool: ExtractingPool, content: bytes, stop: Stop | None = None) -> ModuleFacts | None:
    with pool.lend(stop or Stop()) as extract:
        return None if extract is None else extract("a.py", content)


@pytest.mark.parametrize("name", ODD)
def test_a_process_gives_what_a_thread_gives(pool: ExtractingPool, name: str) -> None:
    assert extracted(pool, ODD[name]) == extract_at_thread_start("a.py", ODD[name])


@pytest.mark.parametrize(
    "path", ["worker/assembly.py", "tests/support/hostile.py", "worker/code/tolerant.py"]
)
def test_real_files_give_what_they_give_here(pool: ExtractingPool, path: str) -> None:
    content = (ROOT / path).read_bytes()
    assert extracted(pool, content) == extract("a.py", content)


@settings(max_examples=60, deadline=None)
@given(depth=st.integers(900, 1_100), operator=st.sampled_from([b"-", b"not "]))
def test_how_deep_an_expression_may_nest_is_the_same_in_both(
    pool: ExtractingPool, depth: int, operator: bytes
) -> None:
    content = operator * depth + b"1"
    assert extracted(pool, content) == extract_at_thread_start("a.py", content)


@settings(max_examples=60, deadline=None)
@given(st.binary(max_size=200) | st.text("def f(x):\n @a.é'\"{}=", max_size=200).map(str.encode))
def test_any_bytes_give_what_they_give_here(pool: ExtractingPool, content: bytes) -> None:
    assert extracted(pool, content) == extract_at_thread_start("a.py", content)


def test_a_path_that_is_no_unicode_comes_back_as_it_was(pool: ExtractingPool) -> None:
    with pool.lend(Stop()) as extract:
        assert extract is not None
        facts = extract("\udc80.py", b"def f(): pass")
    assert facts is not None
    assert facts.functions[0].id == "\udc80.py::f"


def test_a_process_is_used_again() -> None:
    with closing(ExtractingPool()) as pool:
        pool.prepare()
        before = pool.process_ids
        assert extracted(pool, b"x = 1") == extract("a.py", b"x = 1")
        assert pool.process_ids == before
        assert len(before) == 1


def test_setting_stop_ends_the_process_at_once_and_the_next_file_gets_another() -> None:
    with closing(ExtractingPool(max_processes=1)) as pool:
        pool.prepare()
        (process_id,) = pool.process_ids
        stop = Stop()
        results: list[ModuleFacts | None] = []
        thread = threading.Thread(target=lambda: results.append(extracted(pool, ENDLESS, stop)))
        with gone(process_id):
            thread.start()
            wait_until_extracting(process_id)
            stop.set()
            thread.join()
        assert results == [None]
        assert extracted(pool, b"x = 1") == extract("a.py", b"x = 1")
        assert pool.process_ids != [process_id]


def test_who_waits_for_a_process_can_be_stopped() -> None:
    with closing(ExtractingPool(max_processes=1)) as pool, pool.lend(Stop()):
        stop = Stop()
        results: list[ModuleFacts | None] = [ModuleFacts(path="", line_count=0)]
        thread = threading.Thread(target=lambda: results.append(extracted(pool, b"x = 1", stop)))
        thread.start()
        stop.set()
        thread.join()
        assert results[1:] == [None]


def test_nothing_begins_after_stop() -> None:
    with closing(ExtractingPool()) as pool:
        stop = Stop()
        stop.set()
        assert extracted(pool, b"x = 1", stop) is None
        assert pool.process_ids == []


def test_what_a_stop_calls_it_calls_once_and_never_after_its_context() -> None:
    stop, calls = Stop(), list[str]()
    with stop.calling(lambda: calls.append("before")):
        pass
    with stop.calling(lambda: calls.append("within")):
        stop.set()
    with stop.calling(lambda: calls.append("late")):
        pass
    assert calls == ["within", "late"]


def test_there_are_never_more_processes_than_allowed() -> None:
    with closing(ExtractingPool(max_processes=2)) as pool:
        seen: list[int] = []
        barrier = threading.Barrier(6)

        def work() -> None:
            barrier.wait()
            with pool.lend(Stop()) as extract:
                assert extract is not None
                assert extract("a.py", b"x = 1") is not None
                seen.append(len(pool.process_ids))

        threads = [threading.Thread(target=work) for _ in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(seen) == 6
        assert max(seen) <= 2


def test_a_process_that_ended_while_nobody_used_it_is_replaced() -> None:
    with closing(ExtractingPool()) as pool:
        pool.prepare()
        (process_id,) = pool.process_ids
        with gone(process_id):
            os.kill(process_id, signal.SIGKILL)
        assert extracted(pool, b"x = 1") == extract("a.py", b"x = 1")
        assert pool.process_ids != [process_id]


def test_a_file_whose_process_ends_has_no_facts_and_is_not_to_be_kept() -> None:
    with closing(ExtractingPool()) as pool, pool.lend(Stop()) as extract:
        assert extract is not None
        with patch.object(extracting_pool, "read_frame", return_value=None):
            facts = extract("a.py", b"x = 1\ny = 2")
        assert facts == ModuleFacts(path="a.py", line_count=2, parse_problem=ParseProblem("too_complex", 0))
        assert not extract.is_reliable


@pytest.mark.parametrize("answer", [b"null", b"[7]", b"\xff", b"[" * 100_000])
def test_an_answer_that_is_none_costs_the_process(answer: bytes) -> None:
    with closing(ExtractingPool()) as pool:
        pool.prepare()
        before = pool.process_ids
        with patch.object(extracting_pool, "read_frame", side_effect=[answer, b""]):
            facts = extracted(pool, b"x = 1")
        assert facts is not None
        assert facts.parse_problem == ParseProblem("too_complex", 0)
        assert not set(before) & set(pool.process_ids)


def test_a_bug_in_the_process_is_raised_here_with_its_traceback() -> None:
    with closing(ExtractingPool()) as pool:
        pool.prepare()
        with (
            patch.object(extracting_pool, "read_frame", side_effect=[FAILED + b"TypeError: boom"]),
            pytest.raises(RuntimeError, match="TypeError: boom"),
        ):
            extracted(pool, b"x = 1")
        assert pool.process_ids == []


def test_a_bug_is_told_with_its_traceback_and_the_next_job_is_answered() -> None:
    jobs_end, jobs = os.pipe()
    answers = io.BytesIO()
    with os.fdopen(jobs, "wb") as writer:
        for content in (b"x = 1", b"y = 2"):
            write_frame(writer, b"a.py")
            write_frame(writer, content)
        writer.flush()
        again = extract("a.py", b"y = 2")
        thread = threading.Thread(target=_serve, args=(jobs_end, answers, [TypeError("boom"), again]))
        thread.start()
        while answers.getvalue().count(bytes(8)) < 3:
            thread.join(0.01)
    thread.join()
    answers.seek(0)
    assert read_frame(answers) == b""
    failure = read_frame(answers)
    assert failure is not None
    assert failure.startswith(FAILED + b"Traceback")
    assert b"boom" in failure
    assert read_frame(answers) == b""


def _serve(jobs_end: int, answers: io.BytesIO, results: list[object]) -> None:
    with (
        os.fdopen(jobs_end, "rb") as reader,
        patch.object(extracting_process, "extract_at_thread_start", side_effect=results),
    ):
        serve(reader, answers)


def test_a_frame_beyond_the_limit_is_not_read() -> None:
    stream = io.BytesIO()
    write_frame(stream, b"12345")
    stream.seek(0)
    assert read_frame(stream, max_bytes=4) is None
    stream.seek(0)
    assert read_frame(stream, max_bytes=5) == b"12345"


def test_processes_end_when_their_pool_is_forgotten() -> None:
    pool = ExtractingPool()
    pool.prepare()
    (process_id,) = pool.process_ids
    with gone(process_id):
        del pool
        gc.collect()


CHILD = """
import sys
from worker.code import extracting_process
extracting_process.MAX_SECONDS = int(sys.argv[1])
extracting_process.main()
"""


@contextmanager
def at_work(max_seconds: int) -> Generator[subprocess.Popen[bytes]]:
    """A process in the middle of a job."""
    child = subprocess.Popen(
        [sys.executable, "-c", CHILD, str(max_seconds)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        cwd=ROOT,
    )
    assert child.stdin is not None
    assert child.stdout is not None
    with child:
        write_frame(child.stdin, b"a.py")
        write_frame(child.stdin, ENDLESS)
        child.stdin.flush()
        wait_until_extracting(child.pid)
        yield child


def test_a_process_ends_in_the_middle_of_a_job_when_its_parent_does() -> None:
    with at_work(30) as child:
        assert child.stdin is not None
        child.stdin.close()
        assert child.wait() == -signal.SIGIO


def test_a_job_that_takes_too_long_ends_its_process_though_nobody_waits() -> None:
    with at_work(1) as child:
        assert child.wait() == -signal.SIGALRM


PARENT = """
import sys
from worker.code.extracting_pool import ExtractingPool
pool = ExtractingPool()
pool.prepare()
print(*pool.process_ids, flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize("end", ["killed", "over"])
def test_processes_end_with_the_one_that_started_them(end: str) -> None:
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT], stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=ROOT
    )
    assert parent.stdin is not None
    assert parent.stdout is not None
    with parent, gone(int(parent.stdout.readline())):
        if end == "killed":
            parent.kill()
        parent.stdin.close()
        parent.wait()


@given(st.lists(st.sampled_from([b"a", b"\n", b"\r"])).map(b"".join))
def test_lines_are_counted_as_the_extractor_counts_them(content: bytes) -> None:
    assert count_lines(content) == extract("a.py", content).line_count
