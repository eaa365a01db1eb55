"""Half of the requests whose bundles tiktoken recounts; two files, so that two processes share the work."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import HealthCheck, event, given, settings

from schemas.request import AssemblyRequest
from tests.support.assembling import assemble, assembler
from tests.support.hostile_requests import WINDOWS, requests
from tests.support.recounting import check_ledger, check_text
from worker.errors import BudgetTooSmall, PinsExceedWindow

SMALL = requests(("session", "working"), budget=WINDOWS)
ROOMY = requests(("session", "memory"))
ASSEMBLER = assembler()
thoroughly = settings(
    max_examples=1_250,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)


def check(body: dict[str, Any]) -> None:
    request = AssemblyRequest.model_validate(body)
    try:
        bundle = asyncio.run(assemble(request, ASSEMBLER)).bundle
    except (BudgetTooSmall, PinsExceedWindow) as refused:
        event(refused.code)
        return
    event("bundle")
    check_ledger(request, bundle)
    check_text(request, bundle)


@pytest.mark.timeout(240)
@given(body=SMALL)
@thoroughly
def test_no_bundle_in_a_small_window_is_over_budget_by_an_independent_recount(body: dict[str, Any]) -> None:
    check(body)


@pytest.mark.timeout(240)
@given(body=ROOMY)
@thoroughly
def test_no_bundle_in_a_models_window_is_over_budget_by_an_independent_recount(body: dict[str, Any]) -> None:
    check(body)
