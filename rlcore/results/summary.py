"""The summary of a run, from its tables alone, and the sentence on what it came to with which
its page, report and summary begin."""

from collections.abc import Sequence
from contextlib import suppress

import polars as pl

from rlcore.results.metrics import MEMORY
from rlcore.results.paired import difference, prompt_values
from rlcore.results.provenance import commit_of
from rlcore.store.checks import ArtifactError
from rlcore.store.reader import ArtifactReader
from schemas.artifacts import Manifest
from schemas.names import AVERAGE, PREFERENCE, WEIGHTS

CHECKPOINTS = ("base", "sft", PREFERENCE, "rl")
HELD_OUT = "test"


def accuracies(eval_results: pl.DataFrame, metric: str = "greedy/acc") -> dict[str, float | None]:
    """Return accuracy per checkpoint on subset "test", with equal weight for all prompts.

    ``metric``: prefix of its name, e.g. "sampled/avg@". None for a checkpoint without it.
    """
    named = pl.col("metric").str.starts_with(metric)
    rows = eval_results.filter(named & (pl.col("subset") == HELD_OUT))
    weighted = (pl.col("value") * pl.col("num_prompts")).sum() / pl.col("num_prompts").sum()
    found = dict(rows.group_by("checkpoint").agg(weighted).iter_rows())
    of_run = [name for name in CHECKPOINTS if name in found or name != PREFERENCE]
    return {name: found.get(name) for name in of_run}


def episode_figures(eval_results: pl.DataFrame) -> dict[str, dict[str, float]]:
    """Return per checkpoint what its greedy episodes in an environment were like: ``turns`` (mean),
    ``valid_action_ratio``, and ``called``, the share in which a tool gave a result."""
    named = {
        "turns": "greedy/turns/mean",
        "valid_action_ratio": "greedy/valid_action_ratio",
        "called": "greedy/called",
    }
    figures = {name: accuracies(eval_results, metric) for name, metric in named.items()}
    of = {one: {name: found.get(one) for name, found in figures.items()} for one in CHECKPOINTS}
    return {
        checkpoint: {name: value for name, value in row.items() if value is not None}
        for checkpoint, row in of.items()
        if row["turns"] is not None
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
    ahead = "_ahead" if "timing_s/gen_ahead" in steps.columns else ""
    wanted = {
        # What was sampled ahead took its own time, and not that for which the loop waited.
        "rollout": ("perf/response_tokens", f"timing_s/gen{ahead}"),
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


def peak_memory_gib(rl: pl.DataFrame) -> dict[str, float]:
    """Return the most GiB that a rank of each trained role has held."""
    begin = f"{MEMORY}/"
    held = rl.filter(pl.col("name").str.starts_with(begin)).drop_nulls("value")
    most = held.group_by("name").agg(pl.col("value").max()).sort("name")
    return {name.removeprefix(begin): value for name, value in most.iter_rows()}


def lost_time(rl: pl.DataFrame, restarts_s: Sequence[float]) -> dict[str, float] | None:
    """Return what RL lost: engines replaced and restarts, their number and seconds, and
    ``productive_share`` of its time; None where nothing was lost.

    ``restarts_s``: of each restart whose cost is known. Its time is in no iteration, that of an
    engine is: all of it, though other engines sample and learners train meanwhile, so the share is
    a lower bound.
    """

    def total(name: str) -> float:
        return float(rl.filter((pl.col("name") == name) & (pl.col("step") > 0))["value"].sum())

    engines, engines_s = total("rollout/engines_replaced"), total("timing_s/engines_replaced")
    steps_s, again_s = total("timing_s/step"), sum(restarts_s)
    if not (engines or restarts_s) or steps_s + again_s == 0:
        return None
    return {
        "engines_replaced": engines,
        "engines_replaced_s": engines_s,
        "restarts": float(len(restarts_s)),
        "restarts_s": again_s,
        "productive_share": max(0.0, steps_s - engines_s) / (steps_s + again_s),
    }


def proxy_and_truth(rl: pl.DataFrame) -> pl.DataFrame | None:
    """Return step and gap of each iteration; None where there are no verdicts on correctness.

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
    return wide.sort("step").select("step", gap=proxy.fill_nan(0.0) - truth.fill_nan(0.0))


def worst_gap(rl: pl.DataFrame) -> float | None:
    """Return the largest |learner - sampler| log-prob (nats) of any iteration."""
    gaps = rl.filter(pl.col("name") == "training/rollout_logprobs_gap_max")["value"]
    return float(gaps.to_numpy().max()) if gaps.len() else None


METRICS = ("accuracy", "sampled_accuracy", "score")  # by which, the first that both have


def verdict(
    store: ArtifactReader,
    policy: Manifest,
    completions: pl.DataFrame | None,
    eval_results: pl.DataFrame | None,
) -> str:
    """Return which iteration's weights ``policy`` has, whether RL beat what it began with on the
    held-out prompts, and the commit of the code.

    ``completions``, ``eval_results``: the tables of the run's evaluation, None before it. Empty for
    a policy of an earlier version, which does not say of which iteration it is.
    """
    done, best = (policy.metadata.get(name) for name in ("iteration", "best_iteration"))
    if best is None:
        return ""
    said = f"iteration {best} of {done}"
    if policy.metadata.get(WEIGHTS) == AVERAGE:
        said += ", the average of the weights up to there"
    if completions is not None and eval_results is not None:
        if best == 0:
            checkpoint, name = _began(completions)
            began = "what RL began with" if checkpoint == "base" else f"{name}'s"
            said = f"the export is {began}: no iteration of RL did better in validation"
        else:
            said += f"; {_beaten(completions, eval_results)}"
    with suppress(ArtifactError):  # of a damaged record no commit is known
        if (commit := commit_of(store, policy)) is not None:
            said += f"; commit {commit}"
    return f"{said[0].upper()}{said[1:]}"


def _began(completions: pl.DataFrame) -> tuple[str, str]:
    """Return the checkpoint with which RL began, as far as was evaluated, and its name in words."""
    there = set(completions["checkpoint"])
    names = {PREFERENCE: "preference training", "sft": "SFT"}
    return next(
        ((one, name) for one, name in names.items() if one in there), ("base", "the base model")
    )


def _beaten(completions: pl.DataFrame, eval_results: pl.DataFrame) -> str:
    checkpoint, before = _began(completions)
    held_out = pl.col("subset") == HELD_OUT
    completions, eval_results = completions.filter(held_out), eval_results.filter(held_out)
    first, second = (prompt_values(completions, eval_results, name) for name in (checkpoint, "rl"))
    for metric in METRICS:
        if metric not in first or metric not in second:
            continue
        pair = difference(metric, first[metric], second[metric])
        if pair is None:
            continue
        of = f"{pair.first:.3f} to {pair.second:.3f}"
        by = f"{pair.value:+.3f} [{pair.low:+.3f}, {pair.high:+.3f}] on {pair.pairs} prompts"
        how = (
            "beat" if pair.low > 0 else "did worse than" if pair.high < 0 else "did not surely beat"
        )
        return f"RL {how} {before}: held-out {metric.replace('_', ' ')} {of}, {by}"
    return f"whether RL beat {before} is not known: nothing was measured of both"
