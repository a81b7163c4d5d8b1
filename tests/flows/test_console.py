"""`rl-pipeline run` prints the run's lines: no state of every task, no traceback."""

import logging

import pytest

from flows.console import RunConsole, is_shown


def record(name: str, message: str, level: int = logging.INFO) -> logging.LogRecord:
    return logging.LogRecord(name, level, "file", 1, message, (), None)


def test_a_line_is_its_time_and_its_first_line() -> None:
    console = RunConsole()
    line = console.format(record("prefect.flow_runs", "3 of 4 prompts are never right\nuid a, b"))
    assert line[8:] == " 3 of 4 prompts are never right"
    warned = record("rlcore.cluster", "engine died", logging.WARNING)
    assert console.format(warned)[8:] == " warning: engine died"


def test_an_error_costs_one_line_and_not_its_traceback() -> None:
    console = RunConsole()
    try:
        raise ValueError("x" * 3)
    except ValueError as error:
        failed = record("prefect.task_runs", "the store is full", logging.ERROR)
        failed.exc_info = (ValueError, error, error.__traceback__)
    assert console.format(failed)[8:] == " error: the store is full"


@pytest.mark.parametrize(
    ("name", "message", "shown"),
    [
        ("prefect.flow_runs", "iteration 1/3  reward 0.1", True),
        ("rlcore.learner.pool", "rank 1 is slow", True),
        ("prefect.task_runs", "Finished in state Completed()", False),
        ("prefect.flow_runs", "Encountered exception during execution: ...", False),
        ("prefect.events", "connected", False),
    ],
)
def test_only_the_runs_own_lines_are_shown(name: str, message: str, shown: bool) -> None:
    assert is_shown(name, message) == shown
    assert bool(RunConsole().filter(record(name, message))) == shown
