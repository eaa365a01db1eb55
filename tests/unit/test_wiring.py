from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from tests.support.assembling import AS_OF, wire_request
from worker.budget.tokens import counter_for
from worker.cli import app
from worker.code.indexing import IndexOptions, index_files
from worker.demo_requests import PROJECT, inline_pack
from worker.graph.pack_file import parse_pack
from worker.logs import mask_url
from worker.stores.sqlite_graph import SqliteGraphStore
from worker.wiring import build_providers, open_injector, utc_now
from worker.wiring_settings import read_settings

BODY = {"request_id": "r1", "project_id": "p", "volk": "smith", "subject": "chat", "user_message": "Hello"}
ROOT = Path(__file__).parents[2]
runner = CliRunner()


@pytest.mark.parametrize(
    ("expires_at", "as_of", "is_expired"),
    [
        ("2026-01-01T00:00:00Z", "2026-01-01T00:00:00Z", True),
        ("2026-01-01T00:00:00Z", "2025-12-31T23:59:59Z", False),
        ("2001-01-01T00:00:00Z", None, True),
        ("9001-01-01T00:00:00Z", None, False),
        (None, AS_OF, False),
    ],
)
def test_assemble_refuses_an_expired_request_as_the_worker_would(
    expires_at: str | None, as_of: str | None, *, is_expired: bool
) -> None:
    options = ["--as-of", as_of] if as_of else []
    body = json.dumps(BODY | {"expires_at": expires_at})
    result = runner.invoke(app, ["assemble", "-", *options], input=body)
    assert result.exit_code == (4 if is_expired else 0)
    assert result.stderr.startswith("context-worker: expired: ") == is_expired


@given(
    user=st.text(st.characters(categories=["L", "Nd"]), max_size=8),
    password=st.text(st.characters(exclude_characters="/?#@[]", categories=["L", "Nd", "P"]), min_size=9),
    host=st.sampled_from(["cache:6379", "[::1]:6379", "10.0.0.1"]),
)
def test_a_masked_url_shows_where_and_who_and_never_the_password(user: str, password: str, host: str) -> None:
    assert mask_url(f"rediss://{user}:{password}@{host}/2") == f"rediss://{user}:***@{host}/2"


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("redis://cache:6379/0", "redis://cache:6379/0"),
        ("redis://s3cret@cache/0", "redis://***@cache/0"),
        ("http://host/path?token=s3cret", "http://host/path?***"),
        ("redis://a:p@ss@host/0", "redis://a:***@host/0"),
        ("no url", "no url"),
        ("redis://a:s3cret@[broken", "***"),
    ],
)
def test_what_is_no_secret_in_a_url_stays(url: str, shown: str) -> None:
    assert mask_url(url) == shown


def test_doctor_never_prints_the_password_of_a_store(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORKER_OUTCOMES__STORE", "redis")
    monkeypatch.setenv("WORKER_OUTCOMES__REDIS_URL", "redis://worker@127.0.0.1:1/0")
    monkeypatch.setenv("WORKER_OUTCOMES__REDIS_PASSWORD", "s3cret-word")
    monkeypatch.setenv("WORKER_KAFKA__BOOTSTRAP_SERVERS", '["127.0.0.1:1"]')
    result = runner.invoke(app, ["doctor", "--json"])
    assert "outcome store" in result.output
    assert "s3cret-word" not in result.output + result.stderr


def test_a_wrong_setting_is_named_in_one_line_without_its_value(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORKER_LIMITS__MAX_DEPTH", "s3cret")
    with pytest.raises(ValueError, match=r"^WORKER_LIMITS__MAX_DEPTH: [^\n]+$") as caught:
        read_settings()
    assert "s3cret" not in str(caught.value)


def test_each_source_has_threads_of_its_own_and_not_fewer_than_calls_may_be_left_behind(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("WORKER_LIMITS__ABANDONED_CAP", "40")
    owned = [vars(p)["_threads"] for p in build_providers(read_settings()) if "_threads" in vars(p)]
    assert len({id(threads) for threads in owned}) == len(owned) == 7
    assert {vars(threads)["_max_threads"] for threads in owned} == {40}


def test_the_demos_pack_states_the_tokens_that_its_sections_have() -> None:
    pack = inline_pack(ROOT, {"worker/fusion/sections.py": ("compose", "admit_text")})
    counter = counter_for("o200k_base")
    sections = parse_pack(pack, project_id=PROJECT).sections
    assert len(sections) == 2
    for section in sections:
        body = section.text.split("````python\n", 1)[1].rsplit("\n````", 1)[0]
        assert section.node is not None
        assert section.node.tokens == counter.count(body)


async def test_the_injector_reads_the_stores_that_the_settings_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WORKER_GRAPH__SQLITE_PATH", str(tmp_path / "graph.db"))
    monkeypatch.setenv("WORKER_STATE__SQLITE_PATH", str(tmp_path / "state.db"))
    store = SqliteGraphStore(tmp_path / "graph.db")
    await index_files(
        store,
        "p",
        {"net.py": b"def retry(deadline):\n    return deadline\n"},
        options=IndexOptions(with_history=False),
    )
    await store.close()
    request = wire_request(user_message="`retry` ignores its deadline")
    async with open_injector() as injector:
        assert not injector.should_inject("chat")
        injected = await injector.inject_for_task(request, as_of=utc_now())
    assert "def retry(deadline)" in injected.payload["graph_context"]
    assert injected.record.sections == ("net.py::retry",)
