"""Stored iterations of an RL run whose verdicts a test scripts."""

from collections.abc import Mapping, Sequence

import polars as pl

from rlcore.store.artifacts import ArtifactStore, Lineage
from schemas.artifacts import ArtifactRef

Verdicts = Mapping[str, Sequence[bool | None]]  # uid -> one per sample; None = no verdict


def put_dataset(store: ArtifactStore, prompts: Mapping[str, str]) -> ArtifactRef:
    """Store a dataset of ``prompts``: uid -> what the user asks."""
    count = len(prompts)
    frame = pl.DataFrame(
        {
            "uid": list(prompts),
            "split": ["train"] * count,
            "subset": ["train"] * count,
            "data_source": ["scripted"] * count,
            "prompt": [[{"role": "user", "content": text}] for text in prompts.values()],
            "prompt_ids": pl.Series([[1, 2]] * count, dtype=pl.List(pl.Int32)),
            "ability": ["math"] * count,
            "reward_style": ["rule"] * count,
            "ground_truth": ["7"] * count,
            "extra_info": ["{}"] * count,
        }
    )
    return store.put("dataset", "d", tables={"prompts": frame}, lineage=Lineage("r", "c"))


def put_iteration(
    store: ArtifactStore,
    key: str,
    iteration: int,
    *rounds: Verdicts,
    parents: Mapping[str, ArtifactRef],
) -> None:
    """Store an iteration's rollouts, rewards and advantages as the RL phases name them."""
    roles = dict(parents)
    for number, verdicts in enumerate(rounds):
        suffix = f"-{number}" if number else ""
        name = f"{key}/{iteration:06d}{suffix}"
        samples = rollouts(iteration, verdicts)
        rolled = store.put(
            "rollouts", name, tables={"rollouts": samples}, lineage=Lineage("r", "c", parents)
        )
        made_from = {**parents, "rollouts": rolled}
        scored = store.put(
            "rewards",
            name,
            tables={"rewards": rewards(samples, verdicts)},
            lineage=Lineage("r", "c", made_from),
        )
        roles |= {f"rollouts{suffix}": rolled, f"rewards{suffix}": scored}
    store.put(
        "advantages",
        f"{key}/{iteration:06d}",
        tables={"advantages": advantages(samples)},
        lineage=Lineage("r", "c", roles),
    )


def rollouts(iteration: int, verdicts: Verdicts) -> pl.DataFrame:
    """Return the Rollouts table: a sample per verdict."""
    rows = [(uid, sample) for uid, given in verdicts.items() for sample in range(len(given))]
    count = len(rows)
    tokens = pl.Series([[1, 2]] * count, dtype=pl.List(pl.Int32))
    return pl.DataFrame(
        {
            "trajectory_id": [f"{iteration:06d}-{uid}-{sample:02d}" for uid, sample in rows],
            "uid": [uid for uid, _ in rows],
            "sample": pl.Series([sample for _, sample in rows], dtype=pl.Int32),
            "iteration": pl.Series([iteration] * count, dtype=pl.Int32),
            "token_ids": tokens,
            "prompt_tokens": pl.Series([1] * count, dtype=pl.Int32),
            "loss_mask": [[False, True]] * count,
            "sampler_logprobs": pl.Series([[0.0, -0.5]] * count, dtype=pl.List(pl.Float32)),
            "response": ["#### 9"] * count,
            "finish_reason": ["stop"] * count,
            "stop_reason": ["done"] * count,
            "turn_ends": pl.Series([[2]] * count, dtype=pl.List(pl.Int32)),
            "turn_rewards": [[0.0]] * count,
            "turn_versions": [[0]] * count,
            "valid_actions": [[True]] * count,
            "seed": [0] * count,
            "weight_version": [0] * count,
            "weight_digest": ["w"] * count,
        }
    )


def rewards(samples: pl.DataFrame, verdicts: Verdicts) -> pl.DataFrame:
    """Return the Rewards table of ``rollouts``; a sample without a verdict could not be scored."""
    correct = [verdicts[uid][sample] for uid, sample in samples.select("uid", "sample").iter_rows()]
    scores = [None if verdict is None else float(verdict) for verdict in correct]
    outcomes = {True: "ok", False: "wrong", None: "timeout"}
    return pl.DataFrame(
        {
            "trajectory_id": samples["trajectory_id"],
            "outcome": [outcomes[verdict] for verdict in correct],
            "score": pl.Series(scores, dtype=pl.Float64),
            "correct": pl.Series(correct, dtype=pl.Boolean),
            "counts": [True] * len(correct),
            "failures": ["{}"] * len(correct),
            "parts": ["{}"] * len(correct),
            "detail": [""] * len(correct),
            "seconds": [0.1] * len(correct),
            "verdicts": pl.Series([None] * len(correct), dtype=pl.String),
        }
    )


def advantages(samples: pl.DataFrame) -> pl.DataFrame:
    """Return an Advantages table of zeros."""
    zeros = pl.Series([[0.0, 0.0]] * samples.height, dtype=pl.List(pl.Float32))
    nothing = pl.Series([None] * samples.height, dtype=pl.List(pl.Float32))
    return pl.DataFrame(
        {
            "trajectory_id": samples["trajectory_id"],
            "advantages": zeros,
            "old_logprobs": zeros,
            "ref_logprobs": nothing,
            "values": nothing,
            "returns": nothing,
            "positive": pl.Series([None] * samples.height, dtype=pl.Boolean),
            "penalty": pl.Series([None] * samples.height, dtype=pl.Float64),
        }
    )
