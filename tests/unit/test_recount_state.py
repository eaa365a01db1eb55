"""Half of the requests whose bundles tiktoken recounts; two files, so that two processes share the work."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given

from tests.support.hostile_requests import WINDOWS, requests
from tests.support.recounting import check_request, thoroughly

SMALL = requests(("session", "working"), budget=WINDOWS)
ROOMY = requests(("session", "memory"))


@pytest.mark.timeout(240)
@given(body=SMALL)
@thoroughly
def test_no_bundle_in_a_small_window_is_over_budget_by_an_independent_recount(body: dict[str, Any]) -> None:
    check_request(body)


@pytest.mark.timeout(240)
@given(body=ROOMY)
@thoroughly
def test_no_bundle_in_a_models_window_is_over_budget_by_an_independent_recount(body: dict[str, Any]) -> None:
    check_request(body)
