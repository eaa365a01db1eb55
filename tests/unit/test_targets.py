"""What a request names is what it is about, from whatever folder, and nothing that only looks alike."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.assembling import bundle_of, wire_request
from worker.targets import is_named, payload_paths, targets_of

DECISIONS = [
    {"id": "D-0", "title": "Charge in whole cents", "applies_to": ["src/shop.py"]},
    *({"id": f"D-{number}", "title": f"Something else {number}"} for number in range(1, 13)),
]
"""The first is older than the ten that are pinned in any case."""
PACK = """---
pack_version: 1
project: p
---
## function charge
<!-- node: src/shop.py::charge | template: IMPLEMENT | rank: 1 | score: 0.900000 | tokens: 10 -->
```python
def charge():
    return 1
```
"""


@pytest.mark.parametrize(
    "payload",
    [
        {"files_created": ["src/shop.py"]},
        {"files_created": ["shop.py"], "project_dir": "src"},
        {"files_created": ["./shop.py"], "project_dir": "./src/"},
        {"files_created": ["../src/shop.py"], "project_dir": "docs"},
    ],
)
def test_a_file_is_a_target_from_whatever_folder_it_is_named(payload: dict[str, object]) -> None:
    request = wire_request(
        payload=payload,
        session={"handoff": {"decisions": DECISIONS}},
        pack=PACK,
        user_message="Mend charge.",
        include=["messages", "layers", "citations"],
    )
    assert "src/shop.py" in targets_of(request)
    bundle = bundle_of(request)
    assert bundle.messages is not None
    assert bundle.citations is not None
    assert "Charge in whole cents" in bundle.messages[-1].content
    must = {item.id for item in bundle.citations.items if item.short in bundle.citations.must_cite}
    assert "src/shop.py::charge" in must


@pytest.mark.parametrize(
    ("message", "is_about"),
    [
        ("In lib/p.py fix charge", True),
        ("lib/p.py", True),
        ("(lib/p.py)", True),
        ("See ./lib/p.py.", True),
        ("`lib/p.py::charge`", True),
        ("lib/p.py:12", True),
        ("In xlib/p.py fix charge", False),
        ("In x/lib/p.py fix charge", False),
        ("In ../lib/p.py fix charge", False),
        ("In lib/p.pyi fix charge", False),
        ("In lib/p.py.bak fix charge", False),
        ("In lib-p.py or xlib/p.py, then lib/p.py", True),
        ("", False),
    ],
)
def test_a_name_is_named_as_such(message: str, *, is_about: bool) -> None:
    assert is_named("lib/p.py", message) is is_about


@given(st.lists(st.text("ab./ ", max_size=8), max_size=5), st.text("ab./", max_size=6))
def test_paths_stay_below_the_root_and_each_is_there_once(files: list[str], folder: str) -> None:
    paths = payload_paths(wire_request(payload={"files_created": files, "project_dir": folder or None}))
    assert len(set(paths)) == len(paths)
    assert not [path for path in paths if path.startswith(("/", "..")) and path[:3] in {"/", "../", ".."}]
