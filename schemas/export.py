"""Export the wire contracts: one JSON Schema per message, and one AsyncAPI document for all of them.

`python -m schemas.export` writes `schemas/json/*.schema.json` and `schemas/asyncapi.json`; with `--check` it
writes nothing, names each file that differs, and ends with 1 if there is one. The same models give the same
bytes on every machine.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from pydantic import BaseModel

from schemas.receipt import ReceiptRecord
from schemas.state import StateEvent
from schemas.tools import ARGUMENTS
from schemas.topics import DEFAULT_PREFIX, TOPICS, TopicRole, TopicSpec
from schemas.wire import SCHEMA_VERSION, RequestModel

Document = dict[str, Any]

ROOT: Final = Path(__file__).parent
DIALECT: Final = "https://json-schema.org/draft/2020-12/schema"
_SCHEMA_FORMAT: Final = "application/schema+json;version=draft-2020-12"
_KAFKA_BINDING: Final = "0.5.0"


def export(*, root: Path = ROOT, check: bool = False) -> list[str]:
    """Bring the files under `root` up to date, or only compare them where `check` is set.

    Gives the names, relative to `root` and sorted, of the files that were (or are to be) written or, where
    no message has them any more, deleted.
    """
    wanted = documents()
    present = {path.relative_to(root).as_posix() for path in (root / "json").glob("*.schema.json")}
    changed = sorted(
        {name for name, text in wanted.items() if _text_of(root / name) != text} | (present - wanted.keys())
    )
    if not check:
        for name in changed:
            path = root / name
            if name not in wanted:
                path.unlink()
                continue
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(wanted[name], encoding="utf-8", newline="\n")
    return changed


def documents() -> dict[str, str]:
    """Every exported file's text by its name."""
    # A receipt's record crosses in a bundle, and stands alone in the files that explain one; arguments stand
    # in a call, and alone where tools are offered.
    schemas = {
        schema_path(model): json_schema(model) for model in (*messages(), ReceiptRecord, *ARGUMENTS.values())
    }
    found = {**schemas, "asyncapi.json": async_api()}
    return {name: json.dumps(found[name], indent=2, ensure_ascii=False) + "\n" for name in found}


def messages() -> tuple[type[BaseModel], ...]:
    """The message types, in the order of the topics that carry them."""
    return tuple(dict.fromkeys(model for topic in TOPICS for model in topic.carries))


def schema_path(model: type[BaseModel]) -> str:
    """Where the schema of a message lies, relative to the AsyncAPI document."""
    words = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", model.__name__).lower()
    return f"json/{words}.schema.json"


# --- JSON Schema -------------------------------------------------------------------------------------


def json_schema(model: type[BaseModel]) -> Document:
    """The JSON Schema of one message: of a request what is accepted, of the others what is published."""
    schema = model.model_json_schema(mode="validation")
    for name, widen in _DOORS.items():
        if name in schema.get("$defs", {}):
            schema["$defs"][name] = widen(schema["$defs"][name])
    if not _is_inbound(model):
        # Defaults in the models, but always written: readers tell messages apart by them.
        schema["required"] = ["schema_version", "kind", *schema["required"]]
    return {"$schema": DIALECT, **schema}


def _text_or_object(field: str, prefix: str) -> Callable[[Document], Document]:
    def widen(schema: Document) -> Document:
        properties: Document = schema["properties"]
        properties["id"].pop("default")
        properties["id"]["description"] = (
            f"`{prefix}` and the first ten hex digits of the SHA-256 of `{field}`, where absent."
        )
        title, description = schema.pop("title"), schema.pop("description")
        return {"title": title, "description": description, "anyOf": [{"type": "string"}, schema]}

    return widen


def _any_status_word(schema: Document) -> Document:
    status: Document = schema["properties"]["status"]
    status["examples"] = status.pop("enum")
    status["description"] = "Case, blanks and hyphens are folded; a word that is not known reads as unknown."
    return schema


def _foreign_artifact(schema: Document) -> Document:
    properties: Document = schema["properties"]
    for ours, foreign in (
        ("id", "artifact_id"),
        ("stage", "stage_alias"),
        ("type", "artifact_type"),
        ("path", "file_path"),
        ("occurred_at", "timestamp"),
        ("occurred_at", "created_at"),
    ):
        properties[foreign] = {**properties[ours], "description": f"Read as `{ours}` where that is absent."}
    properties["content"] = {
        "title": "Content",
        "description": "An object or a list becomes JSON text with sorted keys.",
        "anyOf": [{"type": "string"}, {"type": "object"}, {"type": "array"}],
    }
    properties["id"]["description"] = "A digest of the rest, where absent."
    schema["required"] = ["content"]
    schema["allOf"] = [
        {"anyOf": [{"required": ["stage"]}, {"required": ["stage_alias"]}]},
        {"anyOf": [{"required": ["type"]}, {"required": ["artifact_type"]}]},
    ]
    return schema


_DOORS: Final[Mapping[str, Callable[[Document], Document]]] = {
    "Decision": _text_or_object("title", "d_"),
    "Blocker": _text_or_object("text", "b_"),
    "Step": _any_status_word,
    "Artifact": _foreign_artifact,
}
"""What validators forgive before the fields are looked at, which the models' own schemas cannot show."""


# --- AsyncAPI ----------------------------------------------------------------------------------------


def async_api() -> Document:
    """The AsyncAPI 3.0 document: the worker receives requests, answers, syncs, calls and state."""
    return {
        "asyncapi": "3.0.0",
        "info": {
            "title": "Context assembly worker",
            "version": SCHEMA_VERSION,
            "description": (
                f"Topic names carry the prefix `{DEFAULT_PREFIX}`, which is configurable. Bodies are UTF-8"
                " JSON. Unknown fields are ignored; another major `schema_version` is refused. Topics have"
                " no order between them: join on `request_id`."
            ),
        },
        "defaultContentType": "application/json",
        "channels": {
            **{topic.role: _channel(topic) for topic in TOPICS},
            "replies": _reply_channel("bundles"),
            "answer-replies": _reply_channel("verdicts"),
            "sync-replies": _reply_channel("sync-results"),
            "tool-replies": _reply_channel("tool-results"),
        },
        "operations": _operations(),
        "components": {
            "messages": {
                **{model.__name__: _message(model) for model in messages()},
                "DeadLetter": _dead_letter_message(),
            },
            "schemas": {
                "RequestHeaders": _headers(_REQUEST_HEADERS),
                "ReplyHeaders": _headers(_REPLY_HEADERS),
                "DeadLetterHeaders": _headers(_DEAD_LETTER_HEADERS),
            },
        },
    }


def _message_names(topic: TopicSpec) -> list[str]:
    return [model.__name__ for model in topic.carries] or ["DeadLetter"]


def _channel(topic: TopicSpec) -> Document:
    return {
        "address": topic.name(),
        "summary": topic.summary,
        "messages": {name: _ref("components", "messages", name) for name in _message_names(topic)},
        "bindings": {
            "kafka": {
                "topic": topic.name(),
                "partitions": topic.partitions,
                "topicConfiguration": {
                    "cleanup.policy": ["delete"],
                    "retention.ms": topic.retention_ms,
                    "max.message.bytes": topic.max_message_bytes,
                },
                "bindingVersion": _KAFKA_BINDING,
            }
        },
    }


def _reply_channel(default: TopicRole) -> Document:
    topic = _topic(default)
    return {
        "address": None,
        "summary": f"The topic that `reply_to` names; {topic.name()} where it names none.",
        "messages": {name: _ref("components", "messages", name) for name in _message_names(topic)},
    }


def _operations() -> Document:
    return {
        "assemble": {
            **_operation("receive", "requests", "One request, one outcome, however often it is delivered."),
            "reply": _reply("replies", "bundles"),
        },
        "publish_bundles": _operation("send", "bundles", "Answers to requests without `reply_to`."),
        "publish_usage": _operation("send", "usage", "Sent after the answer was acknowledged."),
        "judge": {
            **_operation(
                "receive", "responses", "One bundle, one answer, one verdict, whatever comes again."
            ),
            "reply": _reply("answer-replies", "verdicts"),
        },
        "publish_verdicts": _operation("send", "verdicts", "Answers to answers without `reply_to`."),
        "escalate": _operation("send", "escalations", "Sent after the verdict that says so."),
        "sync": {
            **_operation("receive", "sync", "One sync, one outcome; those of a project in their order."),
            "reply": _reply("sync-replies", "sync-results"),
        },
        "publish_sync_results": _operation("send", "sync-results", "Answers to syncs without `reply_to`."),
        "call_tool": {
            **_operation("receive", "tools", "One call, one answer; a redelivered call is answered anew."),
            "reply": _reply("tool-replies", "tool-results"),
        },
        "publish_tool_results": _operation("send", "tool-results", "Answers to calls without `reply_to`."),
        "take_state_in": _operation("receive", "state", "Taken in, and not answered; a rejection says so."),
        "publish_dead_letters": _operation("send", "dead-letters", "Sent before the rejection."),
    }


def _reply(channel: str, default: TopicRole) -> Document:
    return {
        "address": {
            "location": "$message.header#/reply_to",
            "description": "Must be on the worker's allow-list.",
        },
        "channel": _ref("channels", channel),
        "messages": [_ref("channels", channel, "messages", name) for name in _message_names(_topic(default))],
    }


def _operation(action: str, role: TopicRole, summary: str) -> Document:
    return {
        "action": action,
        "channel": _ref("channels", role),
        "summary": summary,
        "messages": [_ref("channels", role, "messages", name) for name in _message_names(_topic(role))],
    }


def _message(model: type[BaseModel]) -> Document:
    keys = {topic.key for topic in TOPICS if model in topic.carries}
    return {
        "name": model.__name__,
        "summary": (model.__doc__ or "").split("\n", maxsplit=1)[0],
        "contentType": "application/json",
        "headers": _ref("components", "schemas", "RequestHeaders" if _is_inbound(model) else "ReplyHeaders"),
        "payload": {"schemaFormat": _SCHEMA_FORMAT, "schema": {"$ref": f"./{schema_path(model)}"}},
        "correlationId": {"location": "$message.header#/correlation_id"},
        "bindings": _key_binding("; ".join(sorted(keys))),
    }


def _is_inbound(model: type[BaseModel]) -> bool:
    return issubclass(model, RequestModel | StateEvent)


def _dead_letter_message() -> Document:
    return {
        "name": "DeadLetter",
        "summary": "A record as it came, its headers after those that say why it is here.",
        "contentType": "application/octet-stream",
        "headers": _ref("components", "schemas", "DeadLetterHeaders"),
        "payload": {"description": "The original bytes."},
        "bindings": _key_binding(_topic("dead-letters").key),
    }


def _key_binding(description: str) -> Document:
    key = {"type": "string", "description": description}
    return {"kafka": {"key": key, "bindingVersion": _KAFKA_BINDING}}


_REQUEST_HEADERS: Final = {
    "context-kind": "The `kind` of the body, where present.",
    "reply_to": "Topic for the answer; must be on the allow-list.",
    "correlation_id": "Any bytes; comes back with the answer.",
    "traceparent": "W3C Trace Context.",
    "tracestate": "W3C Trace Context.",
    "context-generation": "Decimal; raised when a dead letter is redriven, 0 where absent.",
}
_REPLY_HEADERS: Final = {
    "context-kind": "The `kind` of the body.",
    "correlation_id": "The request's, byte for byte; absent where it had none.",
    "context-generation": "The request's, decimal.",
    "traceparent": "W3C Trace Context, a child of the request's.",
    "tracestate": "W3C Trace Context.",
}
_DEAD_LETTER_HEADERS: Final = {
    "context-dead-code": "The rejection code.",
    "context-dead-message": "The rejection's message.",
    "context-dead-topic": "Where the record came from.",
    "context-dead-partition": "Where the record came from.",
    "context-dead-offset": "Where the record came from.",
    "context-dead-timestamp": "The record's own, in milliseconds since the epoch.",
    "context-dead-attempts": "How often it was tried in vain.",
    "context-dead-traceback": "Of an internal error alone; its last 8,000 characters.",
    "context-dead-cut": "Size in bytes of a body that did not fit this topic and was left out.",
}


def _headers(described: Mapping[str, str]) -> Document:
    return {
        "type": "object",
        "description": "Of a repeated header the first counts.",
        "properties": {name: {"type": "string", "description": text} for name, text in described.items()},
    }


def _topic(role: TopicRole) -> TopicSpec:
    return next(topic for topic in TOPICS if topic.role == role)


def _ref(*path: str) -> Document:
    return {"$ref": "#/" + "/".join(path)}


# --- Files -------------------------------------------------------------------------------------------


def _text_of(path: Path) -> str | None:
    return path.read_bytes().decode("utf-8", "replace") if path.is_file() else None


def main(arguments: Sequence[str] | None = None, *, root: Path = ROOT) -> int:
    """Run the command; gives the exit code."""
    parser = argparse.ArgumentParser(prog="python -m schemas.export", description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; end with 1 if a file differs")
    check: bool = parser.parse_args(arguments).check
    changed = export(root=root, check=check)
    for name in changed:
        sys.stdout.write(f"{'differs' if check else 'written'}: {name}\n")
    return 1 if check and changed else 0


if __name__ == "__main__":
    sys.exit(main())
