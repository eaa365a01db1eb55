"""The report that a person reads in a terminal, and the same as JSON."""

from __future__ import annotations

import io
import json

from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

from worker.usage.aggregate import UsageAggregate, aggregate_usage
from worker.usage.report import render_report, to_json


def _event(volk: str, subject: str, **more: object) -> dict[str, object]:
    return {
        "volk_alias": volk,
        "subject": subject,
        "outcome": "complete",
        "usage": {
            "total": 1_000_000,
            "spent": 750_000,
            "layers": {
                "system": {"budget": 100_000, "spent": 25_000},
                "semantic": {"budget": 400_000, "spent": 400_000},
                "user": {"budget": 500_000, "spent": 325_000},
                "output": {"budget": 0, "spent": 0},
            },
        },
        "overhead": {"client": 5, "framing": 3, "preamble": 0},
        **more,
    }


def _printed(
    aggregate: UsageAggregate, *, width: int = 80, color: bool = False, encoding: str = "utf-8"
) -> str:
    buffer = io.BytesIO()
    file = io.TextIOWrapper(buffer, encoding=encoding, write_through=True)
    console = Console(
        file=file,
        width=width,
        force_terminal=color,
        color_system="standard" if color else None,
        legacy_windows=False,
    )
    console.print(render_report(aggregate))
    file.flush()
    return buffer.getvalue().decode(encoding)


DEGRADED = _event(
    "scout",
    "fix_issues",
    outcome="degraded",
    exact=False,
    statuses={"semantic": {"status": "failed", "reason": "timeout"}},
)
REJECTED = {"outcome": "rejected", "code": "budget_too_small"}


def test_the_report_shows_totals_layers_volks_subjects_and_what_went_wrong() -> None:
    report = _printed(aggregate_usage([_event("smith", "implement"), DEGRADED, REJECTED]))
    assert [" ".join(line.split()) for line in report.splitlines()] == [
        "Context usage 3 calls: 1 complete, 1 degraded, 1 rejected",
        "1,500,000 of 2,000,000 tokens spent (75%), 16 tokens of overhead",
        "1 call counted by an upper bound",
        "",
        "Layer Spent Budget Used",
        "system 50,000 200,000 25% ━━━━━━",
        "semantic 800,000 800,000 100% ━━━━━━━━━━━━━━━━━━━━━━━━",
        "user 650,000 1,000,000 65% ━━━━━━━━━━━━━━━╸",
        "output 0 0 -",
        "",
        "Volk Calls Spent Share",
        "scout 1 750,000 50% ━━━━━━━━━━━━",
        "smith 1 750,000 50% ━━━━━━━━━━━━",
        "unknown 1 0 0%",
        "",
        "Subject Calls Spent Share",
        "fix_issues 1 750,000 50% ━━━━━━━━━━━━",
        "implement 1 750,000 50% ━━━━━━━━━━━━",
        "unknown 1 0 0%",
        "",
        "Degraded layer: reason Calls Share",
        "semantic: timeout 1 33% ━━━━━━━━",
        "",
        "Rejection code Calls Share",
        "budget_too_small 1 33% ━━━━━━━━",
    ]


def test_the_report_of_large_numbers_and_long_names_fits_eighty_columns() -> None:
    records = [
        {
            "volk_alias": "a-volk-with-quite-a-long-alias-" * 3,
            "subject": "漢字" * 40,
            "usage": {
                "total": 2**53 - 1,
                "spent": 9_999_999_999_999,
                "layers": {"artifacts": {"budget": 9_999_999_999, "spent": 9_999_999_999}},
            },
            "statuses": {"artifacts": {"status": "partial", "reason": "x" * 200}},
        }
    ]
    lines = _printed(aggregate_usage(records)).splitlines()
    table_lines = [line for line in lines if "tokens spent" not in line]
    assert all(len(line) <= 80 for line in table_lines)
    assert any("9,999,999,999 " in line and "100%" in line for line in lines)
    assert any("9,999,999,999,999" in line and "…" in line for line in lines)


def test_an_empty_log_is_said() -> None:
    assert _printed(aggregate_usage([])) == "The usage log holds no records.\n"


def test_only_the_twenty_largest_volks_have_a_line_of_their_own() -> None:
    report = _printed(aggregate_usage(_event(f"volk-{n:02}", "implement") for n in range(25)))
    assert "volk-19" in report
    assert "volk-20" not in report
    assert any(line.split()[:4] == ["5", "more", "5", "3,750,000"] for line in report.splitlines())


def test_a_name_is_neither_markup_nor_a_command_to_the_terminal() -> None:
    report = _printed(aggregate_usage([_event("[red]x[/red]\x1b[2J\r\n\u202e\ud800", "👩‍💻")]))
    assert "[red]x[/red]\ufffd[2J" in report
    assert "\x1b" not in report
    assert "\u202e" not in report
    assert "👩‍💻" in report


def test_the_bar_of_a_layer_at_its_limit_is_red_and_that_of_a_volk_is_not() -> None:
    report = _printed(aggregate_usage([_event("smith", "implement")]), color=True)
    by_name = {line.split()[0]: line for line in report.splitlines() if line.strip()}
    assert "\x1b[31m━" in by_name["semantic"]
    assert "\x1b[33m━" in by_name["user"]
    assert "\x1b[32m━" in by_name["system"]
    assert "\x1b[32m━" in by_name["smith"]


def test_a_terminal_without_unicode_gets_bars_that_it_can_show() -> None:
    report = _printed(aggregate_usage([_event("smith", "implement")]), encoding="ascii")
    assert "semantic  400,000  400,000  100%  ------------------------" in report


def test_json_holds_every_total_under_its_name() -> None:
    totals = json.loads(to_json(aggregate_usage([_event("smith", "implement"), DEGRADED, REJECTED])))
    assert totals["total_calls"] == 3
    assert totals["total_spent"] == 1_500_000
    assert totals["per_layer"]["user"] == {"calls": 2, "spent": 650_000, "budget": 1_000_000}
    assert totals["per_volk"]["smith"] == {"calls": 1, "spent": 750_000}
    assert totals["per_subject"]["implement"] == {"calls": 1, "spent": 750_000}
    assert totals["outcomes"] == {"complete": 1, "degraded": 1, "rejected": 1}
    assert totals["degraded_reasons"] == {"semantic: timeout": 1}
    assert totals["rejection_codes"] == {"budget_too_small": 1}


@settings(max_examples=50)
@given(st.text(), st.text(), st.integers(0, 2**53), st.integers(0, 2**53))
def test_whatever_is_in_the_log_there_is_a_report(volk: str, subject: str, spent: int, budget: int) -> None:
    usage = {"total": budget, "spent": spent, "layers": {subject: {"budget": budget, "spent": spent}}}
    totals = aggregate_usage([{"volk_alias": volk, "subject": subject, "outcome": volk, "usage": usage}])
    assert "Context usage" in _printed(totals)
    assert json.loads(to_json(totals).encode("utf-8", "surrogatepass"))["total_calls"] == 1
