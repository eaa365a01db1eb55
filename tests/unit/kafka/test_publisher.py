from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from aiokafka.errors import (
    InvalidTopicError,
    KafkaConnectionError,
    KafkaError,
    KafkaTimeoutError,
    MessageSizeTooLargeError,
    NotLeaderForPartitionError,
    OutOfOrderSequenceNumber,
    ProducerClosed,
    ProducerFenced,
    TopicAuthorizationFailedError,
    UnknownProducerId,
    UnknownTopicOrPartitionError,
)

from tests.support.dispatching import until
from worker.kafka.connection import KafkaConnection
from worker.kafka.publisher import KafkaPublisher, ProducerOptions
from worker.kafka.records import OutboundRecord, RecordTooLarge, TopicUnusable

FOREIGN = OutboundRecord(topic="team.replies", key=b"p", value=b"{}", is_topic_foreign=True)
RECORD = OutboundRecord(topic="bundles", key=b"p", value=b"{}", headers=(("h", b"\xff"), ("h", b"2")))


class Cluster:
    """A broker that meets sends with what is listed, and the producers that were made for it."""

    def __init__(
        self, *answers: KafkaError | asyncio.Event | asyncio.Future[Any], idempotent: bool = True
    ) -> None:
        self.answers = list(answers)
        self.unsendable: list[KafkaError] = []
        self.refuses_start: list[KafkaError] = []
        self.producers: list[FakeProducer] = []
        self.sent: list[tuple[Any, ...]] = []
        self.pauses: list[float] = []
        self.was_away: list[bool] = []
        self.now = 0.0
        self.lacking: list[bool] = []
        self.publisher = KafkaPublisher(
            connection=KafkaConnection(bootstrap_servers=("127.0.0.1:1",)),
            options=ProducerOptions(is_idempotent=idempotent),
            lacks_topic=self.lacks_topic,
            make_producer=self.make,
            sleep=self.sleep,
            clock=lambda: self.now,
        )

    def make(self, **settings: Any) -> FakeProducer:
        self.producers.append(FakeProducer(self, settings))
        return self.producers[-1]

    async def lacks_topic(self, topic: str) -> bool:
        assert topic == FOREIGN.topic
        return self.lacking.pop(0) if self.lacking else False

    async def sleep(self, seconds: float) -> None:
        self.pauses.append(seconds)
        self.was_away.append(self.publisher.is_away)
        await asyncio.sleep(0)


class FakeProducer:
    def __init__(self, cluster: Cluster, settings: dict[str, Any]) -> None:
        self.cluster = cluster
        self.settings = settings
        self.is_stopped = False

    async def start(self) -> None:
        if self.cluster.refuses_start:
            raise self.cluster.refuses_start.pop(0)

    async def stop(self) -> None:
        self.is_stopped = True

    async def send(
        self, topic: str, *, value: bytes, key: bytes | None, headers: list[tuple[str, bytes]]
    ) -> asyncio.Future[Any]:
        if self.is_stopped:
            raise ProducerClosed
        if self.cluster.unsendable:
            raise self.cluster.unsendable.pop(0)
        acknowledged: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        answer = self.cluster.answers.pop(0) if self.cluster.answers else None
        if isinstance(answer, KafkaError):
            # Later, as a broker answers: until then other records go to the same producer.
            asyncio.get_running_loop().call_soon(acknowledged.set_exception, answer)
            return acknowledged
        if isinstance(answer, asyncio.Future):
            return answer
        if isinstance(answer, asyncio.Event):
            await answer.wait()
        self.cluster.sent.append((topic, value, key, tuple(headers)))
        acknowledged.set_result(None)
        return acknowledged


async def publish(cluster: Cluster) -> None:
    await cluster.publisher.start()
    await asyncio.wait_for(cluster.publisher.publish(RECORD), 5)


async def test_a_record_is_sent_byte_for_byte_and_repeated_headers_stay():
    cluster = Cluster()
    await publish(cluster)
    assert cluster.sent == [("bundles", b"{}", b"p", (("h", b"\xff"), ("h", b"2")))]


async def test_the_producer_waits_for_every_replica_and_takes_large_batches():
    cluster = Cluster()
    await publish(cluster)
    settings = cluster.producers[0].settings
    assert settings["acks"] == "all"
    assert settings["enable_idempotence"] is True
    assert settings["compression_type"] == "lz4"
    assert settings["max_batch_size"] == 262_144


@pytest.mark.parametrize(
    "error",
    [
        KafkaConnectionError(),
        NotLeaderForPartitionError(),
        UnknownTopicOrPartitionError(),
        KafkaTimeoutError(),
    ],
)
@pytest.mark.parametrize("when", ["send", "acknowledgement"])
async def test_a_broker_that_takes_nothing_is_waited_for_with_the_same_producer(error: KafkaError, when: str):
    cluster = Cluster()
    (cluster.unsendable if when == "send" else cluster.answers).extend([error] * 3)  # pyright: ignore[reportUnknownMemberType, reportAttributeAccessIssue]  both hold errors
    await publish(cluster)
    assert cluster.pauses == [0.1, 0.2, 0.4]
    assert (len(cluster.sent), len(cluster.producers)) == (1, 1)


async def test_the_pauses_end_at_five_seconds_and_never_give_up():
    cluster = Cluster(*[KafkaConnectionError()] * 300)
    await publish(cluster)
    assert len(cluster.sent) == 1
    assert max(cluster.pauses) == 5.0


@pytest.mark.parametrize(
    "error",
    [OutOfOrderSequenceNumber(), ProducerFenced(), UnknownProducerId(), KafkaError("the sender died")],
)
async def test_a_producer_that_is_broken_for_good_is_replaced(error: KafkaError):
    cluster = Cluster(error)
    await publish(cluster)
    await until(lambda: cluster.producers[0].is_stopped)
    assert (len(cluster.sent), len(cluster.producers)) == (1, 2)
    assert not cluster.producers[1].is_stopped


async def test_many_records_that_fail_together_replace_the_producer_once():
    cluster = Cluster(*[OutOfOrderSequenceNumber()] * 20)
    await cluster.publisher.start()
    await asyncio.gather(*(cluster.publisher.publish(RECORD) for _ in range(20)))
    assert (len(cluster.sent), len(cluster.producers)) == (20, 2)


async def test_a_replacement_that_cannot_connect_is_tried_again():
    cluster = Cluster(OutOfOrderSequenceNumber(), OutOfOrderSequenceNumber())
    await cluster.publisher.start()
    cluster.refuses_start.append(KafkaConnectionError())
    await asyncio.wait_for(cluster.publisher.publish(RECORD), 5)
    assert len(cluster.sent) == 1
    assert [producer.is_stopped for producer in cluster.producers][1:] == [True, False]


async def test_a_record_over_the_producers_limit_is_refused_and_harms_nobody():
    cluster = Cluster()
    cluster.unsendable.append(MessageSizeTooLargeError())
    await cluster.publisher.start()
    with pytest.raises(
        RecordTooLarge, match=r"3 bytes for bundles exceeds max_record_bytes .*1048576"
    ) as caught:
        await cluster.publisher.publish(RECORD)
    assert (caught.value.topic, caught.value.size_bytes) == ("bundles", 3)
    assert len(cluster.producers) == 1


@pytest.mark.parametrize(("idempotent", "producers"), [(True, 3), (False, 2)])
async def test_a_record_over_the_topics_limit_is_refused_and_the_next_one_sent(
    idempotent: bool,  # noqa: FBT001
    producers: int,
):
    cluster = Cluster(MessageSizeTooLargeError(), MessageSizeTooLargeError(), idempotent=idempotent)
    await cluster.publisher.start()
    with pytest.raises(RecordTooLarge, match=r"max.message.bytes of the topic"):
        await cluster.publisher.publish(RECORD)
    await cluster.publisher.publish(RECORD)
    assert (len(cluster.sent), len(cluster.producers)) == (1, producers)


async def test_a_record_whose_batch_was_too_large_is_sent_in_one_of_its_own_before_it_is_refused():
    cluster = Cluster(MessageSizeTooLargeError(), idempotent=False)
    await publish(cluster)
    assert len(cluster.sent) == 1
    assert [producer.settings["max_batch_size"] for producer in cluster.producers] == [262_144, 1]
    await until(lambda: cluster.producers[1].is_stopped)
    assert not cluster.producers[0].is_stopped


async def test_a_batch_of_ones_own_that_meets_an_absent_broker_is_waited_for():
    cluster = Cluster(MessageSizeTooLargeError(), KafkaConnectionError(), idempotent=False)
    await cluster.publisher.start()
    await asyncio.wait_for(cluster.publisher.publish(RECORD), 5)
    assert (len(cluster.sent), cluster.pauses) == (1, [0.1])


async def test_a_foreign_topic_that_is_not_there_is_not_waited_for():
    cluster = Cluster()
    cluster.lacking = [True]
    await cluster.publisher.start()
    with pytest.raises(TopicUnusable, match=r"team\.replies.*does not exist"):
        await cluster.publisher.publish(FOREIGN)
    assert (cluster.sent, cluster.pauses) == ([], [])
    await cluster.publisher.publish(FOREIGN)
    assert len(cluster.sent) == 1


async def test_a_foreign_topic_that_is_deleted_while_a_record_waits_is_waited_for_no_longer():
    cluster = Cluster(UnknownTopicOrPartitionError(), UnknownTopicOrPartitionError())
    cluster.lacking = [False, False, True]
    await cluster.publisher.start()
    with pytest.raises(TopicUnusable):
        await cluster.publisher.publish(FOREIGN)
    assert cluster.pauses == [0.1, 0.2]
    assert not cluster.publisher.is_away


@pytest.mark.parametrize("error", [TopicAuthorizationFailedError(), InvalidTopicError()])
@pytest.mark.parametrize("when", ["send", "acknowledgement"])
async def test_a_foreign_topic_that_may_not_be_written_to_is_not_waited_for(error: KafkaError, when: str):
    cluster = Cluster()
    (cluster.unsendable if when == "send" else cluster.answers).append(error)  # pyright: ignore[reportUnknownMemberType, reportArgumentType]  both hold errors
    await cluster.publisher.start()
    with pytest.raises(TopicUnusable, match="cannot be written to"):
        await cluster.publisher.publish(FOREIGN)


@pytest.mark.parametrize("error", [TopicAuthorizationFailedError(), UnknownTopicOrPartitionError()])
async def test_a_topic_of_the_workers_own_is_waited_for_whatever_keeps_it_away(error: KafkaError):
    cluster = Cluster(*[error] * 10)
    await publish(cluster)
    assert (len(cluster.sent), len(cluster.pauses)) == (1, 10)


async def test_it_is_away_from_the_first_failure_to_the_next_acknowledgement():
    cluster = Cluster(KafkaConnectionError())
    await publish(cluster)
    assert (cluster.was_away, cluster.publisher.is_away) == ([True], False)


async def test_it_is_away_when_nothing_was_acknowledged_for_five_seconds():
    answer = asyncio.Event()
    cluster = Cluster(answer)
    cluster.now = 100.0
    publishing = asyncio.create_task(publish(cluster))
    for _ in range(5):
        await asyncio.sleep(0)
    cluster.now = 105.0
    assert not cluster.publisher.is_away
    cluster.now = 105.1
    assert cluster.publisher.is_away
    answer.set()
    await publishing
    assert not cluster.publisher.is_away


async def test_cancellation_ends_the_waiting_and_is_no_longer_counted():
    cluster = Cluster(*[KafkaConnectionError()] * 1_000_000)
    await cluster.publisher.start()
    publishing = asyncio.create_task(cluster.publisher.publish(RECORD))
    await until(lambda: cluster.publisher.is_away)
    publishing.cancel()
    await asyncio.wait({publishing})
    assert publishing.cancelled()
    assert not cluster.publisher.is_away


@pytest.mark.parametrize("life", ["not started", "stopped", "stopped while a record waits"])
async def test_without_a_producer_nothing_waits_for_ever(life: str):
    cluster = Cluster(*[KafkaConnectionError()] * 1_000_000)
    if life == "not started":
        with pytest.raises(RuntimeError, match="not running"):
            await cluster.publisher.publish(RECORD)
        return
    await cluster.publisher.start()
    publishing = None
    if life == "stopped while a record waits":
        publishing = asyncio.create_task(cluster.publisher.publish(RECORD))
        await until(lambda: cluster.publisher.is_away)
    await cluster.publisher.stop()
    with pytest.raises(RuntimeError):
        await asyncio.wait_for(publishing or cluster.publisher.publish(RECORD), 5)


async def test_a_start_without_a_broker_says_so_and_leaves_nothing_open():
    cluster = Cluster()
    cluster.refuses_start.append(KafkaConnectionError())
    with pytest.raises(KafkaConnectionError):
        await cluster.publisher.start()
    assert cluster.producers[0].is_stopped
    await publish(cluster)
    assert len(cluster.sent) == 1


async def test_a_producer_that_cannot_flush_does_not_hold_the_stop():
    cluster = Cluster()
    await cluster.publisher.start()

    async def never() -> None:
        await asyncio.Event().wait()

    stop: Callable[[], Any] = never
    cluster.producers[0].stop = stop
    await asyncio.wait_for(cluster.publisher.stop(timeout_seconds=0.01), 5)


@pytest.mark.parametrize("what", ["metadata", "acknowledgement"])
async def test_a_record_that_a_discarded_producer_leaves_waiting_goes_to_the_next_one(
    what: str,
):
    never = asyncio.Event() if what == "metadata" else asyncio.get_running_loop().create_future()
    cluster = Cluster(never, OutOfOrderSequenceNumber())
    await cluster.publisher.start()
    held = asyncio.create_task(cluster.publisher.publish(OutboundRecord(topic="held", key=b"p", value=b"{}")))
    await asyncio.sleep(0)
    await asyncio.wait_for(cluster.publisher.publish(RECORD), 5)
    await asyncio.wait_for(held, 5)
    assert sorted(topic for topic, *_ in cluster.sent) == ["bundles", "held"]
    assert [producer.is_stopped for producer in cluster.producers] == [True, False]
