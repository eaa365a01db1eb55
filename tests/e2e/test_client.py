"""The typed client against a worker on both brokers."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator
from typing import Any
from uuid import uuid4

import httpx
import pytest
import pytest_asyncio

from schemas.bundle import ContextBundle, Rejection
from schemas.request import AssemblyRequest
from tests.support.dispatching import batch_of, create_topics, send_batch
from tests.support.serving import TOKEN, Serving, serving
from worker.client import BundleNotFetched, ClientClosed, ContextClient, InvalidReply, ReplyTimeout
from worker.kafka.embedded import EmbeddedBroker
from worker.kafka_clients import TopicMissing

pytestmark = [pytest.mark.timeout(120), pytest.mark.asyncio(loop_scope="session")]


@pytest.fixture(params=["embedded", pytest.param("services", marks=pytest.mark.services)], scope="module")
def bootstrap(request: pytest.FixtureRequest) -> str:
    if request.param == "services":
        return request.getfixturevalue("kafka_bootstrap")
    broker: EmbeddedBroker = request.getfixturevalue("embedded")
    return broker.bootstrap_servers


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def worker(bootstrap: str, tmp_path_factory: pytest.TempPathFactory) -> AsyncGenerator[Serving]:
    prefix = f"t{uuid4().hex[:16]}."
    await create_topics(bootstrap, f"{prefix}own-replies", partitions=2)
    async with serving(bootstrap, prefix, tmp_path_factory.mktemp("worker")) as one:
        yield one


@pytest_asyncio.fixture(loop_scope="session")
async def client(worker: Serving) -> AsyncGenerator[ContextClient]:
    async with ContextClient(
        worker.bootstrap_servers, topic_prefix=worker.prefix, http_url=worker.http_url, http_token=TOKEN
    ) as client:
        yield client


def ask(text: str = "Add a retry.", **more: Any) -> AssemblyRequest:
    return AssemblyRequest.model_validate(
        {
            "request_id": uuid4().hex,
            "project_id": "shop",
            "volk": "smith",
            "subject": "implement",
            "user_message": text,
            **more,
        }
    )


def text_of(reply: ContextBundle | Rejection) -> str:
    assert isinstance(reply, ContextBundle)
    assert reply.messages is not None
    return reply.messages[-1].content


async def test_a_request_gets_its_bundle(client: ContextClient) -> None:
    request = ask()
    reply = await client.assemble(request, timeout_seconds=20)
    assert isinstance(reply, ContextBundle)
    assert reply.request_id == request.request_id
    assert text_of(reply) == "Add a retry."


async def test_a_request_may_get_a_rejection(client: ContextClient) -> None:
    reply = await client.assemble(ask("small window"), timeout_seconds=20)
    assert isinstance(reply, Rejection)
    assert (reply.code, reply.details["overage_tokens"]) == ("budget_too_small", 1)


async def test_a_bundle_by_reference_is_fetched_silently(client: ContextClient) -> None:
    reply = await client.assemble(ask("large: 60000"), timeout_seconds=20)
    assert text_of(reply) == "x" * 60_000


async def test_a_bundle_by_reference_needs_the_token(worker: Serving) -> None:
    async with ContextClient(worker.bootstrap_servers, topic_prefix=worker.prefix) as nobody:
        with pytest.raises(BundleNotFetched, match="401"):
            await nobody.assemble(ask("large: 60000"), timeout_seconds=20)


async def test_the_address_of_bundles_may_be_given(worker: Serving) -> None:
    async with ContextClient(
        worker.bootstrap_servers, topic_prefix=worker.prefix, http_url="http://127.0.0.1:9", http_token=TOKEN
    ) as elsewhere:
        with pytest.raises(BundleNotFetched, match=r"127\.0\.0\.1:9/projects/shop/bundles/"):
            await elsewhere.assemble(ask("large: 60000"), timeout_seconds=20)


async def test_many_requests_in_flight_get_their_own_replies(client: ContextClient) -> None:
    requests = [ask(f"number {number}") for number in range(200)]
    replies = await asyncio.gather(*(client.assemble(one, timeout_seconds=30) for one in requests))
    assert [text_of(reply) for reply in replies] == [f"number {number}" for number in range(200)]


async def test_two_clients_on_one_reply_topic_do_not_take_each_others_replies(
    worker: Serving, client: ContextClient
) -> None:
    async with ContextClient(worker.bootstrap_servers, topic_prefix=worker.prefix) as other:
        mine, theirs = await asyncio.gather(
            client.assemble(ask("mine"), timeout_seconds=20),
            other.assemble(ask("theirs"), timeout_seconds=20),
        )
    assert (text_of(mine), text_of(theirs)) == ("mine", "theirs")


async def test_the_same_request_again_gets_the_same_answer(client: ContextClient) -> None:
    request = ask()
    first = await client.assemble(request, timeout_seconds=20)
    assert await client.assemble(request, timeout_seconds=20) == first


async def test_a_reply_topic_of_ones_own_is_asked_for_and_read(worker: Serving) -> None:
    async with ContextClient(
        worker.bootstrap_servers, topic_prefix=worker.prefix, reply_topic=f"{worker.prefix}own-replies"
    ) as client:
        assert text_of(await client.assemble(ask("own"), timeout_seconds=20)) == "own"


async def test_no_reply_in_time_says_so_and_the_answer_can_still_be_had(
    worker: Serving, client: ContextClient
) -> None:
    request = ask("wait")
    with pytest.raises(ReplyTimeout, match=request.request_id):
        await client.assemble(request, timeout_seconds=0.3)
    worker.held.set()
    assert text_of(await client.assemble(request, timeout_seconds=20)) == "wait"
    worker.held.clear()


async def test_closing_tells_those_who_wait(worker: Serving) -> None:
    async with ContextClient(worker.bootstrap_servers, topic_prefix=worker.prefix) as client:
        waiting = asyncio.create_task(
            client.exchange_raw(ask("wait").model_dump_json(exclude_unset=True).encode())
        )
        await client.assemble(ask(), timeout_seconds=20)
    with pytest.raises(ClientClosed):
        await waiting
    with pytest.raises(ClientClosed):
        await client.publish_raw(b"{}")
    worker.held.set()
    worker.held.clear()


async def test_bytes_of_any_kind_can_be_published_and_answered(client: ContextClient) -> None:
    reply = json.loads(await asyncio.wait_for(client.exchange_raw(b"\xff", key=b"k"), 20))
    assert (reply["kind"], reply["code"]) == ("rejection", "invalid_encoding")


async def test_usage_events_are_those_from_now_on(client: ContextClient) -> None:
    await client.assemble(ask(), timeout_seconds=20)
    events = await client.usage_events()
    wanted = [ask(), ask("small window")]
    for request in wanted:
        await client.assemble(request, timeout_seconds=20)
    found: dict[str, str] = {}
    async for event in events:
        # The event of the request before may have been published after its reply.
        if event.request_id in {request.request_id for request in wanted}:
            found[event.request_id] = event.outcome
        if len(found) == len(wanted):
            break
    assert list(found.values()) == ["complete", "rejected"]
    await events.aclose()
    await events.aclose()


async def test_usage_events_can_be_had_from_the_beginning(client: ContextClient) -> None:
    request = ask()
    await client.assemble(request, timeout_seconds=20)
    async for event in await client.usage_events(from_beginning=True):
        if event.request_id == request.request_id:
            break


async def test_a_usage_record_that_is_none_is_an_error_once(worker: Serving, client: ContextClient) -> None:
    events = await client.usage_events()
    await client.publish_raw(b"{}", topic=f"{worker.prefix}usage")
    with pytest.raises(InvalidReply):
        await anext(events)
    request = ask()
    await client.assemble(request, timeout_seconds=20)
    while (await anext(events)).request_id != request.request_id:
        pass


async def test_a_stranger_on_the_reply_topic_is_not_taken_for_a_reply(
    worker: Serving, client: ContextClient
) -> None:
    topic = f"{worker.prefix}bundles"
    for headers in ([], [("correlation_id", b"")], [("correlation_id", b"\xff"), ("x", b"\xff")]):
        await client.publish_raw(b"not a reply", topic=topic, headers=headers)
    assert text_of(await client.assemble(ask("mine"), timeout_seconds=20)) == "mine"


async def test_a_record_that_aiokafka_cannot_read_ends_no_stream(
    worker: Serving, bootstrap: str, client: ContextClient
) -> None:
    events = await client.usage_events()
    for name in ("bundles", "usage"):
        poison = batch_of([(b"k", b"stranger", [(b"\xff", b"v")]), (b"k", b"beside it", [])])
        await send_batch(bootstrap, f"{worker.prefix}{name}", poison)
    for value in ("stranger", "beside it"):
        with pytest.raises(InvalidReply, match=value):
            await anext(events)
    wanted = [ask(f"number {number}") for number in range(20)]
    replies = await asyncio.gather(*(client.assemble(request, timeout_seconds=30) for request in wanted))
    assert [text_of(reply) for reply in replies] == [request.user_message for request in wanted]
    seen = {(await anext(events)).request_id for _ in wanted}
    assert seen == {request.request_id for request in wanted}


async def test_a_token_is_never_sent_to_an_address_that_a_reply_names() -> None:
    with pytest.raises(ValueError, match="http_url"):
        ContextClient(["127.0.0.1:9"], http_token=TOKEN)


async def test_health_is_served_beside_it(worker: Serving) -> None:
    async with httpx.AsyncClient(base_url=worker.http_url, trust_env=False) as http:
        assert (await http.get("/readyz")).status_code == 200
        assert 'context_outcomes_total{code="",outcome="complete"}' in (await http.get("/metrics")).text


@pytest.mark.services
async def test_a_reply_topic_that_does_not_exist_is_named(kafka_bootstrap: str, topic_prefix: str) -> None:
    with pytest.raises(TopicMissing, match=f"{topic_prefix}bundles"):
        async with ContextClient([kafka_bootstrap], topic_prefix=topic_prefix):
            pass
