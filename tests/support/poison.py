"""Every kind of bad input that a topic of requests can carry, and what the contract answers it with."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from schemas.codes import LAYERS
from tests.support.cluster import request

TRACE = b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
Headers = tuple[tuple[str, bytes], ...]


@dataclass(frozen=True, kw_only=True)
class Bad:
    """A record, the code that answers it (None: a bundle does), and whether it is kept as a dead letter."""

    body: dict[str, Any] | bytes
    code: str | None
    is_kept: bool
    headers: Headers = ()
    details: dict[str, Any] = field(default_factory=dict[str, Any])
    """Some of what the rejection's details must say."""


def kept(body: dict[str, Any] | bytes, code: str, *headers: tuple[str, bytes]) -> Bad:
    return Bad(body=body, code=code, is_kept=True, headers=headers)


def refused(body: dict[str, Any], code: str, *headers: tuple[str, bytes], **details: Any) -> Bad:
    return Bad(body=body, code=code, is_kept=False, headers=headers, details=details)


def forgiven(body: dict[str, Any], *headers: tuple[str, bytes]) -> Bad:
    return Bad(body=body, code=None, is_kept=False, headers=headers)


def records(prefix: str) -> dict[str, Bad]:
    """Every kind of bad input that a topic can carry, by a name that serves as its correlation id."""
    return {
        "not json": kept(b"{not json", "invalid_json"),
        "an array": kept(b"[]", "invalid_json"),
        "null": kept(b"null", "invalid_json"),
        "nothing": kept(b"", "invalid_json"),
        "cut": kept(b'{"request_id": "cut", "project_id": "p", "user_mess', "invalid_json"),
        "nan": kept(b'{"request_id": "nan", "project_id": "p", "volk": NaN}', "invalid_json"),
        "not utf-8": kept(b'{"request_id": "\xff\xfe"}', "invalid_encoding"),
        "nul": kept(b'{"request_id": "nul", "project_id": "p", "volk": "\\u0000"}', "invalid_encoding"),
        "a nul byte": kept(b'{"request_id": "nul\x00"}', "invalid_encoding"),
        "lone surrogate": kept(
            b'{"request_id": "s", "project_id": "p", "user_message": "\\ud800"}', "invalid_encoding"
        ),
        "depth bomb": kept(b'{"a":' * 5_000 + b"1" + b"}" * 5_000, "too_large"),
        "over the limit": kept(
            b'{"request_id": "over", "project_id": "p", "user_message": "' + b"x" * 8_400_000 + b'"}',
            "too_large",
        ),
        "missing field": kept(b'{"request_id": "missing", "project_id": "p"}', "invalid_request"),
        "wrong type": kept(request(101, volk=1, subject=2, user_message=3), "invalid_request"),
        "too long a model": kept(request(102, model="m" * 257), "invalid_request"),
        "another version": kept(request(103, schema_version="2.0"), "unsupported_version"),
        "another kind": kept(request(104), "invalid_request", ("context-kind", b"bundle")),
        "bad generation": kept(request(105), "invalid_request", ("context-generation", b"one")),
        "unknown reply_to": refused(
            request(106),
            "reply_to_not_allowed",
            ("reply_to", b"elsewhere"),
            allowed=[f"{prefix}absent", f"{prefix}bundles"],
        ),
        "reply_to no utf-8": refused(request(107), "reply_to_not_allowed", ("reply_to", b"\xff")),
        "unknown layer": refused(
            request(108, budget={"layers": {"brain": 5}}), "unknown_layer", name="brain", known=sorted(LAYERS)
        ),
        "unknown model": refused(request(109, model="gpt-0"), "unknown_model", name="gpt-0"),
        "unknown subject": refused(request(110, subject="chess"), "unknown_subject", name="chess"),
        "unknown strategy": refused(
            request(111, strategy="luck"),
            "unknown_strategy",
            name="luck",
            known=["layered", "recency", "relevance", "tiered"],
        ),
        "not supported": refused(
            request(112, parent={"request_id": "nobody"}), "not_supported", field="parent"
        ),
        "window too small": refused(
            request(113, user_message="word " * 9_000, model="generic-8k"), "budget_too_small", layer="user"
        ),
        "expired": refused(request(114, expires_at="2020-01-01T00:00:00Z"), "expired"),
        "id reused": refused(request(0, user_message="Something else."), "request_id_reused"),
        "special token": forgiven(request(115, user_message="<|endoftext|> and on")),
        "spaces": forgiven(request(116, user_message=" " * 1_000_000, budget={"total": 120_000})),
        "one letter": forgiven(request(117, user_message="a" * 100_000)),
        "bad trace": forgiven(
            request(118), ("traceparent", b"\xff"), ("traceparent", TRACE), ("traceparent", TRACE)
        ),
        "absent reply topic": forgiven(request(119), ("reply_to", f"{prefix}absent".encode())),
    }
