#!/usr/bin/env python3
"""Write the table of all metrics from the code that counts them.

python infra/metrics_table.py            with the project's own environment; writes infra/metrics.md
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Final

from prometheus_client.core import Metric

from worker.kafka.health import Health, NotReadyGauge
from worker.telemetry import Telemetry

TABLE: Final = Path(__file__).resolve().parent / "metrics.md"
HEAD: Final = """# Metrics

Served at `/metrics`, and pushed as OTLP where `WORKER_OTLP__METRICS=true`. Labels are closed lists; no id is
ever one. Beside these stand `process_*` of the process itself. Written by `python infra/metrics_table.py`.

| metric | kind | labels | what |
|---|---|---|---|
"""


def table() -> str:
    """The whole file, metrics by name."""
    telemetry = Telemetry()
    telemetry.registry.register(NotReadyGauge(Health()))
    # A family says its labels only once something was counted.
    telemetry.layers.count("graph", "ok", None)
    telemetry.stage_seconds.observe("context.request", 0)
    telemetry.source_seconds.observe("graph", 0)
    telemetry.ignored_headers.labels("traceparent")
    telemetry.paused_partitions.labels("span")
    telemetry.in_flight.labels("requests")
    telemetry.waiting.labels("requests")
    telemetry.records_lag.labels("requests")
    telemetry.record_age_seconds.observe("requests", 0)
    return HEAD + "".join(sorted(map(_row, telemetry.registry.collect())))


def _row(metric: Metric) -> str:
    name = metric.name + ("_total" if metric.type == "counter" else "")
    labels = [f"`{label}`" for label in metric.samples[0].labels if label != "le"]
    return f"| `{name}` | {metric.type} | {', '.join(labels)} | {metric.documentation} |\n"


def main() -> int:
    """Write the file; the exit code."""
    TABLE.write_text(table(), encoding="utf-8")
    print(f"wrote {TABLE}", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
