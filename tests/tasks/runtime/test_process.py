"""A mistake in a run is one sentence in its log, and not ninety lines for each flow it passes."""

import logging
from collections.abc import Iterator

import pytest
from prefect import flow, task

from rlcore.recipes.redaction import redact_logs
from schemas.errors import UserError
from tasks.runtime.process import tell_mistakes_once

pytestmark = pytest.mark.timeout(60)
SENTENCE = "rl.iterations = -1 is not at least 1; give a number of iterations"


@pytest.fixture
def factory() -> Iterator[None]:
    before = logging.getLogRecordFactory()
    redact_logs()
    tell_mistakes_once()
    tell_mistakes_once()
    yield
    logging.setLogRecordFactory(before)


@task
def planned() -> None:
    """Refuse."""
    raise UserError(SENTENCE)


@flow
def inner() -> None:
    """Call the task."""
    planned()


@flow
def outer() -> None:
    """Call the flow."""
    inner()


def test_a_mistake_is_told_once_and_without_a_traceback(
    prefect_server: str, factory: None, caplog: pytest.LogCaptureFixture
) -> None:
    del prefect_server, factory
    with pytest.raises(UserError, match="is not at least 1"):
        outer()
    assert "Traceback" not in caplog.text
    said = [record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR]
    again = "Ended by the error above"
    assert said == [SENTENCE, "Finished in state Failed", again, again]


def test_other_errors_keep_their_traceback(
    prefect_server: str, factory: None, caplog: pytest.LogCaptureFixture
) -> None:
    del prefect_server, factory

    @flow
    def breaks() -> None:
        raise ValueError("a defect of ours")

    with pytest.raises(ValueError, match="a defect"):
        breaks()
    assert "Traceback" in caplog.text
    assert "a defect of ours" in caplog.text
