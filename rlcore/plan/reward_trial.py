"""A reward function, tried on what a run has sampled or on answers of demonstrations: scored as in
the reward phase, in processes of this machine."""

import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any

import polars as pl

from rlcore.cluster.in_process import InProcessCluster
from rlcore.cluster.types import Placement
from rlcore.data.filters import apply_filters
from rlcore.data.read import read_rows, training_texts
from rlcore.data.rows import Row
from rlcore.models.base import base_tokenizer
from rlcore.models.stop_tokens import closing_or_eos
from rlcore.rewards.judges.setup import judge_setup, prepare_cache
from rlcore.rewards.pool import RewardPool
from rlcore.rewards.registry import check_functions
from rlcore.rewards.types import prompt_text
from rlcore.rl.reward import score_rollouts
from rlcore.store.reader import ArtifactReader
from schemas.artifacts import ArtifactRef
from schemas.errors import UserError, did_you_mean
from schemas.names import ENVIRONMENT, JUDGE, is_file, is_model, split_function
from schemas.outcomes import FinishReason, Outcome
from schemas.recipe import Recipe
from schemas.rl import RewardFunction
from schemas.table_list import MESSAGES

OWN, OTHER = "own", "another"  # prompt that an answer of a demonstration is given to
WORKER = "rlcore.rewards.worker:RewardWorker"
PROBED = 8  # rows after which a function that has answered none in time is given up


@dataclass(frozen=True, slots=True)
class RewardBatch:
    """Rows that the reward phase scores in one call.

    ``rollouts``, ``prompts``: what ``score_rollouts`` takes. ``recorded``: the Rewards table that
    the run stored for them and others; None where there is none. ``prompted``: by trajectory_id,
    ``OWN`` or ``OTHER``, where the rows are of demonstrations.
    """

    rollouts: pl.DataFrame
    prompts: pl.DataFrame
    recorded: pl.DataFrame | None = None
    prompted: dict[str, str] | None = None

    def groups(self) -> list["RewardBatch"]:
        """Return a batch per prompt, in order."""
        parts = self.rollouts.partition_by("uid", maintain_order=True)
        return [replace(self, rollouts=part) for part in parts]


@dataclass(frozen=True, slots=True)
class RewardRows:
    """Rows to score; ``described`` says what they are."""

    batches: list[RewardBatch]
    described: str


def stored_rows(
    store: ArtifactReader, keys: Sequence[str], *, most: int | None, name: str
) -> RewardRows:
    """Return about ``most`` (None: all) of the rows that an RL run has sampled, as the rollouts
    ``keys``: whole prompts, from rounds that are spread evenly over the run.

    ``name``: the run in errors. Raises UserError where there are none, ArtifactError for damage.
    """
    refs = [ref for key in keys if (ref := store.find("rollouts", key))]
    total = sum(ref.rows["rollouts"] for ref in refs)
    if not total:
        raise UserError(
            f"the run '{name}' has no stored rollouts; try the reward on its recipe, or on a run"
            " that has finished an iteration"
        )
    wanted = total if most is None else most
    batches = [] if wanted >= total else list(_spread(store, refs, wanted))
    batches = batches or [_read(store, ref) for ref in refs]
    count = sum(batch.rollouts.height for batch in batches)
    first, last = (batches[i].rollouts["iteration"][0] for i in (0, -1))
    described = f"{count:,} of {total:,} rollouts of {name}, iterations {first} to {last}"
    return RewardRows(batches, described)


def _spread(
    store: ArtifactReader, refs: Sequence[ArtifactRef], wanted: int
) -> Iterator[RewardBatch]:
    size = _read(store, refs[0]).groups()[0].rollouts.height
    prompts = max(1, wanted // size)
    rounds = min(len(refs), prompts)
    # From the newest backwards, so that a single round is that of the latest policy.
    newest, apart = len(refs) - 1, (len(refs) - 1) / max(1, rounds - 1)
    places = sorted(newest - round(number * apart) for number in range(rounds))
    for number, place in enumerate(places):
        share = prompts * (number + 1) // rounds - prompts * number // rounds
        groups = _read(store, refs[place]).groups()[:share]
        yield replace(groups[0], rollouts=pl.concat([group.rollouts for group in groups]))


def _read(store: ArtifactReader, ref: ArtifactRef) -> RewardBatch:
    prompts = store.table(store.manifest(ref).parents["dataset"], "prompts")
    rewards = store.find("rewards", ref.key)
    return RewardBatch(
        store.table(ref, "rollouts"),
        prompts.filter(pl.col("split") == "train"),
        None if rewards is None else store.table(rewards, "rewards"),
    )


def sample_rows(recipe: Recipe, *, most: int | None) -> RewardRows:
    """Return the answers of up to ``most`` / 2 demonstrations of ``recipe`` (None: all), each as a
    response to its own prompt and, where there is one, to another that is answered otherwise.

    Nothing is written into a store. Raises UserError where no demonstration has a ground truth,
    and as ``base_model`` and ``prepare_data`` do.
    """
    given = recipe.data, recipe.seed, recipe.environment
    rows, _ = apply_filters(read_rows(*given), recipe.data.filters)
    solved = [row for row in rows if row.solution and row.ground_truth and row.split != "test"]
    if not solved:
        raise UserError(
            f"the data of recipe '{recipe.name}' has no demonstration with a ground truth to try a"
            " reward on; give a run instead, whose rollouts are scored again"
        )
    kept = solved if most is None else solved[: max(1, most // 2)]
    texts = training_texts(*given) if recipe.model.path is None else ()
    with tempfile.TemporaryDirectory() as scratch:
        tokenizer = base_tokenizer(recipe.model, Path(scratch), texts=texts)
    answers = [str(row.solution[-1]["content"]) for row in kept]
    end = tokenizer.convert_tokens_to_ids(closing_or_eos(tokenizer))
    tokens = [[*tokenizer(text, add_special_tokens=False)["input_ids"], end] for text in answers]
    others = [_other_answer(kept, answers, i) for i in range(len(kept))]
    pairs = [(i, j) for i, other in enumerate(others) for j in (i, other) if j is not None]
    rollouts = pl.DataFrame(
        {
            "trajectory_id": [f"{i}-{j}" for i, j in pairs],
            "uid": [str(i) for i, _ in pairs],
            "response": [answers[j] for _, j in pairs],
            "finish_reason": [FinishReason.STOP.value] * len(pairs),
            "token_ids": pl.Series([tokens[j] for _, j in pairs], dtype=pl.List(pl.Int32)),
            "loss_mask": [[True] * len(tokens[j]) for _, j in pairs],
            "prompt_tokens": [0] * len(pairs),
        }
    )
    prompted = {f"{i}-{j}": OWN if i == j else OTHER for i, j in pairs}
    mixed = len(pairs) - len(kept)
    described = (
        f"{len(kept):,} demonstrations of {recipe.name}: their answers to their own prompts, and"
        f" {mixed:,} times to another prompt, where they are wrong; nothing was sampled"
    )
    return RewardRows([RewardBatch(rollouts, _prompts(kept), prompted=prompted)], described)


def _other_answer(rows: Sequence[Row], answers: Sequence[str], index: int) -> int | None:
    """Return the next row that is answered otherwise and has another ground truth, if any."""
    truth, answer = rows[index].ground_truth, answers[index]
    others = chain(range(index + 1, len(rows)), range(index))
    return next((i for i in others if rows[i].ground_truth != truth and answers[i] != answer), None)


def _prompts(rows: Sequence[Row]) -> pl.DataFrame:
    return pl.DataFrame(
        {
            "uid": [str(index) for index in range(len(rows))],
            "data_source": [row.data_source for row in rows],
            "prompt": pl.Series([row.prompt for row in rows], dtype=MESSAGES),
            "reward_style": [row.reward_style for row in rows],
            "ground_truth": [row.ground_truth for row in rows],
            "extra_info": [row.extra_info for row in rows],
        }
    )


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
        cluster, place = InProcessCluster(), Placement()
        try:
            with _without_place():
                workers = [
                    cluster.spawn(WORKER, section, judges, name=f"reward-{index}", placement=place)
                    for index in range(recipe.hardware.reward_workers)
                ]
                timeout_s = recipe.hardware.timeouts.reward_s
                judges_s = None if judges is None else judges.longest_s
                pool = RewardPool(workers, section, timeout_s=timeout_s, judges_s=judges_s)
                return _scored(pool, function, batches)
        except RuntimeError as error:
            raise UserError(f"'{function.name}' cannot be tried: {error}") from None
        finally:
            cluster.close()


def recorded(batches: Sequence[RewardBatch]) -> pl.DataFrame | None:
    """Return what was stored of the rows of ``batches``, as ``Tried.rows``; None if nothing was."""
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
        found.append(_described(chunk, score_rollouts(chunk.rollouts, chunk.prompts, pool), group))
        if sum(frame.height for frame in found) >= PROBED and all(
            (frame["outcome"] == Outcome.TIMEOUT.value).all() for frame in found
        ):
            break
    rows = pl.concat(found)
    left = sum(chunk.rollouts.height for _, chunk in chunks) - rows.height
    return Tried(rows, untried=left, foreign=foreign)


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
