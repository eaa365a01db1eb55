from __future__ import annotations

import asyncio
import os
import shutil
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from blockbuster import blockbuster_ctx
from hypothesis import given, settings
from hypothesis import strategies as st

from schemas.codes import TaskType
from tests.support.hash_seeds import outputs
from tests.support.processes import gone, wait_until_extracting
from tests.unit.providers.frames import BUDGET, SCOPE, frame, texts
from worker.code import cache
from worker.code.extracting_pool import ExtractingPool
from worker.code.extractor import extract
from worker.code.facts import ModuleFacts
from worker.code.neighbourhood import link_calls
from worker.code.sources import Refused, SourceRoots
from worker.errors import Unavailable
from worker.ports import LayerContribution, Scope
from worker.providers import ast_signals, ast_view
from worker.providers.ast import AstProvider, build_signals, render_ast_context
from worker.providers.ast_signals import heading_of
from worker.providers.ast_view import TargetFiles
from worker.providers.contribution import layer_text

BRANCHES = heading_of("branches", "BUILD")
SHOP = {
    "shop/cart.py": '''"""The cart."""
from shop.prices import total


class Cart:
    """What a customer takes."""

    def add(self, item: str, *, count: int = 1) -> None:
        """@traces REQ-1"""
        if count < 1:
            raise ValueError(item)
        self._check(item)

    def _check(self, item):
        return item

    def price(self):
        return total(self)


def checkout(cart: Cart, codes=()):
    for code in codes:
        if code.valid and not code.used:
            apply(code)
        elif code.expired:
            continue
        else:
            try:
                code.renew()
            except OSError:
                return None
    return cart.price()
''',
    "shop/prices.py": "def total(cart):\n    return sum(cart)\n",
    "tests/test_cart.py": "from shop.cart import checkout\n\ndef test_it():\n    assert not checkout(0)\n",
}

SHOP_TEXT = """\
# AST CONTEXT
project_id: shop
## Public API
- shop/cart.py:21 def checkout(cart: Cart, codes=())
- shop/prices.py:1 def total(cart)
- shop/cart.py:5 class Cart
- shop/cart.py:8 def add(self, item: str, *, count: int = 1) -> None
- shop/cart.py:17 def price(self)
## Calls
- shop/cart.py::checkout (L21-L32) calls apply, code.renew, cart.price · used by tests/test_cart.py::test_it
- shop/prices.py::total (L1-L2) used by shop/cart.py::Cart.price
- shop/cart.py::Cart (L5-L18) calls shop/prices.py::total
## Branch points (answer by number for each that the change touches)
- shop/cart.py::checkout (L21-L32): b1 L22-31 for code in codes · \
b2 L23-24 if code.valid and not code.used · b3 L25-26 elif code.expired → continue · b4 L27-31 else · \
b5 L30-31 except OSError → return
- shop/cart.py::Cart.add (L8-L12): b1 L10-11 if count < 1 → raise
- tests/test_cart.py::test_it (L3-L4): b1 L4 assert not checkout(0)
## Complexity hotspots
- shop/cart.py::checkout (L21-L32): complexity 6
## Missing @traces
- shop/cart.py::checkout (L21-L32)
- shop/prices.py::total (L1-L2)
- shop/cart.py::Cart (L5-L18)
- shop/cart.py::Cart.price (L17-L18)"""


def write(root: Path, files: dict[str, str]) -> Path:
    for path, source in files.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(source)
    return root


async def ask(
    provider: AstProvider, files: Sequence[str], project_dir: str | None = None, scope: Scope = SCOPE
) -> LayerContribution:
    request = frame(payload={"files_created": list(files), "project_dir": project_dir})
    return await provider.provide(request, scope, BUDGET)


def provider_of(root: Path, **options: Any) -> AstProvider:
    return AstProvider(SourceRoots({"shop": (root,)}), **options)


def modules(**sources: str) -> TargetFiles:
    return TargetFiles(tuple(extract(f"{name}.py", text.encode()) for name, text in sources.items()), ())


def signals(targets: TargetFiles, *, task_type: TaskType = "BUILD", max_lines: int = 60) -> LayerContribution:
    return build_signals(targets, project_id="shop", task_type=task_type, max_lines=max_lines)


def lines_of(layer: LayerContribution, group: str) -> list[str]:
    return [f.renderings[0].text for f in layer.fragments if f.group == group]


# --- What it says ------------------------------------------------------------------------------------


async def test_the_block_says_what_an_agent_should_know_of_its_files(tmp_path: Path) -> None:
    layer = await ask(provider_of(write(tmp_path, SHOP)), list(SHOP))
    assert (layer.status, layer.reason) == ("ok", None)
    assert layer_text(layer) == SHOP_TEXT


async def test_the_plain_function_gives_the_same_text(tmp_path: Path) -> None:
    text = await asyncio.to_thread(
        render_ast_context, list(SHOP), root=write(tmp_path, SHOP), project_id="shop"
    )
    assert text == SHOP_TEXT


async def test_a_fragment_names_its_symbol_and_its_file(tmp_path: Path) -> None:
    layer = await ask(provider_of(write(tmp_path, SHOP)), list(SHOP))
    by_node = {fragment.node: fragment for fragment in layer.fragments}
    assert len(by_node) == len(layer.fragments)
    hotspot = by_node["code://shop/cart.py::checkout#complexity"]
    [provenance] = hotspot.provenance
    assert (provenance.resource_uri, provenance.location) == ("file://shop/cart.py", "L21-L32")
    assert hotspot.metadata == {"symbol": "shop/cart.py::checkout"}


def test_five_of_each_are_shown_and_the_rest_is_counted() -> None:
    body = "    if a: pass\n" * 4
    source = "".join(f"def f{n}(a):\n{body}    g{n}()  # @traces TBD\n" for n in range(8))
    layer = signals(modules(a=source))
    shown = {kind: len(lines_of(layer, heading_of(kind, "BUILD"))) for kind in ast_signals.GROUPS}
    assert shown == {
        "trace_lint": 5,
        "signature": 5,
        "complexity": 5,
        "branches": 5,
        "missing_traces": 5,
        "calls": 3,
    }
    assert layer.capped == 5 * 3 + 5


def test_hotspots_begin_at_five_highest_first_and_ties_by_id() -> None:
    def function(name: str, complexity: int) -> str:
        return f"def {name}(a):\n" + "    if a: pass\n" * (complexity - 1) + "    pass\n"

    source = function("d", 4) + function("c", 5) + function("_b", 9) + function("a", 5)
    assert lines_of(signals(modules(m=source)), "## Complexity hotspots") == [
        "- m.py::_b (L12-L21): complexity 9",
        "- m.py::a (L22-L27): complexity 5",
        "- m.py::c (L6-L11): complexity 5",
    ]


def test_of_many_branch_points_the_first_are_shown_and_the_others_counted() -> None:
    source = "def f(a):\n" + "".join(f"    if a == {n}: pass\n" for n in range(25))
    [fragment] = [f for f in signals(modules(m=source)).fragments if f.group == BRANCHES]
    text, brief = (rendering.text for rendering in fragment.renderings)
    assert text.endswith("· b10 L11 if a == 9 · 15 more")
    assert brief == "- m.py::f (L1-L26): 25 branch points"


def test_a_symbol_is_traced_by_its_class_or_file_too() -> None:
    targets = modules(
        a="class A:\n    '''@traces REQ-1'''\n    def m(self): pass\ndef f(): pass\n",
        b="'''@implements REQ-2'''\ndef g(): pass\n",
        test_c="def test_h(): pass\n",
    )
    assert lines_of(signals(targets), "## Missing @traces") == ["- a.py::f (L4-L4)"]


def test_namesakes_are_one_symbol() -> None:
    source = "@overload\ndef f(a: int): ...\n@overload\ndef f(a: str): ...\ndef f(a): g()\ndef h(): f(1)\n"
    layer = signals(modules(m=source))
    assert lines_of(layer, "## Public API") == ["- m.py:2 @overload def f(a: int)", "- m.py:6 def h()"]
    assert lines_of(layer, "## Calls")[0] == "- m.py::f (L1-L2) calls g · used by m.py::h"


def test_what_others_use_comes_first_and_tests_last() -> None:
    targets = modules(
        test_a="def test_x(): pass\n",
        b="def alone(): pass\ndef used(): pass\nclass C:\n    def m(self): used()\n",
    )
    shown = lines_of(signals(targets), "## Public API")
    assert [line.split()[-1] for line in shown[:3]] == ["used()", "alone()", "C"]
    assert shown[-1] == "- test_a.py:1 def test_x()"


def test_signals_of_one_line_stay_on_one_line_whatever_the_source_holds() -> None:
    source = "def f(a='''\n```\n# heading\n'''):\n    if a == '<|endoftext|>' or (\n        a): pass\n"
    layer = signals(modules(m=source))
    assert all("\n" not in text for text in texts(layer))
    assert any("<|endoftext|>" in text for text in texts(layer))


# --- Statuses ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("files", [[], ["", "  "]])
@pytest.mark.parametrize("root", [True, False])
async def test_without_target_files_there_is_nothing_to_say(
    tmp_path: Path, files: list[str], *, root: bool
) -> None:
    provider = AstProvider(SourceRoots({"shop": (tmp_path,)} if root else {}))
    layer = await ask(provider, files)
    assert (layer.status, layer.reason) == ("empty", "no_data")


async def test_without_a_root_for_the_project_the_layer_is_off(tmp_path: Path) -> None:
    provider = AstProvider(SourceRoots({"other": (tmp_path,)}))
    layer = await ask(provider, ["a.py"])
    assert (layer.status, layer.reason) == ("off", "not_configured")


@pytest.mark.parametrize(
    ("files", "project_dir"),
    [
        (["nowhere.py"], None),
        (["readme.md", "data.bin", "sub"], None),
        (["empty.py"], None),
        (["a.py"], "not-made-yet"),
    ],
)
async def test_files_that_say_nothing_leave_the_layer_empty(
    tmp_path: Path, files: list[str], project_dir: str | None
) -> None:
    write(tmp_path, {"readme.md": "# def f(): pass", "empty.py": "", "sub/x.py": "", "a.py": "def f(): pass"})
    with (tmp_path / "data.bin").open("wb") as file:
        file.truncate(100_000_000)
    layer = await ask(provider_of(tmp_path), files, project_dir)
    assert (layer.status, layer.reason, layer.fragments) == ("empty", "no_data", ())


@pytest.fixture
def hostile_root(tmp_path: Path) -> Path:
    root = tmp_path / "root"
    root.mkdir()
    (tmp_path / "secret.py").write_text("def secret(): pass\n")
    (root / "a.py").write_text("def f(): pass\n")
    (root / "link.py").symlink_to("../secret.py")
    (root / "out").symlink_to("..")
    (root / "notes.md").symlink_to("../secret.py")
    os.mkfifo(root / "fifo.py")
    os.mkfifo(root / "pipe")
    with (root / "huge.py").open("wb") as file:
        file.truncate(100_000_000)
    return root


@pytest.mark.parametrize(
    ("path", "reason"),
    [
        ("../secret.py", "leaves the project"),
        ("../../etc/passwd", "leaves the project"),
        ("/etc/passwd", "absolute path"),
        ("/dev/zero", "absolute path"),
        ("link.py", "symbolic link"),
        ("notes.md", "symbolic link"),
        ("out/secret.py", "symbolic link"),
        ("fifo.py", "not a regular file"),
        ("pipe", "not a regular file"),
        ("huge.py", "too large"),
        ("a.py\x00", "control character"),
    ],
)
async def test_a_refused_path_makes_the_layer_partial_even_alone(
    hostile_root: Path, path: str, reason: str
) -> None:
    alone = await ask(provider_of(hostile_root), [path])
    assert (alone.status, alone.reason) == ("partial", "refused_path")
    [note] = alone.fragments
    assert note.renderings[0].text.endswith(f": {reason}")
    beside = await ask(provider_of(hostile_root), [path, "a.py"])
    assert (beside.status, beside.reason) == ("partial", "refused_path")
    assert "- a.py:1 def f()" in texts(beside)
    assert "secret()" not in repr(beside)


async def test_a_project_directory_that_is_refused_is_not_named(hostile_root: Path) -> None:
    outside = str(hostile_root.parent)
    layer = await ask(provider_of(hostile_root), ["secret.py"], outside)
    assert (layer.status, layer.reason) == ("partial", "refused_path")
    assert texts(layer) == ["- project_dir: leaves the project"]
    assert outside not in repr(layer)


async def test_a_file_that_becomes_a_link_is_refused_though_it_was_read_before(hostile_root: Path) -> None:
    provider = provider_of(hostile_root)
    assert (await ask(provider, ["a.py"])).status == "ok"
    (hostile_root / "a.py").unlink()
    (hostile_root / "a.py").symlink_to("../secret.py")
    after = await ask(provider, ["a.py"])
    assert (after.status, after.reason) == ("partial", "refused_path")


@pytest.mark.parametrize(
    ("content", "note"),
    [
        (b"def f():\n    return (\n", "- bad.py: syntax error, line 2"),
        (b"x = '\xe9'\n", "- bad.py: not text in its encoding"),
        (b"x = 1\n\0", "- bad.py: NUL byte, line 2"),
        (b"x = 1" + b" + 1" * 5_000, "- bad.py: nested or repeated beyond what the parser takes"),
    ],
)
async def test_a_file_that_cannot_be_parsed_makes_the_layer_partial_and_is_named(
    tmp_path: Path, content: bytes, note: str
) -> None:
    (tmp_path / "bad.py").write_bytes(content)
    (tmp_path / "a.py").write_text("def f(): pass\n")
    for files in (["bad.py"], ["bad.py", "a.py"]):
        layer = await ask(provider_of(tmp_path), files)
        assert (layer.status, layer.reason) == ("partial", "section_error")
        assert texts(layer)[-1] == note
    assert "- a.py:1 def f()" in texts(layer)


async def test_a_root_that_is_gone_is_an_outage(tmp_path: Path) -> None:
    with pytest.raises(Unavailable):
        await ask(provider_of(tmp_path / "unmounted"), ["a.py"])


@pytest.mark.parametrize("broken", list(ast_signals.GROUPS))
def test_a_section_that_fails_leaves_the_others(
    broken: ast_signals.SignalKind, monkeypatch: pytest.MonkeyPatch
) -> None:
    targets = TargetFiles(tuple(extract(p, s.encode()) for p, s in SHOP.items()), ())
    whole = signals(targets)

    def fail(group: object, view: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setitem(ast_signals._WRITERS, broken, fail)  # pyright: ignore[reportPrivateUsage, reportArgumentType]  # a section that fails
    layer = signals(targets)
    assert (layer.status, layer.reason) == ("partial", "section_error")
    rest = [f.renderings for f in whole.fragments if f.group != heading_of(broken, "BUILD")]
    assert [f.renderings for f in layer.fragments] == rest


def test_without_links_the_other_signals_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(modules: Sequence[ModuleFacts]) -> None:
        raise RecursionError

    monkeypatch.setattr(ast_view, "link_calls", fail)
    layer = signals(TargetFiles(tuple(extract(p, s.encode()) for p, s in SHOP.items()), ()))
    assert (layer.status, layer.reason) == ("partial", "section_error")
    assert lines_of(layer, "## Public API")
    assert lines_of(layer, "## Calls") == []


# --- Caps --------------------------------------------------------------------------------------------


@settings(max_examples=60)
@given(max_lines=st.integers(0, 70), task_type=st.sampled_from(["BUILD", "DEBUG"]))
def test_the_line_cap_is_never_exceeded(max_lines: int, task_type: TaskType) -> None:
    facts = tuple(extract(path, source.encode()) for path, source in SHOP.items())
    targets = TargetFiles(facts, (Refused("../x", "leaves the project"),))
    layer = signals(targets, task_type=task_type, max_lines=max_lines)
    text = layer_text(layer)
    assert len(text.splitlines()) <= max_lines
    whole = signals(targets, task_type=task_type)
    assert len(layer.fragments) + layer.capped == len(whole.fragments) + whole.capped


def test_who_builds_keeps_the_interface_and_who_repairs_the_risk() -> None:
    facts = tuple(extract(path, source.encode()) for path, source in SHOP.items())
    kept = {
        task_type: [
            f.group for f in signals(TargetFiles(facts, ()), task_type=task_type, max_lines=4).fragments
        ]
        for task_type in ("BUILD", "REFACTOR", "DOCUMENT", "DEBUG", "TEST", "REVIEW")
    }
    assert kept["BUILD"] == kept["REFACTOR"] == kept["DOCUMENT"] == ["## Public API"]
    assert kept["DEBUG"] == kept["TEST"] == kept["REVIEW"] == ["## Complexity hotspots"]


async def test_two_hundred_files_are_looked_at_and_the_others_counted(tmp_path: Path) -> None:
    write(tmp_path, {f"m{n:03}.py": f"def f{n}(): pass\n" for n in range(230)})
    files = [f"m{n:03}.py" for n in range(230)]
    with patch.object(cache, "extract_at_thread_start", side_effect=extract) as extracted:
        layer = await ask(provider_of(tmp_path), [*files, "./m000.py", "m001.py"])
    assert extracted.call_count == 200
    within = await ask(provider_of(tmp_path), files[:200])
    assert layer.fragments == within.fragments
    assert layer.capped == within.capped + 30


# --- The same bytes ----------------------------------------------------------------------------------


async def test_two_hosts_give_the_same_contribution(tmp_path: Path) -> None:
    one = write(tmp_path / "srv" / "one", SHOP)
    two = tmp_path / "home" / "a b" / "two" / "checkout"
    shutil.copytree(one, two)
    files = [*SHOP, "../refused.py", "nowhere.py"]
    layers = [
        await ask(provider_of(one), files),
        await ask(provider_of(one), files, str(one)),
        await ask(provider_of(two), files),
        await ask(provider_of(two.parent), files, "checkout"),
        await ask(provider_of(two.parent), files, str(two)),
    ]
    assert all(layer == layers[0] for layer in layers)
    assert layers[0].fragments
    assert str(tmp_path) not in repr(layers[0])


@pytest.mark.timeout(180)
def test_neither_hash_seed_nor_process_changes_a_contribution() -> None:
    program = Path(__file__).with_name("print_ast.py")
    digests = outputs([str(program)])
    assert len(digests) == 1
    assert len(digests.pop()) == 65


async def test_what_is_kept_gives_what_reading_anew_gives(tmp_path: Path) -> None:
    root = write(tmp_path, SHOP)
    provider = provider_of(root)
    first = await ask(provider, list(SHOP))
    with patch.object(cache, "extract_at_thread_start", side_effect=extract) as extracted:
        assert await ask(provider, list(SHOP)) == first
        assert extracted.call_count == 0
        (root / "shop/prices.py").write_text("def total(cart, tax): return sum(cart) * tax\n")
        changed = await ask(provider, list(SHOP))
        assert extracted.call_count == 1
    assert changed == await ask(provider_of(root), list(SHOP))
    assert changed != first


async def test_files_are_linked_once_whatever_requests_name_in_them(tmp_path: Path) -> None:
    root = write(tmp_path, SHOP)
    provider = provider_of(root)
    payload = {"files_created": list(SHOP)}
    messages = ("checkout() fails", "price() and add() fail", "total() is wrong")
    requests = [frame(payload=payload, user_message=message) for message in messages]
    with patch.object(ast_view, "link_calls", side_effect=link_calls) as linked:
        layers = [await provider.provide(request, SCOPE, BUDGET) for request in requests]
        assert linked.call_count == 1
    anew = [await provider_of(root).provide(request, SCOPE, BUDGET) for request in requests]
    assert layers == anew
    assert layers[0] != layers[2]


async def test_nothing_kept_for_one_project_serves_another(tmp_path: Path) -> None:
    root = write(tmp_path, SHOP)
    provider = AstProvider(SourceRoots({"shop": (root,), "rival": (root,)}))
    mine = await ask(provider, list(SHOP))
    with patch.object(cache, "extract_at_thread_start", side_effect=extract) as extracted:
        theirs = await ask(provider, list(SHOP), scope=Scope(project_id="rival", thread_id=None))
    assert extracted.call_count == len(SHOP)
    assert (mine.heading, theirs.heading) == (
        "# AST CONTEXT\nproject_id: shop",
        "# AST CONTEXT\nproject_id: rival",
    )


async def test_files_are_read_and_parsed_off_the_event_loop(tmp_path: Path) -> None:
    provider = provider_of(write(tmp_path, SHOP))
    with blockbuster_ctx("worker"):
        assert (await ask(provider, list(SHOP))).status == "ok"


def test_a_cancelled_call_stops_after_the_file_that_it_is_at(tmp_path: Path) -> None:
    write(tmp_path, {f"m{n}.py": "def f(): pass\n" for n in range(20)})
    has_begun, may_go_on = threading.Event(), threading.Event()
    extracted: list[str] = []

    def slow_extract(path: str, content: bytes) -> ModuleFacts:
        extracted.append(path)
        has_begun.set()
        assert may_go_on.wait(20)
        return extract(path, content)

    async def cancel_it() -> None:
        task = asyncio.create_task(ask(provider_of(tmp_path), [f"m{n}.py" for n in range(20)]))
        await asyncio.to_thread(has_begun.wait, 20)
        task.cancel()
        await asyncio.sleep(0)
        may_go_on.set()
        with pytest.raises(asyncio.CancelledError):
            await task

    with patch.object(cache, "extract_at_thread_start", side_effect=slow_extract):
        asyncio.run(cancel_it())
    assert extracted == ["m0.py"]


async def test_a_call_that_is_cancelled_ends_the_process_that_parses_for_it(tmp_path: Path) -> None:
    write(tmp_path, {"long.py": "x = [" + "1, " * 600_000 + "]\n", "next.py": "def f(): pass\n" * 3_000})
    pool = ExtractingPool(max_processes=1)
    provider = AstProvider(SourceRoots({"shop": (tmp_path,)}), pool=pool)
    await provider.prepare()
    (process_id,) = pool.process_ids
    task = asyncio.create_task(ask(provider, ["long.py"]))
    await asyncio.to_thread(wait_until_extracting, process_id)
    with gone(process_id):
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    assert (await ask(provider, ["next.py"])).status == "ok"
    pool.close()


# --- Any input ---------------------------------------------------------------------------------------

PATHS = st.lists(
    st.sampled_from(
        [
            "a.py",
            "../secret.py",
            "link.py",
            "out/secret.py",
            "out/root/a.py",
            "fifo.py",
            "huge.py",
            ".",
            "x",
            "/",
        ]
    )
    | st.text(max_size=8),
    max_size=6,
)


@settings(max_examples=80)
@given(
    files=PATHS, project_dir=st.none() | st.sampled_from([".", "..", "out", "/", "x"]) | st.text(max_size=4)
)
def test_whatever_is_named_nothing_outside_is_said_and_the_status_agrees(
    shared_hostile_root: Path, files: list[str], project_dir: str | None
) -> None:
    layer = asyncio.run(ask(provider_of(shared_hostile_root), files, project_dir))
    assert "secret()" not in repr(layer)
    assert str(shared_hostile_root) not in repr(layer)
    match layer.status:
        case "ok":
            assert layer.fragments
        case "partial":
            assert layer.reason == "refused_path"
            assert layer.fragments
        case _:
            assert (layer.status, layer.reason, layer.fragments) == ("empty", "no_data", ())


@pytest.fixture(scope="module")
def shared_hostile_root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    base = tmp_path_factory.mktemp("hostile")
    root = base / "root"
    root.mkdir()
    (base / "secret.py").write_text("def secret(): pass\n")
    (root / "a.py").write_text("def f(): pass\n")
    (root / "link.py").symlink_to("../secret.py")
    (root / "out").symlink_to("..")
    os.mkfifo(root / "fifo.py")
    with (root / "huge.py").open("wb") as file:
        file.truncate(100_000_000)
    return root


# --- The plain function ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "files", [[], [""], ["nowhere.py"], ["../secret.py"], ["fifo.py"], ["huge.py", "link.py"], ["out"]]
)
def test_the_plain_function_gives_nothing_where_there_is_no_signal(
    shared_hostile_root: Path, files: list[str]
) -> None:
    assert render_ast_context(files, root=shared_hostile_root) == ""


def test_the_plain_function_gives_nothing_without_its_root(tmp_path: Path) -> None:
    assert render_ast_context(["a.py"], root=tmp_path / "nowhere") == ""


def test_the_plain_function_keeps_its_line_cap(shared_hostile_root: Path) -> None:
    text = render_ast_context(["a.py", "link.py"], root=shared_hostile_root, max_lines=6)
    assert text.splitlines()[:2] == ["# AST CONTEXT", "project_id: local"]
    assert len(text.splitlines()) <= 6
