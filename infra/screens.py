#!/usr/bin/env python3
"""Take the README's pictures again, of an explanation, a usage report and the dashboard, in a real browser.

python infra/screens.py [FOLDER]      with the project's own environment; `make screens` does that
"""

from __future__ import annotations

import asyncio
import json
import shutil
import subprocess
import sys
import tempfile
import time
from itertools import count
from pathlib import Path
from typing import Any, Final

from playwright.sync_api import Browser, sync_playwright

CHECKOUT: Final = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(CHECKOUT))

from tests.support.prometheus import prometheus  # noqa: E402 - found only now
from tests.support.usage_records import usage_records  # noqa: E402
from worker.client import ContextClient  # noqa: E402
from worker.demo_requests import HANG_MARK, PROJECT, demo_requests  # noqa: E402
from worker.kafka.embedded import embedded_broker  # noqa: E402
from worker.settings import Settings  # noqa: E402
from worker.wiring_kafka import demo_settings  # noqa: E402
from worker.wiring_worker import start_worker  # noqa: E402

AS_OF: Final = "2026-01-15T00:00:00Z"
REQUEST: Final = "far more material than window: trimmed, and said so"
# Too small for what the sources give, so that the pictures show what gives way.
BUDGET: Final = {"total": 2_400, "layers": {"output": 200}}
WIDTH_PX: Final = 1_040
RECORDS: Final = 2_600
TRAFFIC_SECONDS: Final = 150


def main(folder: Path) -> int:
    """Write the pictures into the folder; the exit code."""
    browser = shutil.which("chromium")
    if browser is None:
        print("error: chromium is missing; run `python3 infra/services.py up chromium`", file=sys.stderr)
        return 1
    with tempfile.TemporaryDirectory() as scratch:
        home = Path(scratch)
        explanation, usage, dashboard = _explanation(home), _usage(home), asyncio.run(_dashboard(home))
        folder.mkdir(parents=True, exist_ok=True)
        with sync_playwright() as playwright:
            chromium = playwright.chromium.launch(executable_path=browser)
            _take_explanation(chromium, explanation, folder)
            _take_top(chromium, usage, folder / "usage.png", height_px=1_240)
            _take_top(chromium, dashboard, folder / "dashboard.png", height_px=1_500)
            chromium.close()
    return 0


def _explanation(scratch: Path) -> Path:
    """The page that the commands make of the demo's request."""
    request, receipt, page = scratch / "request.json", scratch / "receipt.json", scratch / "explain.html"
    body = next(body for title, body in demo_requests(CHECKOUT) if title == REQUEST)
    if isinstance(body, bytes):
        raise TypeError(f"{REQUEST!r} is no request")
    request.write_text(json.dumps({**body, "request_id": "demo-5", "budget": BUDGET}))
    _worker("assemble", str(request), "--as-of", AS_OF, "--receipt-out", str(receipt))
    _worker("explain", "--receipt", str(receipt), "--verify", "--html", str(page))
    return page


def _usage(scratch: Path) -> Path:
    """The page of a day that the tests make up, with an hour in which the graph was away."""
    log, page = scratch / "usage.jsonl", scratch / "usage.html"
    log.write_text("".join(json.dumps(record) + "\n" for record in usage_records(RECORDS)))
    _worker("usage", "report", "--path", str(log), "--html", str(page))
    return page


async def _dashboard(scratch: Path) -> Path:
    """The page of some minutes in which a worker gets the demo's requests, one of which fails a source."""
    promtool, page = shutil.which("promtool"), scratch / "dashboard.html"
    if promtool is None:
        raise FileNotFoundError("promtool is missing; run `python3 infra/services.py up promtool`")
    async with embedded_broker() as broker:
        settings = demo_settings(
            roots={PROJECT: (CHECKOUT,)},
            home=scratch,
            bootstrap_servers=broker.bootstrap_servers,
            # One that hangs past its cancellation would keep this script from ending.
            failpoints=f"provider.memory=raise@{HANG_MARK}",
        )
        async with (
            start_worker(settings, usage_log=scratch / "served.jsonl") as url,
            prometheus(
                Path(promtool).with_name("prometheus"), scratch, target=url.removeprefix("http://")
            ) as address,
        ):
            await _send_demo(settings, until=time.monotonic() + TRAFFIC_SECONDS)
            script = [sys.executable, "infra/dashboard.py", "--prometheus", address, "--out", page]
            asked = ["--minutes", str(TRAFFIC_SECONDS / 60), "--window", "15s"]
            await asyncio.to_thread(subprocess.run, [*script, *asked], cwd=CHECKOUT, check=True)
    return page


async def _send_demo(settings: Settings, *, until: float) -> None:
    """The demo's requests again and again, each round under ids of its own, one after the other."""
    async with ContextClient(list(settings.kafka.bootstrap_servers)) as client:
        for number in count():
            for title, body in demo_requests(CHECKOUT):
                if time.monotonic() >= until:
                    return
                sent = body if isinstance(body, bytes) else _numbered(body, f"{title} {number}")
                await client.exchange_raw(sent, key=PROJECT.encode())


def _numbered(body: dict[str, Any], request_id: str) -> bytes:
    return json.dumps({**body, "request_id": request_id}).encode()


def _worker(*arguments: str) -> None:
    subprocess.run(
        [sys.executable, "-m", "worker", *arguments], cwd=CHECKOUT, stdout=subprocess.DEVNULL, check=True
    )


def _take_explanation(chromium: Browser, page: Path, folder: Path) -> None:
    view = chromium.new_page(viewport={"width": WIDTH_PX, "height": 820}, color_scheme="light")
    view.goto(page.as_uri())
    view.screenshot(path=folder / "explain.png")
    # What was kept whole needs no explaining: the picture is of the rest, with one text opened.
    view.locator("input[value=kept]").uncheck()
    view.locator(".fragments tbody tr:visible details.text summary").first.click()
    view.mouse.move(0, 0)
    view.locator("section:has(> #fragments)").screenshot(path=folder / "fragments.png")


def _take_top(chromium: Browser, page: Path, picture: Path, *, height_px: int) -> None:
    view = chromium.new_page(viewport={"width": WIDTH_PX, "height": height_px}, color_scheme="light")
    view.goto(page.as_uri())
    view.screenshot(path=picture)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]) if len(sys.argv) > 1 else CHECKOUT / "infra" / "screens"))
