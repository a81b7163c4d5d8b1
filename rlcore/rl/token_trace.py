"""One recorded answer, token by token: from its reward to its share of the loss.

The term of a token is the objective of the learner with the weights of all other tokens 0, so the
terms add up to what the sequence has of the loss; nothing of the loss is written down again here.

What was recorded is read; log-probs under the weights before an optimizer step are those of a
replay that has come to that step. They are packed for reading, so they differ from those of the
update by rounding.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from rlcore.algorithms.aggregation import token_weights
from rlcore.algorithms.objective import PolicyObjective, ValueObjective
from rlcore.learner.spec import TokenScores, UpdateRequest
from rlcore.models.packing import Sequences
from rlcore.models.ragged import to_arrays
from rlcore.rl.advantage import given
from rlcore.rl.batch import arrays_of
from rlcore.rl.own_logprobs import KIND as OWN
from rlcore.rl.records import RecordedIterations
from rlcore.rl.replay import Replay, recorded_kl_coef, with_recorded_kl
from rlcore.rl.update import critic_steps, policy_objective, policy_steps
from schemas.errors import UserError, did_you_mean

if TYPE_CHECKING:
    import torch

    from rlcore.algorithms.objective_types import TokenBatch, TokenOutputs


@dataclass(frozen=True, slots=True)
class TokenTerms:
    """What the loss makes of the trained tokens of one answer in one optimizer step, [tokens] each.

    ``clip``: "low", "high", "dual" where it took the gradient, else "". ``kl``: the estimate in the
    loss, nats; empty where none is. ``loss``: the terms, whose sum is the answer's share of the
    mini-batch's loss, ``total``.
    """

    old: np.ndarray
    ratio: np.ndarray
    clip: list[str]
    kl: np.ndarray
    weight: np.ndarray
    loss: np.ndarray
    total: float


def token_terms(
    objective: PolicyObjective, sequences: Sequences, row: int, scored: TokenScores
) -> TokenTerms:
    """Return the terms of sequence ``row`` of the mini-batch ``sequences``.

    ``scored``: of that sequence alone, under the weights before the step.
    """
    import torch

    from rlcore.algorithms.kl import kl_estimate
    from rlcore.algorithms.losses import importance_ratio
    from rlcore.algorithms.objective_types import TokenBatch, TokenOutputs

    mask = sequences.loss_mask[row]

    def picked(arrays: Sequence[np.ndarray], at: int = 0) -> torch.Tensor:
        return torch.from_numpy(np.asarray(arrays[at], dtype=np.float32)[mask])

    weights, mean_weight = _weights(objective, sequences, row)
    weight = torch.full((int(mask.sum()),), weights, dtype=torch.float32)
    fields = {name: picked(sequences.per_token[name], row) for name in objective.fields}
    new = picked(scored.logprobs)
    outputs = TokenOutputs(
        new,
        picked(scored.entropies) if scored.entropies else torch.zeros(0),
        picked(scored.kls) if scored.kls else torch.zeros(0),
    )
    rows = torch.zeros(len(weight), dtype=torch.int64)
    batch = TokenBatch(weight, mean_weight, rows, fields)
    terms = [_only(objective, outputs, batch, token) for token in range(len(weight))]
    old = objective.denominator(new, fields)
    ratio = importance_ratio(objective.ratio_level, new, old, rows)
    kl = np.zeros(0)
    if objective.full_kl:
        kl = outputs.kl.numpy()
    elif objective.kl_coef > 0:
        kl = kl_estimate(new, fields["ref_logprobs"], objective.kl_estimator).numpy()
    return TokenTerms(
        old=old.numpy(),
        ratio=ratio.numpy(),
        clip=_clips(objective, ratio, new, fields["advantages"]),
        kl=kl,
        weight=weight.numpy(),
        loss=np.array(terms),
        total=float(objective(outputs, batch)[0]),
    )


def _clips(
    objective: PolicyObjective,
    ratio: "torch.Tensor",
    logprobs: "torch.Tensor",
    advantages: "torch.Tensor",
) -> list[str]:
    """Return which bound took the gradient of each token: "low", "high", "dual" or ""."""
    from rlcore.algorithms.losses import policy_loss

    bounds = policy_loss(
        objective.policy_loss,
        ratio,
        logprobs,
        advantages,
        clip_low=objective.clip_low,
        clip_high=objective.clip_high,
        clip_dual=objective.clip_dual,
    )
    masks = (bounds.clipped_dual, bounds.clipped, bounds.outside_low)
    return [
        "dual" if dual else ("low" if low else "high") if clipped else ""
        for dual, clipped, low in zip(*(mask.tolist() for mask in masks), strict=True)
    ]


def value_terms(objective: ValueObjective, sequences: Sequences, row: int) -> np.ndarray:
    """Return the terms [tokens] of the critic's loss at the recorded values (``old_values``)."""
    import torch

    from rlcore.algorithms.objective_types import TokenBatch, TokenOutputs

    mask = sequences.loss_mask[row]
    weights, mean_weight = _weights(objective, sequences, row)
    fields = {
        name: torch.from_numpy(sequences.per_token[name][row][mask].astype(np.float32))
        for name in ("returns", "old_values")
    }
    weight = torch.full((int(mask.sum()),), weights, dtype=torch.float32)
    rows = torch.zeros(len(weight), dtype=torch.int64)
    batch = TokenBatch(weight, mean_weight, rows, fields)
    outputs = TokenOutputs(values=fields["old_values"])
    return np.array([_only(objective, outputs, batch, token) for token in range(len(weight))])


def _weights(
    objective: PolicyObjective | ValueObjective, sequences: Sequences, row: int
) -> tuple[float, float]:
    """Return the weight of each token of ``row`` in the loss, and in the means of metrics."""
    lengths = sequences.loss_lengths
    weights = token_weights(
        objective.aggregation, lengths, horizon=objective.horizon, groups=sequences.groups
    )
    return float(weights[row]), 1.0 / int(lengths.sum())


def _only(
    objective: PolicyObjective | ValueObjective,
    outputs: "TokenOutputs",
    batch: "TokenBatch",
    token: int,
) -> float:
    """Return the objective with the weights of all tokens but one 0."""
    import torch

    alone = torch.zeros_like(batch.weights)
    alone[token] = 1.0
    weighted = {name: f * alone for name, f in batch.fields.items() if name == "nll_weights"}
    share = replace(batch, weights=batch.weights * alone, fields={**batch.fields, **weighted})
    return float(objective(outputs, share)[0])


Figures = dict[str, np.ndarray]  # by column of ``WalkedToken``: one per token, NaN where none


@dataclass(frozen=True, slots=True)
class WalkedToken:
    """One token of an answer in one optimizer step; None where there is no such figure.

    ``step``: of the iteration, from 1; 0 where the answer trains in none. ``old``, ``new``,
    ``ref``: log-probs in nats, those that the ratio is measured against, those before the step, and
    the reference's. ``clip``: "low", "high" or "dual" where it took the gradient. ``kl``: in nats;
    in the loss of new to ref, in the reward of old to ref. ``reward``: the score on the last policy
    token, less the KL. ``weight``: of the token in the loss. ``loss``: its term of the policy's
    loss; ``value_loss``: of the critic's, at the recorded value.
    """

    step: int
    token: int
    id: int
    text: str
    mask: bool
    old: float | None = None
    new: float | None = None
    ref: float | None = None
    ratio: float | None = None
    clip: str | None = None
    kl: float | None = None
    reward: float | None = None
    value: float | None = None
    returns: float | None = None
    advantage: float | None = None
    weight: float | None = None
    loss: float | None = None
    value_loss: float | None = None


def walk(replay: Replay, trajectory: str, decode: Callable[[int], str]) -> list[WalkedToken]:
    """Return the tokens of an answer of the iteration after ``replay.at``, once for each optimizer
    step that trains on it.

    Uses ``replay`` up: its learner stops within the iteration. ``decode``: the text of a token id.
    Raises UserError where the iteration has not trained on ``trajectory``.
    """
    number = replay.at + 1
    frame = replay.recorded.trained(number)
    index = _index(frame, trajectory, number)
    figures = _recorded(replay, number, index)
    row = frame.row(index, named=True)
    texts = [decode(token) for token in row["token_ids"]]
    trained = list(_steps(replay, number, index))
    values = _value_terms(replay, frame, index)
    tokens = []
    for step, found in trained or [(step, {}) for step in values or [0]]:
        known = {**figures, **found, **values.get(step, {})}
        clip = known.pop("clip", None)
        for at, (token, text, mask) in enumerate(
            zip(row["token_ids"], texts, row["loss_mask"], strict=True)
        ):
            numbers = {n: _number(array[at]) if mask else None for n, array in known.items()}
            clipped = None if clip is None or not mask else str(clip[at])
            tokens.append(WalkedToken(step, at, token, text, mask, clip=clipped, **numbers))
    return tokens


def _index(rollouts: pl.DataFrame, trajectory: str, number: int) -> int:
    names = rollouts["trajectory_id"].to_list()
    if trajectory in names:
        return names.index(trajectory)
    of_prompt = rollouts.filter(pl.col("uid") == trajectory)["trajectory_id"].to_list()
    if of_prompt:
        raise UserError(
            f"'{trajectory}' is a prompt; its answers in iteration {number} are"
            f" {', '.join(of_prompt)}; name one"
        )
    raise UserError(
        f"iteration {number} has not trained on an answer '{trajectory}'"
        f"{did_you_mean(trajectory, names)}; there are {len(names)}, such as {names[0]}"
    )


def _number(value: float) -> float | None:
    return None if np.isnan(value) else float(value)


def _recorded(replay: Replay, number: int, index: int) -> Figures:
    """Return the figures that every step shares: reward, value, return, advantage, reference."""
    recorded, recipe = replay.recorded, replay.recipe
    frame = with_recorded_kl(recorded.trained(number), recipe, replay.learner)
    batch, _, _ = given(frame, recipe, recorded_kl_coef(recorded, number))
    old = arrays_of(frame, "old_logprobs")
    found: Figures = {
        "old": _old(recorded, number, frame, index) if old is None else old[index],
        "reward": batch.rewards()[index],
        "advantage": to_arrays(frame["advantages"])[index],
    }
    optional = {
        "ref": arrays_of(frame, "ref_logprobs"),
        "kl": arrays_of(frame, "kl") if batch.token_kl is not None else None,
        "value": arrays_of(frame, "values"),
        "returns": arrays_of(frame, "returns"),
    }
    return found | {name: rows[index] for name, rows in optional.items() if rows is not None}


def _old(recorded: RecordedIterations, number: int, frame: pl.DataFrame, index: int) -> np.ndarray:
    """Return the log-probs of a row as its update scored them, NaN where it did not."""
    row = frame.row(index, named=True)
    scored = _own(recorded, number).get((row["trajectory_id"], 0))
    return np.full(len(row["token_ids"]), np.nan) if scored is None else scored


def _own(recorded: RecordedIterations, number: int) -> dict[tuple[str, int], np.ndarray]:
    """Return the log-probs that the update of iteration ``number`` scored for itself, by trajectory
    and epoch."""
    advantages, _ = recorded.advantages(number)
    ref = recorded.store.find(OWN, advantages.key)
    if ref is None:
        raise UserError(
            f"iteration {number} of {recorded.name} has no table {OWN}, which its ratios are"
            " measured against; it was lost, or an earlier version of this program made the run"
        )
    columns = ("trajectory_id", "epoch", "own_logprobs")
    return {
        (row[0], row[1]): np.asarray(row[2], dtype=np.float32)
        for row in recorded.store.table(ref, OWN).select(columns).iter_rows()
    }


def _steps(replay: Replay, number: int, index: int) -> Iterator[tuple[int, Figures]]:
    """Yield step and figures of each optimizer step of the policy that trains on the answer."""
    recorded, recipe = replay.recorded, replay.recipe
    if not replay.updates(number):
        return
    replay.pack_as(number)
    request = replay.request(number)
    frame = recorded.trained(number)
    steps = policy_steps(frame, recipe)
    if recipe.scores_own_logprobs:
        request = _measured(request, recorded, number, frame, [rows for _, rows, _ in steps])
    objective = policy_objective(recipe.rl)
    done = 0
    for position, (step, rows, _) in enumerate(steps):
        sequences = request.mini_batches[position][0].sequences
        row = int(np.flatnonzero(rows == index)[0]) if index in rows else None
        if row is None or not sequences.loss_mask[row].any():
            continue
        if position > done:
            replay.learner.update(
                replace(
                    request,
                    version=replay.learner.stamp().version,
                    batch_digest=f"{request.batch_digest} {done}",
                    mini_batches=request.mini_batches[done:position],
                    lrs=request.lrs[done:position],
                )
            ).result()
            done = position
        scores = replay.learner.logprobs(
            sequences,
            objective.temperature,
            targets="loss_mask",
            entropy=objective.entropy_coef is not None,
            full_kl=objective.full_kl,
        ).result()
        mine = TokenScores(
            scores.logprobs[row : row + 1],
            scores.entropies[row : row + 1],
            scores.kls[row : row + 1],
        )
        terms = token_terms(objective, sequences, row, mine)
        mask = sequences.loss_mask[row]
        found = {
            "old": _spread(terms.old, mask),
            "new": _spread(mine.logprobs[0][mask], mask),
            "ratio": _spread(terms.ratio, mask),
            "clip": _spread(np.array(terms.clip, dtype=object), mask),
            "weight": _spread(terms.weight, mask),
            "loss": _spread(terms.loss, mask),
        }
        if len(terms.kl):
            found["kl"] = _spread(terms.kl, mask)
        yield step + 1, found


def _measured(
    request: UpdateRequest,
    recorded: RecordedIterations,
    number: int,
    frame: pl.DataFrame,
    steps: Sequence[np.ndarray],
) -> UpdateRequest:
    """Return ``request`` with the log-probs that its learner scored for itself, as recorded."""
    own = _own(recorded, number)
    names = frame["trajectory_id"].to_list()
    seen = dict.fromkeys(names, 0)
    mini_batches = []
    for terms, rows in zip(request.mini_batches, steps, strict=True):
        old = list(terms[0].sequences.per_token["old_logprobs"])
        for place, name in enumerate(names[row] for row in rows.tolist()):
            if (name, seen[name]) in own:
                old[place] = own[name, seen[name]]
                seen[name] += 1
        per_token = {**terms[0].sequences.per_token, "old_logprobs": old}
        measured = replace(terms[0].sequences, per_token=per_token)
        mini_batches.append([replace(terms[0], sequences=measured), *terms[1:]])
    return replace(request, mini_batches=mini_batches, own_logprobs=False)


def _value_terms(replay: Replay, frame: pl.DataFrame, index: int) -> dict[int, Figures]:
    """Return the terms of the critic's loss by step; none without a critic."""
    critic = replay.recipe.rl.critic
    if critic is None:
        return {}
    objective, found = ValueObjective(clip=critic.clip), {}
    for step, rows, sequences in critic_steps(frame, replay.recipe):
        if index in rows:
            row = int(np.flatnonzero(rows == index)[0])
            mask = sequences.loss_mask[row]
            if mask.any():
                found[step + 1] = {
                    "value_loss": _spread(value_terms(objective, sequences, row), mask)
                }
    return found


def _spread(values: np.ndarray, mask: np.ndarray) -> np.ndarray:
    """Return ``values`` [policy tokens] on all tokens, NaN elsewhere."""
    spread = np.full(len(mask), np.nan, dtype=object if values.dtype == object else np.float64)
    spread[mask] = values
    return spread
