#!/usr/bin/env python3
"""Take the README's pictures of an explanation again, from a request of the demo, in a real browser.

python infra/screens.py [FOLDER]      with the project's own environment; `make screens` does that
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

from playwright.sync_api import sync_playwright

from worker.demo_requests import demo_requests

CHECKOUT: Final = Path(__file__).resolve().parent.parent
AS_OF: Final = "2026-01-15T00:00:00Z"
REQUEST: Final = "far more material than window: trimmed, and said so"
# Too small for what the sources give, so that the pictures show what gives way.
BUDGET: Final = {"total": 2_400, "layers": {"output": 200}}
WIDTH_PX: Final = 1_040


def main(folder: Path) -> int:
    """Write both pictures into the folder; the exit code."""
    browser = shutil.which("chromium")
    if browser is None:
        print("error: chromium is missing; run `python3 infra/services.py up chromium`", file=sys.stderr)
        return 1
    with tempfile.TemporaryDirectory() as scratch:
        page = _page(Path(scratch))
        folder.mkdir(parents=True, exist_ok=True)
        _take(browser, page, folder)
    return 0


def _page(scratch: Path) -> Path:
    """The page that the commands make of the demo's request."""
    request, receipt, page = scratch / "request.json", scratch / "receipt.json", scratch / "explain.html"
    body = next(body for title, body in demo_requests(CHECKOUT) if title == REQUEST)
    if isinstance(body, bytes):
        raise TypeError(f"{REQUEST!r} is no request")
    request.write_text(json.dumps({**body, "request_id": "demo-5", "budget": BUDGET}))
    _worker("assemble", str(request), "--as-of", AS_OF, "--receipt-out", str(receipt))
    _worker("explain", "--receipt", str(receipt), "--verify", "--html", str(page))
    return page


def _worker(*arguments: str) -> None:
    subprocess.run(
        [sys.executable, "-m", "worker", *arguments], cwd=CHECKOUT, stdout=subprocess.DEVNULL, check=True
    )


def _take(browser: str, page: Path, folder: Path) -> None:
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=browser)
        view = chromium.new_page(viewport={"width": WIDTH_PX, "height": 820}, color_scheme="light")
        view.goto(page.as_uri())
        view.screenshot(path=folder / "explain.png")
        # What was kept whole needs no explaining: the picture is of the rest, with one text opened.
        view.locator("input[value=kept]").uncheck()
        view.locator(".fragments tbody tr:visible details.text summary").first.click()
        view.mouse.move(0, 0)
        view.locator("section:has(> #fragments)").screenshot(path=folder / "fragments.png")
        chromium.close()


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]) if len(sys.argv) > 1 else CHECKOUT / "infra" / "screens"))
