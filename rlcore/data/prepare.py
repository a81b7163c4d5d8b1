"""The prepare_data stage: sources -> Prompts, Demonstrations and Rejects."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

from rlcore.data.chat import Known
from rlcore.data.filters import (
    apply_filters,
    fit_demonstrations,
    fit_prompts,
    special_token_rejects,
)
from rlcore.data.read import read_rows
from rlcore.data.rows import Row
from rlcore.data.screen import check_rejects, screen_demonstrations, screen_prompts
from rlcore.data.split import NO_DEMONSTRATIONS, is_validation, no_prompts
from rlcore.data.write import demonstrations_table, prompts_table, rejects_table
from rlcore.envs.process import describe
from schemas.data import DataSection
from schemas.environment import EnvironmentSection
from schemas.errors import UserError
from schemas.recipe import Recipe

if TYPE_CHECKING:
    from rlcore.models.tokenizer import ChatTokenizer


@dataclass(frozen=True, slots=True)
class PreparedData:
    """``tables``: prompts, demonstrations, rejects. ``summary``: counts per split, subset and
    reject reason, and lengths in tokens, JSON-ready (``rlcore/data/datasheet.py`` reads it)."""

    tables: dict[str, pl.DataFrame]
    summary: dict[str, Any]

    def sentence(self) -> str:
        """Return the counts in one line: prompts and demonstrations by split, rejected rows."""
        prompts, demonstrations = self.tables["prompts"], self.tables["demonstrations"]
        rejects = self.tables["rejects"]
        reasons = ", ".join(
            f"{count:,} {reason}"
            for reason, count in rejects["reason"].value_counts(sort=True).rows()
        )
        return (
            f"prepared {_by_split(prompts)} prompts and {_by_split(demonstrations)} demonstrations;"
            f" {rejects.height:,} rows rejected{f' ({reasons})' if reasons else ''}"
        )


def prepare_for(recipe: Recipe, tokenizer: "ChatTokenizer") -> PreparedData:
    """Make the tables of a run of ``recipe``.

    Raises ``UserError`` as ``prepare`` does, and where there are no validation prompts.
    """
    prepared = prepare(
        recipe.data,
        tokenizer=tokenizer,
        seed=recipe.seed,
        environment=recipe.environment,
        sft_max_tokens=recipe.sft.max_tokens if recipe.sft.enabled else None,
    )
    if "validation" not in prepared.tables["prompts"]["split"]:
        raise UserError(no_prompts("validation"))
    return prepared


def prepare(
    data: DataSection,
    *,
    tokenizer: "ChatTokenizer",
    seed: int,
    sft_max_tokens: int | None,
    environment: EnvironmentSection | None = None,
) -> PreparedData:
    """Make the tables, encoded by ``tokenizer``; equal arguments and sources give equal bytes.

    ``environment``: makes rows of its kind, and has the tools that the template shows.
    ``sft_max_tokens`` None: no SFT follows, so there may be no demonstrations. Raises ``UserError``
    for a source or filter that cannot be used, too many rejected rows, or a split that ends empty.
    """
    rows, rejects, totals = read_rows(data, seed, environment)
    tools = () if environment is None else describe(environment).tools
    before = Counter(row.split for row in rows if row.scored)
    rows, filtered = apply_filters(rows, data.filters)
    rejects += filtered
    check_rejects(rejects, totals, data)
    rows, special = special_token_rejects(tokenizer, rows)
    known: Known = {}  # a demonstration begins with the text of its prompt
    scored = [row for row in rows if row.scored]
    prompts, long = fit_prompts(tokenizer, scored, data, tools, known)
    # A row whose prompt cannot be used has no use as a demonstration either; nor has a test row.
    unusable = {(reject.source, reject.row) for reject in long}
    solved = [row for row in rows if row.solution and row.split != "test"]
    solved = [row for row in solved if (row.source, row.index) not in unusable]
    demonstrations, refused = fit_demonstrations(tokenizer, solved, sft_max_tokens, tools, known)
    del known
    held = {
        split: [row.prompt_text for row, _ in prompts if row.split == split]
        for split in ("test", "validation")
    }
    prompts, repeated = screen_prompts(prompts, held, data)
    leaked = {(reject.source, reject.row) for reject in repeated if reject.reason == "contaminated"}
    demonstrations = [d for d in demonstrations if (d[0].source, d[0].index) not in leaked]
    demonstrations, repeated_demonstrations = screen_demonstrations(demonstrations, held, data)
    rejects += [*special, *long, *refused, *repeated, *repeated_demonstrations]
    check_rejects(rejects, totals, data)
    _split_validation([row for row, _ in [*prompts, *demonstrations]], data.validation_fraction)
    _check_splits(before, prompts)
    if sft_max_tokens is not None and not any(r.split == "train" for r, _ in demonstrations):
        raise UserError(NO_DEMONSTRATIONS)
    tables = {
        "prompts": prompts_table(prompts),
        "demonstrations": demonstrations_table(demonstrations),
        "rejects": rejects_table(rejects),
    }
    return PreparedData(tables, _summary(tables, totals, len(tokenizer)))


def _split_validation(rows: list[Row], fraction: float) -> None:
    for row in rows:
        if row.split == "train" and is_validation(row.prompt, fraction):
            row.split = row.subset = "validation"


def _check_splits(before: Counter[str], prompts: Sequence[tuple[Row, list[int]]]) -> None:
    left = Counter(row.split for row, _ in prompts)
    for split in ("train", "validation", "test"):
        if before[split] and not left[split]:
            raise UserError(
                f"data: none of {before[split]} {split} prompts is left after preparation; loosen"
                " data.filters, data.max_prompt_tokens or data.validation_fraction"
            )
    for split in ("train", "test"):
        if not left[split]:
            raise UserError(no_prompts(split))


def _summary(
    tables: dict[str, pl.DataFrame], totals: dict[str, int], vocab_size: int
) -> dict[str, Any]:
    prompts, demonstrations = tables["prompts"], tables["demonstrations"]
    lengths = {
        "prompt_tokens": prompts["prompt_ids"].list.len().to_numpy(),
        "demonstration_tokens": demonstrations["token_ids"].list.len().to_numpy(),
    }
    return {
        "rows_read": totals,
        "prompts": _counts(prompts, ["split", "data_source", "subset"]),
        "demonstrations": _counts(demonstrations, ["split"]),
        "rejects": _counts(tables["rejects"], ["source", "reason"]),
        "vocab_size": vocab_size,
        **{
            f"{name}_mean": round(float(s.mean()), 2) if len(s) else 0.0
            for name, s in lengths.items()
        },
        **{
            f"{name}_p95": int(np.quantile(s, 0.95, method="higher")) if len(s) else 0
            for name, s in lengths.items()
        },
        **{f"{name}_max": int(s.max(initial=0)) for name, s in lengths.items()},
    }


def _by_split(frame: pl.DataFrame) -> str:
    counts = frame["split"].value_counts(sort=True).rows()
    return " + ".join(f"{count:,} {split}" for split, count in counts) or "no"


def _counts(frame: pl.DataFrame, columns: list[str]) -> dict[str, int]:
    """Return {values joined by "/": rows}, in order of first appearance."""
    groups = frame.group_by(columns, maintain_order=True).len()
    return {"/".join(row[:-1]): row[-1] for row in groups.iter_rows()}
