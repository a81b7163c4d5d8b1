"""What a run came to, in the sentence with which its page, report and summary begin."""

import json

import polars as pl

from rlcore.results.paired import difference, prompt_values
from rlcore.results.provenance import CODE, CODE_FILE
from rlcore.results.summary import HELD_OUT
from rlcore.store.checks import ArtifactError
from rlcore.store.reader import ArtifactReader
from schemas.artifacts import ArtifactRef, Manifest

METRICS = ("accuracy", "sampled_accuracy", "score")  # by which, the first that both have
SHOWN = 12  # digits of a commit


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
    commit = _commit(store, policy.parents.get(CODE))
    return f"{said[0].upper()}{said[1:]}{'' if commit is None else f'; commit {commit}'}"


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


def _commit(store: ArtifactReader, code: ArtifactRef | None) -> str | None:
    """Return the commit of recorded code; None where it is not known."""
    if code is None:
        return None
    try:
        state = json.loads((store.directory(code) / CODE_FILE).read_text(encoding="utf-8"))
    except ArtifactError:
        return None
    if state["commit"] is None:
        return None
    return f"{state['commit'][:SHOWN]}{' with changes' if state['dirty'] else ''}"
