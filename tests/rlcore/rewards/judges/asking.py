"""Judges, rows and functions for the tests of judges."""

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

from rlcore.rewards.judge import JudgeFunction
from rlcore.rewards.judges.setup import JudgeSetup
from rlcore.rewards.types import RewardRow
from schemas.judges import Judge

TEMPLATE = "Question: {prompt}\nIs the response right?\n{response}"


def judge(url: str = "http://127.0.0.1:1/v1", **keys: Any) -> Judge:
    """Return a judge with quick limits; ``limits`` adds to them."""
    limits = {"timeout_s": 20.0, "retries": 2, **keys.pop("limits", {})}
    given = {"url": url, "model": "m", "template": TEMPLATE, "max_calls": 1000, "limits": limits}
    if "scale" not in keys and "{response_a}" not in keys.get("template", ""):
        given["choices"] = {"right": 1.0, "wrong": 0.0}
    return Judge.model_validate(given | keys)


def setup(folder: Path, *judges: Judge, run: str = "run") -> JudgeSetup:
    """Return the setup of one judge, or of several, whose cache is in ``folder``."""
    return JudgeSetup({f"j{i}": each for i, each in enumerate(judges)}, folder, run)


def function(folder: Path, one: Judge, run: str = "run") -> JudgeFunction:
    """Return the term of the reward that asks ``one``."""
    return JudgeFunction("j0", setup(folder, one, run=run))


def rows(
    *responses: str, prompt: str = "1 + 1?", ground_truth: str | None = "2"
) -> list[RewardRow]:
    """Return a row per response, t0, t1, ..."""
    return [
        RewardRow(f"t{i}", "s", text, ground_truth, {}, "stop", 1, prompt=prompt)
        for i, text in enumerate(responses)
    ]


def calls_made(cache: Path, judge: str = "j") -> int:
    """Return how many calls "run" has made by the file ``cache``."""
    with closing(sqlite3.connect(cache)) as file:
        made = file.execute("SELECT made FROM calls WHERE run = 'run' AND judge = ?", (judge,))
        return sum(row[0] for row in made)
