"""Preferences of two-token prompts, made by hand."""

import json
from pathlib import Path

import numpy as np
import polars as pl

from rlcore.supervised.preferences import Ranked, preferences_table
from rlcore.supervised.ranking import RANKS
from schemas.outcomes import LEVELS
from schemas.tables import PREFERENCES

VOCABULARY = 61


def ranked(uid: str, levels: list[str], *, split: str = "train") -> list[Ranked]:
    """One prompt with a response of each level, in the order given."""
    return [
        Ranked(uid, split, "sums", sample, [], level, RANKS[level], level)
        for sample, level in enumerate(levels)
    ]


def make_preferences(num_prompts: int, *, split: str = "train", seed: int = 0) -> pl.DataFrame:
    """Prompts with 4 to 9 responses, whose last token determines the level, so that there is
    something to learn."""
    generator = np.random.default_rng(seed)
    rows, token_ids = [], []
    for number in range(num_prompts):
        levels = [LEVELS[i] for i in generator.integers(0, 3, generator.integers(4, 10))]
        rows += ranked(f"{split}-{number}", levels, split=split)
        for level in levels:
            middle = generator.integers(10, VOCABULARY, generator.integers(1, 8)).tolist()
            token_ids.append([5, 6, *middle, 1 + LEVELS.index(level)])
    return PREFERENCES.validate(preferences_table(rows, token_ids, [2] * len(rows)))


def write(path: Path, rows: list[dict]) -> Path:
    """Write JSONL; return ``path``."""
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def solutions(count: int) -> list[dict]:
    """Rows in the form of GSM8K's example model solutions."""
    return [
        {
            "question": f"What is {n} + 1?",
            "ground_truth": f"{n}+1={n + 1}\nA: {n + 1}",
            "6b_finetuning": {"is_correct": True, "solution": f"{n}+1={n + 1}\nA: {n + 1}"},
            "6b_verification": {"is_correct": False, "solution": f"{n}+1={n}\nA: {n}"},
            "175b_finetuning": {"is_correct": False, "solution": f"{n}+1=11111111"},
            "175b_verification": {"is_correct": False, "solution": f"{n}+1=9\nA: 9 or so"},
        }
        for n in range(20, 20 + count)
    ]
