"""What a run came to, in the sentence with which its page, report and summary begin."""

from contextlib import suppress

import polars as pl

from rlcore.results.paired import difference, prompt_values
from rlcore.results.provenance import commit_of
from rlcore.results.summary import HELD_OUT
from rlcore.store.checks import ArtifactError
from rlcore.store.reader import ArtifactReader
from schemas.artifacts import Manifest

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
    if completions is not None and eval_results is not None:
        if best == 0:
            began = "SFT's" if "sft" in completions["checkpoint"] else "what RL began with"
            said = f"the export is {began}: no iteration of RL did better in validation"
        else:
            said += f"; {_beaten(completions, eval_results)}"
    with suppress(ArtifactError):  # of a damaged record no commit is known
        if (commit := commit_of(store, policy)) is not None:
            said += f"; commit {commit}"
    return f"{said[0].upper()}{said[1:]}"


def _beaten(completions: pl.DataFrame, eval_results: pl.DataFrame) -> str:
    of_sft = "sft" in completions["checkpoint"]
    checkpoint, before = ("sft", "SFT") if of_sft else ("base", "the base model")
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
