"""How to reach the cluster, and which cluster it is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from aiokafka.admin import AIOKafkaAdminClient
from faststream.kafka.security import parse_security
from faststream.security import BaseSecurity


@dataclass(frozen=True, slots=True, kw_only=True)
class KafkaConnection:
    """Addresses and credentials, the same for every client of one worker."""

    bootstrap_servers: tuple[str, ...]
    client_id: str = "context-worker"
    security: BaseSecurity | None = None
    """TLS and SASL (PLAIN, SCRAM) as FastStream's own value; None is plain text without a login."""

    def client_options(self) -> dict[str, Any]:
        """Keyword arguments that every aiokafka client takes."""
        return {
            "bootstrap_servers": list(self.bootstrap_servers),
            "client_id": self.client_id,
            **parse_security(self.security),
        }

    async def cluster_id(self) -> str:
        """The id of the cluster that answers now; a dash where it has none. Raises KafkaError.

        Offsets mean something within one cluster only: an embedded broker counts from zero at each start.
        """
        admin = AIOKafkaAdminClient(**self.client_options())
        try:
            await admin.start()
            return str((await admin.describe_cluster()).get("cluster_id") or "-")
        finally:
            await admin.close()
