"""A small typed client: publish events and requests, await bundles and verdicts; index; follow the usage.

    async with ContextClient(["127.0.0.1:9092"]) as client:
        answer = await client.assemble(request, timeout_seconds=10)
        if isinstance(answer, Rejection):
            ...

Replies are matched by correlation id, a fresh one for each request, so many may be in flight and several
clients may share a reply topic. The client reads that topic from where it ended before its first request, so
no reply to its own requests can be missed.
"""

from __future__ import annotations

import asyncio
import hashlib
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Final, Self, cast
from uuid import uuid4

from pydantic import ValidationError
from pydantic_core import from_json

from schemas.answers import AgentAnswer, Verdict
from schemas.bundle import BundleRef, ContextBundle, Rejection
from schemas.request import AssemblyRequest
from schemas.state import StateEvent
from schemas.sync import SyncRequest, SyncResult
from schemas.tools import ToolRequest, ToolResult
from schemas.topics import DEFAULT_PREFIX, TopicRole, topic_name
from schemas.usage import UsageEvent
from worker.kafka_clients import Producer, Record, TopicReader, started_producer, whole_topic
from worker.logs import mask_url

_CORRELATION_ID: Final = "correlation_id"
_REPLY_TO: Final = "reply_to"
_FETCH_SECONDS: Final = 30.0

_PIECE_TOKENS: Final = 1_000_000
"""Asked for with each piece of a bundle: the worker's own maximum is what it gets."""

Reply = ContextBundle | BundleRef | SyncResult | ToolResult | Verdict | Rejection


class ClientError(Exception):
    """The client could not do what it was asked."""


class ReplyTimeout(ClientError, TimeoutError):
    """No reply within the time. The request may still be answered: repeat it unchanged to get the answer."""


class ClientClosed(ClientError):
    """The client was closed, or its reader failed, while a reply was awaited."""


class BundleNotFetched(ClientError):
    """A reply named a bundle by reference, and the bundle could not be had."""


class InvalidReply(ClientError):
    """A reply bears the right correlation id and is no message of the contract."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Published:
    """Where a record was stored."""

    partition: int
    offset: int


class ContextClient:
    """One caller. Use it as an async context manager; its methods may run concurrently."""

    def __init__(
        self,
        bootstrap_servers: Sequence[str],
        *,
        topic_prefix: str = DEFAULT_PREFIX,
        reply_topic: str | None = None,
        http_url: str | None = None,
        http_token: str | None = None,
        security: Mapping[str, Any] | None = None,
        bundles_over_kafka: bool = False,
    ) -> None:
        """Nothing is connected yet.

        `reply_topic` must be on the worker's allow-list; the bundles topic where absent. `http_url` is where
        bundles by reference are fetched instead of the address that the reference names, which a worker
        behind a proxy may not know. The token is sent there and nowhere else: whoever may write to the reply
        topic could name any address. With `bundles_over_kafka` such bundles come in pieces through the tool
        `get_bundle`, for callers that HTTP does not reach. `security` are keyword arguments of aiokafka's
        clients. Raises ValueError for a token without an address.
        """
        if http_token is not None and http_url is None:
            raise ValueError("http_token needs http_url, the only address that it is sent to")
        self._options = {"bootstrap_servers": list(bootstrap_servers), **(security or {})}
        self._prefix = topic_prefix
        self._bundles_topic = topic_name("bundles", prefix=topic_prefix)
        self._reply_topic = reply_topic or self._bundles_topic
        self._http_url = http_url
        self._http_token = http_token
        self._bundles_over_kafka = bundles_over_kafka
        self._resources = AsyncExitStack()
        self._producer: Producer | None = None
        self._reader: asyncio.Task[None] | None = None
        self._more_readers: dict[str, asyncio.Task[None]] = {}
        self._opening = asyncio.Lock()
        self._awaited: dict[bytes, asyncio.Future[bytes]] = {}

    async def __aenter__(self) -> Self:
        """Connect. Raises TopicMissing, or aiokafka's KafkaConnectionError where no broker answers."""
        async with AsyncExitStack() as resources:
            self._producer = await resources.enter_async_context(started_producer(self._options))
            # Positioned before anything can be published, so that the first reply is not missed.
            replies = await resources.enter_async_context(
                whole_topic(self._reply_topic, self._options, from_end=True)
            )
            self._reader = asyncio.create_task(self._read_replies(replies))
            resources.push_async_callback(self._stop_reading, self._reader)
            self._resources = resources.pop_all()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Disconnect; who still waits for a reply gets ClientClosed."""
        self._producer = None
        await self._resources.aclose()

    # --- Requests --------------------------------------------------------------------------------

    async def assemble(
        self,
        request: AssemblyRequest,
        *,
        timeout_seconds: float,
        key: bytes | None = None,
        headers: Sequence[tuple[str, bytes]] = (),
    ) -> ContextBundle | Rejection:
        """Publish `request` and await its answer; a bundle that came by reference is fetched.

        `key` decides the partition; the project id where absent. Raises ReplyTimeout, BundleNotFetched,
        InvalidReply, ClientClosed, or aiokafka's errors where the request could not be published.
        """
        body = request.model_dump_json(exclude_unset=True).encode()
        key = request.project_id.encode() if key is None else key
        try:
            async with asyncio.timeout(timeout_seconds):
                reply = _read_reply(await self.exchange_raw(body, key=key, headers=headers))
                if isinstance(reply, BundleRef):
                    reply = await self.fetch_bundle(reply, timeout_seconds=timeout_seconds)
        except TimeoutError:
            msg = f"no reply to request {request.request_id!r} within {timeout_seconds} s"
            raise ReplyTimeout(msg) from None
        if not isinstance(reply, ContextBundle | Rejection):
            raise InvalidReply("a request was answered as something else is")
        return reply

    async def sync(
        self,
        request: SyncRequest,
        *,
        timeout_seconds: float,
        headers: Sequence[tuple[str, bytes]] = (),
    ) -> SyncResult | Rejection:
        """Have a project indexed and await what came of it.

        `SyncResult.graph_version` is what a request names in `after` to see the files. Syncs of one project
        are carried out in the order in which they were published: await one before the next where that
        counts. Raises ReplyTimeout, InvalidReply, ClientClosed, TopicMissing, or aiokafka's errors where the
        sync could not be published.
        """
        body = request.model_dump_json(exclude_unset=True).encode()
        try:
            async with asyncio.timeout(timeout_seconds):
                await self._read_answers("sync-results")
                reply = _read_reply(
                    await self.exchange_raw(
                        body,
                        key=request.project_id.encode(),
                        headers=headers,
                        topic=topic_name("sync", prefix=self._prefix),
                    )
                )
        except TimeoutError:
            msg = f"no reply to sync {request.sync_id!r} within {timeout_seconds} s"
            raise ReplyTimeout(msg) from None
        if not isinstance(reply, SyncResult | Rejection):
            raise InvalidReply("a sync was answered as something else is")
        return reply

    async def call_tool(
        self,
        request: ToolRequest,
        *,
        timeout_seconds: float,
        headers: Sequence[tuple[str, bytes]] = (),
    ) -> ToolResult | Rejection:
        """Have a tool run and await what it says; an error of the tool is a result whose `ok` is false.

        Raises ReplyTimeout, InvalidReply, ClientClosed, TopicMissing, or aiokafka's errors where the call
        could not be published.
        """
        body = request.model_dump_json(exclude_unset=True).encode()
        try:
            async with asyncio.timeout(timeout_seconds):
                await self._read_answers("tool-results")
                reply = _read_reply(
                    await self.exchange_raw(
                        body,
                        key=request.project_id.encode(),
                        headers=headers,
                        topic=topic_name("tools", prefix=self._prefix),
                    )
                )
        except TimeoutError:
            msg = f"no reply to call {request.call_id!r} within {timeout_seconds} s"
            raise ReplyTimeout(msg) from None
        if not isinstance(reply, ToolResult | Rejection):
            raise InvalidReply("a call was answered as something else is")
        return reply

    async def answer(
        self,
        answer: AgentAnswer,
        *,
        timeout_seconds: float,
        headers: Sequence[tuple[str, bytes]] = (),
    ) -> Verdict | Rejection:
        """Have an agent's answer judged and await the verdict; a bundle by reference in it is fetched.

        An answer that was judged before gets the same verdict again. Raises ReplyTimeout, BundleNotFetched,
        InvalidReply, ClientClosed, TopicMissing, or aiokafka's errors where it could not be published.
        """
        body = answer.model_dump_json(exclude_unset=True).encode()
        try:
            async with asyncio.timeout(timeout_seconds):
                await self._read_answers("verdicts")
                reply = _read_reply(
                    await self.exchange_raw(
                        body,
                        key=answer.project_id.encode(),
                        headers=headers,
                        topic=topic_name("responses", prefix=self._prefix),
                    )
                )
                if isinstance(reply, Verdict) and isinstance(reply.bundle, BundleRef):
                    bundle = await self.fetch_bundle(reply.bundle, timeout_seconds=timeout_seconds)
                    reply = reply.model_copy(update={"bundle": bundle})
        except TimeoutError:
            msg = f"no verdict on answer {answer.answer_id!r} within {timeout_seconds} s"
            raise ReplyTimeout(msg) from None
        if not isinstance(reply, Verdict | Rejection):
            raise InvalidReply("an answer was answered as something else is")
        return reply

    async def publish_event(self, event: StateEvent) -> Published:
        """Publish one event of a project's state; it is not answered.

        A request that names its `event_id` in `after` sees it. Raises ClientClosed, or aiokafka's errors.
        """
        return await self.publish_raw(
            event.model_dump_json(exclude_none=True).encode(),
            key=event.root.project_id.encode(),
            topic=topic_name("state", prefix=self._prefix),
        )

    async def exchange_raw(
        self,
        body: bytes,
        *,
        key: bytes | None = None,
        headers: Sequence[tuple[str, bytes]] = (),
        topic: str | None = None,
    ) -> bytes:
        """Publish any bytes, as a request where no topic is named, and await the body of the reply.

        For load tests and for what no AssemblyRequest can express. `headers` go along, except that the
        correlation id and, with a reply topic of one's own, `reply_to` are set by the client.
        """
        correlation_id = uuid4().hex.encode()
        own = [(_CORRELATION_ID, correlation_id)]
        if self._reply_topic != self._bundles_topic:
            own.append((_REPLY_TO, self._reply_topic.encode()))
        future: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self._awaited[correlation_id] = future
        try:
            # Of a repeated header the first counts, so the client's own stand in front.
            await self.publish_raw(body, key=key, headers=[*own, *headers], topic=topic)
            return await future
        finally:
            del self._awaited[correlation_id]

    async def publish_raw(
        self,
        body: bytes | None,
        *,
        key: bytes | None = None,
        headers: Sequence[tuple[str, bytes]] = (),
        topic: str | None = None,
    ) -> Published:
        """Publish bytes as they are, on the requests topic where none is named; await nothing but the broker.

        Raises ClientClosed outside of the context, or aiokafka's errors.
        """
        if self._producer is None or self._reader is None or self._reader.done():
            raise ClientClosed("the client is not running")
        stored = await self._producer.send_and_wait(
            topic or topic_name("requests", prefix=self._prefix), body, key, headers=list(headers)
        )
        return Published(partition=stored.partition, offset=stored.offset)

    # --- Replies ---------------------------------------------------------------------------------

    async def _read_replies(self, replies: TopicReader) -> None:
        try:
            while True:
                record = await replies.next()
                future = self._awaited.get(_first_header(record, _CORRELATION_ID) or b"")
                # A redelivered request is answered again, with the same bytes: the first answer will do.
                if future is not None and not future.done():
                    future.set_result(record.value or b"")
        except Exception as error:  # noqa: BLE001 - whatever ends the reader must reach those who wait
            self._fail_all(ClientClosed(f"reading replies failed: {error!r}"))

    async def _read_answers(self, role: TopicRole) -> None:
        """Read that topic, too, from where it ends now; once, and not where answers come to our own topic."""
        if self._reply_topic != self._bundles_topic:
            return
        async with self._opening:
            if self._producer is None:
                raise ClientClosed("the client is not running")
            reader = self._more_readers.get(role)
            if reader is None or reader.done():
                answers = await self._resources.enter_async_context(
                    whole_topic(topic_name(role, prefix=self._prefix), self._options, from_end=True)
                )
                reader = self._more_readers[role] = asyncio.create_task(self._read_replies(answers))
                self._resources.push_async_callback(self._stop_reading, reader)

    async def _stop_reading(self, reader: asyncio.Task[None]) -> None:
        reader.cancel()
        await asyncio.wait([reader])
        self._fail_all(ClientClosed("the client was closed"))

    def _fail_all(self, error: ClientClosed) -> None:
        for future in self._awaited.values():
            if not future.done():
                future.set_exception(error)

    async def fetch_bundle(self, reference: BundleRef, *, timeout_seconds: float) -> ContextBundle:
        """The bundle that a reference stands for. Raises BundleNotFetched where it cannot be had.

        In pieces over Kafka, it raises what `call_tool` does, too.
        """
        if self._bundles_over_kafka:
            body, source = await self._bundle_in_pieces(reference, timeout_seconds), "the worker"
        else:
            body, source = await self._bundle_over_http(reference, timeout_seconds)
        if hashlib.sha256(body).hexdigest() != reference.digest:
            raise BundleNotFetched(f"{source} gave other bytes than the reference names")
        return ContextBundle.model_validate_json(body)

    async def _bundle_over_http(self, reference: BundleRef, timeout_seconds: float) -> tuple[bytes, str]:
        url = reference.url
        if self._http_url is not None:
            base = self._http_url.rstrip("/")
            url = f"{base}/projects/{reference.project_id}/bundles/{reference.digest}"
        body = await asyncio.to_thread(
            _fetch,
            url,
            self._http_token,
            min(timeout_seconds, _FETCH_SECONDS),
            most_bytes=reference.size_bytes,
        )
        return body, mask_url(url)

    async def _bundle_in_pieces(self, reference: BundleRef, timeout_seconds: float) -> bytes:
        pieces: list[bytes] = []
        offset: int | None = 0
        while offset is not None and offset < reference.size_bytes:
            call = ToolRequest(
                call_id=f"{reference.digest[:32]}@{offset}",
                project_id=reference.project_id,
                tool="get_bundle",
                arguments={"digest": reference.digest, "offset": offset},
                budget_tokens=_PIECE_TOKENS,
            )
            answer = await self.call_tool(call, timeout_seconds=timeout_seconds)
            if isinstance(answer, Rejection) or answer.content is None:
                raise BundleNotFetched(
                    f"piece {offset} of {reference.digest} could not be had: {answer!r:.500}"
                )
            pieces.append(answer.content.encode())
            offset = answer.next_offset
        return b"".join(pieces)

    # --- Usage -----------------------------------------------------------------------------------

    async def usage_events(self, *, from_beginning: bool = False) -> UsageStream:
        """The usage events that are published from now on, or all that the topic holds and then those.

        Its place is fixed when this returns. Close it, or leave that to the client's own end. Raises
        TopicMissing, or aiokafka's errors.
        """
        resources = AsyncExitStack()
        events = await resources.enter_async_context(
            whole_topic(topic_name("usage", prefix=self._prefix), self._options, from_end=not from_beginning)
        )
        self._resources.push_async_callback(resources.aclose)
        return UsageStream(events, resources)


class UsageStream:
    """Usage events as they come, in order within a project; a repeated event comes once more."""

    def __init__(self, events: TopicReader, resources: AsyncExitStack) -> None:
        """Read from `events`; closing gives `resources` back."""
        self._events = events
        self._resources = resources

    def __aiter__(self) -> AsyncIterator[UsageEvent]:
        """Itself."""
        return self

    async def __anext__(self) -> UsageEvent:
        """The next event; waits for it. Raises InvalidReply for a record that is none, and goes on after."""
        record = await self._events.next()
        try:
            return UsageEvent.model_validate_json(record.value or b"")
        except ValidationError as error:
            place = f"{record.partition}:{record.offset}"
            raise InvalidReply(f"usage record {place} is no usage event: {error}") from error

    async def aclose(self) -> None:
        """Disconnect; idempotent."""
        await self._resources.aclose()


_KINDS: Final[Mapping[str, type[Reply]]] = {
    "bundle": ContextBundle,
    "bundle_ref": BundleRef,
    "sync_result": SyncResult,
    "tool_result": ToolResult,
    "verdict": Verdict,
    "rejection": Rejection,
}


def _read_reply(body: bytes) -> Reply:
    try:
        fields: object = from_json(body)
        kind = cast("dict[str, object]", fields).get("kind") if isinstance(fields, dict) else None
        model = _KINDS.get(str(kind))
        if model is None:
            msg = f"a reply of kind {kind!r} is not known here"
            raise InvalidReply(msg)
        return model.model_validate(fields)
    except ValueError as error:
        raise InvalidReply(f"the reply is no message of the contract: {error}") from error


def _first_header(record: Record, name: str) -> bytes | None:
    return next((value for key, value in record.headers if key == name), None)


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: object, **__: object) -> None:
        """Follow none: the token is meant for the address that was asked, and no other."""


def _fetch(url: str, token: str | None, timeout_seconds: float, *, most_bytes: int) -> bytes:
    if not url.startswith(("http://", "https://")):
        raise BundleNotFetched(f"{mask_url(url)!r} is no HTTP address")
    headers = {} if token is None else {"Authorization": f"Bearer {token}"}
    # No proxies either: a bundle lies within the same network, and the token is no proxy's business.
    opener = urllib.request.build_opener(_NoRedirects, urllib.request.ProxyHandler({}))
    request = urllib.request.Request(url, headers=headers)  # noqa: S310 - the scheme was checked above
    try:
        with opener.open(request, timeout=timeout_seconds) as response:
            # One more than there should be: the digest then says that it is another body.
            return response.read(most_bytes + 1)
    except urllib.error.HTTPError as error:
        error.close()
        raise BundleNotFetched(f"{mask_url(url)} answered {error.code}") from None
    except OSError as error:
        raise BundleNotFetched(f"{mask_url(url)} could not be fetched: {error}") from error
