"""Hand-off files: seven slots under many headings."""

from __future__ import annotations

import pytest

from worker.plans.hand_offs import read_hand_off
from worker.plans.wire import to_handoff_data

WHOLE = """---
type: handoff
supersedes: 2026-01-30-handoff.md
---
# Handoff: billing

## Current state (as of 3fa9c1d)
All tests pass on `main`;
PR #12 is open.

## Goal
Invoices by mail

## What was done
- [x] Schema in `src/schema.py:12`
- Parser

## What was NOT done
- The guide

## Next steps
1. Wire the exporter
2. Write the guide

```bash
# build
$ make build
```

## Gotchas
- Do not touch the queue

## Key decisions
- D1: Use queues

## Read first, in order
1. `docs/a.md` — the idea
2. src/app.py:3
3. README.md

## Commands
```bash
make test
```

## How to verify
Open the page

# Previous handoff (2026-01-30)
## Next steps
1. Old work
"""


def test_every_slot_is_read_and_only_the_first_block_counts():
    document = read_hand_off("HANDOFF.md", WHOLE)
    assert document is not None
    assert document.title == "Handoff: billing"
    assert document.state == ("All tests pass on `main`; PR #12 is open.",)
    assert document.goal == ("Invoices by mail",)
    assert document.done == ("Schema in `src/schema.py:12`", "Parser")
    assert document.not_done == ("The guide",)
    assert document.next == ("Wire the exporter", "Write the guide")
    assert document.blockers == ("Do not touch the queue",)
    assert document.decisions == ("D1: Use queues",)
    assert document.files == ("docs/a.md", "src/app.py", "README.md")
    assert document.commands == ("make build", "make test")
    assert document.verification == ("Open the page",)
    assert document.commits == ("3fa9c1d",)
    assert document.pull_requests == ("#12",)
    assert document.supersedes == "2026-01-30-handoff.md"


def test_the_mission_block_takes_it():
    document = read_hand_off("HANDOFF.md", WHOLE)
    assert document is not None
    data = to_handoff_data(document)
    assert [one.title for one in data.decisions] == ["D1: Use queues"]
    assert [one.text for one in data.blockers] == ["Do not touch the queue"]
    assert data.active_work == ("Wire the exporter", "Write the guide")
    assert data.key_files == ("docs/a.md", "src/app.py", "README.md")
    assert data.commands == ("make build", "make test")
    assert data.alerts == ("Not done: The guide", "Verify: Open the page", "Refers to: 3fa9c1d, #12")


@pytest.mark.parametrize(
    "word", ["None", "None.", "N/A", "nothing required", "_none_", "No blockers", "- None", "无"]
)
def test_a_slot_that_says_none_is_empty(word: str):
    document = read_hand_off("HANDOFF.md", f"## Done\n- A\n\n## Blockers\n{word}\n\n## Next\n- B\n")
    assert document is not None
    assert document.blockers == ()
    assert document.next == ("B",)


def test_a_file_with_fewer_than_two_slots_is_no_hand_off():
    assert read_hand_off("HANDOFF.md", "# Credentials\n## Files\n- a.md\n## Vault\nask Bo\n") is None
    assert read_hand_off("HANDOFF.md", "") is None


@pytest.mark.parametrize(
    ("done", "following"),
    [
        ("已完成", "下一步"),
        ("完了", "次のステップ"),
        ("Сделано", "Следующие шаги"),
        ("Hecho", "Próximos pasos"),
    ],
)
def test_headings_may_be_in_other_languages(done: str, following: str):
    document = read_hand_off("HANDOFF.md", f"## {done}\n- A\n## {following}\n- B\n")
    assert document is not None
    assert (document.done, document.next) == (("A",), ("B",))


def test_bold_labels_name_slots_too():
    document = read_hand_off(
        "HANDOFF.md", "# Run\n\n**Status:** green\n\n**Next:**\n- A\n- B\n\n**Blockers:** none\n"
    )
    assert document is not None
    assert (document.state, document.next, document.blockers) == (("green",), ("A", "B"), ())


def test_a_ticked_item_among_the_next_ones_is_done():
    document = read_hand_off("HANDOFF.md", "## Status\nok\n## Next\n- [x] A\n- [ ] B\n## Done\n- [ ] C\n")
    assert document is not None
    assert (document.next, document.done, document.not_done) == (("B",), ("A",), ("C",))


def test_rows_and_headings_below_a_slot_are_its_entries():
    text = (
        "## Files\n| File | Why |\n|---|---|\n| `a.py` | core |\n## Next\n### Write the guide\nIn English.\n"
    )
    document = read_hand_off("HANDOFF.md", text)
    assert document is not None
    assert document.files == ("a.py",)
    assert document.next == ("Write the guide", "In English.")


def test_plain_labels_and_work_in_progress_are_slots():
    document = read_hand_off(
        "HANDOFF.md", "Status: ok, see 1a2b3c4d.\n\nNext: do it\n\n## 🚧 In progress\n- Reader\n"
    )
    assert document is not None
    assert (document.state, document.next) == (("ok, see 1a2b3c4d.", "Reader"), ("do it",))
    assert document.commits == ("1a2b3c4d",)
