"""The rollout phase: prompts in, recorded trajectories out."""

from typing import Any

import numpy as np
import polars as pl

from rlcore.engines.pool import EnginePool
from rlcore.engines.types import Generation, Sampling
from rlcore.models.tokenizer import eos_token_id
from rlcore.ragged import from_arrays, to_arrays
from rlcore.seeds import stream_seed
from rlcore.weights.stamp import WeightStamp
from schemas.rl import RolloutSection


def sample_rollouts(
    prompts: pl.DataFrame,
    engines: EnginePool,
    section: RolloutSection,
    *,
    tokenizer: Any,
    iteration: int,
    seed: int,
    greedy: bool = False,
) -> pl.DataFrame:
    """Sample ``section.samples`` trajectories per prompt; one row each, in the Rollouts contract.

    The seed of a trajectory is a function of (recipe seed, iteration, uid, sample), so it can be
    drawn again alone. ``greedy``: one trajectory per prompt at temperature 0 instead, the baseline
    of ReMax (arXiv 2310.10505).
    """
    n = 1 if greedy else section.samples
    uids = prompts["uid"].to_list()
    prompt_ids = [ids.tolist() for ids in to_arrays(prompts["prompt_ids"])]
    seeds = [stream_seed(seed, "rollout", iteration, uid, s) for uid in uids for s in range(n)]
    generations = engines.generate(
        [ids for ids in prompt_ids for _ in range(n)],
        seeds,
        Sampling(
            temperature=0.0 if greedy else section.temperature,
            top_p=section.top_p,
            top_k=section.top_k,
            max_new_tokens=section.max_new_tokens,
            stop_token_ids=(eos_token_id(tokenizer),),
        ),
    )
    return _rollouts_frame(
        uids,
        prompt_ids,
        generations,
        seeds=seeds,
        iteration=iteration,
        stamp=engines.stamp(),
        texts=decode(tokenizer, generations),
        greedy=greedy,
    )


def _rollouts_frame(
    uids: list[str],
    prompt_ids: list[list[int]],
    generations: list[Generation],
    *,
    seeds: list[int],
    iteration: int,
    stamp: WeightStamp,
    texts: list[str],
    greedy: bool,
) -> pl.DataFrame:
    """Return the Rollouts table; the samples of a prompt stand together, in the order of
    ``uids``."""
    n = len(generations) // len(uids)
    samples = list(range(n)) * len(uids)
    owners = [uid for uid in uids for _ in range(n)]
    return pl.DataFrame(
        {
            "trajectory_id": [
                f"{iteration:06d}-{uid}-{'greedy' if greedy else f'{sample:02d}'}"
                for uid, sample in zip(owners, samples, strict=True)
            ],
            "uid": owners,
            "sample": pl.Series(samples, dtype=pl.Int32),
            "iteration": pl.Series([iteration] * len(owners), dtype=pl.Int32),
            "prompt_ids": from_arrays(
                "prompt_ids", [ids for ids in prompt_ids for _ in range(n)], pl.Int32
            ),
            "token_ids": from_arrays("token_ids", [g.token_ids for g in generations], pl.Int32),
            "loss_mask": from_arrays(
                "loss_mask",
                [np.ones(len(g.token_ids), dtype=bool) for g in generations],
                pl.Boolean,
            ),
            "sampler_logprobs": from_arrays(
                "sampler_logprobs", [np.minimum(g.logprobs, 0.0) for g in generations], pl.Float32
            ),
            "response": texts,
            "finish_reason": [g.finish_reason for g in generations],
            "num_turns": pl.Series([1] * len(owners), dtype=pl.Int32),
            "seed": pl.Series(seeds, dtype=pl.Int64),
            "weight_version": pl.Series([stamp.version] * len(owners), dtype=pl.Int64),
            "weight_digest": [stamp.digest] * len(owners),
        }
    )


def decode(tokenizer: Any, generations: list[Generation]) -> list[str]:
    """Return the texts, special tokens dropped. For rewards and people; training reads token
    ids."""
    return tokenizer.batch_decode([g.token_ids for g in generations], skip_special_tokens=True)
