from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any, get_args

from worker.kafka.health import MEANINGS, Health, NotLive, NotReady, NotReadyGauge

PATH = Path(__file__).parents[2] / "infra" / "metrics_table.py"


def metrics_table() -> Any:
    spec = importlib.util.spec_from_file_location("metrics_table", PATH)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_table_of_metrics_is_the_one_that_the_code_gives() -> None:
    module = metrics_table()
    assert module.TABLE.read_text() == module.table(), "run `python infra/metrics_table.py`"


def test_every_reason_has_a_meaning() -> None:
    assert MEANINGS.keys() == {*get_args(NotReady), *get_args(NotLive)}


def test_the_metric_of_readiness_says_which_reasons_hold() -> None:
    health = Health()

    def told() -> dict[str, float]:
        (family,) = NotReadyGauge(health).collect()
        return {sample.labels["reason"]: sample.value for sample in family.samples}

    assert told().keys() == set(get_args(NotReady))
    assert {reason for reason, value in told().items() if value} == {"starting"}
    health.enter("draining")
    assert {reason for reason, value in told().items() if value} == {"draining"}
