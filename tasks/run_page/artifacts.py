"""The page of a run in the Prefect UI: tables and reports, made from stored tables.

Each call is a synchronous request of about 40 ms: once per stage, never inside an iteration. Text
from models and data is escaped. Each recipe has its own artifact keys, so that a key's versions are
those of one recipe.
"""

import hashlib
import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

import polars as pl

from rlcore.data.datasheet import Sheet
from rlcore.diagnostics.watch import Finding
from rlcore.report.facts import Ending
from rlcore.report.write import INDEX
from rlcore.results.folders import REPORTS, report_folder
from rlcore.results.restarts import RestartRecord
from rlcore.results.run import Run
from rlcore.rewards.types import spoken_text
from tasks.run_page.board import Board
from tasks.run_page.lineage_picture import Picture, lineage_markdown, lineage_png
from tasks.run_page.markdown import DIGEST_DIGITS, artifact_key, code, plain, quoted
from tasks.run_page.plots import HEADLINES, curves_png, headlines, overlay_png

PERIODS = 4  # of a finding that are shown, the last ones


def publish_state(board: Board, run: Run, ending: Ending | None, verdict: str) -> None:
    """Publish where the run is, or how and why it ended; ``verdict``: what it came to, if known."""
    newest = next(reversed(run.stages.values()))
    state = "running" if ending is None else ending.state
    lines = [f"## {plain(run.name)}: {plain(state)}", ""]
    lines += [f"**{plain(verdict)}.**", ""] if verdict else []
    if ending is not None and ending.reason:
        lines += ["**Why it ended:**", "", quoted(ending.reason)]
    at = "in" if newest.sha256 is None else "after"
    given = json.loads(newest.overrides).items()
    overrides = ", ".join(f"{key} = {json.dumps(value)}" for key, value in given)
    report = report_folder(run.folder)
    lines += [
        f"* [report: curves, completions, findings](/{REPORTS}/{report.name}/{INDEX}); as a file,"
        # The server serves the reports of its own folder, and a run may be of another one.
        f" also where this server does not serve it: {plain(str(report / INDEX))}",
        f"* {at} the stage {plain(newest.stage)}",
        f"* recipe {plain(newest.recipe)}, seed {newest.seed}",
        f"* overrides: {plain(overrides) or 'none'}",
    ]
    board.markdown(
        key="run", markdown="\n".join(lines), description="Where this run is, or why it ended."
    )


def publish_restarts(board: Board, restarts: Sequence[RestartRecord]) -> None:
    """Publish when stages went on in new workers, and why."""
    lines = [
        "## Restarts within this run",
        "",
        "| time | stage | went on after | cause | remedy | cost |",
        "|:-|:-|-:|:-|:-|-:|",
    ]
    for row in restarts:
        step = "the start" if row.step is None else f"step {row.step}"
        cost = "not yet known" if row.seconds is None else f"{row.seconds:.0f} s"
        time, what = row.began.partition(".")[0], (row.cause, row.remedy, cost)
        lines.append(f"| {' | '.join(map(plain, (time, row.stage, step, *what)))} |")
    board.markdown(
        key="restarts",
        markdown="\n".join(lines),
        description="Workers that died or hung, after which the run went on; times are UTC.",
    )


@dataclass(frozen=True)
class Drawn:
    """A picture, and its address."""

    picture: Picture
    address: str


def publish_lineage(board: Board, run: Run, folder: Path, before: Drawn | None = None) -> Drawn:
    """Publish the lineage of ``run`` up to now; return its picture, which is drawn where
    ``before``, that of the last call, is another one.

    The picture goes into ``folder``, the run's report folder, whose report is linked if it is
    written. Raises as ``Run.stages``.
    """
    report = f"/{REPORTS}/{folder.name}/{INDEX}" if (folder / INDEX).is_file() else None
    picture = Picture.of(run)
    if before is None or before.picture != picture:
        before = Drawn(picture, _picture(folder, "lineage", lineage_png(picture)))
    board.markdown(
        key="lineage",
        markdown=lineage_markdown(run, picture=before.address, report=report),
        description="Stages of this run: their artifacts, what they were made from, and by which "
        "flow run.",
    )
    return before


def publish_datasheet(board: Board, sheets: Sequence[Sheet]) -> None:
    """Publish the tables of ``datasheet``."""
    lines = ["## Data"]
    for sheet in sheets:
        lines += ["", f"### {sheet.title}", "", f"| {' | '.join(sheet.columns)} |"]
        lines.append(f"|{':-|' * len(sheet.columns)}")
        lines += [f"| {' | '.join(map(plain, row))} |" for row in sheet.rows]
        lines += [] if sheet.rows else ["none"]
    board.markdown(
        key="data",
        markdown="\n".join(lines),
        description="The dataset of this run: counts, splits, lengths in tokens, rejects.",
    )


def publish_metrics(board: Board, stage: str, metrics: pl.DataFrame, folder: Path) -> None:
    """Publish a ``metrics`` table: the curves that people look for first, then first, last, least
    and greatest of every metric, those of the curves first.

    Null values are left out. The picture goes into ``folder``, a report folder.
    """
    known = metrics.drop_nulls("value").sort("name", "step")
    curves: dict[str, list[tuple[int, float]]] = {}
    for name, step, value in known.select("name", "step", "value").iter_rows():
        curves.setdefault(name, []).append((step, value))
    first = [name for named in HEADLINES for name in named.values() if name in curves]
    ordered = {name: curves[name] for name in (*first, *curves)}
    name = f"{artifact_key(stage)}-curves"
    lines = [
        f"## {plain(stage)}: metrics",
        "",
        f"![curves]({_picture(folder, name, curves_png(headlines(curves)))})",
        "",
        "| metric | steps | first | last | min | max |",
        "|:-|-:|-:|-:|-:|-:|",
    ]
    for metric, points in ordered.items():
        values = [value for _, value in points]
        figures = [values[0], values[-1], min(values), max(values)]
        cells = [f"`{metric}`", str(len(values)), *(f"{value:.4g}" for value in figures)]
        lines.append(f"| {' | '.join(cells)} |")
    board.markdown(
        key=f"metrics-{stage}",
        markdown="\n".join(lines),
        description=f"Metrics of the stage {stage}, from its metrics table.",
    )


def publish_proxy(board: Board, curves: pl.DataFrame, folder: Path) -> None:
    """Publish ``proxy_and_truth``: reward model score and true accuracy. The picture goes into
    ``folder``, a report folder."""
    named = {"proxy": "reward (proxy)", "truth": "accuracy (truth)", "gap": "gap, both scaled 0-1"}
    lines = {label: list(curves.select("step", name).iter_rows()) for name, label in named.items()}
    board.markdown(
        key="proxy-vs-true",
        markdown=(
            "## Reward model and truth\n\n"
            "![reward, accuracy and their gap]"
            f"({_picture(folder, 'proxy-vs-true', overlay_png(lines))})\n\n"
            "A growing gap means that the policy learns what the model prefers, not what is right."
        ),
        description="Mean reward of each iteration and the true accuracy of the same samples.",
    )


def publish_diagnostics(
    board: Board, findings: Sequence[Finding], checks: Sequence[tuple[str, float]]
) -> None:
    """Publish the findings of the live checks, a section each, since a table does not wrap; and
    name and threshold of each check."""
    lines = ["## Diagnostics", ""]
    for check, periods in groupby(sorted(findings, key=_trouble), key=lambda one: one.check):
        *_, last = found = list(periods)
        spans = [
            "start" if one.began == 0 else f"{one.began} to {one.ended or 'now, or the end'}"
            for one in found
        ]
        left_out = f"{len(spans) - PERIODS} earlier periods, then " if len(spans) > PERIODS else ""
        lines += [
            f"### `{check}`: {plain(last.severity)}",
            "",
            f"{plain(last.message)}",
            "",
            f"* iterations: {left_out}{', '.join(map(plain, spans[-PERIODS:]))}",
            f"* remedy: {plain(last.remedy)}",
            "",
        ]
    reported = {found.check for found in findings}
    silent = [f"`{name}` ({limit:.3g})" for name, limit in checks if name not in reported]
    lines += ["", f"Silent, threshold in brackets: {', '.join(silent)}."]
    board.markdown(
        key="diagnostics",
        markdown="\n".join(lines),
        description=f"{len(checks)} checks over the metrics of the RL stage.",
    )


def _trouble(found: Finding) -> tuple[bool, str, int]:
    """Order findings by check, those that ended the run in front."""
    return found.severity != "fatal", found.check, found.began


def publish_reward_model(
    board: Board, pair_accuracy: pl.DataFrame, calibration: pl.DataFrame
) -> None:
    """Publish the tables ``pair_accuracy`` and ``calibration`` of a reward model."""
    lines = [
        "## Reward model: accuracy on pairs of held-out responses",
        "",
        "| pairs | prompts | pairs | accuracy | 95 % interval |",
        "|:-|-:|-:|-:|-:|",
    ]
    for level, prompts, pairs, accuracy, low, high in pair_accuracy.iter_rows():
        cells = [level.replace("_", " "), prompts, pairs, f"{accuracy:.3f}"]
        lines.append(f"| {' | '.join(map(str, cells))} | {low:.3f} to {high:.3f} |")
    lines += [
        "",
        "Claimed confidence, and accuracy at that confidence:",
        "",
        "| claimed between | pairs | claimed, mean | right |",
        "|:-|-:|-:|-:|",
    ]
    for low, high, pairs, claimed, observed in calibration.iter_rows():
        lines.append(f"| {low:.2f} and {high:.2f} | {pairs} | {claimed:.3f} | {observed:.3f} |")
    board.markdown(
        key="reward-model",
        markdown="\n".join(lines),
        description="The reward model on prompts it was not trained on.",
    )


def publish_evaluation(board: Board, eval_results: pl.DataFrame) -> None:
    """Publish the ``eval_results`` table: a row per source and metric, accuracies first, and a
    column per checkpoint; metrics that are 0 of every checkpoint are named in a line."""
    checkpoints = eval_results["checkpoint"].unique(maintain_order=True).to_list()
    rows: dict[tuple[str, str, str], dict[str, str]] = {}
    drawn: dict[tuple[str, str, str], str] = {}
    zero: dict[tuple[str, str, str], bool] = {}
    for result in eval_results.iter_rows(named=True):
        where = (result["data_source"], result["subset"], result["metric"])
        low, high = result["ci_low"], result["ci_high"]
        value = f"**{result['value']:.3f}** {low:.3f} to {high:.3f}"
        rows.setdefault(where, {})[result["checkpoint"]] = value
        drawn[where] = f"{result['num_prompts']:,} / {result['num_samples']:,}"
        zero[where] = zero.get(where, True) and result["value"] == 0
    shown = [where for where in rows if not zero[where] or _is_accuracy(where[2])]
    shown.sort(key=lambda where: not _is_accuracy(where[2]))  # else in their order
    head = ["data", "metric", *map(plain, checkpoints), "prompts / samples"]
    lines = ["## Evaluation", "", f"| {' | '.join(head)} |", f"|{':-|' * len(head)}"]
    for source, subset, metric in shown:
        where = (source, subset, metric)
        cells = [plain(source if subset == source else f"{source}, {subset}"), plain(metric)]
        cells += [rows[where].get(name, "") for name in checkpoints]
        lines.append(f"| {' | '.join([*cells, drawn[where]])} |")
    lines += ["", "Each figure with its 95 % confidence interval."]
    if nothing := sorted({metric for source, subset, metric in rows.keys() - set(shown)}):
        lines += ["", f"0 of every checkpoint: {', '.join(map(plain, nothing))}."]
    board.markdown(
        key="evaluation",
        markdown="\n".join(lines),
        description="Each checkpoint on held-out prompts.",
    )


def _is_accuracy(metric: str) -> bool:
    """Return whether a metric counts right answers, and does not say what else was measured."""
    return metric == "greedy/acc" or metric.startswith(("sampled/avg@", "sampled/pass@"))


def publish_completions(board: Board, completions: pl.DataFrame, *, limit: int) -> None:
    """Publish up to ``limit`` prompts of a ``completions`` table with every checkpoint's answer.

    Greedy answers where there are any; prompts on which the checkpoints differ come first. The
    model's output is in quotes that it cannot end.
    """
    greedy = completions.filter(pl.col("mode") == "greedy")
    shown = greedy if greedy.height else completions.filter(pl.col("sample") == 0)
    verdicts = shown.group_by("uid", maintain_order=True).agg(pl.col("outcome").n_unique())
    chosen = verdicts.sort("outcome", descending=True, maintain_order=True)["uid"].head(limit)
    lines = ["## Sample completions", ""]
    for number, uid in enumerate(chosen, start=1):
        rows = shown.filter(pl.col("uid") == uid).to_dicts()
        lines += [f"### {number}. {plain(rows[0]['data_source'])}", "", quoted(rows[0]["prompt"])]
        lines += [f"Ground truth: {plain(rows[0]['ground_truth'] or 'none')}", ""]
        for row in rows:
            verdict = f"{row['outcome']}, {row['num_tokens']} tokens, {row['finish_reason']}"
            lines += [f"**{plain(row['checkpoint'])}** ({plain(verdict)})", ""]
            lines += [quoted(spoken_text(row["response"], row["turns"]))]
    board.markdown(
        key="completions",
        markdown="\n".join(lines),
        description="Prompts of the test split and what each checkpoint answers.",
    )


def publish_export(board: Board, place: str) -> None:
    """Publish where the exported model is: a path of the machine that ran the stage, or a URL."""
    board.markdown(
        key="export",
        markdown=f"## Exported model\n\n{code(place)}\n\nIn the format of Hugging Face.",
        description="Where the exported model is.",
    )


def _picture(folder: Path, name: str, png: bytes) -> str:
    """Write a picture into a report folder, whole or not at all, and return its address.

    The address is a path from the server's root: both UIs show it, and through ``ssh -L`` too,
    while the new one shows no data URI. The digest in it lets a browser see that the picture is
    another one than before.
    """
    partial = folder / f".{name}.{os.getpid()}"
    partial.write_bytes(png)
    os.replace(partial, folder / f"{name}.png")
    version = hashlib.sha256(png).hexdigest()[:DIGEST_DIGITS]
    return f"/{REPORTS}/{folder.name}/{name}.png?v={version}"
