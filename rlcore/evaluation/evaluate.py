"""One checkpoint on the test split: greedy and sampled completions, scored and summed up (SPEC M7).

Seeds do not depend on the checkpoint, so checkpoints are compared on the same noise.
"""

from collections.abc import Callable, Mapping, Sequence
from itertools import islice
from typing import Any

import polars as pl

from rlcore.engines.types import Generation, Sampling
from rlcore.evaluation.summary import summarize
from rlcore.ragged import to_arrays
from rlcore.rewards.types import Reward, RewardRow, prompt_text, score_finished
from rlcore.rewards.unscored import check_unscored
from rlcore.seeds import stream_seed
from schemas.errors import UserError
from schemas.recipe import EvaluateSection
from schemas.rl import RewardSection

Generate = Callable[[list[list[int]], list[int], Sampling], list[Generation]]
Score = Callable[[list[RewardRow]], list[Reward]]
Decode = Callable[[list[list[int]]], list[str]]  # token ids -> text, special tokens dropped
# mode; and per completion: its prompt's row, its number, what the engine gave, as text
_Drawn = tuple[str, list[dict[str, Any]], list[int], list[Generation], list[str]]


def evaluate(
    prompts: pl.DataFrame,
    *,
    checkpoint: str,
    section: EvaluateSection,
    seed: int,
    stop_token_ids: Sequence[int],
    generate: Generate,
    score: Score,
    decode: Decode,
    reward: RewardSection,
) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Return (EvalResults, Completions) of the weights that ``generate`` samples from.

    Evaluates the rows of ``prompts`` with split "test". ``checkpoint`` labels the rows; a result
    says in ``num_prompts`` and ``num_samples`` what it rests on. Raises ``UserError`` when there is
    no test prompt, RewardFailureError when fewer completions may go unscored by ``reward``.
    """
    drawn = generate_completions(
        prompts,
        checkpoint=checkpoint,
        section=section,
        seed=seed,
        stop_token_ids=stop_token_ids,
        generate=generate,
        score=score,
        decode=decode,
    )
    rows = f"completions of '{checkpoint}'"
    check_unscored(drawn.select("outcome", "detail").rows(), reward, rows=rows)
    return summarize(drawn, section, seed), drawn.drop("correct", "detail", "judge_failed")


def generate_completions(
    prompts: pl.DataFrame,
    *,
    checkpoint: str,
    section: EvaluateSection,
    seed: int,
    stop_token_ids: Sequence[int],
    generate: Generate,
    score: Score,
    decode: Decode,
) -> pl.DataFrame:
    """Return one row per completion: the Completions columns, ``correct``, ``detail``, and whether
    a reward function of weight 0 failed (``judge_failed``).

    One greedy completion per prompt; with ``section.samples`` > 1 also that many sampled ones, the
    seed of each a function of (seed, uid, sample). A completion that the engine aborted has outcome
    "aborted" and no score. Raises ``UserError`` when no prompt has split "test".
    """
    rows = select_prompts(prompts, section.max_prompts, seed)
    prompt_ids = [ids.tolist() for ids in to_arrays(rows["prompt_ids"])]
    modes = {"greedy": (1, Sampling(0.0, 1.0, -1, section.max_new_tokens, tuple(stop_token_ids)))}
    if section.samples > 1:
        sampling = Sampling(
            temperature=section.temperature,
            top_p=section.top_p,
            max_new_tokens=section.max_new_tokens,
            stop_token_ids=tuple(stop_token_ids),
        )
        modes["sampled"] = (section.samples, sampling)
    drawn: list[_Drawn] = []
    for mode, (n, sampling) in modes.items():
        owners = [row for row in rows.iter_rows(named=True) for _ in range(n)]
        samples = [sample for _ in range(rows.height) for sample in range(n)]
        seeds = [
            stream_seed(seed, "evaluate", owner["uid"], sample)
            for owner, sample in zip(owners, samples, strict=True)
        ]
        repeated = [ids for ids in prompt_ids for _ in range(n)]
        generations = generate(repeated, seeds, sampling)
        texts = decode([generation.token_ids for generation in generations])
        drawn.append((mode, owners, samples, generations, list(texts)))
    # All at once: how many may go unscored is a share of all.
    rewards = iter(_scored(drawn, score))
    return pl.concat(
        _completions(checkpoint, *part, list(islice(rewards, len(part[1])))) for part in drawn
    )


def select_prompts(prompts: pl.DataFrame, max_prompts: int | None, seed: int) -> pl.DataFrame:
    """Return the test prompts, at most ``max_prompts`` of each source and subset, in table order.

    Which ones is a function of (seed, uid), so the cap draws no easy beginning of an ordered file.
    Raises ``UserError`` when there is none.
    """
    rows = prompts.filter(pl.col("split") == "test")
    if rows.is_empty():
        raise UserError(
            "the dataset has no prompt with split 'test'; add a source with a test split to"
            " data.sources"
        )
    if max_prompts is None:
        return rows
    order = [stream_seed(seed, "evaluate-subset", uid) for uid in rows["uid"]]
    rank = pl.Series("order", order).rank("ordinal")
    kept = pl.col("order").rank("ordinal").over("data_source", "subset") <= max_prompts
    return rows.with_columns(rank).filter(kept).drop("order")


def _scored(drawn: Sequence[_Drawn], score: Score) -> list[Reward]:
    """Return one reward per completion, in order; what the engine aborted is "aborted"."""
    rows = [
        RewardRow.of_prompt(
            owner,
            trajectory_id=f"{owner['uid']}-{sample:03d}",
            response=text,
            generation=generation,
        )
        for _, owners, samples, generations, texts in drawn
        for owner, sample, text, generation in zip(owners, samples, texts, generations, strict=True)
    ]
    return score_finished(rows, score)


def _completions(
    checkpoint: str,
    mode: str,
    owners: Sequence[Mapping[str, Any]],
    samples: Sequence[int],
    generations: Sequence[Generation],
    texts: Sequence[str],
    rewards: Sequence[Reward],
) -> pl.DataFrame:
    count = len(owners)
    columns = ("uid", "data_source", "subset", "ground_truth")
    of_prompt = {name: pl.Series([o[name] for o in owners], dtype=pl.String) for name in columns}
    return pl.DataFrame(
        {
            "checkpoint": [checkpoint] * count,
            "uid": of_prompt["uid"],
            "data_source": of_prompt["data_source"],
            "subset": of_prompt["subset"],
            "mode": [mode] * count,
            "sample": pl.Series(samples, dtype=pl.Int32),
            "prompt": [prompt_text(owner["prompt"]) for owner in owners],
            "response": list(texts),
            "ground_truth": of_prompt["ground_truth"],
            "outcome": [reward.outcome for reward in rewards],
            "score": pl.Series([reward.score for reward in rewards], dtype=pl.Float64),
            "answer": pl.Series([reward.answer for reward in rewards], dtype=pl.String),
            "finish_reason": [generation.finish_reason for generation in generations],
            "num_tokens": pl.Series([len(g.token_ids) for g in generations], dtype=pl.Int32),
            "correct": pl.Series([reward.correct for reward in rewards], dtype=pl.Boolean),
            "detail": [reward.detail for reward in rewards],
            "judge_failed": [bool(reward.failures) for reward in rewards],
        }
    )
