"""The table at the end of a run: accuracy, seconds, rates, and what the checks found."""

import io

from rich.console import Console

from flows.summary_table import print_summary

SUMMARY = {
    "recipe": "quickstart",
    "accuracy": {"base": 0.002, "sft": 0.61, "rl": 0.994},
    "seconds": {"prepare_data": 8.1, "rl": 92.4},
    "tokens_per_s": {"rollout": 11000.0},
    "export": "/data/export/abc",
}


def test_table_shows_accuracy_seconds_and_rates() -> None:
    output = io.StringIO()
    print_summary(SUMMARY, console=Console(file=output, width=120))
    text = output.getvalue()
    for shown in ("base", "0.002", "prepare_data", "8.1", "rollout", "11,000", "/data/export/abc"):
        assert shown in text


def test_table_shows_what_the_checks_found() -> None:
    found = {
        "check": "truncation",
        "began": 12,
        "ended": None,
        "message": "40% of the responses are cut off",
        "remedy": "raise it",
    }
    output = io.StringIO()
    for findings in ([found], []):
        console = Console(file=output, width=120, soft_wrap=True)
        print_summary({**SUMMARY, "diagnostics": findings}, console=console)
    text = output.getvalue()
    for shown in (
        "truncation",
        "iterations 12 to end",
        "40% of the responses are cut off",
        "raise it",
    ):
        assert shown in text
    assert "Diagnostics: nothing to report" in text


def test_table_tells_what_was_lost_where_anything_was() -> None:
    lost = {
        "engines_replaced": 2.0,
        "engines_replaced_s": 12.4,
        "restarts": 1.0,
        "restarts_s": 40.2,
        "productive_share": 0.971,
    }
    output = io.StringIO()
    console = Console(file=output, width=120, soft_wrap=True)
    print_summary({**SUMMARY, "lost_time": lost}, console=console)
    said = "97.1% (engines replaced: 2, 12 s; restarts: 1, 40 s)"
    assert said in output.getvalue()
    print_summary({**SUMMARY, "lost_time": None}, console=console)
    assert output.getvalue().count("Productive share") == 1


def test_table_tells_memory_beside_what_was_planned() -> None:
    output = io.StringIO()
    held = {
        "actor": {"measured": 3.214, "planned": 3.5},
        "critic": {"measured": 1.0, "planned": None},
    }
    console = Console(file=output, width=120, soft_wrap=True)
    print_summary({**SUMMARY, "memory_gib": held}, console=console)
    assert "Memory of a rank of the actor: 3.21 GiB, planned 3.50\n" in output.getvalue()
    assert "Memory of a rank of the critic: 1.00 GiB\n" in output.getvalue()
