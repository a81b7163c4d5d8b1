"""The process that small runs are forked from loads while the first tests run."""

import pytest

from tests.flows import small_run
from tests.processes import starts_ahead


def pytest_collection_finish(session: pytest.Session) -> None:
    """Load it when a selected test is of a module that runs the pipeline."""
    runs = {"run_small", "run_recipe"}
    modules = {item.module for item in session.items if isinstance(item, pytest.Function)}
    needed = any(runs & vars(module).keys() for module in modules)
    if needed and starts_ahead() and not session.config.option.collectonly:
        small_run.load()
