"""The summary of a run, from its tables alone: accuracies, rates, and the time outside the
phases."""

import polars as pl

CHECKPOINTS = ("base", "sft", "rl")
HELD_OUT = "test"


def accuracies(eval_results: pl.DataFrame, metric: str = "greedy/acc") -> dict[str, float | None]:
    """Return accuracy per checkpoint on subset "test", with equal weight for all prompts.

    ``metric``: prefix of its name, e.g. "sampled/avg@". None for a checkpoint without it.
    """
    named = pl.col("metric").str.starts_with(metric)
    rows = eval_results.filter(named & (pl.col("subset") == HELD_OUT))
    weighted = (pl.col("value") * pl.col("num_prompts")).sum() / pl.col("num_prompts").sum()
    found = dict(rows.group_by("checkpoint").agg(weighted).iter_rows())
    return {name: found.get(name) for name in CHECKPOINTS}


def episode_figures(eval_results: pl.DataFrame) -> dict[str, dict[str, float]]:
    """Return per checkpoint what its greedy episodes in an environment were like: ``turns`` (mean),
    ``valid_action_ratio``, and ``called``, the share in which a tool gave a result."""
    named = {
        "turns": "greedy/turns/mean",
        "valid_action_ratio": "greedy/valid_action_ratio",
        "called": "greedy/called",
    }
    figures = {name: accuracies(eval_results, metric) for name, metric in named.items()}
    return {
        checkpoint: {
            name: value
            for name, found in figures.items()
            if (value := found[checkpoint]) is not None
        }
        for checkpoint in CHECKPOINTS
        if figures["turns"][checkpoint] is not None
    }


def token_rates(sft: pl.DataFrame | None, rl: pl.DataFrame) -> dict[str, float]:
    """Return tokens per second: SFT and update count trained tokens, rollout sampled ones,
    iteration all tokens of the batch over the whole iteration.

    A rate whose metrics are lost is left out.
    """
    rates: dict[str, float] = {}
    if sft is not None:
        total = sft.filter(pl.col("name") == "perf/total_tokens_per_s").sort("step")["value"]
        if len(total):
            rates["sft"] = float(total[-1])
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


def proxy_and_truth(rl: pl.DataFrame) -> pl.DataFrame | None:
    """Return step, proxy, truth and gap of each iteration; None where there are no verdicts on
    correctness.

    proxy: ``critic/score/mean``, which is maximised; truth: ``critic/accuracy``, the goal. They
    have different units, so each is scaled to [0, 1] by its own least and greatest of the run;
    ``gap`` is scaled proxy minus scaled truth. A growing gap is reward hacking.
    """
    names = {"critic/score/mean": "proxy", "critic/accuracy": "truth"}
    rows = rl.filter(pl.col("name").is_in(list(names))).drop_nulls("value")
    if rows["name"].n_unique() < len(names):
        return None
    wide = rows.pivot(on="name", index="step", values="value").rename(names).drop_nulls()
    proxy, truth = (
        (pl.col(name) - pl.col(name).min()) / (pl.col(name).max() - pl.col(name).min())
        for name in ("proxy", "truth")
    )
    gap = proxy.fill_nan(0.0) - truth.fill_nan(0.0)
    return wide.sort("step").select("step", "proxy", "truth", gap=gap)


def worst_gap(rl: pl.DataFrame) -> float | None:
    """Return the largest |learner - sampler| log-prob (nats) of any iteration."""
    gaps = rl.filter(pl.col("name") == "training/rollout_logprobs_gap_max")["value"]
    return float(gaps.to_numpy().max()) if gaps.len() else None
