#!/usr/bin/env python3
"""Take the README's picture of an explanation again, from a request of the demo, in a real browser.

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
WIDTH_PX: Final = 1_120
HEIGHT_PX: Final = 1_400


def main(folder: Path) -> int:
    """Write `explain.png` into the folder; its exit code."""
    browser = shutil.which("chromium")
    if browser is None:
        print("error: chromium is missing; run `python3 infra/services.py up chromium`", file=sys.stderr)
        return 1
    with tempfile.TemporaryDirectory() as scratch:
        page = _page(Path(scratch))
        target = folder / "explain.png"
        _take(browser, page, target)
    print(f"wrote {target}")
    return 0


def _page(scratch: Path) -> Path:
    """The page that the commands make of the demo's request."""
    request, receipt, page = scratch / "request.json", scratch / "receipt.json", scratch / "explain.html"
    body = next(body for title, body in demo_requests(CHECKOUT) if title == REQUEST)
    if isinstance(body, bytes):
        raise TypeError(f"{REQUEST!r} is no request")
    request.write_text(json.dumps({"request_id": "demo-5", **body}))
    _worker("assemble", str(request), "--as-of", AS_OF, "--receipt-out", str(receipt))
    _worker("explain", "--receipt", str(receipt), "--verify", "--html", str(page))
    return page


def _worker(*arguments: str) -> None:
    subprocess.run(
        [sys.executable, "-m", "worker", *arguments], cwd=CHECKOUT, stdout=subprocess.DEVNULL, check=True
    )


def _take(browser: str, page: Path, target: Path) -> None:
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=browser)
        view = chromium.new_page(viewport={"width": WIDTH_PX, "height": HEIGHT_PX}, color_scheme="light")
        view.goto(page.as_uri())
        target.parent.mkdir(parents=True, exist_ok=True)
        view.screenshot(path=target)
        chromium.close()


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]) if len(sys.argv) > 1 else CHECKOUT / "infra" / "screens"))
