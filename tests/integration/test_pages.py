from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

import pytest
import pytest_asyncio
from playwright.async_api import Browser, BrowserContext, Page, async_playwright
from typer.testing import CliRunner

from schemas.receipt import MAX_LEFT_OUT_LINES, MAX_SHOWN_LINES
from tests.support.assembling import assemble
from tests.support.explaining import crowded, stored_of
from tests.support.usage_records import usage_records
from worker.cli import app
from worker.cli_receipts import write_receipt
from worker.explaining.page import explanation_page
from worker.explaining.usage_page import usage_page
from worker.explaining.view import Explanation, FragmentView, RestView, explain
from worker.usage.aggregate import aggregate_usage
from worker.usage.picture import picture_of

pytestmark = pytest.mark.asyncio(loop_scope="module")

PAGES = ("explanation", "difference", "supposed", "usage")
Scheme = Literal["light", "dark"]
SCHEMES: tuple[Scheme, ...] = ("light", "dark")
HOSTILE = (
    "<script>window.hit = 1</script>",
    '"><img src=x onerror="window.hit = 1">',
    "</pre></style></script><svg onload='window.hit = 1'>",
    "{{ 7 * 7 }}{% raw %}",
    "<a href=javascript:window.hit=1>",
    "a" * 3_000,
)

# Every text that is laid out, against the nearest painted ground behind it.
CONTRASTS = """() => {
  const rgba = (text) => {
    const numbers = text.match(/[\\d.]+/g).map(Number);
    return numbers.length > 3 ? numbers : [...numbers, 1];
  };
  const light = ([r, g, b]) => [r, g, b]
    .map((c) => c / 255)
    .map((c) => (c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4))
    .reduce((sum, c, i) => sum + c * [0.2126, 0.7152, 0.0722][i], 0);
  const ground = (element) => {
    for (let at = element; at !== null; at = at.parentElement) {
      const colour = rgba(getComputedStyle(at).backgroundColor);
      if (colour[3] === 1) return colour;
    }
    return [255, 255, 255, 1];
  };
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  const found = [];
  while (walker.nextNode()) {
    const element = walker.currentNode.parentElement;
    if (walker.currentNode.data.trim() === "" || element.getClientRects().length === 0) continue;
    const pair = [light(rgba(getComputedStyle(element).color)), light(ground(element))].sort((a, b) => b - a);
    found.push([(pair[0] + 0.05) / (pair[1] + 0.05), walker.currentNode.data.trim().slice(0, 40)]);
  }
  return found;
}"""
FOCUSED = """() => {
  const at = document.activeElement;
  const style = getComputedStyle(at);
  const name = at.id || at.name || at.hash || at.textContent.trim();
  return [at.tagName.toLowerCase(), name.slice(0, 60), style.outlineStyle !== "none"];
}"""


BODY = """def pay(order):
    return client.post(order.url, json=order.body, timeout=order.deadline - clock())
"""
TWICE = "---\npack_version: 1\nproject: p\n---\n" + "\n".join(
    f"## function pay\n<!-- node: {path}::pay | template: IMPLEMENT | rank: {rank} | score: 0.900000"
    f" | tokens: 20 -->\n````python\n{BODY}````\n"
    for rank, path in ((1, "a.py"), (2, "b.py"))
)
USAGE = usage_records(600)
ONE: dict[str, Any] = {"pack": TWICE, "budget": {"total": 1_000, "layers": {"output": 100}}}
TWO: dict[str, Any] = {"pack": TWICE, "budget": {"total": 800, "layers": {"output": 100}}}


@dataclass(slots=True)
class Opened:
    """A page, and what it did that it should not."""

    page: Page
    complaints: list[str] = field(default_factory=list[str])
    requested: list[str] = field(default_factory=list[str])


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The pages as the commands write them."""
    folder = tmp_path_factory.mktemp("pages")
    for name, more in (("one", ONE), ("two", TWO)):
        request = crowded(request_id=name, **more)
        write_receipt(folder / f"{name}.json", asyncio.run(assemble(request)))
    one, two = str(folder / "one.json"), str(folder / "two.json")
    log = folder / "usage.jsonl"
    log.write_text("".join(json.dumps(record) + "\n" for record in USAGE))
    for command in (
        ["explain", "--receipt", one, "--verify", "--html", str(folder / "explanation.html")],
        ["diff", one, two, "--html", str(folder / "difference.html")],
        ["what-if", "--receipt", two, "--total", "1600", "--html", str(folder / "supposed.html")],
        ["usage", "report", "--path", str(log), "--html", str(folder / "usage.html")],
    ):
        assert CliRunner().invoke(app, command).exit_code == 0
    return folder


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def browser(chromium: Path) -> AsyncGenerator[Browser]:
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=chromium)
        yield browser
        await browser.close()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def offline(browser: Browser) -> AsyncGenerator[BrowserContext]:
    context = await browser.new_context(offline=True, viewport={"width": 1_200, "height": 900})
    yield context
    await context.close()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def read(offline: BrowserContext, folder: Path) -> dict[str, Opened]:
    """All of them, opened once, for tests that touch nothing."""
    return {name: await opened(offline, folder / f"{name}.html") for name in PAGES}


@pytest_asyncio.fixture(loop_scope="module")
async def page(offline: BrowserContext, folder: Path) -> AsyncGenerator[Page]:
    """An explanation of the test's own."""
    seen = await opened(offline, folder / "explanation.html")
    yield seen.page
    await seen.page.close()


async def opened(context: BrowserContext, path: Path) -> Opened:
    page = await context.new_page()
    opened = Opened(page)
    page.on("console", lambda message: opened.complaints.append(message.text))
    page.on("pageerror", lambda error: opened.complaints.append(str(error)))
    page.on("request", lambda request: opened.requested.append(request.url))
    await page.goto(path.as_uri())
    return opened


async def tab(page: Page, times: int = 1) -> list[str]:
    """Press Tab; what then has the focus each time. Each has to show it."""
    seen: list[str] = []
    for _ in range(times):
        await page.keyboard.press("Tab")
        tag, name, is_outlined = await page.evaluate(FOCUSED)
        assert is_outlined, name
        seen.append(f"{tag} {name}")
    return seen


async def names(page: Page) -> list[str]:
    """Of the rows that can be seen, in their order."""
    return await page.locator(".fragments tbody tr:visible .name").all_inner_texts()


async def explanation(**more: Any) -> Explanation:
    return explain(await stored_of(crowded(**more)))


def with_fragments(
    whole: Explanation, fragments: Sequence[FragmentView], *, rest: tuple[RestView, ...] = ()
) -> Explanation:
    """The same, its first layer with other fragments and all others with none."""
    first, *others = whole.layers
    filled = replace(first, fragments=tuple(fragments), rest=rest)
    return replace(whole, layers=(filled, *[replace(layer, fragments=(), rest=()) for layer in others]))


# It renders, offline, and asks for nothing


@pytest.mark.parametrize("name", PAGES)
async def test_a_page_shows_its_answer_offline_and_complains_of_nothing(
    read: dict[str, Opened], folder: Path, name: str
) -> None:
    seen = read[name]
    assert await seen.page.locator("h1").is_visible()
    assert await seen.page.locator("svg.bar rect.spent").first.is_visible()
    assert (seen.complaints, seen.requested) == ([], [(folder / f"{name}.html").as_uri()])


async def test_the_explanation_says_what_each_fragment_became_and_by_which_rule(
    read: dict[str, Opened],
) -> None:
    page = read["explanation"].page
    whole = await explanation(**ONE)
    assert await page.locator("#verdict").inner_text() == "Verified"
    spent = [str(layer.tokens) for layer in whole.layers]
    assert await page.locator(".budgets td[data-label=spent]").all_inner_texts() == spent
    everything = [f for layer in whole.layers for f in (*layer.shown, *layer.left_out)]
    assert {"kept", "cut", "dropped", "merged"} <= {fragment.fate for fragment in everything}
    texts = await page.locator(".fragments tbody tr").all_inner_texts()
    for fragment, text in zip(everything, texts, strict=True):
        for part in (fragment.fate, fragment.node, fragment.rule, fragment.why, *fragment.also_from):
            assert part in text
    assert "also found as graph:pack://b.py::pay" in "".join(texts)


async def test_a_page_says_where_a_bundle_is_not_what_its_capture_makes(
    offline: BrowserContext, folder: Path
) -> None:
    changed, path = folder / "changed.json", folder / "changed.html"
    changed.write_bytes((folder / "one.json").read_bytes().replace(b"deadline", b"headline"))
    command = ["explain", "--receipt", str(changed), "--verify", "--html", str(path)]
    # The command has a loop of its own.
    assert (await asyncio.to_thread(CliRunner().invoke, app, command)).exit_code == 5
    seen = await opened(offline, path)
    assert (await seen.page.locator("#verdict").inner_text()).startswith("Not verified: ")
    assert (seen.complaints, seen.requested) == ([], [path.as_uri()])
    await seen.page.close()


async def test_the_difference_marks_the_first_differing_byte(read: dict[str, Opened]) -> None:
    page = read["difference"].page
    assert (await page.locator("#part").inner_text()).startswith("They part at byte ")
    first, second = await page.locator(".partings mark").all_inner_texts()
    assert first[:1] != second[:1]
    assert await page.get_by_role("row", name="budget.total 1000 800").is_visible()


async def test_the_usage_page_shows_the_totals_and_a_column_for_each_stretch_of_time(
    read: dict[str, Opened],
) -> None:
    page, totals = read["usage"].page, aggregate_usage(USAGE)
    spent = await page.locator(".budgets td[data-label=spent]").all_inner_texts()
    assert spent == [f"{layer.spent:,}" for layer in totals.per_layer.values()]
    columns = await page.locator("svg.chart").first.locator("g").count()
    assert columns == len(picture_of(USAGE).spans) > 20
    heights = "[...document.querySelector('svg.chart').children].map((g) => g.lastElementChild.getBBox().y)"
    assert min(await page.evaluate(heights)) == pytest.approx(0, abs=0.1)
    for name in ("smith", "implement", "graph: timeout", "budget_too_small"):
        assert await page.locator(".named").get_by_text(name, exact=True).is_visible()


# By keyboard


async def test_a_chart_can_be_read_as_a_table_by_keyboard(offline: BrowserContext, folder: Path) -> None:
    page = (await opened(offline, folder / "usage.html")).page
    assert await tab(page, 6) == ["a #main", "a #time", "a #layers", "a #steps", "a #who", "a #wrong"]
    assert await tab(page) == ["summary As a table"]
    await page.keyboard.press("Enter")
    calls = await page.locator("#time ~ details td:not([data-label=spent])").all_inner_texts()
    assert sum(int(text.replace(",", "")) for text in calls) == len(USAGE)
    await page.close()


async def test_names_in_a_usage_log_stay_text(offline: BrowserContext, tmp_path: Path) -> None:
    path = tmp_path / "hostile.html"
    path.write_text(usage_page(picture_of(usage_records(300, volks=HOSTILE))))
    seen = await opened(offline, path)
    names = await seen.page.locator(".named").first.locator("bdi").all_inner_texts()
    assert set(HOSTILE) <= set(names)
    assert await seen.page.evaluate("window.hit === undefined")
    assert (seen.complaints, seen.requested) == ([], [path.as_uri()])
    await seen.page.close()


async def test_tab_goes_down_the_page_and_keys_open_what_is_closed(page: Page) -> None:
    assert await tab(page, 4) == ["a #main", "a #budgets", "a #fragments", "a #origin"]
    links = await page.locator(".budgets a").count()
    assert (await tab(page, links))[0] == "a #layer-mission"
    assert await tab(page, 1) == ["input find"]
    boxes = await page.locator("input[name=fate]").count()
    assert await tab(page, boxes) == ["input fate"] * boxes
    group, text = page.locator("details.group").first, page.locator("details.text").first
    assert (await tab(page))[0].startswith("summary in the prompt")
    await page.keyboard.press("Enter")
    assert await group.get_attribute("open") is None
    await page.keyboard.press("Space")
    assert await group.get_attribute("open") is not None
    assert await tab(page, 5) == [
        "button Fate",
        "button Fragment",
        "button Rule",
        "button Depth",
        "button Tokens",
    ]
    await tab(page, 2)
    assert not await text.locator("pre").is_visible()
    await page.keyboard.press("Enter")
    assert await text.locator("pre").is_visible()


async def test_the_skip_link_leads_to_the_answer(page: Page) -> None:
    await page.keyboard.press("Tab")
    assert await page.get_by_text("Skip to the answer").is_visible()
    await page.keyboard.press("Enter")
    assert await tab(page) == ["a #layer-mission"]


async def test_typing_and_unticking_narrow_the_rows(page: Page) -> None:
    everything = await names(page)
    await page.locator("#find").focus()
    await page.keyboard.type("DECISION/")
    found = await names(page)
    assert found == [name for name in everything if "decision/" in name]
    assert await page.locator("h3.layer:visible").all_inner_texts() == ["mission"]
    assert await page.locator("#found").inner_text() == f"{len(found)} found"
    await page.keyboard.press("Control+A")
    await page.keyboard.press("Delete")
    assert await names(page) == everything
    await page.locator("input[value=dropped]").focus()
    await page.keyboard.press("Space")
    assert await page.locator(".fragments tbody .fate-dropped:visible").count() == 0
    assert 0 < len(await names(page)) < len(everything)


async def test_a_heading_sorts_down_then_up_then_as_it_was(page: Page) -> None:
    table = page.locator(".fragments").first
    heading = table.locator("th", has_text="Tokens")

    async def tokens() -> list[int]:
        cells = await table.locator("tbody td[data-label=tokens]").all()
        return [int(await cell.get_attribute("data-value") or 0) for cell in cells]

    before = await tokens()
    await heading.locator("button").focus()
    for direction, expected in (
        ("descending", sorted(before, reverse=True)),
        ("ascending", sorted(before)),
        (None, before),
    ):
        await page.keyboard.press("Enter")
        assert await heading.get_attribute("aria-sort") == direction
        assert await tokens() == expected


async def test_without_script_everything_can_still_be_read(browser: Browser, folder: Path) -> None:
    context = await browser.new_context(java_script_enabled=False, offline=True)
    page = (await opened(context, folder / "explanation.html")).page
    assert not await page.locator("#controls").is_visible()
    text = page.locator("details.text").first
    await text.locator("summary").focus()
    await page.keyboard.press("Enter")
    assert await text.locator("pre").is_visible()
    await context.close()


# For everybody


@pytest.mark.parametrize("name", PAGES)
async def test_a_page_has_a_language_headings_in_order_and_named_parts(
    read: dict[str, Opened], name: str
) -> None:
    page = read[name].page
    assert await page.locator("html").get_attribute("lang") == "en"
    assert await page.title()
    levels = [int(await h.evaluate("h => h.tagName[1]")) for h in await page.locator("h1,h2,h3,h4").all()]
    assert levels.count(1) == 1
    assert all(lower - upper <= 1 for upper, lower in pairwise(levels))
    assert await page.locator("th:not([scope])").count() == 0
    assert await page.locator("table:not(:has(thead th))").count() == 0
    ids: list[str] = await page.evaluate("[...document.querySelectorAll('[id]')].map((e) => e.id)")
    assert len(ids) == len(set(ids))
    unlabelled = "[...document.querySelectorAll('input')].filter((e) => e.labels.length === 0).length"
    assert await page.evaluate(unlabelled) == 0


@pytest.mark.parametrize("name", PAGES)
async def test_every_text_stands_out_and_a_narrow_screen_needs_no_scrolling_sideways(
    offline: BrowserContext, folder: Path, name: str
) -> None:
    page = (await opened(offline, folder / f"{name}.html")).page
    await page.evaluate("document.querySelectorAll('details').forEach((d) => { d.open = true; })")
    for scheme in SCHEMES:
        await page.emulate_media(color_scheme=scheme)
        contrasts: list[tuple[float, str]] = await page.evaluate(CONTRASTS)
        assert len(contrasts) > 50
        assert [(ratio, text) for ratio, text in contrasts if ratio < 4.5] == []
    await page.set_viewport_size({"width": 320, "height": 600})
    assert await page.evaluate("document.documentElement.scrollWidth") <= 320
    await page.close()


async def test_paper_shows_what_a_screen_keeps_closed(page: Page) -> None:
    text = page.locator("details.text pre").first
    assert not await text.is_visible()
    await page.emulate_media(media="print")
    assert await text.is_visible()
    assert not await page.locator("#controls").is_visible()


# Hostile and large


async def test_what_a_request_brought_stays_text(offline: BrowserContext, tmp_path: Path) -> None:
    whole = await explanation()
    fragment = whole.layers[1].fragments[0]
    hostile = [replace(fragment, node=evil, why=evil, text=evil, also_from=(evil,)) for evil in HOSTILE]
    path = tmp_path / "hostile.html"
    path.write_text(explanation_page(with_fragments(replace(whole, request_id=HOSTILE[0]), hostile)))
    seen = await opened(offline, path)
    assert await seen.page.locator(".fragments summary .name").all_inner_texts() == list(HOSTILE)
    assert await seen.page.evaluate("window.hit === undefined")
    assert (seen.complaints, seen.requested) == ([], [path.as_uri()])


async def test_the_policy_stops_what_escaping_would_have_missed(
    offline: BrowserContext, folder: Path
) -> None:
    seen = await opened(offline, folder / "explanation.html")
    await seen.page.evaluate(
        """() => {
          for (const [tag, name, value] of [
            ["script", "textContent", "window.hit = 1"],
            ["script", "src", "https://example.com/a.js"],
            ["img", "src", "https://example.com/a.png"],
            ["style", "textContent", "h1 { display: none }"],
          ]) {
            const element = document.createElement(tag);
            element[name] = value;
            document.body.append(element);
          }
        }"""
    )
    assert len(seen.complaints) == 4
    assert all("Content Security Policy" in complaint for complaint in seen.complaints)
    assert await seen.page.evaluate("window.hit === undefined")
    assert await seen.page.locator("h1").is_visible()


async def test_a_receipt_of_ten_thousand_fragments_begins_closed_and_can_be_searched(
    offline: BrowserContext, tmp_path: Path
) -> None:
    whole = await explanation()
    fragment = whole.layers[1].fragments[0]
    lines = [
        replace(fragment, node=f"code://file_{n}.py", rank=n, text=f"def function_{n}(): ...\n")
        for n in range(MAX_SHOWN_LINES)
    ]
    dropped = [
        replace(fragment, node=f"code://other_{n}.py", fate="dropped", rule="no_room", tokens=None)
        for n in range(MAX_LEFT_OUT_LINES)
    ]
    rest = RestView(fate="dropped", rule="no_room", why="no room", count=8_900, size_bytes=890_000)
    path = tmp_path / "large.html"
    path.write_text(explanation_page(with_fragments(whole, [*lines, *dropped], rest=(rest,))))
    seen = await opened(offline, path)
    counts = await seen.page.locator(".group .count").all_inner_texts()
    assert counts == ["1,000 fragments", "9,000 fragments"]
    assert not await seen.page.locator(".fragments").first.is_visible()
    await seen.page.locator("#find").fill("file_77")
    assert await seen.page.locator("#found").inner_text() == "11 found"
    assert len(await names(seen.page)) == 11
    assert seen.complaints == []
