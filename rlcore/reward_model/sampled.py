"""Preferences from the policy itself: K sampled responses per prompt, ranked by the verifier."""

from collections import Counter
from collections.abc import Callable, Sequence

import polars as pl

from rlcore.engines.types import Generation, Sampling
from rlcore.ragged import to_arrays
from rlcore.reward_model.preferences import RANKS, Preferences, Ranked, preferences_table
from rlcore.rewards.types import Reward, RewardRow, score_finished
from rlcore.rewards.unscored import check_unscored
from rlcore.seeds import stream_seed
from schemas.errors import UserError
from schemas.reward_model import SampledPreferences
from schemas.rl import RewardSection

Generate = Callable[[list[list[int]], list[int], Sampling], list[Generation]]
Score = Callable[[list[RewardRow]], list[Reward]]
Decode = Callable[[list[list[int]]], list[str]]  # token ids -> text, special tokens dropped


def sample_preferences(
    section: SampledPreferences,
    prompts: pl.DataFrame,
    *,
    seed: int,
    stop_token_ids: Sequence[int],
    generate: Generate,
    score: Score,
    decode: Decode,
    reward: RewardSection,
) -> Preferences:
    """Return K responses to each chosen prompt of splits train and validation, as sampled.

    Which prompts, K and each response's seed are functions of (seed, uid, sample). Responses that
    the engine aborted or that could not be scored are left out, and counted. Raises ``UserError``
    when a split has no prompts or nothing judged correctness, RewardFailureError when ``reward``
    allows fewer without a verdict.
    """
    chosen = [
        *choose_prompts(prompts, "train", section.prompts, seed),
        *choose_prompts(prompts, "validation", section.validation_prompts, seed),
    ]
    draws = [
        (prompt, sample)
        for prompt in chosen
        for sample in range(num_responses(section, prompt["uid"], seed))
    ]
    generations = generate(
        [prompt["prompt_ids"] for prompt, _ in draws],
        [stream_seed(seed, "preferences", prompt["uid"], sample) for prompt, sample in draws],
        Sampling(
            temperature=section.temperature,
            max_new_tokens=section.max_new_tokens,
            stop_token_ids=tuple(stop_token_ids),
        ),
    )
    texts = decode([generation.token_ids for generation in generations])
    levels = _levels(draws, generations, texts, score, reward)
    ranked, token_ids, prompt_tokens = [], [], []
    for (prompt, sample), generation, text, level in zip(
        draws, generations, texts, levels, strict=True
    ):
        if level not in RANKS:
            continue
        ranked.append(
            Ranked(
                uid=prompt["uid"],
                split=prompt["split"],
                data_source=prompt["data_source"],
                sample=sample,
                prompt=prompt["prompt"],
                response=text,
                rank=RANKS[level],
                level=level,
            )
        )
        token_ids.append([*prompt["prompt_ids"], *generation.token_ids])
        prompt_tokens.append(len(prompt["prompt_ids"]))
    left_out = Counter(level for level in levels if level not in RANKS)
    return Preferences(preferences_table(ranked, token_ids, prompt_tokens), dict(left_out))


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
    token_ids = [ids.tolist() for ids in to_arrays(chosen["prompt_ids"])]
    return [
        row | {"prompt_ids": ids}
        for row, ids in zip(chosen.iter_rows(named=True), token_ids, strict=True)
    ]


def level_of(reward: Reward) -> str:
    """Return the level a verdict means, or why it means none: "aborted", "unscorable",
    "unjudged"."""
    if reward.outcome == "aborted":
        return "aborted"
    if reward.correct is None:
        return "unscorable" if _failure(reward) else "unjudged"
    if reward.correct:
        return "correct"
    return "malformed" if reward.outcome == "no_answer" else "wrong"


def _failure(reward: Reward) -> tuple[str, str] | None:
    """Return outcome and detail of what kept a response from a verdict: here, where verdicts are
    what is wanted, also the failure of a function of weight 0."""
    if reward.score is None:
        return reward.outcome, reward.detail
    if reward.correct is None and reward.failures:
        failure = next(iter(reward.failures.values()))
        return failure.outcome, failure.detail
    return None


def _levels(
    draws: Sequence[tuple[dict, int]],
    generations: Sequence[Generation],
    texts: Sequence[str],
    score: Score,
    section: RewardSection,
) -> list[str]:
    """Return each response's level, or why it has none."""
    rows = [
        RewardRow.of_prompt(
            prompt,
            trajectory_id=f"{prompt['uid']}-{sample:02d}",
            response=text,
            generation=generation,
        )
        for (prompt, sample), text, generation in zip(draws, texts, generations, strict=True)
    ]
    rewards = score_finished(rows, score)
    levels = [level_of(reward) for reward in rewards]
    failures = [_failure(reward) or ("ok", "") for reward in rewards]
    check_unscored(failures, section, rows="sampled responses")
    unjudged = levels.count("unjudged")
    if unjudged:
        raise UserError(
            f"reward.functions do not judge the correctness of {unjudged} of {len(levels)} sampled"
            " responses, by which reward_model.preferences of kind 'samples' rank them; add a"
            " function that does, of weight 0 if it is not to be trained on"
        )
    return levels
