# aiokafka leaves its senders and records without types.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

import asyncio
import os
import select
import signal
import socket
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from blockbuster import blockbuster_ctx

from worker.kafka.embedded import BrokerDidNotStart, EmbeddedBroker, embedded_broker


def children() -> set[int]:
    """The live child processes of this one."""
    tasks = Path(f"/proc/{os.getpid()}/task").glob("*/children")
    return {int(pid) for task in tasks for pid in task.read_text().split()}


@contextmanager
def no_new_children() -> Generator[None]:
    before = children()
    yield
    assert children() <= before


def has_ended(pidfd: int, *, within_seconds: float) -> bool:
    poll = select.poll()
    poll.register(pidfd, select.POLLIN)
    return bool(poll.poll(within_seconds * 1_000))


async def answers(broker: EmbeddedBroker, *, within_seconds: float) -> bool:
    admin = AIOKafkaAdminClient(bootstrap_servers=broker.bootstrap_servers)
    try:
        async with asyncio.timeout(within_seconds):
            await admin.start()
            await admin.list_topics()
    except TimeoutError:
        return False
    else:
        return True
    finally:
        await admin.close()


async def test_a_record_with_key_value_and_headers_comes_back_byte_for_byte() -> None:
    headers = (("h", b"1"), ("h", b"\xff\xfe"), ("empty", b""))
    with no_new_children():
        async with embedded_broker() as broker:
            admin = AIOKafkaAdminClient(bootstrap_servers=broker.bootstrap_servers)
            await admin.start()
            await admin.create_topics([NewTopic("t", 3, 1)])
            await admin.close()
            producer = AIOKafkaProducer(
                bootstrap_servers=broker.bootstrap_servers, acks="all", compression_type="lz4"
            )
            async with producer:
                await producer.send_and_wait("t", b"\x00value", key=b"k\x00", headers=list(headers))
            consumer = AIOKafkaConsumer(
                "t",
                bootstrap_servers=broker.bootstrap_servers,
                auto_offset_reset="earliest",
                fetch_max_wait_ms=10,
            )
            async with consumer:
                record = await asyncio.wait_for(consumer.getone(), 10)
            assert (record.key, record.value, record.headers) == (b"k\x00", b"\x00value", headers)


async def test_it_listens_on_the_port_that_was_asked_for() -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    async with embedded_broker(port=port) as broker:
        assert broker.bootstrap_servers == f"127.0.0.1:{port}"
        assert await answers(broker, within_seconds=5)


async def test_two_brokers_share_nothing() -> None:
    async with embedded_broker() as one, embedded_broker() as other:
        admin = AIOKafkaAdminClient(bootstrap_servers=one.bootstrap_servers)
        await admin.start()
        await admin.create_topics([NewTopic("only-here", 1, 1)])
        await admin.close()
        admin = AIOKafkaAdminClient(bootstrap_servers=other.bootstrap_servers)
        await admin.start()
        topics = await admin.list_topics()
        await admin.close()
        assert "only-here" not in topics


async def test_a_port_that_a_mute_program_holds_is_an_error_that_names_it() -> None:
    with no_new_children(), socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(BrokerDidNotStart, match=f"(?s)did not start on 127.0.0.1:{port}: .*in use"):
            async with embedded_broker(port=port):
                pass


async def test_a_port_whose_holder_hangs_up_is_an_error_that_names_it() -> None:
    async def hang_up(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.close()

    async with await asyncio.start_server(hang_up, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        with no_new_children(), pytest.raises(BrokerDidNotStart, match=f"127.0.0.1:{port}"):
            async with embedded_broker(port=port):
                pass


async def test_a_port_that_another_broker_holds_is_an_error_not_that_broker() -> None:
    async with embedded_broker() as other:
        port = int(other.bootstrap_servers.rpartition(":")[2])
        with no_new_children(), pytest.raises(BrokerDidNotStart, match=f"127.0.0.1:{port}"):
            async with embedded_broker(port=port):
                pass
        assert await answers(other, within_seconds=5)


async def test_the_output_is_appended_to_the_log_that_was_asked_for(tmp_path: Path) -> None:
    log_path = tmp_path / "new" / "broker.log"
    for _ in range(2):
        async with embedded_broker(log_path=log_path):
            pass
    assert log_path.read_text().count("listening on: tcp://127.0.0.1:") == 2


async def test_options_in_the_environment_do_not_reach_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ADVERTISED_LISTENER_URL", "tcp://192.0.2.1:9092")
    monkeypatch.setenv("STORAGE_ENGINE", "s3://elsewhere/")
    async with embedded_broker() as broker:
        admin = AIOKafkaAdminClient(bootstrap_servers=broker.bootstrap_servers)
        await admin.start()
        cluster = await admin.describe_cluster()
        await admin.close()
        assert [node["host"] for node in cluster["brokers"]] == ["127.0.0.1"]


async def test_a_paused_broker_answers_nothing_until_it_is_resumed() -> None:
    with no_new_children():
        async with embedded_broker() as broker:
            broker.pause()
            assert not await answers(broker, within_seconds=0.3)
            broker.resume()
            assert await answers(broker, within_seconds=5)


async def test_a_paused_broker_ends_with_its_context() -> None:
    with no_new_children():
        async with embedded_broker() as broker:
            broker.pause()


async def test_an_error_in_the_body_ends_the_broker_and_passes() -> None:
    with no_new_children(), pytest.raises(ZeroDivisionError):
        async with embedded_broker():
            _ = 1 / 0


async def test_a_broker_that_was_killed_from_outside_is_no_error_on_the_way_out() -> None:
    with no_new_children():
        async with embedded_broker() as broker:
            pidfd = os.pidfd_open(broker.pid)
            os.kill(broker.pid, signal.SIGKILL)
            assert await asyncio.to_thread(has_ended, pidfd, within_seconds=5)
            os.close(pidfd)


async def test_cancelling_a_user_of_the_broker_ends_it() -> None:
    running = asyncio.Event()

    async def use() -> None:
        async with embedded_broker():
            running.set()
            await asyncio.Event().wait()

    with no_new_children():
        task = asyncio.create_task(use())
        await running.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task


@pytest.mark.parametrize("turns", [0, 1, 2, 3, 5, 8, 20, 100, 300])
async def test_cancelling_at_any_moment_of_the_start_leaves_nothing(turns: int) -> None:
    async def use() -> None:
        async with embedded_broker():
            await asyncio.Event().wait()

    with no_new_children():
        task = asyncio.create_task(use())
        for _ in range(turns):
            await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task


async def test_a_killed_parent_leaves_no_broker() -> None:
    program = """
import asyncio
from worker.kafka.embedded import embedded_broker

async def main():
    async with embedded_broker() as broker:
        print(broker.pid, flush=True)
        await asyncio.Event().wait()

asyncio.run(main())
"""
    parent = await asyncio.create_subprocess_exec(
        sys.executable, "-c", program, stdout=asyncio.subprocess.PIPE
    )
    assert parent.stdout is not None
    pidfd = os.pidfd_open(int(await parent.stdout.readline()))
    assert not has_ended(pidfd, within_seconds=0)
    parent.kill()
    await parent.wait()
    assert await asyncio.to_thread(has_ended, pidfd, within_seconds=5)
    os.close(pidfd)


async def test_starting_and_ending_it_does_not_block_the_loop() -> None:
    with blockbuster_ctx("worker.kafka.embedded"):
        async with embedded_broker():
            pass
