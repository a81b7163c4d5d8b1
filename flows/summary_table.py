"""The table that a run ends with in a terminal, from its ``summary.json``."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.table import Column, Table
from rich.text import Text

from rlcore.report.text import PHASES


def figures_table(
    heads: Sequence[str], rows: Iterable[Sequence[str]], title: str | None = None
) -> Table:
    """Return a table of names in its first column, and of figures in the others."""
    columns = [Column(head, justify="right") for head in heads[1:]]
    table = Table(heads[0], *columns, title=title, title_justify="left")
    for row in rows:
        table.add_row(*row)
    return table


def _print_resources(summary: Mapping[str, Any], console: Console) -> None:
    """Print what RL lost of its time, where anything, and the memory that its ranks held."""
    if lost := summary.get("lost_time"):
        engines, restarts = (
            f"{lost[name]:.0f}, {lost[f'{name}_s']:.0f} s"
            for name in ("engines_replaced", "restarts")
        )
        console.print(
            f"Productive share of RL's time: {lost['productive_share']:.1%} (engines replaced:"
            f" {engines}; restarts: {restarts})"
        )
    for role, gib in (summary.get("memory_gib") or {}).items():
        planned = "" if gib["planned"] is None else f", planned {gib['planned']:.2f}"
        console.print(f"Memory of a rank of the {role}: {gib['measured']:.2f} GiB{planned}")


def print_summary(summary: dict[str, Any], *, console: Console | None = None) -> None:
    """Print a run's ``summary.json``: accuracies, seconds per stage, tokens/s per phase, export."""
    console = console or Console(highlight=False, soft_wrap=True)
    if summary.get("verdict"):
        console.print(Text(f"{summary['verdict']}."))
    episodes = summary.get("episodes") or {}
    heads = ["checkpoint", "accuracy", "gain"]
    heads += ["turns", "valid actions", "tool called"] if episodes else []
    known = {name: value for name, value in summary["accuracy"].items() if value is not None}
    rows = [
        [
            checkpoint,
            f"{value:.3f}",
            "" if before is None else f"{value - before:+.3f}",
            *_episode(episodes.get(checkpoint)),
        ]
        for (checkpoint, value), before in zip(known.items(), [None, *known.values()], strict=False)
    ]
    if rows:
        title = f"{summary['recipe']}: held-out greedy accuracy"
        console.print(figures_table(heads, rows, title))
    seconds, rates = summary["seconds"], summary["tokens_per_s"]
    work = [
        [
            name,
            f"{seconds[name]:.1f}" if name in seconds else "",
            f"{rates[name]:,.0f}" if name in rates else "",
        ]
        for name in dict.fromkeys([*seconds, *rates])
    ]
    console.print(figures_table(["stage or phase", "seconds", "tokens/s"], work))
    if phases := summary.get("iteration_seconds"):
        outside, step = phases["outside"], phases["step"]
        parts = ", ".join(
            f"{name} {phases[key]:.2f}"
            for key, name in PHASES.items()
            if key in phases and key not in ("testing", "outside")
        )
        console.print(
            f"Median RL iteration: {step:.2f} s ({parts}); outside the five phases"
            f" {outside * 1000:.0f} ms, {outside / step:.1%}"
        )
    _print_resources(summary, console)
    if (gap := summary.get("max_logprob_gap")) is not None:
        console.print(f"Sampler and learner log-probs agree within {gap:.1e} on every iteration")
    if evaluation := summary.get("reward_model"):
        _print_reward_model(evaluation, console)
    _print_findings(summary.get("diagnostics"), console)
    if until := summary.get("until"):
        console.print(f"Ended after the stage {until}, as asked for")
    if summary.get("export"):
        console.print(f"Export: {summary['export']}")


def _episode(figures: dict[str, float] | None) -> list[str]:
    """Return the cells on a checkpoint's episodes; none without an environment."""
    if figures is None:
        return []
    return [
        f"{figures['turns']:.1f}",
        f"{figures['valid_action_ratio']:.3f}",
        f"{figures['called']:.3f}",
    ]


def _print_reward_model(evaluation: dict[str, Any], console: Console) -> None:
    """Print how often it orders held-out responses correctly, by level."""
    levels = ", ".join(
        f"{row['level'].replace('_', ' ')} {row['accuracy']:.3f}"
        for row in evaluation["pair_accuracy"]
    )
    console.print(
        f"Reward model, held-out pairs in the right order: {levels}; calibration error"
        f" {evaluation['calibration_error']:.3f}"
    )


def _print_findings(findings: list[dict[str, Any]] | None, console: Console) -> None:
    """Print the findings of the checks over the RL metrics; None in a run without checks."""
    if findings is None:
        return
    if not findings:
        console.print("Diagnostics: nothing to report")
        return
    console.print("Diagnostics")
    for found in findings:
        span = f"iterations {found['began']} to {found['ended'] or 'end'}"
        console.print(Text(f"  {found['check']}, {span if found['began'] else 'from the start'}"))
        console.print(Text(f"    {found['message']}: {found['remedy']}", style="yellow"))
