"""The stage ``preference``: DPO and KTO on responses whose reference log-probs are known.

The reference is the policy that the stage begins with. Its log-probs are computed once, before the
first step, and stay with the rows: a run that is resumed is held to the same policy.

KTO's z needs responses to other prompts. Row i is read with the response of the row before it in
the table, or of the next one before that to another prompt, so that the reference's log-probs of
them are computed once, too.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import polars as pl

from rlcore.algorithms.objective_types import TokenBatch, TokenOutputs
from rlcore.algorithms.preference import NAME, DpoObjective, KtoObjective, reference_point
from rlcore.learner.pool import LearnerPool
from rlcore.learner.spec import Term, TokenScores
from rlcore.models.packing import Sequences
from rlcore.models.ragged import from_arrays, to_arrays
from rlcore.supervised.loop import batch_rows, epoch_steps
from rlcore.supervised.preference_files import OF_PREFERENCE
from rlcore.supervised.preferences import (
    Preferences,
    by_prompt,
    check_pairs,
    comparable,
    cut,
    fit,
    joined_rows,
    on_every_token,
    without_equals,
)
from schemas.errors import UserError
from schemas.preference import PreferenceSection

REFERENCE = "reference_logprobs"  # the table
EVALUATED = "eval_"  # TRL's prefix of figures on held-out rows
VALIDATION_PROMPTS = 256  # compared at a time: a comparison is of all responses with all
# Mean nats per token by which the policy may differ from its reference before the first step:
# another packing rounds otherwise, a wrong reference, template or shift differs by whole nats.
START_GAP = {"float32": 1e-4, "bfloat16": 0.1}


def prepare(preferences: Preferences, section: PreferenceSection) -> Preferences:
    """Return what ``section`` trains on: cut or dropped where too long, without what teaches
    nothing. Raises ``UserError`` where no training row is left, or for DPO no pair of a split."""
    shorten = fit if section.drop_truncated else cut
    found = shorten(preferences, section.max_tokens)
    if section.algorithm == "kto":
        if not found.table["split"].eq("train").any():
            raise UserError(
                f"{OF_PREFERENCE} leave no training response of {preferences.table.height} within"
                f" preference.max_tokens = {section.max_tokens}; give more rows, or raise it"
            )
        return found
    found = without_equals(found)
    check_pairs(found.table, OF_PREFERENCE)
    return found.only(found.table.filter(comparable(found.table)), "tied")


def unbalanced(table: pl.DataFrame, section: PreferenceSection) -> str:
    """Return what to say where KTO's classes in ``table`` are far from balance, else "": weight
    times number of the desirable should be 1 to 4/3 times that of the others (arXiv 2402.01306,
    eq. 8). With four others to one the policy learns to say neither."""
    ranks = table.filter(pl.col("split") == "train")["rank"]
    desirable = int((ranks == 1).sum())
    others, weight = len(ranks) - desirable, section.undesirable_weight
    if section.algorithm != "kto" or not desirable or not others:
        return ""
    share = section.desirable_weight * desirable / (weight * others)
    if 0.67 <= share <= 2:
        return ""
    return (
        f"preference.desirable_weight = {section.desirable_weight:g}: the {desirable:,} desirable"
        f" responses weigh {share:.2g} times as much as the {others:,} others, and KTO wants 1 to"
        f" 1.33; set it to about {weight * others / desirable:.2g}"
    )


def response_sequences(
    token_ids: Sequence[np.ndarray], prompt_tokens: Sequence[int] | np.ndarray
) -> Sequences:
    """Return sequences whose loss mask is the response: all behind the prompt's tokens."""
    masks = [
        np.arange(len(ids)) >= count for ids, count in zip(token_ids, prompt_tokens, strict=True)
    ]
    return Sequences(token_ids=list(token_ids), loss_mask=masks)


def others_of(prompts: Sequence[bytes]) -> np.ndarray:
    """Return [rows] int64: for each row the nearest one before it, around the end, of another
    prompt; -1 for all where there is one prompt only."""
    count = len(prompts)
    differs = np.array([prompts[i] != prompts[i - 1] for i in range(count)], dtype=bool)
    if not differs.any():
        return np.full(count, -1, dtype=np.int64)
    # The beginning of each row's run of equal prompts; what is before it is of another one.
    begins = np.where(differs, np.arange(count), -1)
    begins = np.maximum.accumulate(begins)
    begins[begins < 0] = begins.max()  # of a run that goes on from the end
    return (begins - 1) % count


def other_sequences(table: pl.DataFrame, max_tokens: int) -> Sequences | None:
    """Return each row's prompt with the response to another one, cut as rows are; None where there
    is one prompt only."""
    token_ids, starts = to_arrays(table["token_ids"]), table["prompt_tokens"].to_list()
    prompts = [ids[:start] for ids, start in zip(token_ids, starts, strict=True)]
    others = others_of([prompt.tobytes() for prompt in prompts])
    if not len(others) or others[0] < 0:
        return None
    mixed = [
        np.concatenate([prompt, token_ids[other][starts[other] :]])[:max_tokens]
        for prompt, other in zip(prompts, others.tolist(), strict=True)
    ]
    return response_sequences(mixed, starts)


def reference_table(
    learner: LearnerPool, table: pl.DataFrame, section: PreferenceSection
) -> pl.DataFrame:
    """Return the log-probs that ``learner``, which has made no step, gives the responses of
    ``table``, and for KTO those to other prompts: the table of ``REFERENCE``."""
    others = [np.zeros(0, dtype=np.float32)] * table.height
    if section.algorithm == "kto":
        for split in table["split"].unique().to_list():
            rows = np.flatnonzero((table["split"] == split).to_numpy())
            mixed = other_sequences(table[rows], section.max_tokens)
            if mixed is not None:
                for row, values in zip(rows.tolist(), _logprobs(learner, mixed), strict=True):
                    others[row] = values
    return table.select("uid", "sample").with_columns(
        from_arrays("logprobs", _logprobs(learner, _of_responses(table)), pl.Float32),
        from_arrays("other_logprobs", others, pl.Float32),
    )


def _logprobs(learner: LearnerPool, sequences: Sequences) -> list[np.ndarray]:
    """Return the reference's log-probs of the loss tokens of each sequence, float32."""
    scores = learner.logprobs(sequences, targets="loss_mask", reference=True).result()
    return [row[mask] for row, mask in zip(scores.logprobs, sequences.loss_mask, strict=True)]


def _of_responses(table: pl.DataFrame) -> Sequences:
    return response_sequences(to_arrays(table["token_ids"]), table["prompt_tokens"].to_list())


class _Rows:
    """One split of ``table``: Preferences with the columns of ``REFERENCE``. ``units``: the rows
    that a batch takes together; for DPO all of a prompt."""

    def __init__(self, table: pl.DataFrame, split: str, section: PreferenceSection) -> None:
        mine = table.filter(pl.col("split") == split)
        plain, ranks = _of_responses(mine), mine["rank"].to_numpy()
        known = to_arrays(mine["logprobs"])
        of_reference = [
            _placed(values, mask) for values, mask in zip(known, plain.loss_mask, strict=True)
        ]
        kto = section.algorithm == "kto"
        name, field = ("desirable", ranks == 1) if kto else ("ranks", ranks)
        per_token = {"ref_logprobs": of_reference, name: on_every_token(plain, field)}
        self.units = list(np.arange(mine.height)[:, None]) if kto else by_prompt(mine)
        self._section, self._ranks = section, ranks
        self._sequences = replace(plain, per_token=per_token)
        self._others = other_sequences(mine, section.max_tokens) if kto else None
        # Sums of the reference's log-probs of them.
        self._reference = np.array(
            [row.sum(dtype=np.float64) for row in to_arrays(mine["other_logprobs"])]
        )

    def term(self, units: np.ndarray, learner: LearnerPool) -> Term:
        """Return what a step on ``units`` minimises; for KTO it asks ``learner`` for z."""
        members, section = [self.units[unit] for unit in units.tolist()], self._section
        rows, groups = joined_rows(members)
        taken = self._sequences.take(rows)
        if section.algorithm == "dpo":
            pairs = sum(num_pairs(self._ranks[part]) for part in members)
            objective = DpoObjective(
                pairs, section.loss, section.beta, section.label_smoothing, section.rpo_alpha
            )
            return Term(replace(taken, groups=groups), objective)
        desirable = int((self._ranks[rows] == 1).sum())
        objective = KtoObjective(
            self._reference_point(rows, learner),
            (desirable, len(rows) - desirable),
            section.beta,
            (section.desirable_weight, section.undesirable_weight),
        )
        return Term(taken, objective)

    def _reference_point(self, rows: np.ndarray, learner: LearnerPool) -> float:
        """Return z of a step on ``rows``, under the weights at its start."""
        if self._others is None:
            return 0.0
        others = self._others.take(rows)
        scores = learner.logprobs(others, targets="loss_mask").result()
        return reference_point(_sums(scores.logprobs, others), self._reference[rows])


def num_pairs(ranks: np.ndarray) -> int:
    """Return the pairs of unequal rank among the responses of one prompt with ``ranks`` [rows]."""
    return int((ranks[:, None] < ranks[None, :]).sum())


def _placed(values: np.ndarray, mask: np.ndarray) -> np.ndarray:
    whole = np.zeros(len(mask), dtype=np.float32)
    whole[mask] = values
    return whole


class PreferenceBatches:
    """Optimizer steps over the training responses, and the figures of those held out.

    ``preferences``: what ``prepare`` returned; ``reference``: its ``REFERENCE`` table. ``learner``
    is the one that is trained: KTO asks it for z at the beginning of each step.
    """

    stage = NAME

    def __init__(
        self,
        section: PreferenceSection,
        preferences: pl.DataFrame,
        reference: pl.DataFrame,
        *,
        learner: LearnerPool,
        seed: int,
    ) -> None:
        assert preferences.select("uid", "sample").equals(reference.select("uid", "sample"))
        table = preferences.hstack(reference.drop("uid", "sample"))
        self._section, self._learner, self._seed = section, learner, seed
        self._train = _Rows(table, "train", section)
        self._held = _Rows(table, "validation", section)
        steps = section.epochs * epoch_steps(len(self._train.units), section.batch_size)
        self.total_steps = min(steps, section.max_steps or steps)

    def term(self, step: int) -> Term:
        """Return what optimizer step ``step`` (from 0) minimises: a function of the step, and for
        KTO of the weights before it."""
        units = batch_rows(
            len(self._train.units),
            self._section.batch_size,
            step=step,
            seed=self._seed,
            stage=NAME,
        )
        return self._train.term(units, self._learner)

    def validation(self) -> dict[str, float]:
        """Return the metrics of the held-out responses by TRL's names; none if there are none."""
        if not self._held.units:
            return {}
        term = self._held.term(np.arange(len(self._held.units)), self._learner)
        scores = self._learner.logprobs(term.sequences, targets="loss_mask", entropy=True).result()
        sums: dict[str, float] = {}
        firsts = range(0, len(self._held.units), VALIDATION_PROMPTS)
        chunks = [self._held.units[first : first + VALIDATION_PROMPTS] for first in firsts]
        for rows in map(np.concatenate, chunks):
            for name, value in _metrics(term, scores, rows).items():
                sums[name] = sums.get(name, 0.0) + value
        return {f"{EVALUATED}{name}": value for name, value in sums.items()}


def _metrics(term: Term, scores: TokenScores, rows: np.ndarray) -> dict[str, float]:
    """Return the share of ``rows`` in the metrics of ``term``, whose sequences have ``scores``."""
    import torch

    part = term.sequences.take(rows)
    mask, lengths = np.concatenate(part.loss_mask), part.loss_lengths

    def flat(values: list[np.ndarray]) -> torch.Tensor:
        return torch.from_numpy(np.concatenate([values[row] for row in rows.tolist()])[mask])

    groups = np.zeros(0, np.int64) if part.groups is None else np.repeat(part.groups, lengths)
    batch = TokenBatch(
        weights=torch.zeros(0),
        mean_weight=1.0 / int(term.sequences.loss_lengths.sum()),
        rows=torch.from_numpy(np.repeat(np.arange(len(part)), lengths)),
        fields={
            name: torch.from_numpy(np.concatenate(values)[mask])
            for name, values in part.per_token.items()
        },
        groups=torch.from_numpy(groups),
    )
    outputs = TokenOutputs(flat(scores.logprobs), flat(scores.entropies))
    _, metrics = term.objective(outputs, batch)
    return {name: float(value) for name, value in metrics.sums.items()}


def _sums(logprobs: Sequence[np.ndarray], sequences: Sequences) -> np.ndarray:
    """Return [sequences] float64: the sum of the log-probs of each one's loss tokens."""
    pairs = zip(logprobs, sequences.loss_mask, strict=True)
    return np.array([row[mask].sum(dtype=np.float64) for row, mask in pairs])


def check_start(metrics: dict[str, float], dtype: str) -> None:
    """Raise ``UserError`` where the first step shows a policy that is not its reference."""
    gap = metrics[f"{NAME}/moved"]
    if gap > START_GAP[dtype]:
        raise UserError(
            f"preference: before its first step the policy gives a response {gap:.3g} nats per"
            f" token more or less than its reference, which it is; in {dtype} rounding explains"
            f" {START_GAP[dtype]:g} (the log-probs are another model's, or this one computes at"
            " random); run with --refresh preference"
        )
