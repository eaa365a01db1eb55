from __future__ import annotations

from dataclasses import dataclass, field

from aiokafka import TopicPartition

from worker.kafka.partition import Partition, lag_of

FIRST, SECOND = TopicPartition("requests", 0), TopicPartition("requests", 1)


@dataclass(kw_only=True)
class Log:
    """What a consumer has and knows; it answers for nothing else, as aiokafka."""

    ends: dict[TopicPartition, int | None] = field(default_factory=dict[TopicPartition, int | None])

    def assignment(self) -> set[TopicPartition]:
        return set(self.ends)

    def highwater(self, partition: TopicPartition) -> int | None:
        assert partition in self.ends
        return self.ends[partition]


def partition(tp: TopicPartition, *, committed: int) -> Partition:
    made = Partition(tp, ())
    made.committed = committed
    return made


def test_the_lag_is_what_lies_between_the_commits_and_the_ends_of_the_logs() -> None:
    owned = [partition(FIRST, committed=40), partition(SECOND, committed=7)]
    assert lag_of(Log(ends={FIRST: 100, SECOND: 9}), owned) == 62


def test_what_is_not_known_counts_as_nothing() -> None:
    not_opened = partition(FIRST, committed=-1)
    not_fetched = partition(SECOND, committed=7)
    assert lag_of(Log(ends={FIRST: 100, SECOND: None}), [not_opened, not_fetched]) == 0


def test_a_partition_that_the_consumer_has_no_more_is_not_asked_for() -> None:
    owned = [partition(FIRST, committed=40), partition(SECOND, committed=7)]
    assert lag_of(Log(ends={FIRST: 50}), owned) == 10


def test_a_commit_that_is_newer_than_the_last_fetch_is_no_lag() -> None:
    owned = [partition(FIRST, committed=60), partition(SECOND, committed=7)]
    assert lag_of(Log(ends={FIRST: 50, SECOND: 8}), owned) == 1
