"""The link against servers that misbehave in ways a real Redis cannot be asked to."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager, suppress

import pytest

from worker.errors import StoreUnavailable
from worker.stores.redis_link import RedisLink, Script

Answer = Callable[[bytes], bytes | None]


@asynccontextmanager
async def _server(answer: Answer) -> AsyncGenerator[str]:
    """A TCP server that answers what each received chunk is mapped to; None closes the connection."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        serving.append(task)
        try:
            while chunk := await reader.read(1 << 20):
                reply = answer(chunk)
                if reply is None:
                    break
                writer.write(reply)
        except ConnectionResetError:
            pass
        writer.close()
        with suppress(ConnectionResetError):
            await writer.wait_closed()

    serving: list[asyncio.Task[object]] = []
    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    yield f"redis://127.0.0.1:{port}/0"
    server.close()
    await server.wait_closed()
    await asyncio.gather(*serving)


def _link(url: str, *, is_resending: bool = True, timeout_seconds: float = 0.2) -> RedisLink:
    return RedisLink(
        url,
        password=None,
        connect_timeout_seconds=0.1,
        timeout_seconds=timeout_seconds,
        is_resending=is_resending,
    )


def _gets(chunk: bytes) -> int:
    return chunk.count(b"GET\r\n")


async def test_calls_that_wait_together_travel_together() -> None:
    trips: list[int] = []

    def answer(chunk: bytes) -> bytes:
        trips.append(_gets(chunk))
        return b"$1\r\nx\r\n" * _gets(chunk)

    async with _server(answer) as url:
        link = _link(url)
        assert await asyncio.gather(*(link.call("GET", f"k{n}") for n in range(150))) == [b"x"] * 150
        await link.close()
    assert trips == [64, 64, 22]


async def test_a_trip_is_bounded_by_bytes() -> None:
    value = bytes(3_000_000)
    unanswered = bytearray()
    most_at_once: list[int] = []

    def answer(chunk: bytes) -> bytes:
        unanswered.extend(chunk)
        values = len(unanswered) // len(value)
        most_at_once.append(values)
        if not values or not unanswered.endswith(b"\x00\r\n"):
            return b""
        unanswered.clear()
        return b"+OK\r\n" * values

    async with _server(answer) as url:
        link = _link(url, timeout_seconds=5)
        assert await asyncio.gather(*(link.call("SET", "k", value) for _ in range(3))) == [b"OK"] * 3
        await link.close()
    assert max(most_at_once) == 1


async def test_replies_go_to_their_callers_in_order_and_errors_to_theirs_alone() -> None:
    def answer(chunk: bytes) -> bytes:
        return b"$1\r\na\r\n-ERR no such thing\r\n$1\r\nc\r\n"

    async with _server(answer) as url:
        link = _link(url)
        first, second, third = await asyncio.gather(
            *(link.call("GET", key) for key in "abc"), return_exceptions=True
        )
        await link.close()
    assert (first, third) == (b"a", b"c")
    assert isinstance(second, StoreUnavailable)
    assert str(second) == "redis is unavailable: no such thing"


async def test_a_server_that_is_loading_is_unavailable() -> None:
    async with _server(lambda _: b"-LOADING Redis is loading the dataset in memory\r\n") as url:
        link = _link(url)
        with pytest.raises(StoreUnavailable, match="loading the dataset"):
            await link.call("GET", "k")
        await link.close()


async def test_a_server_that_talks_nonsense_is_unavailable() -> None:
    async with _server(lambda _: b"HTTP/1.1 400 Bad Request\r\n\r\n") as url:
        link = _link(url)
        with pytest.raises(StoreUnavailable):
            await link.call("GET", "k")
        await link.close()


async def test_a_command_is_sent_once_more_when_the_connection_breaks() -> None:
    replies = iter([None, b"$1\r\nx\r\n"])
    async with _server(lambda _: next(replies)) as url:
        link = _link(url)
        assert await link.call("GET", "k") == b"x"
        await link.close()


async def test_a_command_that_must_not_be_done_twice_is_not_sent_twice() -> None:
    chunks: list[bytes] = []

    def answer(chunk: bytes) -> bytes | None:
        chunks.append(chunk)
        return None

    async with _server(answer) as url:
        link = _link(url, is_resending=False)
        with pytest.raises(StoreUnavailable):
            await link.call("INCR", "k")
        await link.close()
    assert len(chunks) == 1


async def test_those_behind_a_trip_that_failed_do_not_wait_for_another_one() -> None:
    arrived = asyncio.Event()

    def answer(_: bytes) -> bytes:
        arrived.set()
        return b""

    async with _server(answer) as url:
        link = _link(url)
        first = asyncio.create_task(link.call("GET", "k"))
        await arrived.wait()
        second = asyncio.create_task(link.call("GET", "k"))
        results = await asyncio.gather(first, second, return_exceptions=True)
        assert [str(result) for result in results] == ["redis is unavailable: no answer within 0.2 s"] * 2
        await link.close()


async def test_a_script_is_sent_whole_only_to_a_server_that_lacks_it() -> None:
    seen: list[bytes] = []

    def answer(chunk: bytes) -> bytes:
        seen.append(chunk.split(b"\r\n")[2])
        return b"-NOSCRIPT No matching script.\r\n" if len(seen) == 1 else b":1\r\n"

    async with _server(answer) as url:
        link = _link(url)
        script = Script("return 1")
        assert [await link.run(script, ["k"], b"v") for _ in range(2)] == [1, 1]
        await link.close()
    assert seen == [b"EVALSHA", b"EVAL", b"EVALSHA"]


async def test_a_loop_that_ends_leaves_no_caller_waiting() -> None:
    arrived = asyncio.Event()

    def answer(_: bytes) -> bytes:
        arrived.set()
        return b""

    async with _server(answer) as url:
        link = _link(url, timeout_seconds=60)
        call = asyncio.create_task(link.call("GET", "k"))
        await arrived.wait()
        (trips,) = (task for task in asyncio.all_tasks() if task.get_name() == "redis trips")
        trips.cancel()
        with pytest.raises(StoreUnavailable, match="event loop is ending"):
            await call
        await link.close()


def test_an_address_that_is_no_redis_is_refused_at_once() -> None:
    with pytest.raises(ValueError, match="scheme"):
        _link("http://127.0.0.1:6379")
