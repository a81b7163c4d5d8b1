"""A run that waits says what for: silence looks like a hang."""

import logging
import time

from rlcore.cluster.progress import activity
from tasks.runtime.pulse import pulse


def test_a_long_silence_is_broken_by_what_is_running() -> None:
    lines: list[str] = []
    with pulse(lines.append, silence_s=0.2), activity("the start of rollout engine 2 of 2"):
        time.sleep(0.7)
    assert 1 <= len(lines) <= 3
    assert lines[0].startswith("the start of rollout engine 2 of 2 is running, ")


def test_a_run_that_logs_and_one_that_does_nothing_are_left_alone() -> None:
    lines: list[str] = []
    logger = logging.getLogger("prefect.flow_runs")
    level = logger.level
    logger.setLevel(logging.INFO)
    try:
        with pulse(lines.append, silence_s=0.4):
            time.sleep(0.6)
            with activity("stage sft"):
                for _ in range(8):
                    logger.info("sft step")
                    time.sleep(0.1)
    finally:
        logger.setLevel(level)
    assert not lines
