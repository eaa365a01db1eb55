"""Where a client goes for a bundle that came by reference, and what it brings along."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import pytest

from schemas.bundle import BundleRef
from schemas.wire import sha256_hex
from worker.client import BundleNotFetched, ContextClient

TOKEN: Final = "s3cret-word"  # noqa: S105 - of this test alone
BODY: Final = (Path(__file__).parents[1] / "golden" / "contract" / "bundle_complete.json").read_bytes()


@dataclass
class Host:
    """A server that notes what it is asked."""

    answer: bytes = b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n"
    asked: list[str] = field(default_factory=list[str])
    url: str = ""

    @asynccontextmanager
    async def served(self) -> AsyncGenerator[Host]:
        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            self.asked.append((await reader.readuntil(b"\r\n\r\n")).decode())
            writer.write(self.answer)
            await writer.drain()
            writer.close()

        async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
            self.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
            yield self


def giving(body: bytes) -> bytes:
    return b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body)


def reference(url: str) -> BundleRef:
    return BundleRef(
        request_id="r",
        project_id="shop",
        digest=sha256_hex(BODY),
        size_bytes=len(BODY),
        status="complete",
        url=f"{url}/projects/shop/bundles/x",
    )


async def test_the_token_goes_to_the_address_in_the_settings_whatever_the_reference_names() -> None:
    async with Host(giving(BODY)).served() as own, Host().served() as named:
        client = ContextClient(["127.0.0.1:1"], http_url=own.url, http_token=TOKEN)
        await client.fetch_bundle(reference(named.url), timeout_seconds=5)
    assert (len(own.asked), named.asked) == (1, [])
    assert f"Authorization: Bearer {TOKEN}" in own.asked[0]


@pytest.mark.parametrize("status", ["301 Moved", "302 Found", "307 Temporary", "308 Permanent"])
async def test_the_token_follows_no_redirect(status: str) -> None:
    async with Host().served() as elsewhere:
        answer = f"HTTP/1.1 {status}\r\nLocation: {elsewhere.url}/\r\nContent-Length: 0\r\n\r\n"
        async with Host(answer.encode()).served() as own:
            client = ContextClient(["127.0.0.1:1"], http_url=own.url, http_token=TOKEN)
            with pytest.raises(BundleNotFetched, match=status[:3]):
                await client.fetch_bundle(reference(own.url), timeout_seconds=5)
    assert elsewhere.asked == []


async def test_the_token_goes_through_no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    async with Host(giving(BODY)).served() as own, Host().served() as proxy:
        for name in ("http_proxy", "HTTP_PROXY", "all_proxy"):
            monkeypatch.setenv(name, proxy.url)
        client = ContextClient(["127.0.0.1:1"], http_url=own.url, http_token=TOKEN)
        await client.fetch_bundle(reference(own.url), timeout_seconds=5)
    assert proxy.asked == []


@pytest.mark.parametrize("given", [BODY + b" ", BODY[:-1], BODY * 3, b""], ids=len)
async def test_other_bytes_than_the_reference_names_are_refused(given: bytes) -> None:
    async with Host(giving(given)).served() as named:
        client = ContextClient(["127.0.0.1:1"])
        with pytest.raises(BundleNotFetched, match="other bytes"):
            await client.fetch_bundle(reference(named.url), timeout_seconds=5)
    assert "Authorization" not in named.asked[0]


@pytest.mark.parametrize("url", ["file:///etc/passwd", "ftp://127.0.0.1", "data:,x"])
async def test_only_http_is_fetched(url: str) -> None:
    with pytest.raises(BundleNotFetched, match="no HTTP address"):
        await ContextClient(["127.0.0.1:1"]).fetch_bundle(reference(url), timeout_seconds=5)
