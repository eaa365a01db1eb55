"""TLS and passwords on the real servers: who may in, and what is said to who may not."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import ssl
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final
from urllib.request import urlopen
from uuid import uuid4

import pytest
import structlog

from schemas.bundle import ContextBundle
from schemas.request import AssemblyRequest
from schemas.wire import format_time
from worker import doctor
from worker.client import ContextClient
from worker.settings import Settings
from worker.wiring import utc_now
from worker.wiring_kafka import broker_version, build_client, build_store, connection_of
from worker.wiring_worker import start_worker

pytestmark = [pytest.mark.timeout(120)]

NAMES: Final = ("KAFKA", "REDIS", "NEO4J")
CHECKED: Final = frozenset({"broker", "outcome store", "graph store", "state store"})
WRONG: Final = "not-the-secret"


def variable(name: str) -> str:
    value = os.environ.get(name)
    if not value:
        pytest.fail(f"{name} is not set: run `make up` again", pytrace=False)
    return value


@dataclass(frozen=True, slots=True, kw_only=True)
class Doors:
    """Where the services are reached with TLS and a password, by name."""

    addresses: Mapping[str, str]
    passwords: Mapping[str, str]
    certificates: Mapping[str, Path]

    def authorities(self) -> dict[str, Path]:
        return {name: folder / "authority.crt" for name, folder in self.certificates.items()}


@pytest.fixture(scope="module")
def doors(kafka_bootstrap: str, neo4j_url: str, redis_url: str) -> Doors:
    neo4j = neo4j_url.removeprefix("bolt://").replace("127.0.0.1", "localhost")
    secured = {name: variable(f"CONTEXT_TEST_{name}_SECURED") for name in ("KAFKA", "REDIS")}
    return Doors(
        addresses={**secured, "NEO4J": neo4j},
        passwords={name: variable(f"CONTEXT_TEST_{name}_PASSWORD") for name in NAMES},
        certificates={name: Path(variable(f"CONTEXT_TEST_{name}_CERTIFICATES")) for name in NAMES},
    )


def settings_of(
    doors: Doors,
    folder: Path,
    *,
    namespace: str,
    passwords: Mapping[str, str] | None = None,
    authorities: Mapping[str, Path] | None = None,
    mechanism: str = "SCRAM-SHA-512",
) -> Settings:
    """All three services behind TLS, each password in a file of its own."""
    trusted, files = authorities or doors.authorities(), dict[str, Path]()
    for name, password in (passwords or doors.passwords).items():
        files[name] = folder / f"{name.lower()}.password"
        files[name].write_text(f"{password}\n")
    return Settings.model_validate(
        {
            "kafka": {
                "bootstrap_servers": [doors.addresses["KAFKA"]],
                "group_id": f"g-{namespace}",
                "topic_prefix": f"{namespace}.",
                "security_protocol": "SASL_SSL",
                "sasl_mechanism": mechanism,
                "sasl_username": "worker",
                "sasl_password_file": files["KAFKA"],
                "ssl_ca_file": trusted["KAFKA"],
            },
            "outcomes": {
                "store": "redis",
                "redis_url": f"rediss://worker@{doors.addresses['REDIS']}/0",
                "redis_password_file": files["REDIS"],
                "redis_ca_file": trusted["REDIS"],
                "key_prefix": namespace,
                "timeout_seconds": 10,
            },
            "graph": {
                "store": "neo4j",
                "neo4j_url": f"bolt+s://{doors.addresses['NEO4J']}",
                "neo4j_password_file": files["NEO4J"],
                "neo4j_ca_file": trusted["NEO4J"],
                "pack_cache": "redis",
            },
            "state": {"compact_after_days": 36_500},
            "http": {"port": 0},
        }
    )


@pytest.fixture
def settings(doors: Doors, tmp_path: Path, namespace: str) -> Settings:
    return settings_of(doors, tmp_path, namespace=namespace)


async def test_a_request_is_answered_where_everything_is_secured_and_no_secret_is_seen(
    settings: Settings, doors: Doors, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    project_id = f"shop-{uuid4().hex}"
    event: dict[str, Any] = {
        "event_id": uuid4().hex,
        "project_id": project_id,
        "event": "goal_set",
        "occurred_at": format_time(utc_now()),
        "body": {"id": "G-1", "statement": "Secure every door.", "status": "active"},
    }
    with structlog.testing.capture_logs() as lines:
        async with start_worker(settings, usage_log=tmp_path / "usage.jsonl") as url:
            async with build_client(settings) as client:
                state_topic = f"{settings.kafka.topic_prefix}state"
                await client.publish_raw(
                    json.dumps(event).encode(), key=project_id.encode(), topic=state_topic
                )
                answer = await _answer_that_knows(client, event)
            metrics = await asyncio.to_thread(_get, f"{url}/metrics")
    assert "Secure every door." in "".join(message.content for message in answer.messages or ())
    written = "\n".join([*map(str, lines), caplog.text, metrics, repr(settings), _text_of(tmp_path)])
    assert not [name for name, password in doors.passwords.items() if password in written]


async def _answer_that_knows(client: ContextClient, event: Mapping[str, Any]) -> ContextBundle:
    """The first bundle that shows the event: a Neo4j that was just started is slow for a while."""
    while True:
        request = AssemblyRequest.model_validate(
            {
                "request_id": uuid4().hex,
                "project_id": event["project_id"],
                "volk": "smith",
                "subject": "chat",
                "user_message": "Add a retry.",
                "after": {"event_ids": [event["event_id"]]},
                "deadline_ms": 30_000,
                "layer_timeouts_ms": {"mission": 20_000},
            }
        )
        answer = await client.assemble(request, timeout_seconds=60)
        assert isinstance(answer, ContextBundle), answer
        if answer.layers is not None and answer.layers["mission"].status == "ok":
            return answer


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256"])
async def test_the_other_mechanisms_are_let_in_too(
    doors: Doors, tmp_path: Path, namespace: str, mechanism: str
) -> None:
    settings = settings_of(doors, tmp_path, namespace=namespace, mechanism=mechanism)
    assert (await broker_version(settings)).startswith("cluster ")


async def test_a_broker_that_asks_for_a_certificate_gets_the_clients(doors: Doors) -> None:
    folder = doors.certificates["KAFKA"]
    kafka = {
        "bootstrap_servers": [variable("CONTEXT_TEST_KAFKA_MUTUAL")],
        "security_protocol": "SSL",
        "ssl_ca_file": folder / "authority.crt",
    }
    own = {"ssl_certificate_file": folder / "client.crt", "ssl_key_file": folder / "client.key"}
    assert (await broker_version(Settings.model_validate({"kafka": {**kafka, **own}}))).startswith("cluster ")
    refused = await connection_of(Settings.model_validate({"kafka": kafka})).refusal()
    assert refused.startswith("the broker refuses: localhost:")
    assert "TLS failed" in refused


@asynccontextmanager
async def expired(doors: Doors) -> AsyncGenerator[Doors]:
    """The same services behind servers whose certificates have expired."""
    async with AsyncExitStack() as stack:
        addresses: dict[str, str] = {}
        for name, folder in doors.certificates.items():
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(folder / "expired.crt", folder / "expired.key")
            server = await stack.enter_async_context(
                await asyncio.start_server(_hang_up, "localhost", 0, ssl=context, family=2)
            )
            addresses[name] = f"localhost:{server.sockets[0].getsockname()[1]}"
        yield replace(doors, addresses=addresses)


async def _hang_up(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    del reader
    writer.close()


@asynccontextmanager
async def by_address(doors: Doors) -> AsyncGenerator[Doors]:
    named = {name: address.replace("localhost", "127.0.0.1") for name, address in doors.addresses.items()}
    yield replace(doors, addresses=named)


@asynccontextmanager
async def as_they_are(doors: Doors) -> AsyncGenerator[Doors]:
    yield doors


def strangers(doors: Doors) -> dict[str, Path]:
    """Of each service the authority of another."""
    own = doors.authorities()
    return {name: own[NAMES[number - 1]] for number, name in enumerate(NAMES)}


REFUSALS: Final[Mapping[str, tuple[Callable[[Doors], Any], Mapping[str, Any], Mapping[str, str]]]] = {
    "wrong password": (
        as_they_are,
        {"passwords": dict.fromkeys(NAMES, WRONG)},
        {
            "broker": "does not accept the user or the password",
            "outcome": "password",
            "neo4j": "unauthorized",
        },
    ),
    "wrong authority": (
        as_they_are,
        {"authorities": strangers},
        dict.fromkeys(("broker", "outcome", "neo4j"), "certificate is not accepted: "),
    ),
    "expired certificate": (
        expired,
        {},
        dict.fromkeys(("broker", "outcome", "neo4j"), "certificate is not accepted: certificate has expired"),
    ),
    "wrong host name": (
        by_address,
        {},
        dict.fromkeys(("broker", "outcome", "neo4j"), "certificate is not valid for '127.0.0.1'"),
    ),
}


@pytest.mark.parametrize("fault", REFUSALS)
async def test_doctor_says_in_one_line_why_a_service_lets_nobody_in(
    doors: Doors, tmp_path: Path, namespace: str, fault: str
) -> None:
    changed, options, said = REFUSALS[fault]
    made: dict[str, Any] = {
        name: value(doors) if callable(value) else value for name, value in options.items()
    }
    async with changed(doors) as there:
        settings = settings_of(there, tmp_path, namespace=namespace, **made)
        found = {one.name: one for one in await doctor.diagnose(settings) if one.name in CHECKED}
    assert found.keys() == CHECKED
    for name, finding in found.items():
        assert not finding.is_ok, (name, finding)
        expected = said.get(name.split()[0], said["neo4j"])
        assert expected in finding.found, (name, finding)
        assert "\n" not in finding.found
        assert not [secret for secret in (WRONG, *doors.passwords.values()) if secret in str(finding)]


UNHEARD: Final[Mapping[str, tuple[tuple[str, ...], Mapping[str, str]]]] = {
    "broker.awaited": (
        NAMES,
        {"broker.awaited": "not accept the user or the password", "graph.not_preloaded": "unauthorized"},
    ),
    "store.away": (("REDIS",), {"store.away": "invalid username-password pair"}),
}
"""By what is said last: whose passwords are wrong, and what is said of them."""


@pytest.mark.parametrize("last", UNHEARD)
async def test_a_worker_that_is_not_let_in_says_so_at_its_start_and_waits(
    doors: Doors,
    tmp_path: Path,
    namespace: str,
    caplog: pytest.LogCaptureFixture,
    last: str,
) -> None:
    wrong, said = UNHEARD[last]
    passwords = {**doors.passwords, **dict.fromkeys(wrong, WRONG)}
    settings = settings_of(doors, tmp_path, namespace=namespace, passwords=passwords)
    caplog.set_level(logging.DEBUG)
    lines: dict[str, str] = {}
    told = asyncio.Event()

    def see(_: object, __: str, event: structlog.typing.EventDict) -> structlog.typing.EventDict:
        lines[event["event"]] = lines.get(event["event"], "") + str(dict(event))
        # On a busy machine the first attempt may well end in a timeout of its own.
        if event["event"] == last and said[last] in lines[last]:
            told.set()
        raise structlog.DropEvent

    structlog.configure(processors=[see])
    try:
        running = asyncio.create_task(_serve(settings, tmp_path))
        await told.wait()
        running.cancel()
        await asyncio.wait([running])
    finally:
        structlog.reset_defaults()
    assert not [event for event, reason in said.items() if reason not in lines[event]], lines
    written = "\n".join([*lines.values(), caplog.text])
    assert not [secret for secret in (WRONG, *doors.passwords.values()) if secret in written]


async def _serve(settings: Settings, folder: Path) -> None:
    async with start_worker(settings, usage_log=folder / "usage.jsonl"):
        await asyncio.Event().wait()


async def test_purging_needs_no_command_that_an_operator_would_call_dangerous(settings: Settings) -> None:
    store = build_store(settings)
    try:
        await store.check()
        await store.purge("shop", only=lambda record: True)
        await store.purge("shop")
    finally:
        await store.close()


def _get(url: str) -> str:
    with urlopen(url, timeout=10) as response:  # noqa: S310  # the worker's own
        return response.read().decode()


def _text_of(folder: Path) -> str:
    return "\n".join(path.read_text() for path in folder.glob("*.jsonl"))
