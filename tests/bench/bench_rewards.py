"""Reward functions of the benchmark."""

import time


def hang_or_not(prompt: str, response: str) -> float:
    """Hang where the response says so."""
    if response == "hang":
        time.sleep(1000)
    return 1.0


def busy(prompt: str, response: str) -> float:
    """Take 20 ms of processor time."""
    del prompt, response
    end = time.process_time() + 0.02
    while time.process_time() < end:
        pass
    return 1.0
