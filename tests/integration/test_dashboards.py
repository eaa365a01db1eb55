"""The dashboard and the alerts against a real Prometheus that reads a real worker."""

from __future__ import annotations

import asyncio
import json
import math
import subprocess
import sys
import time
from collections.abc import AsyncGenerator, Iterator
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx
import pytest
import pytest_asyncio
import yaml
from playwright.async_api import async_playwright

from tests.support.collector import OtlpCollector, attributes, collector
from tests.support.dispatching import until
from tests.support.prometheus import prometheus
from tests.support.promql import Selector, grouping_labels, selectors
from worker.client import ContextClient
from worker.kafka.embedded import EmbeddedBroker
from worker.settings import Otlp, Settings, Tracing
from worker.wiring_kafka import demo_settings
from worker.wiring_worker import start_worker

pytestmark = pytest.mark.asyncio(loop_scope="session")

INFRA = Path(__file__).parents[2] / "infra"
DASHBOARD: dict[str, Any] = json.loads((INFRA / "dashboards" / "context-worker.json").read_text())
ALERTS, CASES = INFRA / "alerts" / "alerts.yaml", INFRA / "alerts" / "alerts_test.yaml"
RULES: list[dict[str, Any]] = yaml.safe_load(ALERTS.read_text())["groups"][0]["rules"]
ALERT_TESTS: list[dict[str, Any]] = yaml.safe_load(CASES.read_text())["tests"]
WINDOW = "1m"
SCRAPED_BY_PROMETHEUS = {"instance", "job"}
NOT_CHARTED = {"process_virtual_memory_bytes"}
"""Of the client library's own set, what says nothing that resident memory does not."""


def panel_queries() -> list[tuple[str, str]]:
    """Title and expression of each, as Grafana would ask it for all workers."""
    return [
        (
            panel["title"],
            target["expr"].replace("$instance", ".*").replace("$__rate_interval", WINDOW),
        )
        for panel in DASHBOARD["panels"]
        for target in panel.get("targets", ())
    ]


def every_expression() -> list[str]:
    return [*[expression for _, expression in panel_queries()], *[rule["expr"] for rule in RULES]]


# The worker, its traffic, and the Prometheus that watches


@dataclass(kw_only=True)
class Watched:
    """What Prometheus knows, as of one moment after the traffic."""

    http: httpx.AsyncClient
    metrics: str = ""
    at_seconds: float | None = None

    async def ask(self, query: str) -> list[dict[str, Any]]:
        at = {} if self.at_seconds is None else {"time": str(self.at_seconds)}
        answer = await self.http.get("/api/v1/query", params={"query": query, **at})
        if answer.status_code == HTTPStatus.SERVICE_UNAVAILABLE:
            answer.raise_for_status()
        found = answer.json()
        assert found["status"] == "success", (query, found)
        return found["data"]["result"]

    async def series(self, selector: str) -> list[dict[str, str]]:
        answer = (await self.http.get("/api/v1/series", params={"match[]": selector})).json()
        assert answer["status"] == "success", (selector, answer)
        return answer["data"]


@pytest.fixture(scope="module")
def pushed_to() -> Iterator[OtlpCollector]:
    with collector() as other:
        yield other


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def watched(
    embedded: EmbeddedBroker,
    promtool: Path,
    tmp_path_factory: pytest.TempPathFactory,
    pushed_to: OtlpCollector,
) -> AsyncGenerator[Watched]:
    home = tmp_path_factory.mktemp("watched")
    settings = demo_settings(
        roots={"shop": (home,)},
        home=home,
        bootstrap_servers=embedded.bootstrap_servers,
        failpoints="provider.memory=raise@MARK",
    )
    name = f"t{uuid4().hex[:12]}"
    kafka = settings.kafka.model_copy(update={"topic_prefix": f"{name}.", "group_id": name})
    settings = settings.model_copy(update={"kafka": kafka})
    settings = settings.model_copy(
        update={
            "tracing": Tracing(exporter="otlp"),
            "otlp": Otlp(endpoint=pushed_to.url, metrics=True, metrics_seconds=1),
        }
    )
    async with (
        start_worker(settings, usage_log=home / "usage.jsonl") as url,
        prometheus(promtool.with_name("prometheus"), home, target=url.removeprefix("http://")) as address,
        httpx.AsyncClient(base_url=address) as http,
    ):
        watched = Watched(http=http)
        await reaches(watched, "count_over_time(context_commits_total[1m]) >= 2")
        await send_traffic(settings, home)
        # All of it was scraped: the last event is in, and a scrape came after it.
        for counter in ("tool_calls", "syncs", "state_events", "verdicts"):
            await reaches(watched, f"sum(context_{counter}_total) > 0")
        await reaches(watched, f"rate(context_commits_total[{WINDOW}]) > 0")
        # Tests that come late ask of the same moment.
        watched.at_seconds = time.time()
        watched.metrics = (await http.get(f"{url}/metrics")).text
        yield watched


async def reaches(watched: Watched, query: str) -> None:
    """Return as soon as Prometheus finds it so."""
    async with asyncio.timeout(60):
        while True:
            try:
                if await watched.ask(query):
                    return
            except (httpx.TransportError, httpx.HTTPStatusError):
                pass  # it starts
            await asyncio.sleep(0.1)


async def send_traffic(settings: Settings, root: Path) -> None:
    """Requests that end in every way, and records of every other kind."""
    ask = {
        "project_id": "shop",
        "thread_id": "t",
        "volk": "smith",
        "subject": "chat",
        "user_message": "Mend it.",
    }
    prefix = settings.kafka.topic_prefix
    event = {
        "event_id": "e-1",
        "project_id": "shop",
        "event": "goal_set",
        "occurred_at": "2026-01-01T00:00:00Z",
        "body": {"id": "g", "statement": "Mend it.", "status": "active"},
    }
    call = {"call_id": "c-1", "project_id": "shop", "tool": "search_code", "arguments": {"query": "pay"}}
    answer = {
        "project_id": "shop",
        "thread_id": "t",
        "answer_id": "a-1",
        "request_id": "complete",
        "content": "Done.",
    }
    sync = {"sync_id": "s-1", "project_id": "shop", "root": "/nowhere"}
    requests: list[dict[str, Any] | bytes] = [
        {**ask, "request_id": "complete"},
        {**ask, "request_id": "complete"},
        {**ask, "request_id": "graph", "subject": "implement", "user_message": "Mend pay()."},
        {**ask, "request_id": "forgiven", "colour": "red", "as_of": "2026-01-01T00:00:00"},
        {**ask, "request_id": "failing", "user_message": "MARK"},
        {**ask, "request_id": "partial", "payload": {"files_created": ["../out"], "project_dir": str(root)}},
        {**ask, "request_id": "refused", "budget": {"total": 20, "layers": {"output": 18}}},
        b"{",
    ]
    async with (
        ContextClient(list(settings.kafka.bootstrap_servers), topic_prefix=prefix) as client,
        asyncio.timeout(60),
    ):
        await client.publish_raw(json.dumps(event).encode(), key=b"shop", topic=f"{prefix}state")
        for body in requests:
            sent = body if isinstance(body, bytes) else json.dumps(body).encode()
            await client.exchange_raw(sent, key=b"shop", headers=[("traceparent", b"x")])
        await client.publish_raw(json.dumps(sync).encode(), key=b"shop", topic=f"{prefix}sync")
        await client.publish_raw(json.dumps(call).encode(), key=b"shop", topic=f"{prefix}tools")
        await client.publish_raw(json.dumps(answer).encode(), key=b"shop", topic=f"{prefix}responses")


# Queries


async def test_every_panel_shows_something_of_a_worker_that_was_given_traffic(watched: Watched) -> None:
    empty = [(title, query) for title, query in panel_queries() if not await watched.ask(query)]
    assert empty == []


@pytest.mark.parametrize(
    "title", ["Requests", "Degraded", "Rejected", "p99 of a request", "Dead letters", "Ready"]
)
async def test_the_first_row_says_what_the_traffic_was(watched: Watched, title: str) -> None:
    (query,) = [query for name, query in panel_queries() if name == title]
    (found,) = await watched.ask(query)
    shown = float(found["value"][1])
    assert math.isfinite(shown)
    assert shown > 0


async def test_every_metric_matcher_and_label_that_is_asked_for_is_there(watched: Watched) -> None:
    for expression in every_expression():
        labels: set[str] = set()
        for selector in selectors(expression):
            found = await watched.series(str(selector))
            assert found, f"{selector} of {expression}"
            labels.update(*found)
            await every_value_is_known(watched, selector)
        assert grouping_labels(expression) <= labels, expression


async def every_value_is_known(watched: Watched, selector: Selector) -> None:
    """Each alternative of each matcher is a value that the metric has, so that none is a slip of the pen."""
    for label, operator, value in selector.matchers:
        if label in SCRAPED_BY_PROMETHEUS:
            continue
        for alternative in alternatives(value) if "~" in operator else [value]:
            asked = f'{selector.metric}{{{label}="{alternative}"}}'
            assert await watched.series(asked), asked


def alternatives(pattern: str) -> list[str]:
    """Of `a|b` or `p(a|b)`, the only patterns that the queries may use."""
    prefix, _, rest = pattern.rpartition("(")
    return [prefix + one for one in rest.removesuffix(")").split("|")]


async def test_every_metric_is_read_by_a_panel_or_an_alert(watched: Watched) -> None:
    read = {selector.metric for expression in every_expression() for selector in selectors(expression)}
    exported = {line.split()[2] for line in watched.metrics.splitlines() if line.startswith("# TYPE ")}
    families = {name for name in exported if not name.endswith("_created")} - NOT_CHARTED
    parts = ("", "_bucket", "_sum", "_count")
    assert {name for name in families if not any(name + part in read for part in parts)} == set()


async def test_the_same_worker_pushes_its_spans_and_metrics(
    watched: Watched, pushed_to: OtlpCollector
) -> None:
    await until(lambda: {"context.request", "context.sync"} <= {span.name for span in pushed_to.spans})
    await until(lambda: pushed_to.metrics)
    (group,) = pushed_to.traces[0].resource_spans
    assert attributes(group.resource)["service.name"] == "context-worker"
    assert 'context_telemetry_exports_total{result="exported",signal="metrics"}' in watched.metrics


async def test_no_id_of_the_traffic_is_in_the_metrics(watched: Watched) -> None:
    assert "context_outcomes_total" in watched.metrics
    for name in ("shop", "smith", "forgiven", "e-1", "c-1", "s-1", "a-1"):
        assert f'"{name}' not in watched.metrics


# As a page, without Grafana


def drawn(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    script = [sys.executable, INFRA / "dashboard.py", *arguments]
    return subprocess.run(script, capture_output=True, text=True, check=False)


async def test_every_panel_is_drawn_with_what_prometheus_holds(
    watched: Watched, chromium: Path, tmp_path: Path
) -> None:
    page = tmp_path / "dashboard.html"
    asked = ["--prometheus", str(watched.http.base_url), "--minutes", "5", "--window", WINDOW, "--out", page]
    done = await asyncio.to_thread(drawn, *asked)
    assert done.returncode == 0, done.stderr
    complaints: list[str] = []
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=chromium)
        view = await browser.new_page()
        view.on("console", lambda message: complaints.append(message.text))
        view.on("pageerror", lambda error: complaints.append(str(error)))
        view.on(
            "request", lambda request: complaints.append(request.url) if "file:" not in request.url else None
        )
        await view.goto(page.as_uri())
        charts = [panel["title"] for panel in DASHBOARD["panels"] if panel["type"] == "timeseries"]
        tiles = [panel["title"] for panel in DASHBOARD["panels"] if panel["type"] == "stat"]
        assert await view.locator("figure h3").all_inner_texts() == charts
        assert await view.locator(".stat dt").all_inner_texts() == tiles
        assert await view.get_by_text("no data").count() == 0
        empty = await view.eval_on_selector_all(
            "figure", "all => all.filter(one => one.querySelector('path').getBBox().width === 0)"
        )
        assert empty == []
        await browser.close()
    assert complaints == []


@pytest.mark.parametrize(
    ("address", "window", "said"),
    [
        ("http://127.0.0.1:1", "1m", "no Prometheus answers at http://127.0.0.1:1"),
        (None, "a while", "Prometheus refused a query (400)"),
        ("127.0.0.1:9090", "1m", "begins with http:// or https://"),
    ],
)
async def test_a_page_that_cannot_be_drawn_says_why_and_writes_nothing(
    watched: Watched, tmp_path: Path, address: str | None, window: str, said: str
) -> None:
    page = tmp_path / "dashboard.html"
    prometheus = str(watched.http.base_url) if address is None else address
    done = await asyncio.to_thread(drawn, "--prometheus", prometheus, "--window", window, "--out", page)
    assert done.returncode != 0
    assert said in done.stderr
    assert "Traceback" not in done.stderr
    assert not page.exists()


# Rules


def promtool_says(promtool: Path, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([promtool, *arguments], capture_output=True, text=True, check=False)


async def test_prometheus_takes_the_rules_and_every_panels_expression(promtool: Path, tmp_path: Path) -> None:
    panels = [
        {"record": f"panel:{number}", "expr": expression}
        for number, (_, expression) in enumerate(panel_queries())
    ]
    recorded = tmp_path / "panels.yaml"
    recorded.write_text(yaml.safe_dump({"groups": [{"name": "panels", "rules": panels}]}))
    checked = promtool_says(promtool, "check", "rules", ALERTS, recorded)
    assert checked.returncode == 0, checked.stderr


async def test_each_alert_fires_on_what_it_is_for_and_not_on_what_is_next_to_it(promtool: Path) -> None:
    told = {rule["alert"]: [False, False] for rule in RULES}
    for one in ALERT_TESTS:
        for expected in one["alert_rule_test"]:
            told[expected["alertname"]][bool(expected["exp_alerts"])] = True
    assert all(is_quiet and fires for is_quiet, fires in told.values()), told
    tested = promtool_says(promtool, "test", "rules", CASES)
    assert tested.returncode == 0, tested.stdout + tested.stderr


@pytest.mark.parametrize("verdict", ["vector(1) > 1", "vector(1)"], ids=["never", "always"])
async def test_an_alert_that_fires_never_or_always_is_noticed(
    promtool: Path, tmp_path: Path, verdict: str
) -> None:
    broken = [{**rule, "expr": verdict} for rule in RULES]
    groups = {"groups": [{"name": "context-worker", "rules": broken}]}
    (tmp_path / ALERTS.name).write_text(yaml.safe_dump(groups))
    (tmp_path / CASES.name).write_text(CASES.read_text())
    tested = promtool_says(promtool, "test", "rules", tmp_path / CASES.name)
    assert tested.returncode != 0
    told = tested.stdout + tested.stderr
    assert [rule["alert"] for rule in RULES if f"alertname: {rule['alert']}, time" not in told] == []


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule["alert"])
async def test_an_alert_says_what_it_means_by_labels_that_it_has(rule: dict[str, Any]) -> None:
    assert rule["labels"]["severity"] in {"critical", "warning", "info"}
    for text in rule["annotations"].values():
        for label in text.split("{{ $labels.")[1:]:
            assert label.split(" ")[0] in grouping_labels(rule["expr"])


@pytest.mark.parametrize(
    "expression", ["sum(rate(contxt_x[5m]))", 'context_x{label="a"} or typo', "sum by (a) (b)"]
)
async def test_what_the_reader_of_queries_does_not_know_counts_as_a_metric(expression: str) -> None:
    assert {one.metric for one in selectors(expression)} & {"contxt_x", "typo", "b"}
