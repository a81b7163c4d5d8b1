"""Which curves a report shows, and in which order: what people look for first, then the rest."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import polars as pl

from rlcore.report.charts import Chart, Series, chart

# Titles by metric, of which a report shows the first that a run has.
FIRST = (
    {"critic/score/mean": "Reward"},
    {"val/accuracy": "Validation accuracy", "val/score": "Validation score"},
    {"critic/accuracy": "Accuracy of the samples"},
    {"response_length/mean": "Response length, tokens"},
    {"actor/entropy": "Entropy, nats"},
    {"actor/ref_kl": "KL to the reference, nats"},
    {"actor/ppo_kl": "KL of the update, nats"},
    {"actor/grad_norm": "Gradient norm"},
    {"training/rollout_logprobs_gap_max": "Largest log-prob gap, sampler to learner, nats"},
)
STAGES = (("sft", "SFT"), ("reward_model", "Reward model"))


@dataclass(frozen=True, slots=True)
class Curves:
    """Panels of one or several runs: ``first`` in view, ``others`` by group behind a click."""

    first: Sequence[Chart]
    others: Mapping[str, Sequence[Chart]]


def curves(runs: Mapping[str, Mapping[str, pl.DataFrame]]) -> Curves:
    """Return the panels of the metrics of ``runs``: by label of the run, then by stage.

    With several runs a panel has a line for each that has the metric, coloured by its place.
    """
    tables = {label: by_stage.get("rl") for label, by_stage in runs.items()}
    rl = _by_metric(tables)
    first, shown = [], set[str]()
    for titles in FIRST:
        name = next((name for name in titles if name in rl), None)
        if name is not None:
            shown.add(name)
            first.append(chart(titles[name], name, rl[name]))
    rest = [chart(name, name, rl[name]) for name in sorted(rl) if name not in shown]
    others = {"RL, all other metrics": rest}
    for stage, title in STAGES:
        found = _by_metric({label: by_stage.get(stage) for label, by_stage in runs.items()})
        others[title] = [chart(name, name, found[name]) for name in sorted(found)]
    return Curves(
        first=[panel for panel in first if panel is not None],
        others={
            title: kept
            for title, panels in others.items()
            if (kept := [panel for panel in panels if panel is not None])
        },
    )


def _by_metric(tables: Mapping[str, pl.DataFrame | None]) -> dict[str, list[Series]]:
    """Return the series of each metric, one per run that has it."""
    found: dict[str, list[Series]] = {}
    for colour, (label, frame) in enumerate(tables.items()):
        if frame is None or not frame.height:
            continue
        grouped = frame.sort("step", maintain_order=True).group_by("name").agg("step", "value")
        for name, steps, values in grouped.iter_rows():
            points = list(zip(steps, values, strict=True))
            found.setdefault(name, []).append(Series(label, colour, points))
    return found
