from __future__ import annotations

import json
import random
import threading
import time
from typing import Any, Self, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.codes import LAYERS
from schemas.tools import TOOL_NAMES
from worker.decoding import (
    DecodedRequest,
    check_request,
    decode_request,
    is_heavy,
    read_ids,
)
from worker.errors import (
    InvalidEncoding,
    InvalidJson,
    InvalidRequest,
    Rejected,
    TooLarge,
    UnknownLayer,
    UnsupportedVersion,
)

MINIMAL: dict[str, Any] = {
    "request_id": "r-1",
    "project_id": "shop",
    "volk": "smith",
    "subject": "implement",
    "user_message": "Add a retry.",
}
BODY_CODES = {"invalid_json", "invalid_encoding", "too_large", "invalid_request", "unsupported_version"}


def refusal_code(body: bytes, *, max_depth: int) -> str | None:
    try:
        decode(body, max_depth=max_depth)
    except Rejected as refusal:
        return refusal.code
    return None


def encode(fields: object) -> bytes:
    return json.dumps(fields).encode()


def decode(body: bytes | None, *, max_bytes: int = 1_000_000, max_depth: int = 64) -> DecodedRequest:
    return decode_request(body, max_bytes=max_bytes, max_depth=max_depth)


def raw(tail: str) -> bytes:
    """The minimal request with `tail` as further members, not escaped."""
    return (json.dumps(MINIMAL)[:-1] + "," + tail + "}").encode("utf-8", "surrogatepass")


def listed(refusal: InvalidRequest) -> list[dict[str, str]]:
    return cast("list[dict[str, str]]", refusal.details["errors"])


def code_of(body: bytes | None, **limits: int) -> str:
    with pytest.raises(Rejected) as caught:
        decode(body, **limits)
    return caught.value.code


# --- Which code ----------------------------------------------------------------------------------------


def test_every_tool_of_the_contract_can_be_required_and_another_is_named_by_its_field() -> None:
    own = decode(encode({**MINIMAL, "required_tools": TOOL_NAMES}))
    assert own.request.required_tools == TOOL_NAMES
    with pytest.raises(InvalidRequest) as refusal:
        decode(encode({**MINIMAL, "required_tools": ["get_code", "run\nthis"]}))
    assert [one["field"] for one in listed(refusal.value)] == ["required_tools.1"]
    assert "this" not in str(refusal.value)


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (None, "invalid_json"),
        (b"", "invalid_json"),
        (b" \r\n\t ", "invalid_json"),
        (b"null", "invalid_json"),
        (b"[]", "invalid_json"),
        (b'"text"', "invalid_json"),
        (b"17", "invalid_json"),
        (b"{", "invalid_json"),
        (encode(MINIMAL) + b"{}", "invalid_json"),
        (encode(MINIMAL) + b" trailing", "invalid_json"),
        (encode(MINIMAL)[:-1] + b",}", "invalid_json"),
        (b"{'request_id': 'r'}", "invalid_json"),
        (raw('"deadline_ms": NaN'), "invalid_json"),
        (raw('"deadline_ms": Infinity'), "invalid_json"),
        (raw('"deadline_ms": -Infinity'), "invalid_json"),
        (raw('"volk": "line\nbreak"'), "invalid_json"),
        (raw('"x": 01'), "invalid_json"),
        (raw('"x": "\\u12"'), "invalid_json"),
        (b"\xff\xfe{\x00}\x00", "invalid_encoding"),
        (encode(MINIMAL).decode().encode("utf-16-le"), "invalid_encoding"),
        (encode(MINIMAL)[:-1] + b', "x": "\xff"}', "invalid_encoding"),
        (encode(MINIMAL)[:-1] + b', "x": "\xc3"}', "invalid_encoding"),
        (raw('"x": "\ud800"'), "invalid_encoding"),
        (raw('"x": "\\ud800"'), "invalid_encoding"),
        (raw('"x": "\\uDC00\\uD800"'), "invalid_encoding"),
        (raw('"x": {"a": ["\\udfff tail"]}'), "invalid_encoding"),
        (raw('"\\ud83d": 1'), "invalid_encoding"),
        (raw('"x": "\x00"'), "invalid_encoding"),
        (raw('"x": "a\\u0000b"'), "invalid_encoding"),
        (raw('"payload": {"x": [{"k\\u0000": 1}]}'), "invalid_encoding"),
        (raw('"schema_version": "2.0"'), "unsupported_version"),
        (raw('"schema_version": "0.9"'), "unsupported_version"),
        (raw('"schema_version": "11"'), "unsupported_version"),
        (b'{"schema_version": "2.0", "entirely": "different"}', "unsupported_version"),
        (raw('"schema_version": "one"'), "invalid_request"),
        (raw('"schema_version": ""'), "invalid_request"),
        (raw('"schema_version": 1'), "invalid_request"),
        (raw('"schema_version": null'), "invalid_request"),
        (raw('"kind": "bundle"'), "invalid_request"),
        (raw('"kind": null'), "invalid_request"),
        (raw('"required_tools": ["rm"]'), "invalid_request"),
        (raw('"required_tools": ["get_code", "get_code "]'), "invalid_request"),
        (b"{}", "invalid_request"),
        (raw('"deadline_ms": "soon"'), "invalid_request"),
        (raw('"deadline_ms": 0'), "invalid_request"),
        (raw('"deadline_ms": 1.5'), "invalid_request"),
        (raw('"deadline_ms": true'), "invalid_request"),
        (raw('"request_id": ""'), "invalid_request"),
        (raw('"request_id": "a\\u0007"'), "invalid_request"),
        (raw('"request_id": "a\\n"'), "invalid_request"),
        (raw(f'"request_id": "{"x" * 257}"'), "invalid_request"),
        (raw('"project_id": "a/b"'), "invalid_request"),
        (raw('"project_id": "a\\n"'), "invalid_request"),
        (raw(f'"project_id": "{"x" * 129}"'), "invalid_request"),
        (raw('"include": ["everything"]'), "invalid_request"),
        (raw('"as_of": "yesterday"'), "invalid_request"),
        (raw('"as_of": "9999-12-31T23:59:59-23:00"'), "invalid_request"),
        (raw('"as_of": "0001-01-01T00:00:00+23:00"'), "invalid_request"),
        (raw('"payload": {"n": 9007199254740993}'), "invalid_request"),
        (raw('"payload": {"n": 1e999}'), "invalid_request"),
        (raw('"payload": {"n": 1' + "0" * 400 + "}"), "invalid_request"),
        (raw('"unknown": 1' + "0" * 5_000), "invalid_request"),
        (raw('"deadline_ms": 1' + "0" * 30), "invalid_request"),
        (raw('"layer_timeouts_ms": {"ast": 1' + "0" * 30 + "}"), "invalid_request"),
        (raw('"artifacts": [{"stage": "s", "type": "t", "content": 9007199254740993}]'), "invalid_request"),
        (raw('"plan": {"plan_id": "p", "text": "x", "steps": [{"title": "t"}]}'), "invalid_request"),
    ],
)
def test_a_body_that_breaks_a_rule_gets_the_code_of_that_rule(body: bytes | None, code: str) -> None:
    assert code_of(body) == code


@pytest.mark.parametrize(
    "body",
    [
        encode(MINIMAL),
        b"\xef\xbb\xbf" + encode(MINIMAL),
        b"\r\n \t" + encode(MINIMAL) + b" " * 10_000,
        raw('"schema_version": "1"'),
        raw('"schema_version": "1.7"'),
        raw('"schema_version": "1.0.3"'),
        raw('"kind": "request"'),
        raw('"unknown": {"deeply": [{"strange": null}]}'),
        raw('"x": "\\\\u0000 is not NUL, and \\\\ud800 no surrogate"'),
        raw('"x": "\\ud83d\\ude00 and 😀"'),
        raw('"payload": {"text": "<|endoftext|>", "e\u0301": "👩‍👩‍👧‍👦", "n": 1.5e-7}'),
        raw('"payload": {"n": -9007199254740991}'),
    ],
)
def test_a_body_within_the_contract_is_decoded(body: bytes) -> None:
    assert decode(body).request.project_id == "shop"


def test_a_byte_order_mark_changes_nothing() -> None:
    assert decode(b"\xef\xbb\xbf" + encode(MINIMAL)) == decode(encode(MINIMAL))


def test_the_byte_limit_is_exact() -> None:
    body = encode(MINIMAL)
    assert decode(body, max_bytes=len(body)).request.request_id == "r-1"
    assert code_of(body, max_bytes=len(body) - 1) == "too_large"


@pytest.mark.parametrize("nest", [('{"a":', "}"), ("[", "]")])
def test_the_depth_limit_is_exact_and_counts_the_body_itself_as_one(nest: tuple[str, str]) -> None:
    def nested(levels: int) -> bytes:
        return raw('"x": ' + nest[0] * levels + "0" + nest[1] * levels)

    assert decode(nested(19), max_depth=20).notes.unknown_fields == 1
    assert code_of(nested(20), max_depth=20) == "too_large"


def test_a_depth_beyond_what_the_parser_can_is_too_large_whatever_the_limit() -> None:
    assert code_of(raw('"x": ' + "[" * 300 + "]" * 300), max_depth=1_000) == "too_large"


def test_brackets_and_commas_in_text_count_for_nothing() -> None:
    text = json.dumps("[{,\\" * 100_000 + '"' * 1_000)
    assert decode(raw(f'"payload": {{"task_context": {text}}}'), max_bytes=10_000_000, max_depth=3)


def test_too_many_values_are_too_large() -> None:
    body = raw('"x": [' + "1," * 60_000 + "1]")
    assert code_of(body) == "too_large"
    assert decode_request(body, max_bytes=len(body), max_depth=64, max_values=61_000)


@pytest.mark.parametrize(
    "bomb",
    [
        b"[" * 2_000_000,
        b'{"a":' * 400_000,
        b'"' * 2_000_001,
        b'"' + b"\\" * 2_000_001,
        b'"' + b'\\"' * 1_000_000,
        b'{"a" ' * 1 + b'"" ' * 700_000,
        b" " * 2_000_000,
        b"{" + b"," * 2_000_000,
        b'{"request_id":' * 140_000,
    ],
    ids=[
        "arrays",
        "objects",
        "quotes",
        "backslashes",
        "escaped quotes",
        "strings",
        "blanks",
        "commas",
        "ids",
    ],
)
def test_a_bomb_is_refused_in_time_linear_in_its_size(bomb: bytes) -> None:
    # Quadratic work on two megabytes would take hours; the suite's own time limit is the clock here.
    assert code_of(bomb, max_bytes=len(bomb)) in {"invalid_json", "too_large"}
    assert read_ids(bomb) == (None, None)


# --- What is said --------------------------------------------------------------------------------------


def test_wrong_fields_are_named_without_their_values() -> None:
    body = raw('"budget": {"total": "SECRET-1", "layers": {"ast": "SECRET-2"}}, "requester": "SECRET-3"')
    with pytest.raises(InvalidRequest) as caught:
        decode(body)
    assert {error["field"] for error in listed(caught.value)} == {
        "budget.total",
        "budget.layers.ast",
        "requester",
    }
    assert "SECRET" not in caught.value.message + json.dumps(caught.value.details)


def test_a_number_that_cannot_be_carried_is_not_quoted() -> None:
    with pytest.raises(InvalidRequest) as caught:
        decode(raw('"artifacts": [{"stage": "s", "type": 9007199254740993, "content": "c"}]'))
    assert "9007199254740993" not in caught.value.message + json.dumps(caught.value.details)


def test_the_list_of_problems_is_bounded() -> None:
    with pytest.raises(InvalidRequest) as caught:
        decode(raw('"must_cite": [' + ",".join(["1"] * 500) + "]"))
    assert caught.value.details["error_count"] == 500
    assert len(listed(caught.value)) == 10


def test_forty_thousand_problems_are_counted_and_not_listed() -> None:
    with pytest.raises(InvalidRequest) as caught:
        decode(raw('"must_cite": [' + ",".join(["1"] * 40_000) + "]"))
    assert caught.value.details == {"errors": [], "error_count": 40_000}


def test_a_field_name_as_long_as_the_body_is_cut() -> None:
    with pytest.raises(InvalidRequest) as caught:
        decode(raw(f'"budget": {{"layers": {{"{"k" * 100_000}": -1}}}}'))
    assert len(caught.value.message) < 400


def test_an_unsupported_version_names_what_is_spoken() -> None:
    with pytest.raises(UnsupportedVersion) as caught:
        decode(raw('"schema_version": "3.1"'))
    assert caught.value.details == {"major": "3", "known": ["1"]}


# --- Digest and notes ----------------------------------------------------------------------------------

json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53) + 1, 2**53 - 1) | st.floats(-1e9, 1e9) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)
known_fields = st.dictionaries(
    st.sampled_from([*MINIMAL, "budget", "session", "artifacts", "plan", "payload", "as_of"]),
    json_values,
    max_size=8,
)
texts = st.text(st.characters(exclude_categories=("Cs",), exclude_characters="\x00"), max_size=60)
unknown_fields = st.dictionaries(
    st.text(st.characters(codec="ascii", categories=("L",))).map("x_{}".format),
    st.booleans() | texts | st.lists(st.integers(0, 9), max_size=3),
    max_size=5,
)
required: dict[str, st.SearchStrategy[Any]] = {
    "request_id": st.from_regex(r"[!-~]{1,30}", fullmatch=True),
    "project_id": st.from_regex(r"[A-Za-z0-9._-]{1,20}", fullmatch=True),
    "volk": st.just("smith"),
    "subject": texts,
    "user_message": texts,
}
optional: dict[str, st.SearchStrategy[Any]] = {
    "system_prompt": texts,
    "deadline_ms": st.integers(1, 10_000),
    "as_of": st.datetimes().map(lambda time: time.isoformat() + "Z"),
    "budget": st.integers(1, 10**9).map(lambda total: {"total": total}),
    "payload": texts.map(lambda text: {"task_context": text}),
    "working": texts.map(lambda text: {"current_diff": text}),
}
requests: st.SearchStrategy[dict[str, Any]] = st.fixed_dictionaries(required, optional=optional)


@given(
    st.binary(max_size=400) | st.text(max_size=200).map(lambda text: text.encode("utf-8", "surrogatepass"))
)
def test_arbitrary_bytes_raise_a_code_of_the_body_or_nothing(body: bytes) -> None:
    assert refusal_code(body, max_depth=8) in {None, *BODY_CODES}


@given(known_fields)
def test_arbitrary_json_in_known_fields_raises_a_code_of_the_body_or_nothing(fields: dict[str, Any]) -> None:
    assert refusal_code(encode({**MINIMAL, **fields}), max_depth=16) in {None, *BODY_CODES}


@given(requests, unknown_fields)
def test_unknown_fields_are_counted_and_change_no_digest(
    fields: dict[str, Any], unknown: dict[str, Any]
) -> None:
    plain = decode(encode(fields))
    decorated = decode(encode({**unknown, **fields}))
    assert decorated.digest == plain.digest
    assert decorated.notes.unknown_fields == len(unknown)


@given(requests, st.randoms(use_true_random=False))
def test_the_order_of_fields_and_the_spelling_of_the_json_change_no_digest(
    fields: dict[str, Any], rng: random.Random
) -> None:
    names = list(fields)
    rng.shuffle(names)
    shuffled = {name: fields[name] for name in names}
    spelled = json.dumps(shuffled, ensure_ascii=rng.random() < 0.5, indent=rng.choice([None, 2])).encode()
    assert decode(spelled).digest == decode(encode(fields)).digest


@pytest.mark.parametrize(
    "tail",
    [
        '"request_id": "another"',
        '"deadline_ms": 17',
        '"layer_timeouts_ms": {"ast": 5}',
        '"expires_at": "2030-01-01T00:00:00Z"',
        '"requester": "volk"',
        '"system_prompt": ""',
        '"as_of": null',
    ],
)
def test_ids_deadlines_and_spelled_out_defaults_are_not_in_the_digest(tail: str) -> None:
    assert decode(raw(tail)).digest == decode(encode(MINIMAL)).digest


@pytest.mark.parametrize(
    "tail", ['"volk": "other"', '"as_of": "2030-01-01T00:00:00Z"', '"payload": {"x": 1}', '"project_id": "p"']
)
def test_what_the_request_means_is_in_the_digest(tail: str) -> None:
    assert decode(raw(tail)).digest != decode(encode(MINIMAL)).digest


def test_naive_times_are_counted_and_read_as_utc() -> None:
    decoded = decode(raw('"as_of": "2026-01-02T03:04:05"'))
    assert decoded.notes.naive_times == 1
    assert decoded.digest == decode(raw('"as_of": "2026-01-02T04:04:05+01:00"')).digest


# --- What may be asked ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "tail",
    [
        '"must_cite": ["d1"]',
        '"include": ["messages", "citations"]',
        '"relevance": "prolog"',
        '"ranking": "hop"',
        '"after": {"graph_version": 3}',
        '"include": ["messages", "layers", "usage", "parts", "graph_context", "payload", "payload_content"]',
        '"plan": {"plan_id": "p", "steps": [{"title": "t"}]}',
        '"budget": {"total": 100, "layers": {"ast": 60, "output": 40}}',
        '"budget": {"layers": {"ast": 600}}',
        '"layer_timeouts_ms": {"ast": 1}',
    ],
)
def test_what_is_built_may_be_asked(tail: str) -> None:
    check_request(decode(raw(tail)).request)


@pytest.mark.parametrize(
    "tail", ['"budget": {"layers": {"zeta": 1, "Ast": 1}}', '"layer_timeouts_ms": {"Ast": 1}']
)
def test_an_unknown_layer_is_answered_with_the_known_ones(tail: str) -> None:
    with pytest.raises(UnknownLayer) as caught:
        check_request(decode(raw(tail)).request)
    assert caught.value.details == {"name": "Ast", "known": sorted(LAYERS)}


def test_layers_that_exceed_their_total_are_an_invalid_request() -> None:
    with pytest.raises(InvalidRequest):
        check_request(decode(raw('"budget": {"total": 99, "layers": {"ast": 60, "plan": 40}}')).request)


# --- What can still be read ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "ids"),
    [
        (encode(MINIMAL), ("r-1", "shop")),
        (b"\xef\xbb\xbf" + encode(MINIMAL), ("r-1", "shop")),
        (encode(MINIMAL)[:-1] + b', "x": NaN}', ("r-1", "shop")),
        (encode(MINIMAL)[:-1] + b', "x": "\xff"}', ("r-1", "shop")),
        (encode(MINIMAL)[:-1] + b", oops", ("r-1", "shop")),
        (b'{"request_id" : "r\\u002d1", "broken', ("r-1", None)),
        (b'{"parent": {"request_id": "other"}, "project_id": "p"', (None, "p")),
        (b'{"parent": {"project_id": "p"}}, "request_id": "other"', (None, None)),
        (b'{"parent": {"a": 1], "request_id": "other"', (None, None)),
        (b'{"request_id": "a", "request_id": "b", "project_id": "p", "project_id": "p"}', (None, "p")),
        (b'{"request_id": 7, "project_id": null}', (None, None)),
        (b'{"request_id": {"x": 1}, "project_id": ["p"]}', (None, None)),
        (b'{"request_id": 5 "x", "project_id": "p"}', (None, "p")),
        (b'{"request_id" 5: "x"}', (None, None)),
        (b'{"request_id": "a\\u0000b", "project_id": "a b"}', (None, None)),
        (b'{"request_id": "\\ud800"}', (None, None)),
        (b'{"request_id": "\xff", "project_id": "p"}', (None, "p")),
        (b'{"request_id": "tab\there"}', (None, None)),
        (b'{"request_id": "' + b"x" * 257 + b'"}', (None, None)),
        (b'{"request_id": "' + b"\\ud83d\\ude00" * 256 + b'"}', ("😀" * 256, None)),
        (b'[{"request_id": "r"}]', (None, None)),
        (b'garbage {"request_id": "r"}', (None, None)),
        (b'"request_id": "r"', (None, None)),
        (b'{"a": "\\"request_id\\": \\"r\\"", "request_id": "real"}', ("real", None)),
        (b"}{", (None, None)),
        (b"", (None, None)),
        (None, (None, None)),
    ],
)
def test_ids_are_read_from_the_top_level_or_not_at_all(
    body: bytes | None, ids: tuple[str | None, str | None]
) -> None:
    assert read_ids(body) == ids


@given(requests, st.data())
def test_a_cut_body_never_yields_an_id_that_the_whole_one_lacks(
    fields: dict[str, Any], data: st.DataObject
) -> None:
    body = encode(fields)
    cut = body[: data.draw(st.integers(0, len(body)))]
    request_id, project_id = read_ids(cut)
    assert request_id in {None, fields["request_id"]}
    assert project_id in {None, fields["project_id"]}


@given(st.binary(max_size=300))
def test_reading_ids_never_raises(body: bytes) -> None:
    read_ids(body)
    read_ids(b'{"request_id": "' + body)


@given(requests)
def test_ids_of_a_whole_body_are_those_of_the_decoded_request(fields: dict[str, Any]) -> None:
    request = decode(encode(fields)).request
    assert read_ids(encode(fields)) == (request.request_id, request.project_id)


# --- What leaves the loop ------------------------------------------------------------------------------


def test_large_bodies_and_bodies_of_many_values_are_heavy() -> None:
    assert not is_heavy(None)
    assert not is_heavy(encode(MINIMAL))
    assert is_heavy(raw('"x": "' + "a" * 70_000 + '"'))
    assert is_heavy(raw('"x": [' + "[]," * 5_000 + "[]]"))


def test_each_refusal_of_the_decoder_is_a_dead_letter() -> None:
    for kind in (InvalidJson, InvalidEncoding, TooLarge, InvalidRequest, UnsupportedVersion):
        assert kind("x").is_dead_letter


class Switches:
    """How long another thread is kept from running at most, in seconds of this process's own computing.

    While others have the machine it does not compute, and nobody keeps anybody waiting.
    """

    def __init__(self) -> None:
        self.longest_seconds = 0.0
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._watch)

    def _watch(self) -> None:
        last = time.process_time()
        while not self._done.is_set():
            time.sleep(0.001)
            now = time.process_time()
            self.longest_seconds = max(self.longest_seconds, now - last)
            last = now

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join()


@pytest.mark.parametrize(
    "body",
    [
        b'{"request_id": "r", "a": "' + b"x" * 24_000_000,
        b'{"request_id": "r", "a": "' + b"\\n" * 12_000_000 + b'"}',
        b'{"request_id": "r", "a": ' + b" " * 24_000_000 + b"}",
        b'{"request_id": "r", "a": ' + b"[" * 24_000_000,
    ],
    ids=["text", "escapes", "spaces", "openers"],
)
def test_a_search_for_ids_lets_other_threads_run(body: bytes) -> None:
    # As one call into `re` the search of each of these keeps every thread waiting for 0.3 s and more.
    with Switches() as switches:
        read_ids(body)
    assert switches.longest_seconds < 0.2


@pytest.mark.parametrize("length", [65_530, 65_535, 65_536, 65_537, 131_072, 200_000])
@pytest.mark.parametrize("filler", ["x", "\\n", "\\\\", '\\"', "é", "{"])
def test_ids_behind_a_long_text_are_found_wherever_it_ends(length: int, filler: str) -> None:
    text = (filler * length)[: length - length % len(filler)]
    body = f'{{"user_message": "{text}", "request_id": "r-1", "project_id": "shop"}}'.encode()
    assert read_ids(body) == ("r-1", "shop")


@pytest.mark.parametrize("blanks", [65_535, 65_536, 65_537, 200_000])
def test_ids_behind_many_blanks_are_found(blanks: int) -> None:
    body = b'{"request_id":' + b" " * blanks + b'"r-1"' + b"\n" * blanks + b', "project_id": "shop"}'
    assert read_ids(body) == ("r-1", "shop")


@given(st.binary(max_size=300), st.integers(1, 64))
def test_the_steps_of_the_search_change_nothing(body: bytes, step_bytes: int) -> None:
    body = b'{"request_id": "r", "a": "' + body + b'", "project_id": "p"}'
    whole = read_ids(body)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("worker.decoding._STEP_BYTES", step_bytes + 1)
        assert read_ids(body) == whole


def test_malformed_structure_without_end_is_left_to_the_parser() -> None:
    body = raw('"a": "' + "," * 60_000 + '"' + ":" * 2_000_000)
    assert refusal_code(body, max_depth=64) == "too_large"
    with pytest.raises(InvalidJson):
        decode(body, max_bytes=10_000_000)
