from __future__ import annotations

import json
import shutil
from functools import cache
from pathlib import Path
from typing import Any, cast

import jsonschema
import pytest

from schemas.bundle import BundleRef, ContextBundle, Rejection
from schemas.export import DIALECT, documents, export, json_schema, main, schema_path
from schemas.request import AssemblyRequest
from schemas.sync import SyncRequest, SyncResult
from schemas.topics import TOPICS, topic_name
from schemas.usage import UsageEvent

SCHEMAS = Path(__file__).parents[3] / "schemas"
FILES = sorted(["asyncapi.json", *(f"json/{path.name}" for path in (SCHEMAS / "json").iterdir())])
MESSAGES = [AssemblyRequest, SyncRequest, ContextBundle, Rejection, BundleRef, UsageEvent, SyncResult]
MINIMAL = {"request_id": "r", "project_id": "p", "volk": "v", "subject": "s", "user_message": "m"}
ACCEPTED: list[dict[str, Any]] = [
    {},
    {"future": True},
    {"session": {"handoff": {"decisions": ["a title", {"title": "t"}], "blockers": ["b", {"text": "t"}]}}},
    {"plan": {"plan_id": "p", "steps": [{"title": "t", "status": "Won't do"}]}},
    {"artifacts": [{"stage_alias": "s", "artifact_type": "t", "content": {"a": 1}, "created_at": None}]},
    {"artifacts": [{"stage": "s", "type": "t", "content": "c", "id": "a"}]},
    {"payload": {"anything": {"at": ["all"]}}},
    {"budget": {"layers": {"not_a_layer": 1}}},
]
REFUSED: list[dict[str, Any]] = [
    {"request_id": ""},
    {"request_id": "a\nb"},
    {"project_id": "a/b"},
    {"deadline_ms": 0},
    {"deadline_ms": "1"},
    {"kind": "bundle"},
    {"requester": "robot"},
    {"include": ["everything"]},
    {"session": {"handoff": {"decisions": [1]}}},
    {"session": {"handoff": {"decisions": [{}]}}},
    {"artifacts": [{"stage": "s", "content": "c"}]},
    {"artifacts": [{"type": "t", "content": "c"}]},
    {"artifacts": [{"stage": "s", "type": "t", "content": 1}]},
]


@cache
def documents_once() -> dict[str, str]:
    """They take a second; that they are the same each time has a test of its own."""
    return documents()


@pytest.fixture
def copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The exported files, to be tampered with, and what they are compared with generated once."""
    monkeypatch.setattr("schemas.export.documents", documents_once)
    shutil.copytree(SCHEMAS / "json", tmp_path / "json")
    shutil.copy(SCHEMAS / "asyncapi.json", tmp_path)
    return tmp_path


@cache
def validator(model: type[Any]) -> Any:
    return jsonschema.Draft202012Validator(json_schema(model))


def accepts(**fields: Any) -> bool:
    return validator(AssemblyRequest).is_valid({**MINIMAL, **fields})


# --- Files and drift -------------------------------------------------------------------------------------


def test_the_checked_in_files_are_those_of_the_models() -> None:
    assert export(root=SCHEMAS, check=True) == [], "run `python -m schemas.export`"


def test_exporting_twice_changes_nothing(tmp_path: Path) -> None:
    assert export(root=tmp_path) == FILES
    assert export(root=tmp_path) == []
    assert {name: (tmp_path / name).read_text() for name in FILES} == documents()


@pytest.mark.parametrize("name", FILES)
def test_a_planted_drift_is_found_and_mended(
    copy: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = copy / name
    path.write_bytes(path.read_bytes().replace(b'"type"', b'"typ"', 1))
    before = path.read_bytes()
    assert main(["--check"], root=copy) == 1
    assert capsys.readouterr().out == f"differs: {name}\n"
    assert path.read_bytes() == before
    assert main([], root=copy) == 0
    assert capsys.readouterr().out == f"written: {name}\n"
    assert main(["--check"], root=copy) == 0


def test_a_missing_line_break_is_drift_and_so_is_a_missing_file(copy: Path) -> None:
    path = copy / "asyncapi.json"
    path.write_bytes(path.read_bytes()[:-1])
    assert export(root=copy, check=True) == ["asyncapi.json"]
    path.unlink()
    assert export(root=copy, check=True) == ["asyncapi.json"]


def test_the_schema_of_a_message_that_is_gone_is_drift_and_deleted(copy: Path) -> None:
    stale = copy / "json" / "prophecy.schema.json"
    stale.write_text("{}")
    assert export(root=copy, check=True) == ["json/prophecy.schema.json"]
    export(root=copy)
    assert not stale.exists()


# --- JSON Schema -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("model", MESSAGES)
def test_each_schema_is_valid_and_says_its_dialect(model: type[Any]) -> None:
    schema = json_schema(model)
    jsonschema.Draft202012Validator.check_schema(schema)
    assert schema["$schema"] == DIALECT
    assert schema["properties"]["kind"]["const"] == model.model_fields["kind"].default


@pytest.mark.parametrize("model", MESSAGES[2:])
def test_every_answer_must_say_its_version_and_kind(model: type[Any]) -> None:
    assert {"schema_version", "kind"} <= set(json_schema(model)["required"])


@pytest.mark.parametrize("fields", ACCEPTED)
def test_what_the_worker_accepts_the_schema_accepts(fields: dict[str, Any]) -> None:
    assert accepts(**fields)
    AssemblyRequest.model_validate({**MINIMAL, **fields})


@pytest.mark.parametrize("fields", REFUSED)
def test_what_the_worker_refuses_the_schema_refuses(fields: dict[str, Any]) -> None:
    assert not accepts(**fields)
    with pytest.raises(ValueError, match="validation error"):
        AssemblyRequest.model_validate({**MINIMAL, **fields})


SYNC = {"sync_id": "s", "project_id": "p"}


@pytest.mark.parametrize(
    ("fields", "is_accepted"),
    [
        ({}, True),
        ({"root": "/srv/shop", "future": 1}, True),
        ({"files": []}, True),
        ({"files": [{"path": "a.py", "content": None}]}, True),
        ({"files": [{"path": "a.py"}]}, False),
        ({"files": [{"path": "", "content": ""}]}, False),
        ({"files": {"a.py": ""}}, False),
        ({"sync_id": "a\nb"}, False),
        ({"kind": "request"}, False),
    ],
)
def test_the_worker_and_the_schema_agree_on_syncs(fields: dict[str, Any], *, is_accepted: bool) -> None:
    assert validator(SyncRequest).is_valid({**SYNC, **fields}) == is_accepted
    try:
        SyncRequest.model_validate({**SYNC, **fields})
    except ValueError:
        assert not is_accepted
    else:
        assert is_accepted


# --- AsyncAPI --------------------------------------------------------------------------------------------


def asyncapi() -> dict[str, Any]:
    return json.loads((SCHEMAS / "asyncapi.json").read_text())


def references(node: object) -> list[str]:
    if isinstance(node, dict):
        fields = cast("dict[str, object]", node)
        own = [cast("str", fields["$ref"])] if "$ref" in fields else []
        return own + [found for value in fields.values() for found in references(value)]
    if isinstance(node, list):
        return [found for value in cast("list[object]", node) for found in references(value)]
    return []


def resolve(document: Any, pointer: str) -> Any:
    for part in pointer.removeprefix("#/").split("/"):
        document = document[part]
    return document


@pytest.mark.parametrize("name", FILES)
def test_every_reference_of_an_exported_file_resolves(name: str) -> None:
    document = json.loads((SCHEMAS / name).read_text())
    found = references(document)
    flat = {"bundle_ref", "rejection", "tool_request"}
    assert found or "_arguments." in name or name.removeprefix("json/").partition(".")[0] in flat
    for reference in found:
        if reference.startswith("#/"):
            assert isinstance(resolve(document, reference), dict)
        else:
            assert "$schema" in json.loads(((SCHEMAS / name).parent / reference).read_text())


def test_the_document_has_what_asyncapi_3_asks_for() -> None:
    document = asyncapi()
    assert document["asyncapi"] == "3.0.0"
    assert {"title", "version"} <= document["info"].keys()
    for channel in document["channels"].values():
        assert channel["address"] is None or isinstance(channel["address"], str)
        assert channel["messages"]
    for operation in document["operations"].values():
        assert operation["action"] in {"send", "receive"}
        assert operation["channel"]["$ref"].startswith("#/channels/")
    for message in document["components"]["messages"].values():
        assert {"name", "contentType", "headers", "payload", "bindings"} <= message.keys()


def test_an_operation_names_messages_of_its_own_channel() -> None:
    for operation in asyncapi()["operations"].values():
        for reference in references(operation["messages"]):
            assert reference.startswith(operation["channel"]["$ref"] + "/messages/")
        reply = operation.get("reply")
        if reply is not None:
            for reference in references(reply["messages"]):
                assert reference.startswith(reply["channel"]["$ref"] + "/messages/")


@pytest.mark.parametrize("operation", ["assemble", "judge", "sync", "call_tool"])
def test_a_reply_whose_address_comes_with_the_request_has_a_channel_without_one(operation: str) -> None:
    document = asyncapi()
    reply = document["operations"][operation]["reply"]
    assert reply["address"]["location"] == "$message.header#/reply_to"
    assert resolve(document, reply["channel"]["$ref"])["address"] is None


def test_the_channels_are_the_declared_topics_and_the_asked_for_replies() -> None:
    channels = asyncapi()["channels"]
    replies = {"replies", "answer-replies", "sync-replies", "tool-replies"}
    assert set(channels) == {topic.role for topic in TOPICS} | replies
    kafka = channels["usage"]["bindings"]["kafka"]
    assert (kafka["topic"], kafka["partitions"]) == ("context.usage", 12)
    assert kafka["topicConfiguration"]["retention.ms"] == 7 * 24 * 3_600_000


def test_every_message_points_to_its_own_schema() -> None:
    found = asyncapi()["components"]["messages"]
    for model in MESSAGES:
        assert found[model.__name__]["payload"]["schema"] == {"$ref": f"./{schema_path(model)}"}
    assert schema_path(AssemblyRequest) == "json/assembly_request.schema.json"


# --- Topics ----------------------------------------------------------------------------------------------


def test_the_declared_topics_are_those_that_are_served() -> None:
    assert [(topic.name(), topic.partitions, topic.retention_ms // 3_600_000) for topic in TOPICS] == [
        ("context.requests", 12, 24),
        ("context.bundles", 12, 24),
        ("context.usage", 12, 7 * 24),
        ("context.responses", 12, 24),
        ("context.verdicts", 12, 24),
        ("context.escalations", 12, 24),
        ("context.state", 12, 7 * 24),
        ("context.sync", 3, 24),
        ("context.sync-results", 3, 24),
        ("context.tools", 12, 24),
        ("context.tool-results", 12, 24),
        ("context.dead-letters", 3, 30 * 24),
    ]


@pytest.mark.parametrize("topic", TOPICS, ids=lambda topic: topic.role)
def test_every_topic_deletes_and_rolls_its_segments_hourly(topic: Any) -> None:
    assert topic.configs["cleanup.policy"] == "delete"
    assert topic.configs["segment.ms"] == "3600000"


def test_a_dead_letter_may_be_larger_than_the_record_that_it_keeps() -> None:
    sizes = {topic.role: topic.max_message_bytes for topic in TOPICS}
    assert sizes["dead-letters"] >= max(sizes["requests"], sizes["sync"]) + 32_768


def test_a_prefix_makes_a_name() -> None:
    assert topic_name("dead-letters", prefix="") == "dead-letters"
    assert TOPICS[0].name("team.") == "team.requests"
