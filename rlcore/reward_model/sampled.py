"""Preferences from the policy itself: K sampled responses per prompt, ranked by the verifier."""

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import polars as pl

from rlcore.engines.types import Sampling
from rlcore.reward_model.preferences import RANKS, Preferences, Ranked, preferences_table
from rlcore.rewards.types import Reward, RewardRow
from rlcore.rewards.unscored import check_unscored
from rlcore.seeds import stream_seed
from rlcore.trajectories.collect import Engines, collect, in_order, score
from rlcore.trajectories.joined import joined
from rlcore.trajectories.types import Request, Trajectory
from schemas.errors import UserError
from schemas.outcomes import Outcome
from schemas.reward_model import SampledPreferences
from schemas.rl import RewardSection

Scorer = Callable[[list[RewardRow]], list[Reward]]


def sample_preferences(
    section: SampledPreferences,
    prompts: pl.DataFrame,
    *,
    seed: int,
    engines: Engines,
    tokenizer: Any,
    stop_ids: tuple[int, ...],
    scorer: Scorer,
    reward: RewardSection,
) -> Preferences:
    """Return K responses to each chosen prompt of splits train and validation, as sampled.

    ``stop_ids``: what ends a turn (``models.stops``), besides ``section.stop``. Which prompts, K
    and each response's seed are functions of (seed, uid, sample). Responses that the engine aborted
    or that could not be scored are left out, and counted. Raises ``UserError`` when a split has no
    prompts or no function checked correctness, RewardFailureError when more responses have no
    verdict than ``reward`` allows.
    """
    chosen = [
        *choose_prompts(prompts, "train", section.prompts, seed),
        *choose_prompts(prompts, "validation", section.validation_prompts, seed),
    ]
    requests = [
        Request(
            f"{prompt['uid']}-{sample:02d}",
            prompt,
            sample,
            stream_seed(seed, "preferences", prompt["uid"], sample),
        )
        for prompt in chosen
        for sample in range(num_responses(section, prompt["uid"], seed))
    ]
    sampling = Sampling(
        temperature=section.temperature,
        max_new_tokens=section.max_new_tokens,
        stop_token_ids=stop_ids,
        stop=section.stop,
    )
    trajectories = in_order(requests, collect(requests, sampling, engines, tokenizer))
    levels = _levels(rewards := score(trajectories, scorer), reward)
    ranked, token_ids, prompt_tokens = [], [], []
    for trajectory, level, scored in zip(trajectories, levels, rewards, strict=True):
        prompt = trajectory.request.prompt
        if level not in RANKS:
            continue
        ranked.append(_ranked(trajectory, level, scored))
        token_ids.append(joined([trajectory]).token_ids.tolist())
        prompt_tokens.append(len(prompt["prompt_ids"]))
    left_out = Counter(level for level in levels if level not in RANKS)
    return Preferences(preferences_table(ranked, token_ids, prompt_tokens), dict(left_out))


def _ranked(trajectory: Trajectory, level: str, scored: Reward) -> Ranked:
    prompt = trajectory.request.prompt
    return Ranked(
        uid=prompt["uid"],
        split=prompt["split"],
        data_source=prompt["data_source"],
        sample=trajectory.request.sample,
        prompt=prompt["prompt"],
        response=trajectory.text,
        rank=RANKS[level],
        level=level,
        verdicts=scored.verdicts_json,
    )


def num_responses(section: SampledPreferences, uid: str, seed: int) -> int:
    """Return K of a prompt, uniform over min_responses..max_responses."""
    choices = section.max_responses - section.min_responses + 1
    return section.min_responses + stream_seed(seed, "preferences-k", uid) % choices


def choose_prompts(prompts: pl.DataFrame, split: str, count: int, seed: int) -> list[dict]:
    """Return at most ``count`` prompts of ``split`` as dicts, drawn by (seed, uid).

    Raises ``UserError`` when there is none.
    """
    rows = prompts.filter(pl.col("split") == split)
    if rows.is_empty():
        raise UserError(
            f"reward_model.preferences of kind 'samples' need {split} prompts and the dataset has"
            " none; set data.validation_fraction or add a source of that split"
        )
    order = pl.Series("order", [stream_seed(seed, "preferences", uid) for uid in rows["uid"]])
    chosen = rows.with_columns(order).sort("order").drop("order").head(count)
    return list(chosen.iter_rows(named=True))


def level_of(reward: Reward) -> str:
    """Return the level that follows from a verdict, or why there is none: "aborted", "unscorable",
    "unjudged"."""
    if reward.outcome == Outcome.ABORTED:
        return "aborted"
    if reward.correct is None:
        return "unscorable" if _failure(reward) else "unjudged"
    if reward.correct:
        return "correct"
    return "malformed" if reward.outcome == Outcome.NO_ANSWER else "wrong"


def _failure(reward: Reward) -> tuple[str, str] | None:
    """Return outcome and detail of a response without a verdict. Ranking needs verdicts, so here
    the failure of a function of weight 0 counts too."""
    if reward.score is None:
        return reward.outcome, reward.detail
    if reward.correct is None and reward.failures:
        failure = next(iter(reward.failures.values()))
        return failure.outcome, failure.detail
    return None


def _levels(rewards: Sequence[Reward], section: RewardSection) -> list[str]:
    """Return each response's level, or why it has none."""
    levels = [level_of(reward) for reward in rewards]
    failures = [_failure(reward) or (Outcome.OK, "") for reward in rewards]
    check_unscored(failures, section, rows="sampled responses")
    unjudged = levels.count("unjudged")
    if unjudged:
        raise UserError(
            f"reward.functions do not judge the correctness of {unjudged} of {len(levels)} sampled"
            " responses, by which reward_model.preferences of kind 'samples' rank them; add a"
            " function that does, of weight 0 if it is not to be trained on"
        )
    return levels
