"""How to reach the cluster, and which cluster it is."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any, Final, cast

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.conn import AIOKafkaConnection
from aiokafka.errors import KafkaError, SaslAuthenticationFailed, UnsupportedSaslMechanismError
from faststream.kafka.security import parse_security
from faststream.security import BaseSecurity

from worker.tls import tls_problem

_SENDER_TIMEOUT_SECONDS: Final = 0.5
_REFUSAL_TIMEOUT_MS: Final = 5_000


@dataclass(frozen=True, slots=True, kw_only=True)
class KafkaConnection:
    """Addresses and credentials, the same for every client of one worker."""

    bootstrap_servers: tuple[str, ...]
    client_id: str = "context-worker"
    security: BaseSecurity | None = field(default=None, repr=False)
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

    async def refusal(self) -> str:
        """Why none of the brokers to start from lets a client in, as a line for people.

        Costs a connection to each: aiokafka itself writes the cause to its log and raises without it.
        """
        found = [await self._refusal_of(server) for server in self.bootstrap_servers]
        # What is wrong with a broker that is there says more than that another one is away.
        told = next((why for why in found if why is not None), None)
        servers = ", ".join(self.bootstrap_servers)
        return f"no broker answers at {servers}" if told is None else f"the broker refuses: {told}"

    async def _refusal_of(self, server: str) -> str | None:
        """What is wrong with one that is there; None where it is not, or where nothing is wrong with it."""
        host, _, port = server.rpartition(":")
        options = self.client_options()
        del options["bootstrap_servers"]
        make = cast("Any", AIOKafkaConnection)
        connection = make(host.strip("[]"), int(port), request_timeout_ms=_REFUSAL_TIMEOUT_MS, **options)
        try:
            await connection.connect()
        except SaslAuthenticationFailed:
            return f"{server} does not accept the user or the password"
        except UnsupportedSaslMechanismError:
            return f"{server} does not offer the SASL mechanism"
        except (KafkaError, OSError, TimeoutError) as error:
            problem = tls_problem(error)
            return None if problem is None else f"{server}: {problem}"
        connection.close()
        return None


async def hang_up(consumer: AIOKafkaConsumer) -> None:
    """Close the consumer's connections, so that a stop that waits for a silent broker goes on and ends."""
    # aiokafka has no other way: its own `stop` asks the broker first, for as long as a request may take.
    await consumer._client.close()  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]  see above


async def abandon(producer: AIOKafkaProducer) -> None:
    """Drop what the producer still holds and close its connections, whether or not a broker answers."""
    # Private for the same reason: aiokafka's `stop` flushes first, an idempotent producer for ever.
    sender = asyncio.create_task(producer._sender.close())  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]  see above
    await producer.client.close()
    await asyncio.wait({sender}, timeout=_SENDER_TIMEOUT_SECONDS)
    # A request that failed just now waits for metadata that nobody fetches any more.
    sender.cancel()
    await asyncio.gather(sender, return_exceptions=True)
