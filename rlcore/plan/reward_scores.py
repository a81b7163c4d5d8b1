"""Rows scored by one function as the reward phase scores them, in processes of this machine."""

import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import polars as pl

from rlcore.cluster.in_process import InProcessCluster
from rlcore.cluster.types import Placement
from rlcore.plan.reward_rows import RewardBatch
from rlcore.rewards.judges.setup import JudgeSetup, judge_setup, prepare_cache
from rlcore.rewards.pool import RewardPool
from rlcore.rewards.registry import check_functions
from rlcore.rewards.types import prompt_text
from rlcore.rl.reward import score_rollouts
from schemas.errors import UserError, did_you_mean
from schemas.names import ENVIRONMENT, JUDGE, is_file, is_model, split_function
from schemas.outcomes import Outcome
from schemas.recipe import Recipe
from schemas.rl import RewardFunction

WORKER = "rlcore.rewards.worker:RewardWorker"
PROBED = 8  # rows after which a function that has answered none in time is given up


@dataclass(frozen=True, slots=True)
class Tried:
    """``rows``: a row per scored response: the columns of the Rewards table, group (batch and
    prompt), prompt, response, tokens (sampled ones) and prompted (``RewardBatch.prompted``).
    ``untried``: rows left out because all before them timed out; ``foreign``: of data that the
    function does not score."""

    rows: pl.DataFrame
    untried: int
    foreign: int


def function_of(
    recipe: Recipe, name: str, options: Mapping[str, Any], *, batch: bool
) -> RewardFunction:
    """Return the function ``name`` alone, at weight 1: as ``recipe`` has it where it is one of its
    own and nothing else is said of it here.

    Raises UserError for what no process scores by, and for a judge that the recipe has not.
    """
    if is_model(name) or name == ENVIRONMENT:
        raise UserError(
            f"'{name}' is no function: a run's models and its environment score only while it runs;"
            " name a function"
        )
    own = next((f for f in recipe.reward.functions if _place(f.name) == _place(name)), None)
    if own is not None and not options and not batch:
        return own.model_copy(update={"weight": 1.0})
    if name == JUDGE and options.get("judge") not in recipe.judges:
        given = str(options.get("judge", ""))
        raise UserError(
            f"--option judge={given}: recipe '{recipe.name}' has no judge of that name; it has"
            f" {', '.join(recipe.judges) or 'none'}{did_you_mean(given, recipe.judges)}"
        )
    with _without_place():
        check_functions([(name, 1.0, options)])
    return RewardFunction(name=name, options=dict(options), batch=batch)


def _place(name: str) -> str:
    """Return ``name``, that of a file whole: a recipe that was recorded holds it so."""
    module, function = split_function(name)
    return f"{Path(module).expanduser().resolve()}:{function}" if is_file(module) else name


@contextmanager
def _without_place() -> Iterator[None]:
    """Take the place in a recipe off a UserError: a function on the command line has none."""
    try:
        yield
    except UserError as error:
        raise UserError(str(error).replace("reward.functions[0].", "")) from None


def score(
    recipe: Recipe,
    function: RewardFunction,
    batches: Sequence[RewardBatch],
    log: Callable[[str], None],
) -> Tried:
    """Return what ``function`` says of the rows of ``batches``, under the limits of ``recipe``.

    No share of failures ends it, but a function that answers none of its first ``PROBED`` rows in
    time is asked no more. The store is read only: answers of judges that it holds are asked for
    nowhere, new ones are kept nowhere. Raises UserError when the function cannot be loaded.
    """
    section = recipe.reward.model_copy(
        update={
            "functions": (function,),
            "offset": 0.0,
            "max_error_fraction": 1.0,
            "max_timeout_fraction": 1.0,
        }
    )
    recipe = recipe.model_copy(update={"reward": section})
    with tempfile.TemporaryDirectory() as scratch:
        judges = judge_setup(recipe)
        if judges is not None:
            judges = replace(judges, folder=Path(scratch))
            prepare_cache(judges, recipe.store, log)
        cluster = InProcessCluster()
        try:
            with _without_place():
                return _scored(_pool(cluster, recipe, judges), function, batches)
        except RuntimeError as error:
            raise UserError(f"'{function.name}' cannot be tried: {error}") from None
        finally:
            cluster.close()


def recorded(batches: Sequence[RewardBatch]) -> pl.DataFrame | None:
    """Return what was stored of the rows of ``batches``, as ``Tried.rows``; None where nothing
    was."""
    found = []
    for number, batch in enumerate(batches):
        if batch.recorded is not None:
            ids = batch.rollouts.select("trajectory_id")
            rewards = ids.join(
                batch.recorded, on="trajectory_id", how="left", maintain_order="left"
            )
            found.append(_described(batch, rewards, number))
    return pl.concat(found) if found else None


def same_rows(one: pl.DataFrame, other: pl.DataFrame) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Return the rows that both hold (``Tried.rows``), in one order."""
    name = ["group", "trajectory_id"]
    kept = one.join(other.select(name), on=name, how="semi", maintain_order="left")
    return kept, kept.select(name).join(other, on=name, how="left", maintain_order="left")


def _pool(cluster: InProcessCluster, recipe: Recipe, judges: JudgeSetup | None) -> RewardPool:
    workers = [
        cluster.spawn(WORKER, recipe.reward, judges, name=f"reward-{index}", placement=Placement())
        for index in range(recipe.hardware.reward_workers)
    ]
    return RewardPool(
        workers,
        recipe.reward,
        timeout_s=recipe.hardware.timeouts.reward_s,
        judges_s=None if judges is None else judges.longest_s,
    )


def _scored(pool: RewardPool, function: RewardFunction, batches: Sequence[RewardBatch]) -> Tried:
    own = [_own_rows(batch, function) for batch in batches]
    foreign = sum(b.rollouts.height for b in batches) - sum(b.rollouts.height for b in own)
    chunks = _probe_first([batch for batch in own if batch.rollouts.height])
    if not chunks:
        raise UserError(
            f"'{function.name}' scores none of the rows: they are of other data sources or styles;"
            " try it on other rows"
        )
    found: list[pl.DataFrame] = []
    for group, chunk in chunks:
        rewards = score_rollouts(chunk.rollouts, chunk.prompts, pool)
        found.append(_described(chunk, rewards, group))
        if sum(frame.height for frame in found) >= PROBED and all(map(_all_late, found)):
            break
    rows = pl.concat(found)
    left = sum(chunk.rollouts.height for _, chunk in chunks) - rows.height
    return Tried(rows, untried=left, foreign=foreign)


def _all_late(rows: pl.DataFrame) -> bool:
    return rows.filter(pl.col("outcome") != Outcome.TIMEOUT.value).is_empty()


def _own_rows(batch: RewardBatch, function: RewardFunction) -> RewardBatch:
    columns = batch.prompts.select("uid", "data_source", "reward_style").iter_rows()
    uids = [uid for uid, source, style in columns if function.scores(source, style)]
    return replace(batch, rollouts=batch.rollouts.filter(pl.col("uid").is_in(uids)))


def _probe_first(batches: Sequence[RewardBatch]) -> list[tuple[int, RewardBatch]]:
    """Return ``batches`` with their numbers, the first in two parts: the prompts that hold its
    first ``PROBED`` rows, and the others."""
    if not batches:
        return []
    groups, probe = batches[0].groups(), []
    while groups and sum(group.rollouts.height for group in probe) < PROBED:
        probe.append(groups.pop(0))
    parts = [
        replace(batches[0], rollouts=pl.concat([group.rollouts for group in part]))
        for part in (probe, groups)
        if part
    ]
    return [*((0, part) for part in parts), *enumerate(batches[1:], start=1)]


def _described(batch: RewardBatch, rewards: pl.DataFrame, number: int) -> pl.DataFrame:
    texts = {
        uid: prompt_text(messages)
        for uid, messages in batch.prompts.select("uid", "prompt").iter_rows()
    }
    ids, uids = batch.rollouts["trajectory_id"], batch.rollouts["uid"]
    return rewards.with_columns(
        group=pl.Series([f"{number}/{uid}" for uid in uids], dtype=pl.String),
        prompt=pl.Series([texts[uid] for uid in uids], dtype=pl.String),
        response=batch.rollouts["response"],
        tokens=batch.rollouts["loss_mask"].list.sum().cast(pl.Int64),
        prompted=pl.Series([(batch.prompted or {}).get(i) for i in ids], dtype=pl.String),
    )
