"""DPO and KTO beside TRL's trainers: SmolLM2, the same rows in the same order, batch, learning rate
and threads, in float32; what each step reports, and how long it takes.

The rows are example solutions of GSM8K (``$GSM8K_DIR``), a right and a wrong one a question. Both
sides know the reference's log-probs before the first step. For KTO, TRL is given the responses to
other prompts that ours takes. TRL runs in ``.venv-trl``, which the first run makes.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import polars as pl

from flows.paths import RECIPES, ROOT
from rlcore.models.smollm2 import FOLDER, write_smollm2
from rlcore.models.tokenizer import load_tokenizer
from rlcore.recipes.load import load_recipe
from rlcore.supervised.loop import batch_rows
from rlcore.supervised.preference import other_sequences
from rlcore.supervised.preference_files import OF_PREFERENCE, encode_file
from rlcore.supervised.preferences import fit
from schemas.names import PREFERENCE
from tests.bench.measures import Measure
from tests.bench.peers.processes import Timed, by_trl, ours

PAIRS, MAX_TOKENS, WARMUP = 200, 320, 2
CURVES = ("loss", "rewards/chosen", "rewards/rejected", "rewards/margins")
OURS, THEIRS = "ours", "TRL"


@dataclass(frozen=True, slots=True)
class Job:
    """What one process does. ``rows_file``: JSONL; ``order``: [steps x batch] row numbers in the
    order of the steps; ``batch``: rows of a step, for DPO pairs."""

    model: str
    rows_file: str
    folder: str
    algorithm: str
    order: list[int]
    batch: int
    lr: float = 5e-6
    threads: int = 2
    micro_batch_tokens: int = 2048
    max_tokens: int = MAX_TOKENS


def measures() -> list[Measure]:
    """Return, of each algorithm, the largest difference of a curve and the ratio of seconds a step;
    about an hour."""
    found = []
    with TemporaryDirectory() as name:
        folder = Path(name)
        model = ROOT / FOLDER
        if not model.is_dir():
            write_smollm2(model)
        for algorithm, batch in (("dpo", 8), ("kto", 16)):
            job = asdict(_job(folder, model, algorithm, batch))
            sides = {
                OURS: ours("tests.bench.peers.ours_preference", job),
                THEIRS: by_trl("trl_preference.py", job),
            }
            found += figures(algorithm, sides)
    return found


def _job(folder: Path, model: Path, algorithm: str, batch: int) -> Job:
    """Write the rows of ``algorithm``; return the job on them, one epoch."""
    pairs = _pairs(model)
    rows = pairs if algorithm == "dpo" else _single(pairs)
    path = folder / f"{algorithm}.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    order = [
        int(row)
        for step in range(len(rows) // batch)
        for row in batch_rows(len(rows), batch, step=step, seed=0, stage=PREFERENCE)
    ]
    return Job(str(model), str(path), str(folder / algorithm), algorithm, order, batch)


def _pairs(model: Path) -> list[dict[str, Any]]:
    """Return the first right and the first wrong solution of each of PAIRS questions, as tokens."""
    recipe = load_recipe("smollm2-dpo", {"preference.data.limit": None}, directory=RECIPES)
    assert recipe.preference is not None, "the recipe has the stage"
    data, tokenizer = recipe.preference.data, load_tokenizer(model)
    table = fit(encode_file(data, recipe.data, tokenizer, OF_PREFERENCE), MAX_TOKENS).table
    found = []
    for _, rows in table.group_by("uid", maintain_order=True):
        right = rows.filter(pl.col("rank") == 1).head(1).to_dicts()
        wrong = rows.filter(pl.col("rank") > 1).head(1).to_dicts()
        if right and wrong:
            start = right[0]["prompt_tokens"]
            found.append(
                {
                    "prompt_ids": right[0]["token_ids"][:start],
                    "chosen_ids": right[0]["token_ids"][start:],
                    "rejected_ids": wrong[0]["token_ids"][start:],
                }
            )
    assert len(found) >= PAIRS, f"{len(found)} questions have a right and a wrong solution"
    return found[:PAIRS]


def _single(pairs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return each response as a row of its own, with the response to another prompt that KTO's
    reference point reads."""
    rows = [
        {"prompt_ids": pair["prompt_ids"], "completion_ids": pair[side], "label": side[0] == "c"}
        for pair in pairs
        for side in ("chosen_ids", "rejected_ids")
    ]
    others = other_sequences(table_of(rows), MAX_TOKENS)
    assert others is not None, "there are several prompts"
    for row, ids in zip(rows, others.token_ids, strict=True):
        row["KL_completion_ids"] = ids[len(row["prompt_ids"]) :].tolist()
    return rows


def table_of(rows: list[dict[str, Any]]) -> pl.DataFrame:
    """Return pairs, or single responses, as what ``PreferenceBatches`` reads."""
    flat = [
        (uid, row["prompt_ids"], row[side], 1 if right else 2)
        for uid, row in enumerate(rows)
        for side, right in (
            (("chosen_ids", True), ("rejected_ids", False))
            if "chosen_ids" in row
            else (("completion_ids", row["label"]),)
        )
    ]
    return pl.DataFrame(
        {
            "uid": [f"{uid:06d}" for uid, *_ in flat],
            "split": ["train"] * len(flat),
            "sample": pl.Series([place % 2 for place in range(len(flat))], dtype=pl.Int32),
            "token_ids": pl.Series([p + r for _, p, r, _ in flat], dtype=pl.List(pl.Int32)),
            "prompt_tokens": pl.Series([len(p) for _, p, _, _ in flat], dtype=pl.Int32),
            "rank": pl.Series([rank for *_, rank in flat], dtype=pl.Int32),
        }
    )


def figures(algorithm: str, sides: Mapping[str, Timed]) -> list[Measure]:
    """Return the largest gap of each curve, the last margin, and our speed over TRL's."""
    ours_, theirs = sides[OURS].steps, sides[THEIRS].steps
    assert len(ours_) == len(theirs), (len(ours_), len(theirs))
    found = []
    for name in CURVES:
        gap = max(abs(a[name] - b[name]) for a, b in zip(ours_, theirs, strict=True))
        last = f"last {ours_[-1][name]:.4f} and {theirs[-1][name]:.4f}"
        found.append(
            Measure(f"{algorithm}: {name}, largest gap", round(gap, 5), most=0.01, note=last)
        )
    seconds = {
        side: median(step["seconds"] for step in run.steps[WARMUP:]) for side, run in sides.items()
    }
    note = ", ".join(f"{side} {value:.2f} s" for side, value in seconds.items())
    ratio = round(seconds[THEIRS] / seconds[OURS], 2)
    name = f"{algorithm}: our steps/s over TRL's"
    found.append(Measure(name, ratio, least=1.0, note=note, is_speedup=True))
    for side, run in sides.items():
        peak = round(run.peak_bytes / 2**30, 2)
        found.append(Measure(f"{algorithm}: {side}, peak memory, GiB", peak))
    return found
