"""Bundles byte for byte. A difference is a change of behaviour: `make golden`, and review the diff."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path

import pytest

from schemas.bundle import to_wire
from schemas.request import AssemblyRequest
from tests.support import hostile
from tests.support.assembling import AS_OF, bundle_of
from worker.demo_requests import ARTIFACTS, DIFF, MEMORY, SESSION

PACK = """---
pack_version: 1
project: p
---
## function retry
<!-- node: client.py::retry | template: IMPLEMENT | rank: 1 | score: 0.900000 | tokens: 20 -->
```python
def retry(deadline: float) -> None:
    attempt(deadline)
```
## requirement REQ-7
<!-- node: REQ-7 | template: IMPLEMENT | rank: 2 | score: 0.500000 | tokens: 9 -->
```
A retry never outlives its deadline.
```
"""
FAILING = [{"id": "tests/test_client.py::test_deadline", "message": "AssertionError: 31 > 30\nmore"}]
REQUESTS = {
    "everything": {
        "thread_id": "t1",
        "system_prompt": "You are smith.",
        "session": SESSION,
        "memory": MEMORY,
        "artifacts": ARTIFACTS,
        "pack": PACK,
        "payload": {"task_context": {"ticket": 7, "labels": ["retry", "deadline"]}},
        "working": {"current_diff": DIFF, "failing_tests": FAILING},
        "include": ["messages", "layers", "usage", "parts", "payload"],
    },
    "tight": {
        "system_prompt": "You are smith.",
        "session": SESSION,
        "memory": MEMORY,
        "artifacts": ARTIFACTS,
        "pack": PACK,
        "budget": {"total": 1_100, "layers": {"output": 100}},
    },
    "receipt": {
        "memory": MEMORY,
        "artifacts": ARTIFACTS,
        "pack": PACK,
        "payload": {"task_context": "The deploy key is AKIA2E0A8F3B244C9986; do not show it."},
        "budget": {"total": 620, "layers": {"output": 100}},
        "include": ["messages", "receipt"],
    },
    "in_bytes": {"model": "generic-8k", "session": SESSION, "memory": MEMORY},
    "minimal": {},
}


@pytest.mark.parametrize("name", REQUESTS)
def test_a_bundle_is_the_golden_one(name: str, golden: Callable[[str, bytes], None]) -> None:
    body = {
        "request_id": f"golden-{name}",
        "project_id": "p",
        "volk": "smith",
        "subject": "implement",
        "user_message": "Make the retry loop respect its deadline.",
        "as_of": AS_OF,
        **REQUESTS[name],
    }
    bundle = json.loads(to_wire(bundle_of(AssemblyRequest.model_validate(body))))
    golden(f"bundles/{name}.json", json.dumps(bundle, indent=1, ensure_ascii=False).encode() + b"\n")


def test_a_hostile_bundle_is_the_golden_one(golden: Callable[[str, bytes], None]) -> None:
    rng = random.Random(11)
    requests = [hostile.request(rng, number) for number in range(40)]
    body = max(requests, key=lambda b: len(json.dumps(b))) | {"budget": {"total": 8_000}}
    bundle = json.loads(to_wire(bundle_of(AssemblyRequest.model_validate(body))))
    golden("bundles/hostile.json", json.dumps(bundle, indent=1).encode() + b"\n")


def test_every_golden_bundle_has_a_test() -> None:
    files = {path.stem for path in (Path(__file__).parent / "bundles").glob("*.json")}
    assert files == {*REQUESTS, "hostile"}
