"""Which curves a report shows, and in which order: what people look for first, then the rest."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import polars as pl

from rlcore.report.draw import Line, Panel

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
RL = "rl"
STAGES = ("sft", "reward_model", RL)  # stages with metrics


@dataclass(frozen=True, slots=True)
class Curves:
    """Panels of one or several runs: ``first``, of RL, in view; ``others`` by stage."""

    first: Sequence[Panel]
    others: Mapping[str, Sequence[Panel]]

    def of(self, stage: str) -> tuple[Sequence[Panel], Sequence[Panel]]:
        """Return the panels of ``stage`` that people look for first, or all, and all of them."""
        first = self.first if stage == RL else ()
        others = self.others.get(stage, ())
        return first or others, [*first, *others]


def curves(runs: Mapping[str, Mapping[str, pl.DataFrame]]) -> Curves:
    """Return the panels of the metrics of ``runs``: by label of the run, then by stage.

    With several runs a panel has a line for each that has the metric, coloured by its place. A
    metric without a finite value has no panel.
    """
    found = {
        stage: _by_metric({label: by_stage.get(stage) for label, by_stage in runs.items()})
        for stage in (RL, "sft", "reward_model")
    }
    rl, first = found[RL], []
    for titles in FIRST:
        name = next((name for name in titles if name in rl), None)
        if name is not None:
            first.append(Panel(titles[name], rl.pop(name), name))
    return Curves(
        first,
        {
            stage: [Panel(name, metrics[name], name) for name in sorted(metrics)]
            for stage, metrics in found.items()
            if metrics
        },
    )


def _by_metric(tables: Mapping[str, pl.DataFrame | None]) -> dict[str, list[Line]]:
    """Return the lines of each metric, one per run that has it."""
    found: dict[str, list[Line]] = {}
    for colour, (label, frame) in enumerate(tables.items()):
        if frame is None or not frame.height:
            continue
        grouped = frame.sort("step", maintain_order=True).group_by("name").agg("step", "value")
        for name, steps, values in grouped.iter_rows():
            line = Line(label, list(zip(steps, values, strict=True)), colour)
            if line.known:
                found.setdefault(name, []).append(line)
    return found


def proxy_panels(
    title: str, curves: Mapping[str, pl.DataFrame], *, legend: bool = True
) -> list[Panel]:
    """Return two panels of ``proxy_and_truth`` by label: reward model score and true accuracy, and
    the gap between them, which grows where the policy learns what the model prefers."""
    pairs = [
        Line("", _points(frame, name), axis, axis)
        for frame in curves.values()
        for axis, name in enumerate(("proxy", "truth"))
    ]
    gaps = [
        Line(label, _points(frame, "gap"), colour)
        for colour, (label, frame) in enumerate(curves.items())
    ]
    return [
        Panel(
            f"{title}: proxy, truth",
            pairs,
            y_labels={0: "reward model", 1: "true accuracy"},
            limits={1: (0.0, 1.03)},
        ),
        Panel(
            f"{title}: gap",
            gaps,
            note="scaled proxy minus scaled truth",
            y_labels={0: "gap"},
            limits={0: (-1.05, 1.05)},
            legend=legend,
        ),
    ]


def _points(frame: pl.DataFrame, name: str) -> list[tuple[int, float]]:
    return list(frame.select("step", name).iter_rows())
