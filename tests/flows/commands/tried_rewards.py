"""Reward functions that ``reward try`` is tried on: right, broken and slow ones."""

import math
import time
from typing import Any


def mixed(prompt: str, response: str) -> Any:
    """No multiple of a power of two, so that any other sum has other bits."""
    return math.sin(len(response)) / 3 + 0.1 * prompt.count("1")


def flipped(prompt: str, response: str) -> Any:
    return -mixed(prompt, response)


def constant(prompt: str, response: str) -> Any:
    return 0.5


def same_for_a_prompt(prompt: str, response: str) -> Any:
    return float(prompt.count("1") + prompt.count("2"))


def hanging(prompt: str, response: str) -> Any:
    time.sleep(600)


def slow_on_some(prompt: str, response: str) -> Any:
    if "2" in prompt:
        time.sleep(600)
    return mixed(prompt, response)


def words(prompt: str, response: str) -> Any:
    return "1.0"


def nothing(prompt: str, response: str) -> Any:
    return None


def half_broken(prompt: str, response: str) -> Any:
    return 1.0 if len(response) % 2 else 1 / 0


def length(prompt: str, response: str) -> Any:
    return 0.01 * len(response)


def length_option(prompt: str, response: str, factor: float) -> float:
    return factor * len(response)


def of_group(rows: list[dict[str, Any]]) -> list[float]:
    best = max(len(row["solution"]) for row in rows)
    return [len(row["solution"]) / best for row in rows]


def seven(data_source: str, solution: str, ground_truth: str, extra_info: Any) -> Any:
    right = float(solution.split()[-1] == ground_truth)
    return {"score": right, "acc": right == 1.0}


def not_seven(data_source: str, solution: str, ground_truth: str, extra_info: Any) -> Any:
    return 1.0 - seven(data_source, solution, ground_truth, extra_info)["score"]


def escape(prompt: str, response: str) -> Any:
    raise ValueError("red \x1b[31m and\nanother line")
