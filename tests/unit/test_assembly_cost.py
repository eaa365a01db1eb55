"""What an assembly costs, without a clock: where it runs, and how often it tokenises."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.support.assembling import assemble, assembler, bundle_of, wire_request
from worker import assembly, planning
from worker.budget.tokens import counter_for
from worker.fusing import Fusing
from worker.ports import TokenCounter
from worker.sealing import SealedBundle

HAN = "重试循环忽略了支付客户端的截止日期"


def facts(count: int, *, padding: str = "") -> dict[str, Any]:
    items = [{"id": f"m{n}", "text": f"fact {n} about the retry loop{padding}"} for n in range(count)]
    return {"memory": {"items": items}}


@pytest.mark.parametrize(
    ("more", "is_elsewhere"),
    [
        ({"user_message": "Mend the loop. " * 100}, False),
        (facts(20), False),
        ({"user_message": "Mend the loop. " * 4_000}, True),
        ({"user_message": HAN * 500}, True),
        ({"user_message": "🚀" * 4_000}, True),
        (facts(300), True),
        ({**facts(300), "include": ["payload_content"]}, True),
    ],
    ids=["light", "few", "long", "Han", "emoji", "many", "payload"],
)
async def test_heavy_requests_are_fused_and_sealed_off_the_event_loop(
    more: dict[str, Any], *, is_elsewhere: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: list[threading.Thread] = []
    fuse_and_seal = assembly.fuse_and_seal

    def watched(fusing: Fusing, **more: Any) -> SealedBundle:
        threads.append(threading.current_thread())
        return fuse_and_seal(fusing, **more)

    monkeypatch.setattr(assembly, "fuse_and_seal", watched)
    await assemble(wire_request(**more), assembler())
    assert [thread is not threading.current_thread() for thread in threads] == [is_elsewhere]


class CountingCounter:
    """Another counter that takes down what it is asked to tokenise."""

    def __init__(self, inner: TokenCounter) -> None:
        self.inner = inner
        self.name = inner.name
        self.exact = inner.exact
        self.calls = 0
        self.chars = 0

    def as_kept(self, encoding: str, *, safety_factor: str) -> TokenCounter:
        """In place of `counter_for`."""
        del encoding, safety_factor
        return self

    def _note(self, text: str) -> None:
        self.calls += 1
        self.chars += len(text)

    def is_exact(self, text: str) -> bool:
        return self.inner.is_exact(text)

    def count(self, text: str) -> int:
        self._note(text)
        return self.inner.count(text)

    def count_up_to(self, text: str, limit_tokens: int) -> int:
        self._note(text)
        return self.inner.count_up_to(text, limit_tokens)

    def fits(self, text: str, budget_tokens: int) -> bool:
        self._note(text)
        return self.inner.fits(text, budget_tokens)

    def token_ends(self, text: str) -> NDArray[np.int64]:
        self._note(text)
        return self.inner.token_ends(text)

    def scale(self, raw_tokens: int) -> int:
        return self.inner.scale(raw_tokens)

    def raw_budget(self, budget_tokens: int) -> int:
        return self.inner.raw_budget(budget_tokens)


@pytest.mark.parametrize("include", [["messages"], ["messages", "payload"]], ids=["messages", "payload"])
@pytest.mark.parametrize("room", [2_000, 100_000], ids=["tight", "wide"])
def test_what_is_tokenised_grows_with_the_number_of_fragments_and_not_faster(
    room: int, include: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def cost(fragments: int) -> CountingCounter:
        counter = CountingCounter(counter_for("o200k_base"))
        monkeypatch.setattr(planning, "counter_for", counter.as_kept)
        bundle_of(
            wire_request(
                **facts(fragments, padding=" and its deadline" * 10),
                include=include,
                budget={"total": 128_000, "layers": {"memory": room}},
                layer_timeouts_ms={"memory": 20_000},
                deadline_ms=20_000,
            )
        )
        return counter

    few, many = cost(200), cost(800)
    assert many.calls <= 4.5 * few.calls
    assert many.chars <= 4.5 * few.chars


def test_a_request_without_context_is_tokenised_once(monkeypatch: pytest.MonkeyPatch) -> None:
    counter = CountingCounter(counter_for("o200k_base"))
    monkeypatch.setattr(planning, "counter_for", counter.as_kept)
    message = "Mend the retry loop. " * 20
    bundle_of(wire_request(user_message=message))
    quick_looks = 3  # at system, user and preamble: whether each surely fits
    assert counter.calls <= quick_looks + 3  # preamble and template once a thread, the joined text
