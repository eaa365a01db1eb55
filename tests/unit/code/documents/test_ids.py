from __future__ import annotations

import pytest

from worker.code.documents.ids import read_ids


@pytest.mark.parametrize(
    ("text", "ids", "unexpanded"),
    [
        ("REQ-1, REQ-2 and REQ-3", ("REQ-1", "REQ-2", "REQ-3"), ()),
        ("FR-001..003", ("FR-001", "FR-002", "FR-003"), ()),
        ("FR-001 through FR-003", ("FR-001", "FR-002", "FR-003"), ()),
        ("FR-001–FR-003.", ("FR-001", "FR-002", "FR-003"), ()),
        ("1.1-1.4", ("1.1", "1.2", "1.3", "1.4"), ()),
        ("1.1–1.3, All (audit)", ("1.1", "1.2", "1.3"), ()),
        ("2.9-2.11", ("2.9", "2.10", "2.11"), ()),
        ("FR-001..NFR-003", ("FR-001", "NFR-003"), ("FR-001..NFR-003",)),
        ("1.2-2.3", ("1.2", "2.3"), ("1.2-2.3",)),
        ("FR-1..900", ("FR-1", "FR-900"), ("FR-1..900",)),
        ("FR-003..001", ("FR-003", "FR-001"), ("FR-003..001",)),
        ("FR-001 to users", ("FR-001",), ()),
        ("A-1-2", ("A-1-2",), ()),
        ("2026-01-31 and 12:30", (), ()),
        ("REQ-005.AC-05", ("REQ-005.AC-05",), ()),
        ("REQ-1, REQ-1", ("REQ-1",), ()),
        ("req-1", (), ()),
    ],
)
def test_ids_of_a_list(text: str, ids: tuple[str, ...], unexpanded: tuple[str, ...]) -> None:
    assert read_ids(text) == (ids, unexpanded)
