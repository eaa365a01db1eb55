"""What is counted of the cases of a run while they are judged."""

from __future__ import annotations

from typing import Any

import pytest

from worker.load.measures import Measures, tallied
from worker.load.observations import Case, Letter, Seen, Sent
from worker.load.rewriting import Asked, RequestKey

KEY = RequestKey(project_id="shop", request_id="run:r1", generation=0)
SENT = Sent(partition=0, offset=0, asked=Asked(), message_chars=None, message_sha256=None)
REPLY, OTHER, REUSED = Seen(body=b"{}"), Seen(body=b"{ }"), Seen(body=b'{"code": "request_id_reused"}')
USAGE = Seen(
    body=b'{"statuses": {"graph": {"status": "failed", "reason": "timeout"}, "ast": {"status": "ok"}}}'
)


@pytest.mark.parametrize(
    ("seen", "lost", "doubled"),
    [
        ({}, 1, 0),
        ({"letters": (Letter(partition=0, offset=0, code="invalid_json"),)}, 0, 0),
        ({"replies": (Seen(body=b"{}", copies=3),), "usages": (USAGE,)}, 0, 0),
        ({"replies": (REPLY, REUSED)}, 0, 0),
        ({"replies": (REPLY, OTHER)}, 0, 1),
        ({"replies": (REPLY,), "earlier": (REPLY,)}, 0, 0),
        ({"replies": (REPLY,), "earlier": (OTHER,)}, 0, 1),
        ({"replies": (REPLY,), "usages": (USAGE, OTHER)}, 0, 1),
        ({"sent": (), "replies": (REPLY, OTHER)}, 0, 0),
    ],
)
def test_what_is_lost_and_what_is_doubled_is_counted(seen: dict[str, Any], lost: int, doubled: int):
    measures = Measures()
    parts: dict[str, Any] = {"sent": (SENT,), **seen}
    case = Case(key=KEY, **parts)
    assert list(tallied([case], measures)) == [case]
    assert (measures.lost, measures.doubled) == (lost, doubled)
    assert measures.layers == ({"graph failed timeout": 1} if USAGE in case.usages else {})
