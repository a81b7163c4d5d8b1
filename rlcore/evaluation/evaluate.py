"""One checkpoint on one split: greedy and sampled completions, scored and summarised.

Seeds do not depend on the checkpoint, so checkpoints are compared on the same noise.
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from itertools import islice
from typing import Any

import polars as pl

from rlcore.algorithms.seeds import stream_seed
from rlcore.engines.pool import EnginePool
from rlcore.engines.types import Sampling
from rlcore.evaluation.summary import summarize
from rlcore.results.paired import one_per_question
from rlcore.rewards.types import Reward, RewardRow, prompt_text
from rlcore.rewards.unscored_rows import check_unscored
from rlcore.rollout.episodes import Episodes, collect, in_order, score
from rlcore.rollout.trajectories import Request, Trajectory
from rlcore.store.tables import polars_schema
from schemas.errors import UserError
from schemas.recipe import EvaluateSection
from schemas.rl import RewardSection


def evaluate(
    prompts: pl.DataFrame,
    *,
    checkpoint: str,
    section: EvaluateSection,
    seed: int,
    engines: EnginePool,
    tokenizer: Any,
    stop_ids: tuple[int, ...],
    scorer: Callable[[list[RewardRow]], list[Reward]],
    reward: RewardSection,
    split: str = "test",
    episodes: Episodes | None = None,
) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Return (EvalResults, Completions) of the weights that ``engines`` sample from.

    Evaluates the rows of ``prompts`` with split ``split``. ``checkpoint`` labels the rows;
    ``stop_ids``: what ends a turn of the model (``models.stop_tokens``), besides ``section.stop``.
    One greedy completion per question, however often it is repeated, but per prompt in an
    environment; with ``section.samples`` > 1 also that many sampled ones, the seed of each a
    function of (seed, uid, sample). A completion that the engine aborted has outcome "aborted" and
    no score. ``num_prompts`` and ``num_samples`` of a result count what it is computed from.
    ``episodes``: how the policy answers, in an environment. Raises ``UserError`` when the split has
    no prompt, RewardFailureError when more completions are unscored than ``reward`` allows.
    """
    questions = select_prompts(prompts, section.max_prompts, seed, split)
    greedy = Sampling(
        temperature=0.0,
        max_new_tokens=section.max_new_tokens,
        stop_token_ids=stop_ids,
        stop=section.stop,
    )
    asked = one_per_question(questions) if episodes is None else questions
    modes = {"greedy": (asked, 1, greedy)}
    if section.samples > 1:
        sampling = replace(greedy, temperature=section.temperature, top_p=section.top_p)
        modes["sampled"] = (questions, section.samples, sampling)
    drawn: dict[str, list[Trajectory]] = {}
    for mode, (asked, n, sampling) in modes.items():
        requests = _requests(asked, mode, n, seed)
        sampled = collect(requests, sampling, engines, tokenizer, episodes)
        drawn[mode] = in_order(requests, sampled)
    # All in one call: the limit on unscored completions is a share of all.
    rewards = iter(score([t for mode in drawn.values() for t in mode], scorer))
    rows = pl.concat(
        _completions(checkpoint, mode, trajectories, list(islice(rewards, len(trajectories))))
        for mode, trajectories in drawn.items()
    )
    what = f"completions of '{checkpoint}'"
    check_unscored(rows.select("outcome", "detail").rows(), reward, rows=what)
    return summarize(rows, section, seed), rows.drop("correct", "detail", "judge_failed")


def _requests(prompts: pl.DataFrame, mode: str, n: int, seed: int) -> list[Request]:
    return [
        Request(
            f"{prompt['uid']}-{mode}-{sample:03d}",
            prompt,
            sample,
            stream_seed(seed, "evaluate", prompt["uid"], sample),
        )
        for prompt in prompts.iter_rows(named=True)
        for sample in range(n)
    ]


def section_of(
    checkpoint: str, checkpoints: Collection[str], section: EvaluateSection
) -> EvaluateSection:
    """Return how ``checkpoint`` is evaluated among ``checkpoints``: as ``section`` says, but the
    base model greedily only where the SFT policy is evaluated too. Nothing is compared with its
    samples then, which are the slowest, as it seldom ends an answer."""
    if checkpoint == "base" and "sft" in checkpoints:
        return section.model_copy(update={"samples": 1, "pass_k": ()})
    return section


def select_prompts(
    prompts: pl.DataFrame, max_prompts: int | None, seed: int, split: str = "test"
) -> pl.DataFrame:
    """Return the prompts of ``split``, at most ``max_prompts`` of each source and subset, in table
    order.

    Which ones is a function of (seed, uid), so that the cap does not select the easy beginning of
    an ordered file. Raises ``UserError`` when there is none.
    """
    rows = prompts.filter(pl.col("split") == split)
    if rows.is_empty():
        raise UserError(
            f"the dataset has no prompt with split '{split}'; add a source with a {split} split to"
            " data.sources"
        )
    if max_prompts is None:
        return rows
    order = [stream_seed(seed, "evaluate-subset", uid) for uid in rows["uid"]]
    rank = pl.Series("order", order).rank("ordinal")
    kept = pl.col("order").rank("ordinal").over("data_source", "subset") <= max_prompts
    return rows.with_columns(rank).filter(kept).drop("order")


def _completions(
    checkpoint: str, mode: str, trajectories: Sequence[Trajectory], rewards: Sequence[Reward]
) -> pl.DataFrame:
    """Return Completions with what the figures need besides: ``correct``, ``detail`` and
    ``judge_failed``."""
    rows = [
        {
            **{name: prompt[name] for name in ("uid", "data_source", "subset", "ground_truth")},
            "checkpoint": checkpoint,
            "mode": mode,
            "sample": drawn.request.sample,
            "prompt": prompt_text(prompt["prompt"]),
            "response": drawn.text,
            "outcome": reward.outcome,
            "score": reward.score,
            "answer": reward.answer,
            "finish_reason": drawn.last.finish_reason.value,
            "num_tokens": drawn.num_tokens,
            "verdicts": reward.verdicts_json,
            "turns": list(drawn.messages),
            "valid_actions": [turn.valid for turn in drawn.turns],
            "correct": reward.correct,
            "detail": reward.detail,
            "judge_failed": bool(reward.failures),
        }
        for drawn, reward in zip(trajectories, rewards, strict=True)
        for prompt in [drawn.request.prompt]
    ]
    more = {"correct": pl.Boolean, "detail": pl.String, "judge_failed": pl.Boolean}
    return pl.DataFrame(rows, schema={**polars_schema("completions"), **more})
