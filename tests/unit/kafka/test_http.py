from __future__ import annotations

import asyncio
import hmac
import signal
import socket
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import httpx
import pytest

from schemas.wire import sha256_hex
from worker.errors import OutcomeDamaged, StoreUnavailable
from worker.kafka.http import build_app, is_loopback, serve_http
from worker.telemetry import Telemetry

BODY = b'{"kind":"bundle"}'
TOKEN = "s3cret"  # noqa: S105 - of this test alone
DIGEST = sha256_hex(BODY)
URL = f"/projects/shop/bundles/{DIGEST}"


@dataclass
class Health:
    not_live: tuple[str, ...] = ()
    not_ready: tuple[str, ...] = ()

    @property
    def is_live(self) -> bool:
        return not self.not_live

    @property
    def is_ready(self) -> bool:
        return not self.not_ready


@dataclass
class Bundles:
    held: dict[tuple[str, str], bytes] = field(default_factory=lambda: {("shop", DIGEST): BODY})
    asked: list[tuple[str, str]] = field(default_factory=list[tuple[str, str]])
    error: Exception | None = None

    async def get_bundle(self, *, project_id: str, digest: str) -> bytes | None:
        self.asked.append((project_id, digest))
        if self.error is not None:
            raise self.error
        return self.held.get((project_id, digest))


@asynccontextmanager
async def served(
    *, health: Health | None = None, bundles: Bundles | None = None, token: str | None = None
) -> AsyncGenerator[httpx.AsyncClient]:
    app = build_app(health=health or Health(), store=bundles or Bundles(), telemetry=Telemetry(), token=token)
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://worker") as client:
        yield client


async def test_health_is_answered_from_the_worker_with_its_reasons() -> None:
    health = Health()
    async with served(health=health) as client:
        answers = [await client.get("/livez"), await client.get("/readyz")]
        assert [(answer.status_code, answer.json()) for answer in answers] == [
            (200, {"ok": True, "reasons": []})
        ] * 2
        health.not_live, health.not_ready = ("loop_lag",), ("draining", "broker_away")
        live, ready = await client.get("/livez"), await client.get("/readyz")
    assert (live.status_code, live.json()["ok"], live.json()["reasons"]) == (503, False, ["loop_lag"])
    assert live.json()["because"]["loop_lag"].startswith("the event loop hardly turns")
    assert ready.json()["because"].keys() == {"draining", "broker_away"}
    assert (ready.status_code, ready.json()["reasons"]) == (503, ["draining", "broker_away"])


async def test_metrics_are_in_the_prometheus_format() -> None:
    async with served(token=TOKEN) as client:
        answer = await client.get("/metrics")
    assert answer.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    assert "# TYPE context_outcomes_total counter" in answer.text


async def test_a_bundle_is_given_with_its_digest_and_may_be_kept_for_ever() -> None:
    async with served() as client:
        answer = await client.get(URL)
    assert (answer.status_code, answer.content) == (200, BODY)
    assert answer.headers["etag"] == f'"{DIGEST}"'
    assert answer.headers["cache-control"] == "private, max-age=31536000, immutable"
    assert answer.headers["content-type"] == "application/json"


@pytest.mark.parametrize("tag", [f'"{DIGEST}"', f'W/"{DIGEST}"', f'"x", "{DIGEST}"', "*"])
async def test_who_has_the_bundle_already_is_told_so(tag: str) -> None:
    async with served() as client:
        answer = await client.get(URL, headers={"If-None-Match": tag})
    assert (answer.status_code, answer.content) == (304, b"")


@pytest.mark.parametrize(
    "path",
    [
        f"/projects/bank/bundles/{DIGEST}",
        f"/projects/shop/bundles/{'0' * 64}",
        f"/projects/shop/bundles/{DIGEST.upper()}",
        f"/projects/shop/bundles/{DIGEST}0",
        f"/projects/sh%20op/bundles/{DIGEST}",
        f"/projects/shop%2Fx/bundles/{DIGEST}",
        f"/projects/shop%00/bundles/{DIGEST}",
        f"/projects/shop/bundles/{DIGEST}/",
        "/projects/shop/bundles/",
    ],
)
async def test_what_is_unknown_foreign_or_malformed_is_not_found(path: str) -> None:
    async with served() as client:
        assert (await client.get(path)).status_code == 404


async def test_a_malformed_address_does_not_reach_the_store() -> None:
    bundles = Bundles()
    async with served(bundles=bundles) as client:
        await client.get("/projects/shop/bundles/%27%20OR%201=1")
    assert bundles.asked == []


async def test_an_absent_store_is_said_and_not_taken_for_an_absent_bundle() -> None:
    async with served(bundles=Bundles(error=StoreUnavailable("sqlite"))) as client:
        answer = await client.get(URL)
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")


async def test_a_damaged_bundle_is_as_good_as_none() -> None:
    async with served(bundles=Bundles(error=OutcomeDamaged("sqlite", "the checksum differs"))) as client:
        answer = await client.get(URL)
    assert (answer.status_code, answer.json()) == (404, {"error": "not_found"})


@pytest.mark.parametrize(
    "offered", [None, "Bearer other", "Bearer", "Basic s3cret", "s3cret", "Bearer s3cret2", "Bearer ünïcode"]
)
async def test_without_the_token_nothing_is_given_away(offered: str | None) -> None:
    bundles = Bundles()
    headers = {} if offered is None else {b"Authorization": offered.encode()}
    async with served(token=TOKEN, bundles=bundles) as client:
        known = await client.get(URL, headers=headers)
        unknown = await client.get("/projects/x/bundles/y", headers=headers)
    assert (known.status_code, known.headers["www-authenticate"]) == (401, "Bearer")
    assert known.content == unknown.content
    assert bundles.asked == []


async def test_a_token_is_compared_in_a_time_that_tells_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[tuple[bytes, bytes]] = []

    def compare(offered: bytes, expected: bytes) -> bool:
        compared.append((offered, expected))
        return True

    monkeypatch.setattr(hmac, "compare_digest", compare)
    async with served(token=TOKEN) as client:
        answer = await client.get(URL, headers={"Authorization": "Bearer other"})
    # What it says decides alone: nothing else looked at the token before.
    assert (answer.status_code, compared) == (200, [(b"other", TOKEN.encode())])


@pytest.mark.parametrize("offered", ["Bearer s3cret", "bearer s3cret", "Bearer  s3cret"])
async def test_with_the_token_a_bundle_is_given(offered: str) -> None:
    async with served(token=TOKEN) as client:
        assert (await client.get(URL, headers={"Authorization": offered})).content == BODY
        assert (await client.get("/livez")).status_code == 200


@pytest.mark.parametrize(
    ("host", "is_local"),
    [
        ("127.0.0.1", True),
        ("127.8.8.8", True),
        ("::1", True),
        ("localhost", True),
        ("0.0.0.0", False),  # noqa: S104 - only asked about
        ("::", False),
        ("", False),
        ("10.0.0.1", False),
        ("localhost.example", False),
    ],
)
def test_which_hosts_are_loopback(host: str, is_local: bool) -> None:  # noqa: FBT001 - a table
    assert is_loopback(host) is is_local


async def test_without_a_token_nothing_but_loopback_is_served() -> None:
    app = build_app(health=Health(), store=Bundles(), telemetry=Telemetry(), token=None)
    with pytest.raises(ValueError, match="not loopback"):
        async with serve_http(app, host="0.0.0.0", port=0, has_token=False):  # noqa: S104 - must be refused
            pass


async def test_a_port_in_use_is_an_error_at_once() -> None:
    app = build_app(health=Health(), store=Bundles(), telemetry=Telemetry(), token=None)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(OSError, match="in use"):
            async with serve_http(app, host="127.0.0.1", port=taken.getsockname()[1], has_token=False):
                pass


async def test_the_server_leaves_signals_to_the_worker_and_its_port_to_the_next_one() -> None:
    before = signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)
    app = build_app(health=Health(), store=Bundles(), telemetry=Telemetry(), token=None)
    async with serve_http(app, host="127.0.0.1", port=0, has_token=False) as (host, port):
        async with httpx.AsyncClient(base_url=f"http://{host}:{port}", trust_env=False) as client:
            answer = await client.get(URL)
        assert (signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)) == before
    assert answer.content == BODY
    assert "server" not in answer.headers
    with pytest.raises(ConnectionRefusedError):
        await asyncio.open_connection(host, port)


async def test_a_caller_that_never_hangs_up_does_not_hold_up_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("worker.kafka.http._CLOSE_SECONDS", 1)
    app = build_app(health=Health(), store=Bundles(), telemetry=Telemetry(), token=None)
    async with serve_http(app, host="127.0.0.1", port=0, has_token=False) as (host, port):
        reader, writer = await asyncio.open_connection(host, port)
        writer.write(b"GET /livez HTTP/1.1\r\nHost: x\r\n")  # and never the end of it
        await writer.drain()
    assert await reader.read() == b""
    writer.close()
    await writer.wait_closed()
