"""A bundle is made again from its capture, byte for byte, and what cannot be is said."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any, cast

import pytest

from schemas.bundle import to_wire
from schemas.request import AssemblyRequest
from schemas.wire import canonical_json
from tests.support.assembling import assemble, wire_request
from tests.support.explaining import bare, crowded, policy, served, stored, stored_of
from worker.explaining.replay import verify
from worker.explaining.stored import NotExplainable, Stored, WasRejected, read_file
from worker.fusing import Trail
from worker.fusion.protocols import StrategyCapabilities
from worker.fusion.strategies.recorded import PluginProposal
from worker.receipts.capture import CaptureUnreadable


@pytest.fixture(scope="module")
def one() -> Stored:
    return asyncio.run(stored_of(crowded(include=["messages", "layers", "usage", "receipt", "payload"])))


def test_whatever_was_asked_the_capture_makes_the_same_bytes() -> None:
    found = [stored(assembled) for assembled in asyncio.run(served(seed=29, count=24))]
    assert len(found) > 15
    assert {"complete", "degraded"} >= {item.bundle.status for item in found}
    # Nothing but the capture: other tables and another code version change nothing.
    elsewhere = replace(policy(), models={}, subjects={}, default_model="none", settings_digest="other")
    for item in found:
        verdict = verify(item, elsewhere)
        assert (verdict.outcome, verdict.detail) == ("same", "")


def test_a_bundle_that_was_changed_is_not_what_the_capture_makes(one: Stored) -> None:
    bundle = one.bundle.model_copy(update={"volk": "other"})
    verdict = verify(replace(one, body=to_wire(bundle), bundle=bundle), policy())
    assert verdict.outcome == "differs"
    assert "the bundle differs from byte" in verdict.detail


def test_a_record_that_was_changed_is_not_the_bundles_own(one: Stored) -> None:
    forged = one.record_bytes.replace(b'"fate":"kept"', b'"fate":"dropped"', 1)
    verdict = verify(replace(one, record_bytes=forged), policy())
    assert verdict.outcome == "damaged"
    assert "record" in verdict.detail


def test_a_capture_that_was_changed_is_found_out_before_anything_is_made(one: Stored) -> None:
    assert one.capture_bytes is not None
    header, request, *sources = one.capture_bytes.split(b"\n")
    other = header.replace(b'"request_digest":"', b'"request_digest":"0')
    words = b"\n".join([other, request, *sources])
    assert verify(replace(one, capture_bytes=words), policy()).outcome == "damaged"
    text = b"\n".join([header, request, *[line.replace(b"trimming", b"trammels") for line in sources]])
    verdict = verify(replace(one, capture_bytes=text), policy())
    assert (verdict.outcome, "contributed" in verdict.detail) == ("damaged", True)


@pytest.mark.parametrize("brings_content", [True, False])
def test_a_captured_request_that_was_changed_is_found_out_whatever_in_it_was(*, brings_content: bool) -> None:
    request = crowded() if brings_content else wire_request(user_message="Go", plan_id="p1")
    whole = asyncio.run(stored_of(request))
    assert whole.capture_bytes is not None
    header, line, *sources = whole.capture_bytes.split(b"\n")
    kept = json.loads(line)
    assert bool(kept["left_out"]) is brings_content
    changes: list[tuple[str, str, Any]] = [
        *[("request", name, value) for name, value in kept["request"].items() if name != "project_id"],
        *[("left_out", name, value) for name, value in kept["left_out"].items()],
        ("request", "must_cite", []),
        ("request", "plan_id", "p"),
        ("left_out", "plan", ""),
    ]
    for part, name, value in changes:
        other = {**kept, part: {**kept[part], name: _changed(name, value)}}
        words = b"\n".join([header, canonical_json(other), *sources])
        try:
            verdict = verify(replace(whole, capture_bytes=words), policy())
        except CaptureUnreadable as error:
            assert error.code == "capture_foreign"  # noqa: PT017 - either is said, according to the field
            continue
        assert (verdict.outcome, verdict.detail) == (
            "damaged",
            "the captured request is not the receipt's",
        ), name


def _changed(name: str, value: object) -> object:
    match value:
        case bool():
            return not value
        case int():
            return value + 1
        case list():
            return ["messages"] if name == "include" else ["a:b"]
        case dict():
            return {**cast("dict[str, Any]", value), "more": 1}
        case _:
            return "build" if name == "task_type" else f"{value}x"


def test_without_a_capture_nothing_can_be_verified(one: Stored) -> None:
    with pytest.raises(CaptureUnreadable) as met:
        verify(bare(one), policy())
    assert met.value.code == "capture_not_kept"


async def test_a_capture_above_its_limit_is_not_kept_and_says_how_large_it_was() -> None:
    small = stored(await assemble(crowded()), max_bytes=1_000)
    with pytest.raises(CaptureUnreadable, match=r"no capture was kept: its [\d,]+ bytes") as met:
        small.capture()
    assert met.value.code == "capture_too_large"


@pytest.mark.parametrize("request_of", [crowded, wire_request])
async def test_the_limit_of_a_capture_is_for_all_of_it(request_of: Callable[[], AssemblyRequest]) -> None:
    trail = (await assemble(request_of())).trail
    whole = trail.capture(max_bytes=10_000_000)
    assert trail.capture(max_bytes=len(whole)) == whole
    refused = json.loads(trail.capture(max_bytes=len(whole) - 1))
    assert (refused["kind"], refused["size_bytes"]) == ("no_capture", len(whole))


async def test_what_is_proposed_and_masked_weighs_in_the_trail() -> None:
    trail = (await assemble(crowded())).trail
    entries = tuple((f"memory:{number}:n{number}", 0.123456) for number in range(5_000))
    proposal = PluginProposal(name="far", capabilities=StrategyCapabilities(), entries=entries)
    admitted = replace(trail.fusing.admitted, masked={key: 1 for key, _ in entries})
    heavy = replace(trail, fusing=replace(trail.fusing, proposals=[proposal], admitted=admitted))

    def written(one: Trail) -> int:
        return len(one.record) + len(one.capture(max_bytes=10_000_000))

    assert abs(heavy.size_bytes - written(heavy)) < 0.2 * written(heavy)
    assert abs((heavy.size_bytes - trail.size_bytes) - (written(heavy) - written(trail))) < 0.2 * written(
        heavy
    )


@pytest.mark.parametrize(
    "damage", [b"", b"{}", b"[]", b'{"kind":"capture","version":2}', b"\xff", b"null\n{}"]
)
def test_what_is_no_capture_is_called_that(one: Stored, damage: bytes) -> None:
    with pytest.raises(CaptureUnreadable) as met:
        replace(one, capture_bytes=damage).capture()
    assert met.value.code == "capture_foreign"


def test_a_capture_of_which_a_part_is_missing_or_another_is_called_that(one: Stored) -> None:
    assert one.capture_bytes is not None
    head, request, *sources = one.capture_bytes.split(b"\n")
    for lines in ([head], [head, b"[]"], [head, b'{"request":"r","left_out":{}}'], [head, request, b"[]"]):
        with pytest.raises(CaptureUnreadable) as met:
            replace(one, capture_bytes=b"\n".join([*lines, *sources[len(lines) :]])).capture()
        assert met.value.code == "capture_foreign"


def test_another_projects_capture_is_foreign(one: Stored) -> None:
    assert one.capture_bytes is not None
    other = one.capture_bytes.replace(b'"project_id":"p"', b'"project_id":"q"')
    with pytest.raises(CaptureUnreadable, match="another project"):
        replace(one, capture_bytes=other).capture()


def test_a_capture_holds_nothing_that_cannot_matter(one: Stored) -> None:
    assert one.capture_bytes is not None
    line = json.loads(one.capture_bytes.split(b"\n")[1])
    request = line["request"]
    assert line["left_out"].keys() == {"session", "memory", "artifacts", "working"}
    assert request.keys().isdisjoint(line["left_out"])
    assert request.keys().isdisjoint({"request_id", "deadline_ms", "layer_timeouts_ms", "expires_at"})


# --- Files -------------------------------------------------------------------------------------------


def test_a_bundle_that_holds_its_record_can_be_explained_but_not_made_again(one: Stored) -> None:
    read = read_file(one.body + b"\n")
    assert (read.record, read.record_bytes, read.body) == (one.record, one.record_bytes, one.body)
    with pytest.raises(CaptureUnreadable):
        read.capture()


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"{", "no JSON"),
        (b"[1]", "neither a receipt nor a bundle"),
        (b'{"kind":"receipt_file","version":9}', "form 9"),
        (b'{"kind":"receipt_file","version":1}', "damaged"),
        (b'{"kind":"bundle"}', "holds no record"),
        (b'{"kind":"bundle","receipt":{"record":{"a":NaN}}}', "damaged"),
        (b'{"kind":"bundle","receipt":7}', "damaged"),
    ],
)
def test_a_file_that_explains_nothing_says_why(data: bytes, said: str) -> None:
    with pytest.raises(NotExplainable, match=said):
        read_file(data)


def test_a_rejection_says_its_code() -> None:
    rejection = {
        "kind": "rejection",
        "request_id": "r",
        "project_id": "p",
        "code": "unknown_subject",
        "message": "no such subject",
        "details": {"known": ["chat"]},
        "retryable": False,
    }
    with pytest.raises(WasRejected, match="unknown_subject: no such subject") as met:
        read_file(json.dumps(rejection).encode())
    assert met.value.rejection.details == {"known": ["chat"]}
