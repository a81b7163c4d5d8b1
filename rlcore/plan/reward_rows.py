"""The rows that a reward is tried on: what a run has sampled, or the answers of demonstrations."""

import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import polars as pl

from rlcore.data.filters import apply_filters
from rlcore.data.read import read_rows, training_texts
from rlcore.data.rows import Row
from rlcore.models.base import base_tokenizer
from rlcore.models.stop_tokens import closing_or_eos
from rlcore.store.reader import ArtifactReader
from schemas.artifacts import ArtifactRef
from schemas.errors import UserError
from schemas.outcomes import FinishReason
from schemas.recipe import Recipe
from schemas.table_list import MESSAGES

OWN, OTHER = "own", "another"  # prompt that an answer of a demonstration is given to


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
        frame = pl.concat([group.rollouts for group in groups])
        yield replace(groups[0], rollouts=frame)


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
    rows = read_rows(recipe.data, recipe.seed)
    rows, _ = apply_filters(rows, recipe.data.filters)
    solved = [row for row in rows if row.solution and row.ground_truth and row.split != "test"]
    if not solved:
        raise UserError(
            f"the data of recipe '{recipe.name}' has no demonstration with a ground truth to try a"
            " reward on; give a run instead, whose rollouts are scored again"
        )
    kept = solved if most is None else solved[: max(1, most // 2)]
    texts = training_texts(recipe.data, recipe.seed) if recipe.model.path is None else ()
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
    for step in range(1, len(rows)):
        other = (index + step) % len(rows)
        if (
            rows[other].ground_truth != rows[index].ground_truth
            and answers[other] != answers[index]
        ):
            return other
    return None


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
