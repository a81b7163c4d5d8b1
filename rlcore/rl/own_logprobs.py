"""The old log-probs that an update scores for itself (``rl.update.old_logprobs``).

``own``: before its first step, in the packing that it trains in. They differ from those of the
advantages by the rounding of two packings, which in bfloat16 is as wide as GSPO's clip range.

``fused``: in the forward pass of the step itself, where an update is a single optimizer step and
every ratio is 1. The learner sums the gradients of the step and holds them, the guards read what
its passes computed, and the step is made, or not. Rows that the step leaves out, such as groups of
equal rewards, are judged by a sample, so that a sampler gone wrong is not hidden by a batch that
says nothing.
"""

from collections.abc import Sequence

import numpy as np
import polars as pl

from rlcore.algorithms.seeds import stream_seed
from rlcore.learner.pool import LearnerPool
from rlcore.learner.spec import UpdateRequest
from rlcore.models.ragged import from_arrays, to_arrays
from rlcore.rl.batch import arrays_of, sequences_of
from rlcore.rl.guards import check_sampler_gap
from rlcore.rl.scores import estimated_kl, masked_mean
from rlcore.rl.update import Step, iteration_of
from schemas.recipe import Recipe
from schemas.rl import FUSED_SAMPLE

KIND = "own_logprobs"  # of the artifact, and its table


def own_logprobs(
    frame: pl.DataFrame, steps: Sequence[Step], scored: Sequence[np.ndarray]
) -> tuple[pl.DataFrame, dict[str, float]]:
    """Return the OwnLogprobs table, and how far (nats) it is from the log-probs in ``frame``.

    ``scored``: ``UpdateResult.old_logprobs`` of the ``steps`` [tokens of its sequences], NaN on
    tokens that did not train.
    """
    names, old = frame["trajectory_id"].to_list(), to_arrays(frame["old_logprobs"])
    lengths = frame["token_ids"].list.len().to_numpy()
    trajectories: list[str] = []
    epochs: list[int] = []
    known: list[np.ndarray] = []
    gaps: list[np.ndarray] = []
    trained_before = np.zeros(len(names), dtype=np.int64)  # epochs; a row trains in all or in none
    for (_, rows, _), flat in zip(steps, scored, strict=True):
        cuts = np.cumsum(lengths[rows])[:-1]
        for row, own in zip(rows.tolist(), np.split(flat, cuts), strict=True):
            trained = ~np.isnan(own)
            if not trained.any():
                continue
            trajectories.append(names[row])
            epochs.append(int(trained_before[row]))
            trained_before[row] += 1
            known.append(np.where(trained, own, np.float32(0.0)))
            gaps.append(np.abs(own - old[row])[trained])
    table = _table(trajectories, epochs, known)
    if not gaps:
        return table, {}
    gap = np.concatenate(gaps)
    return table, {
        "training/old_logprobs_gap_max": float(gap.max()),
        "training/old_logprobs_gap_mean": float(gap.mean()),
    }


def fused_scores(
    frame: pl.DataFrame, request: UpdateRequest, *, recipe: Recipe, learner: LearnerPool
) -> tuple[pl.DataFrame, dict[str, float]] | None:
    """Let ``learner`` sum the gradients of ``request``, a single step on ``frame``; None where the
    update was made already, or no row has a token of the policy.

    Return the OwnLogprobs table of the rows that train and of the sample, and the metrics that else
    come from the scoring before the update. Without a token to train on there is no step: then only
    the sample is scored. Raises SamplerDriftError where the sampler is off.
    """
    sequences = sequences_of(frame)
    trains = _rows_that_train(request, len(sequences))
    left_out = np.flatnonzero(~trains & (sequences.loss_lengths > 0))
    rng = np.random.default_rng(stream_seed(recipe.seed, "fused sample", iteration_of(frame)))
    sample = np.sort(rng.permutation(left_out)[:FUSED_SAMPLE])
    rows = np.flatnonzero(trains)
    scored = np.concatenate([rows, sample])
    if not len(scored):
        return None
    old: list[np.ndarray] = []
    entropies: list[np.ndarray] = []
    if len(sample):
        sampled = learner.logprobs(
            sequences.take(sample),
            recipe.rl.rollout.temperature,
            targets="loss_mask",
            entropy=True,
        ).result()
        old, entropies = sampled.logprobs, sampled.entropies
    if request.mini_batches:
        trained = learner.accumulate(request)
        if trained is None:
            return None
        old = [*(trained.logprobs[row] for row in rows), *old]
        entropies = [*(trained.entropies[row] for row in rows), *entropies]
    masks = [sequences.loss_mask[row] for row in scored]
    metrics: dict[str, float] = {}
    if set(frame["weight_version"]) == {request.version}:  # else they are two policies'
        recorded, bound = to_arrays(frame["sampler_logprobs"]), recipe.sampler_gap_bound
        metrics |= check_sampler_gap([recorded[row] for row in scored], old, masks, bound=bound)
    metrics |= {
        "actor/entropy": _stratified_mean(
            entropies, masks, len(rows), int(sequences.loss_lengths[left_out].sum())
        ),
        "training/fused_sample_rows": float(len(sample)),
    }
    if (known := arrays_of(frame, "ref_logprobs")) is not None:
        kl = recipe.rl.algorithm.kl.estimator
        of_reference = estimated_kl(old, [known[row] for row in scored], masks, kl)
        metrics["actor/ref_kl"] = masked_mean(of_reference, masks)
    names = frame["trajectory_id"].to_list()
    shown = [np.where(mask, row, np.float32(0.0)) for mask, row in zip(masks, old, strict=True)]
    return _table([names[row] for row in scored], [0] * len(shown), shown), metrics


def _table(trajectories: list[str], epochs: list[int], known: list[np.ndarray]) -> pl.DataFrame:
    return pl.DataFrame(
        {
            "trajectory_id": pl.Series(trajectories, dtype=pl.String),
            "epoch": pl.Series(epochs, dtype=pl.Int32),
            KIND: from_arrays(KIND, known, pl.Float32),
        }
    )


def _rows_that_train(request: UpdateRequest, num_rows: int) -> np.ndarray:
    """Return [rows] bool: which the step's forward pass has a token of."""
    if not request.mini_batches:
        return np.zeros(num_rows, dtype=bool)
    term = request.mini_batches[0][0]
    assert len(term.sequences) == num_rows, "a single step has every row, in the batch's order"
    trains = term.sequences.loss_lengths > 0
    live = term.objective.rows_with_gradient(term.sequences.per_token)
    return trains if live is None else trains & live


def _stratified_mean(
    values: list[np.ndarray], masks: list[np.ndarray], num_trained: int, left_out: int
) -> float:
    """Return the mean of ``values`` over the batch: the tokens of the first ``num_trained`` rows,
    and ``left_out`` tokens that the sampled rows after them represent."""
    trained = int(sum(mask.sum() for mask in masks[:num_trained]))
    parts = ((slice(num_trained), trained), (slice(num_trained, None), left_out))
    total = sum(tokens * masked_mean(values[part], masks[part]) for part, tokens in parts if tokens)
    return total / max(1, trained + left_out)
