from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
REQUEST = {
    "request_id": "r1",
    "project_id": "shop",
    "volk": "smith",
    "subject": "implement",
    "user_message": "Mend the retry loop in `shop/cart.py`",
    "session": {
        "goal": {"id": "g", "status": "active", "statement": "ship"},
        "handoff": {"blockers": ["ci"]},
    },
    "plan": {"plan_id": "p", "text": "# Plan\n- [x] one\n- [ ] two\n"},
    "memory": {"items": [{"id": "m", "text": "retry is bounded", "occurred_at": "2026-01-01T00:00:00Z"}]},
    "artifacts": [{"stage": "design", "type": "note", "content": "token = 'ghp_0123456789abcdefghijklm'"}],
    "working": {
        "current_diff": "--- a/a.py\n+++ b/a.py\n@@ -1 +1 @@\n-a\n+b\n",
        "failing_tests": [{"id": "t"}],
    },
    "include": ["messages", "layers", "usage", "citations", "parts", "graph_context", "payload", "receipt"],
}
PROGRAM = """
import asyncio, json, sys
from datetime import UTC, datetime
from pathlib import Path

from worker.settings import Graph, Http, Outcomes, Settings, State
from worker.wiring_worker import build_service

async def main(home, body):
    settings = Settings(
        outcomes=Outcomes(sqlite_path=home / "outcomes.db"),
        graph=Graph(sqlite_path=home / "graph.db"),
        state=State(sqlite_path=home / "state.db"),
        http=Http(port=0),
        log_level="error",
    )
    async with build_service(settings, usage_log=home / "usage.jsonl") as service:
        handler = service.worker._readers[0][1]._attempts._handler
        ready = set(sys.modules)
        left = [model.__name__ for model in models(WireModel) if not model.__pydantic_complete__]
        decoded = decode_request(body, max_bytes=len(body), max_depth=32)
        now = datetime(2026, 1, 1, tzinfo=UTC)
        assembled = await handler._assemble(
            decoded.request, as_of=now, notes=decoded.notes, meaning=decoded.meaning
        )
        assert to_wire(assembled.bundle) and to_wire(assembled.usage)
        assert assembled.trail.capture(max_bytes=1 << 20)
        unused = [name for name in sys.modules if name.startswith(("opentelemetry.sdk", "opentelemetry.exp"))]
        print(json.dumps([assembled.bundle.status, left, sorted(set(sys.modules) - ready), unused]))

def models(base):
    for model in base.__subclasses__():
        yield model
        yield from models(model)

from schemas.bundle import to_wire
from schemas.wire import WireModel
from worker.decoding import decode_request
from worker.logs import configure_logs

configure_logs(level="error", log_format="json")
asyncio.run(main(Path(sys.argv[1]), sys.argv[2].encode()))
"""


def test_the_first_request_of_a_ready_worker_loads_no_module_and_builds_no_validator_nor_ever_a_recorder(
    tmp_path: Path,
):
    command = [sys.executable, "-c", PROGRAM, str(tmp_path), json.dumps(REQUEST)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == ["complete", [], [], []]


def test_help_loads_no_store_no_broker_and_no_number_cruncher():
    program = """
import sys
from worker.cli import app
try:
    app(["--help"])
except SystemExit:
    pass
print(sorted({name.partition(".")[0] for name in sys.modules}), file=sys.stderr)
"""
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True
    )
    heavy = "aiokafka faststream numpy redis neo4j mcp uvicorn jinja2 yaml tiktoken regex"
    assert not {f"'{name}'" for name in heavy.split()} & set(done.stderr.strip("[]\n").split(", "))
