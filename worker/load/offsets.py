"""How far a consumer group has come, asked from outside of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from aiokafka import TopicPartition
from aiokafka.admin import AIOKafkaAdminClient


class GroupOffsets:
    """Committed offsets of one group. Asking does not join it."""

    def __init__(self, options: Mapping[str, Any], group: str) -> None:
        """Nothing is connected yet; `options` say how to reach the cluster."""
        self._options = options
        self._group = group
        self._admin: AIOKafkaAdminClient | None = None

    async def committed(self, places: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
        """Where the group would go on, 0 where it never committed. Raises aiokafka's errors."""
        if not places:
            return {}
        if self._admin is None:
            self._admin = AIOKafkaAdminClient(**self._options)
            await self._admin.start()
        # Partitions by name: asked for all of them, the embedded broker gives an answer that is cut short.
        found = await self._admin.list_consumer_group_offsets(self._group, partitions=list(places))
        return {place: max(0, found[place].offset) if place in found else 0 for place in places}

    async def close(self) -> None:
        """Disconnect."""
        if self._admin is not None:
            await self._admin.close()
