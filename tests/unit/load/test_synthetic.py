from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from schemas.request import AssemblyRequest
from schemas.wire import canonical_json
from worker.budget.tokens import counter_for
from worker.graph.pack_file import parse_pack
from worker.load.recording import RecordedRecord
from worker.load.synthetic import Synthesizer, Vocabulary
from worker.load.synthetic_text import TextReplacer

VOCABULARY = Vocabulary(models=frozenset({"gpt-4o"}), subjects=frozenset({"implement"}))
SYNTHESIZER = Synthesizer(secret=b"a secret of the test", vocabulary=VOCABULARY)
REPLACER = TextReplacer(b"a secret of the test")

# What no table of the contract and no common word holds, in several scripts and shapes.
CANARIES = ("Zyxwqua", "ZYXWQUA", "zyxwqua", "4815162342", "жщюпр", "鬱鷹麒")
texts = st.lists(st.sampled_from([*CANARIES, " ", "\n", "- ", "```py", ". ", "/", "_"]), max_size=12).map(
    "".join
)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=8,
)
FIELDS = [
    *AssemblyRequest.model_fields,
    *("path", "title", "status", "items", "text", "actions", "statement", "priority", "template", "layers"),
]
bodies = st.dictionaries(st.sampled_from(FIELDS) | texts, json_values, max_size=8)


def holds_canary(data: bytes) -> bool:
    return any(canary.encode() in data for canary in CANARIES)


@settings(max_examples=60)
@given(body=bodies, key=texts, name=texts)
def test_nothing_of_a_text_is_left_wherever_it_stands(body: dict[str, Any], key: str, name: str):
    record = RecordedRecord(
        partition=3,
        timestamp_ms=4,
        key=key.encode(),
        value=json.dumps(body, ensure_ascii=False).encode(),
        headers=(("reply_to", key.encode()), ("correlation_id", key.encode()), (name, key.encode())),
    )
    made = SYNTHESIZER.record(record)
    assert not holds_canary(repr((made.key, made.value, made.headers)).encode())
    assert not holds_canary(made.value or b"")
    assert (made.partition, made.timestamp_ms) == (3, 4)


@settings(max_examples=60)
@given(data=st.binary(max_size=200) | texts.map(lambda text: ("{" + text).encode()))
def test_a_body_that_is_no_object_stays_none_and_as_long(data: bytes):
    assume(not _is_object(data))
    made = SYNTHESIZER.body(data)
    assert not holds_canary(made)
    assert not _is_object(made)
    assert len(made) == len(data)
    assert _is_utf8(made) == _is_utf8(data)


def _is_object(data: bytes) -> bool:
    try:
        return isinstance(json.loads(data), dict)
    except ValueError:
        return False


def _is_utf8(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


@settings(max_examples=100)
@given(text=st.text(max_size=200))
def test_a_text_keeps_its_length_its_bytes_and_its_shape(text: str):
    made = REPLACER.text(text)
    assert len(made) == len(text)
    assert made == REPLACER.text(text)
    assert [c if c.isascii() and not c.isalnum() else "" for c in made] == [
        c if c.isascii() and not c.isalnum() else "" for c in text
    ]
    for old, new in zip(text, made, strict=True):
        assert old.isascii() == new.isascii()
        if old.isascii():
            assert (old.isupper(), old.isdigit()) == (new.isupper(), new.isdigit())


def test_a_prompt_has_about_as_many_tokens():
    counter = counter_for("o200k_base")
    text = Path(__file__).read_text()
    assert 0.8 < counter.count(REPLACER.text(text)) / counter.count(text) < 1.25


def test_another_secret_gives_other_texts_and_ids():
    other = Synthesizer(secret=b"another", vocabulary=VOCABULARY)
    assert other.pseudonym("p") != SYNTHESIZER.pseudonym("p")
    assert TextReplacer(b"another").text("one text of some length") != REPLACER.text(
        "one text of some length"
    )


REQUEST: dict[str, Any] = {
    "request_id": "r-1",
    "project_id": "shop",
    "thread_id": "t-1",
    "volk": "smith",
    "subject": "implement",
    "model": "gpt-4o",
    "user_message": "Make the Zyxwqua faster.",
    "budget": {"total": 8000, "layers": {"memory": 100}},
    "expires_at": "2026-01-02T03:04:05Z",
    "include": ["messages", "usage"],
    "required_tools": ["get_tests"],
    "payload": {"files_created": ["src/Zyxwqua/deep.py", "../../etc/x.Zyxwqua"], "Zyxwqua": 4815162342},
    "session": {
        "goal": {"id": "g", "statement": "Zyxwqua", "tasks": [{"id": "s1", "title": "a", "status": "done"}]}
    },
    "plan": {
        "plan_id": "pl",
        "steps": [{"id": "s1", "title": "Zyxwqua"}, {"id": "s2", "title": "b", "depends_on": ["s1"]}],
    },
    "pack": "---\npack_version: 1\nproject: shop\nranking: graph\n---\n## Function Zyxwqua\n"
    "<!-- node: src/a.py::Zyxwqua | template: BUILD | rank: 0 | score: 0.910000 | tokens: 42 -->\n"
    "```python\ndef Zyxwqua(): ...\n```\n",
}


def test_a_request_stays_the_request_that_it_was():
    made = json.loads(SYNTHESIZER.body(json.dumps(REQUEST).encode()))
    AssemblyRequest.model_validate(made)
    for name in ("subject", "model", "budget", "expires_at", "include", "required_tools"):
        assert made[name] == REQUEST[name]
    assert made["request_id"] == SYNTHESIZER.pseudonym("r-1")
    assert made["plan"]["steps"][1]["depends_on"] == [made["plan"]["steps"][0]["id"]]
    assert made["session"]["goal"]["tasks"][0]["status"] == "done"
    first, second = made["payload"]["files_created"]
    assert [step[-3:] for step in first.split("/")][-1] == ".py"
    assert first.count("/") == 2
    assert second.startswith("../../")
    assert len(made["user_message"]) == len(REQUEST["user_message"])
    pack = parse_pack(made["pack"], project_id=made["project_id"])
    assert [section.node.tokens for section in pack.sections if section.node] == [42]


NUMBER = 4_815_162_342


@pytest.mark.parametrize(
    "body",
    [
        {"payload": {"custom": {"id": NUMBER, "text": NUMBER}}},
        {"payload": {"task_context": {"budget": {"total": NUMBER}, "deadline_ms": [NUMBER, -NUMBER]}}},
        {"payload": {"total": NUMBER, "budget": {"total": NUMBER}}},
        {"artifacts": [{"id": NUMBER, "path": NUMBER, "content": {"timestamp": NUMBER}}]},
        {"budget": {"deadline_ms": NUMBER, "layers": {"no_layer": NUMBER, "plan": {"plan": NUMBER}}}},
        {"total": NUMBER, "timestamp": NUMBER, "request_id": NUMBER, "deadline_ms": [NUMBER]},
        {"memory": {"items": [{"id": "m", "text": NUMBER, "created_at": NUMBER}]}},
        {"session": {"project": {"version": NUMBER / 1_000}}},
        {"pack": f"---\npack_version: 1\nframe:\n  budget: {NUMBER % 10**9}\nsum: {NUMBER % 10**9}\n---\n"},
    ],
    ids=json.dumps,
)
def test_no_number_is_left_where_the_contract_has_none(body: dict[str, Any]):
    made = SYNTHESIZER.body(json.dumps(body).encode()).decode()
    assert "162342" not in made.replace(".", "")


def test_a_number_of_the_contract_stays_where_the_contract_has_it():
    body = {
        "deadline_ms": 1_500,
        "layer_timeouts_ms": {"graph": 90},
        "budget": {"total": 8_000, "layers": {"memory": 100}, "client_overhead_tokens": 7},
        "after": {"graph_version": 12},
        "artifacts": [{"timestamp": 1_700_000_000, "created_at": 1_700_000_000.5}],
        "session": {"project": {"active_session": 41}, "work_items": [{"priority": 2}]},
    }
    assert json.loads(SYNTHESIZER.body(json.dumps(body).encode())) == body


@pytest.mark.parametrize("number", [4_815_162_342_108_151, -(2**53 - 1), 1e300])
def test_a_number_that_canonical_json_carries_becomes_another_such(number: float):
    body = json.dumps({"payload": {"n": number}}).encode()
    for secret in range(100):
        synthesizer = Synthesizer(secret=bytes([secret]), vocabulary=VOCABULARY)
        canonical_json(json.loads(synthesizer.body(body)))


@pytest.mark.parametrize("depth", [100, 500, 900, 100_000])
def test_a_body_however_deep_is_replaced(depth: int):
    body = b'{"a": ' + b"[" * depth + b'"Zyxwqua"' + b"]" * depth + b"}"
    assert not holds_canary(SYNTHESIZER.body(body))


def test_what_was_no_id_stays_none():
    bad = {"request_id": "a\x07b", "project_id": "no such project"}
    made = json.loads(SYNTHESIZER.body(json.dumps(bad).encode()))
    assert "\x07" in made["request_id"]
    assert " " in made["project_id"]


def test_a_key_says_the_same_of_the_body_as_before():
    record = RecordedRecord(partition=0, timestamp_ms=0, key=b"shop#t-1", value=json.dumps(REQUEST).encode())
    made = SYNTHESIZER.record(record)
    fields = json.loads(made.value or b"")
    assert made.key == f"{fields['project_id']}#{fields['thread_id']}".encode()


def test_headers_keep_what_the_contract_reads_and_nothing_of_the_caller():
    headers = (
        ("context-kind", b"request"),
        ("context-generation", b"2"),
        ("traceparent", b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"),
        ("x-Zyxwqua", b"Zyxwqua"),
    )
    made = SYNTHESIZER.record(
        RecordedRecord(partition=0, timestamp_ms=0, key=None, value=None, headers=headers)
    )
    assert made.headers == (("context-kind", b"request"), ("context-generation", b"2"))
