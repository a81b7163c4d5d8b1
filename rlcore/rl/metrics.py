"""The metrics of an RL run: of one batch, under verl's names, from its tables; and one table per
iteration, written before its checkpoint, with the table ``spans`` beside it: when each part was
under way, and the engines.

``timing_s/<part>`` are seconds: of the five phases, and apart from them of ``testing``
(validation), ``record`` (the record of lineage) and ``save_checkpoint``, for which the loop waited:
a checkpoint is written while the next rollout samples. ``timing_s/step`` is the whole iteration and
``timing_s/outside`` what no part accounts for. Where the critic trains beside the policy,
``timing_s/train_critic`` is the time it took, and ``timing_s/update_critic`` what the loop waited
for it besides.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from math import inf
from time import perf_counter

import numpy as np
import polars as pl

from rlcore.algorithms.advantages import AdvantageResult
from rlcore.algorithms.losses import explained_variance
from rlcore.cluster.progress import activity
from rlcore.cluster.spans import Span, Spans, in_order
from rlcore.models.ragged import mean_of, to_floats
from rlcore.results.metrics import (
    FLOPS,
    metrics_frame,
    publish_metrics,
    token_rates_of,
    utilisation,
)
from rlcore.rewards.unscored_rows import ERRORS, TIMEOUTS, part_metrics
from rlcore.rl.batch import policy_tokens
from rlcore.store.artifacts import ArtifactStore, Lineage
from rlcore.store.tables import polars_schema
from schemas.outcomes import FinishReason, Outcome

VERIFIER_CORRELATION = "reward/verifier_rank_correlation"
LEAST_VERDICTS = 10  # of each kind: with fewer the correlation of one batch is mostly noise


def spread_metrics(name: str, values: np.ndarray) -> dict[str, float]:
    """Return mean, max and min of ``values`` [any] without NaN; nothing when none is left."""
    known = values[~np.isnan(values)]
    if not len(known):
        return {}
    return {
        f"{name}/mean": float(known.mean()),
        f"{name}/max": float(known.max()),
        f"{name}/min": float(known.min()),
    }


def reward_metrics(rewards: pl.DataFrame) -> dict[str, float]:
    """Return ``critic/score/*`` over scored rows, accuracy over verdicts, how well the scores rank
    right responses above wrong ones, and failures."""
    metrics = {
        **failure_metrics(rewards, "reward"),
        "reward/no_answer_fraction": mean_of(rewards["outcome"] == Outcome.NO_ANSWER.value),
    }
    scores, verdicts = to_floats(rewards["score"]), to_floats(rewards["correct"])
    has_score, has_verdict = ~np.isnan(scores), ~np.isnan(verdicts)
    if has_verdict.any():
        metrics["critic/accuracy"] = float(verdicts[has_verdict].mean())
    metrics |= spread_metrics("critic/score", scores) | part_metrics(rewards)
    judged = has_score & has_verdict
    agreement = verdict_correlation(scores[judged], verdicts[judged] == 1)
    return metrics if agreement is None else {**metrics, VERIFIER_CORRELATION: agreement}


def verdict_correlation(scores: np.ndarray, correct: np.ndarray) -> float | None:
    """Return the rank-biserial correlation of ``scores`` [rows] with ``correct`` [rows] (bool): the
    share of pairs of a right and a wrong response in which the right one scores higher, minus the
    share in which it scores lower (Cureton, Psychometrika 21, 1956).

    Unlike Spearman's correlation it does not fall merely because more responses are right. None
    where scores are all equal, or fewer than ``LEAST_VERDICTS`` responses are right, or wrong.
    """
    right, wrong = np.sort(scores[correct]), np.sort(scores[~correct])
    if min(len(right), len(wrong)) < LEAST_VERDICTS or scores.min() == scores.max():
        return None
    above = np.searchsorted(right, wrong, side="right")  # right responses up to each wrong one
    below = np.searchsorted(right, wrong, side="left")
    pairs = len(right) * len(wrong)
    return float(((len(right) - above).sum() - below.sum()) / pairs)


def failure_metrics(rewards: pl.DataFrame, prefix: str) -> dict[str, float]:
    """Return the shares of rows of the Rewards table without a score, and without a verdict.

    ``error_fraction``: reward code, judge or engine failed; ``timeout_fraction``: the clock ended
    it; ``judge_failed_fraction``: a function of weight 0 failed, the row kept its score.
    """
    return {
        f"{prefix}/error_fraction": mean_of(rewards["outcome"].is_in(ERRORS)),
        f"{prefix}/timeout_fraction": mean_of(rewards["outcome"].is_in(TIMEOUTS)),
        f"{prefix}/judge_failed_fraction": mean_of(rewards["failures"] != "{}"),
    }


def estimate_metrics(result: AdvantageResult, masks: Sequence[np.ndarray]) -> dict[str, float]:
    """Return ``critic/advantages/*`` over policy tokens, and what the groups looked like."""
    return {
        **spread_metrics("critic/advantages", _flat(result.advantages, masks)),
        "critic/zero_std_group_fraction": result.constant_fraction,
        "critic/singleton_groups": float(result.num_singletons),
    }


def critic_metrics(
    values: Sequence[np.ndarray], returns: list[np.ndarray], masks: list[np.ndarray]
) -> dict[str, float]:
    """Return values, returns and explained variance over the tokens the critic learns from."""
    flat_values, flat_returns = _flat(values, masks), _flat(returns, masks)
    return {
        **spread_metrics("critic/values", flat_values),
        **spread_metrics("critic/returns", flat_returns),
        "critic/vf_explained_var": explained_variance(flat_values, flat_returns),
    }


def length_metrics(rollouts: pl.DataFrame) -> dict[str, float]:
    """Return token counts of prompts and responses, truncation and aborts (verl's names), and
    how many responses ended before they said anything: ``response/empty_ratio``."""
    responses = policy_tokens(rollouts)
    prompts = rollouts["prompt_tokens"].cast(pl.Int64).to_numpy()
    turns = rollouts["turn_ends"].list.len().to_numpy()
    reasons = rollouts["finish_reason"]
    stopped = reasons == FinishReason.STOP.value
    return {
        "response_length/mean": float(responses.mean()),
        "response_length/max": float(responses.max()),
        "response_length/min": float(responses.min()),
        "response_length/clip_ratio": mean_of(reasons == FinishReason.LENGTH.value),
        "response/aborted_ratio": mean_of(reasons == FinishReason.ABORT.value),
        "response/empty_ratio": mean_of(stopped & (rollouts["response"].str.strip_chars() == "")),
        "prompt_length/mean": float(prompts.mean()),
        "prompt_length/max": float(prompts.max()),
        "num_turns/mean": float(turns.mean()),
        "perf/total_num_tokens": float(prompts.sum() + responses.sum()),
        "perf/response_tokens": float(responses.sum()),
    }


def _flat(arrays: Sequence[np.ndarray], masks: Sequence[np.ndarray]) -> np.ndarray:
    return np.concatenate(arrays)[np.concatenate(masks)]


STAGE = "rl"
PARTS = ("gen", "reward", "adv", "update_actor", "update_critic", "sync", "testing")
SAVE = "save_checkpoint"
RECORD = "record"


TIMING = "timing_s/"
LOOP, AHEAD, STEP, WAIT = "loop", "ahead", "step", "wait"  # lanes of spans, and what is no part


class StepMetrics:
    """Collects the metrics of an iteration, and when its parts were under way in ``lane``."""

    def __init__(self, lane: str = LOOP) -> None:
        self._values: dict[str, float] = {}
        self._lane, self.spans = lane, Spans()

    def add(self, values: Mapping[str, float]) -> None:
        """Add metrics of the iteration under way."""
        self._values |= values

    def add_missing(self, values: Mapping[str, float]) -> None:
        """Add those metrics that the iteration does not have: figures over all tokens come before
        figures over the rows that were trained on."""
        self._values = {**values, **self._values}

    @contextmanager
    def timed(self, part: str, *, what: str | None = None) -> Iterator[None]:
        """Measure a part as ``timing_s/<part>``; the rounds of an iteration add up. ``what``: the
        name of its span, where the part has another."""
        began, name = perf_counter(), f"{TIMING}{part}"
        try:
            with activity(f"RL phase {part}"):
                yield
        finally:
            self._values[name] = self._values.get(name, 0.0) + perf_counter() - began
            self.spans.add(self._lane, what or part, began)

    def taken(self) -> dict[str, float]:
        """Return what was collected, and begin again without it."""
        values, self._values = self._values, {}
        return values


class MetricsLog(StepMetrics):
    """Writes each iteration's metrics as artifact ``metrics/<key>/<iteration>``."""

    def __init__(self, store: ArtifactStore, key: str, lineage: Lineage) -> None:
        super().__init__()
        self._store, self._key, self._lineage = store, key, lineage
        self._late, self._late_spans = metrics_frame(STAGE, 0, {}), spans_frame(0, [], 0.0)
        self._step_began = perf_counter()
        self._zero = inf  # of the spans' clock: where the first iteration begins
        self._gpus, self._peaks = 1, dict[str, float | None]()
        self.latest: dict[str, float] = {}

    def begin_step(self, gpus: int, peaks: Mapping[str, float | None]) -> None:
        """Start the first iteration: its clock, and its metrics apart from what came before.

        ``gpus``: of the run, 1 without any. ``peaks``: per trained role the FLOP/s that its ranks
        can reach together, None where that is not known.
        """
        self._gpus, self._peaks = gpus, dict(peaks)
        self._values = {}
        self._step_began = self._zero = perf_counter()

    def publish(self, iteration: int) -> None:
        """Write what is known of ``iteration``; a table left by a killed attempt is replaced."""
        frame = pl.concat([self._late, metrics_frame(STAGE, iteration, self._values)])
        spans = pl.concat([self._late_spans, self._taken_spans(iteration)])
        name = f"{iteration:06d}"
        publish_metrics(self._store, self._key, name, frame, self._lineage, spans)
        self._late, self._late_spans = metrics_frame(STAGE, 0, {}), spans_frame(0, [], 0.0)

    def end_step(self, iteration: int) -> None:
        """Close the iteration: ``latest`` holds all its metrics. Those of the whole step, which are
        known only now, are written with the next one's."""
        now = perf_counter()
        step = now - self._step_began
        parts = {part: self._values.get(f"timing_s/{part}", 0.0) for part in (*PARTS, RECORD, SAVE)}
        tokens = self._values.get("perf/total_num_tokens", 0.0)
        late = {
            f"timing_s/{SAVE}": parts[SAVE],
            "timing_s/step": step,
            "timing_s/outside": step - sum(parts.values()),
            **token_rates_of(tokens, step, self._gpus),
            **self._utilisation(),
        }
        self._late = metrics_frame(STAGE, iteration, late)
        self.latest = self.taken() | late
        self.spans.add(LOOP, STEP, self._step_began)
        self._late_spans = self._taken_spans(iteration)
        self._step_began = now

    def _taken_spans(self, iteration: int) -> pl.DataFrame:
        """Return as a table what was collected since the first iteration began."""
        known = [span for span in self.spans.taken() if span.began_s >= self._zero]
        return spans_frame(iteration, in_order(known), self._zero)

    def _utilisation(self) -> dict[str, float]:
        shares: dict[str, float] = {}
        for role, peak in self._peaks.items():
            flops = self._values.get(f"{role}/{FLOPS}", 0.0)
            waited = self._values.get(f"timing_s/update_{role}", 0.0)
            seconds = self._values.get(f"timing_s/train_{role}", waited)
            shares |= utilisation(role, flops, seconds, peak)
        return shares

    def close(self) -> None:
        """Write what is known only after the last iteration."""
        publish_metrics(self._store, self._key, "end", self._late, self._lineage, self._late_spans)


def spans_frame(iteration: int, spans: Sequence[Span], zero_s: float) -> pl.DataFrame:
    """Return ``spans`` as rows of the table of that name; ``zero_s``: where its clock begins."""
    rows = [(iteration, s.lane, s.what, s.began_s - zero_s, s.ended_s - s.began_s) for s in spans]
    return pl.DataFrame(rows, schema=polars_schema("spans"), orient="row")
