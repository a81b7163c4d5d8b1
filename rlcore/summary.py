"""What a run came to, from its tables alone: accuracies, rates, and the time outside the phases."""

import polars as pl

CHECKPOINTS = ("base", "sft", "rl")
HELD_OUT = "test"


def accuracies(eval_results: pl.DataFrame) -> dict[str, float | None]:
    """Return greedy accuracy per checkpoint on subset "test", prompts of all sources weighing
    alike.

    None for a checkpoint that was not evaluated.
    """
    rows = eval_results.filter((pl.col("metric") == "greedy/acc") & (pl.col("subset") == HELD_OUT))
    weighted = (pl.col("value") * pl.col("num_prompts")).sum() / pl.col("num_prompts").sum()
    found = dict(rows.group_by("checkpoint").agg(weighted).iter_rows())
    return {name: found.get(name) for name in CHECKPOINTS}


def token_rates(sft: pl.DataFrame | None, rl: pl.DataFrame) -> dict[str, float]:
    """Return tokens per second: SFT and update count trained tokens, rollout sampled ones,
    iteration all tokens of the batch over the whole iteration."""
    rates: dict[str, float] = {}
    if sft is not None:
        throughput = sft.filter(pl.col("name") == "perf/throughput").sort("step")["value"]
        rates["sft"] = float(throughput[-1])
    steps = rl.pivot(on="name", index="step", values="value").filter(pl.col("step") > 0)
    wanted = {
        "rollout": ("perf/response_tokens", "timing_s/gen"),
        "update": ("perf/trained_tokens", "timing_s/update_actor"),
        "iteration": ("perf/total_num_tokens", "timing_s/step"),
    }
    for phase, (tokens, seconds) in wanted.items():
        if tokens in steps.columns and seconds in steps.columns:
            both = steps.filter(pl.col(tokens).is_not_null() & pl.col(seconds).is_not_null())
            if both.height:
                rates[phase] = both[tokens].to_numpy().sum() / both[seconds].to_numpy().sum()
    return rates


def phase_seconds(rl: pl.DataFrame) -> dict[str, float]:
    """Return the median seconds of each phase, of a step, and of the time outside the phases."""
    timings = rl.filter(pl.col("name").str.starts_with("timing_s/") & (pl.col("step") > 0))
    medians = timings.group_by("name").agg(pl.col("value").median()).sort("name")
    return {name.removeprefix("timing_s/"): value for name, value in medians.iter_rows()}


def worst_gap(rl: pl.DataFrame) -> float | None:
    """Return the largest |learner - sampler| log-prob (nats) of any iteration."""
    gaps = rl.filter(pl.col("name") == "training/rollout_logprobs_gap_max")["value"]
    return float(gaps.to_numpy().max()) if gaps.len() else None
