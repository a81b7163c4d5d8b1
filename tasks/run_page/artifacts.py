"""The page of a run in the Prefect UI: tables and reports, made from stored tables.

Each call is a synchronous request of about 40 ms: once per stage, never inside an iteration. Text
from models and data is escaped. Artifact keys are lower-case letters, digits and dashes.
"""

import hashlib
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import polars as pl

from rlcore.data.datasheet import Sheet
from rlcore.diagnostics.watch import Finding
from rlcore.report.facts import Ending
from rlcore.results.folders import REPORTS
from rlcore.results.run import Run
from tasks.run_page.board import Board, artifact_key
from tasks.run_page.plots import HEADLINES, curves_png, headlines, overlay_png

SHOWN_CHARACTERS = 1200  # of one prompt or completion
DIGEST_DIGITS = 12
MARKDOWN_CHARACTERS = str.maketrans({c: f"\\{c}" for c in r"\`*_{}[]<>()#+-.!|~$"})


def publish_state(board: Board, run: Run, ending: Ending | None, *, report: str) -> None:
    """Publish where the run is, or how and why it ended; ``report``: folder and file of its report
    below the server's reports."""
    newest = next(reversed(run.stages.values()))
    state = "running" if ending is None else ending.state
    lines = [f"## {_plain(run.name)}: {_plain(state)}", ""]
    if ending is not None and ending.reason:
        lines += [f"**Why it ended:** {_plain(ending.reason[:SHOWN_CHARACTERS])}", ""]
    at = "in" if newest.sha256 is None else "after"
    given = json.loads(newest.overrides).items()
    overrides = ", ".join(f"{key} = {json.dumps(value)}" for key, value in given)
    lines += [
        f"* {at} the stage {_plain(newest.stage)}",
        f"* recipe {_plain(newest.recipe)}, seed {newest.seed}",
        f"* overrides: {_plain(overrides) or 'none'}",
        f"* [report: curves, completions, findings](/{REPORTS}/{report})",
    ]
    board.markdown(
        key="run", markdown="\n".join(lines), description="Where this run is, or why it ended."
    )


def publish_lineage(board: Board, run: Run, pictures: Path) -> None:
    """Publish what each stage made or found, of what, and by which flow run; the picture goes into
    ``pictures``, a report folder."""
    del pictures
    lines = ["## Lineage", "", "| stage | artifact | made from | by |", "|:-|:-|:-|:-|"]
    for row in run.stages.values():
        manifest = None
        if row.sha256 is not None:
            manifest = run.store.peek(row.result_kind, row.result_key)
        name = f"`{row.result_kind}/{row.result_key[:DIGEST_DIGITS]}`"
        parents = {} if manifest is None else manifest.parents
        made_from = ", ".join(f"{role} {p.key[:DIGEST_DIGITS]}" for role, p in parents.items())
        who = "" if manifest is None else manifest.producer
        by = f"[{who[:8]}](/runs/flow-run/{who})" if who else ""
        state = "under way" if row.sha256 is None else name
        lines.append(f"| {_plain(row.stage)} | {state} | {_plain(made_from)} | {by} |")
    lines += ["", f"All artifacts: `rl-pipeline lineage {run.name}`"]
    board.markdown(
        key="lineage",
        markdown="\n".join(lines),
        description="Stages of this run: their artifacts, what they were made from, by which run.",
    )


def publish_datasheet(board: Board, sheets: Sequence[Sheet]) -> None:
    """Publish the tables of ``datasheet``."""
    lines = ["## Data"]
    for sheet in sheets:
        lines += ["", f"### {sheet.title}", "", f"| {' | '.join(sheet.columns)} |"]
        lines.append(f"|{':-|' * len(sheet.columns)}")
        lines += [f"| {' | '.join(map(_plain, row))} |" for row in sheet.rows]
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
    first = [name for names in HEADLINES.values() for name in names if name in curves]
    ordered = {name: curves[name] for name in (*first, *curves)}
    picture = _picture(folder, f"{artifact_key(stage)}-curves", curves_png(headlines(curves)))
    lines = [
        f"## {_plain(stage)}: metrics",
        "",
        f"![curves]({picture})",
        "",
        "| metric | steps | first | last | min | max |",
        "|:-|-:|-:|-:|-:|-:|",
    ]
    for name, points in ordered.items():
        values = [value for _, value in points]
        figures = [values[0], values[-1], min(values), max(values)]
        cells = [f"`{name}`", str(len(values)), *(f"{value:.4g}" for value in figures)]
        lines.append(f"| {' | '.join(cells)} |")
    board.markdown(
        key=f"{artifact_key(stage)}-metrics",
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
    """Publish the findings of the live checks, and name and threshold of each check."""
    lines = ["## Diagnostics", ""]
    if findings:
        lines += ["| check | iterations | | what | remedy |", "|:-|:-|:-|:-|:-|"]
    for found in findings:
        span = "start" if found.began == 0 else f"{found.began} to {found.ended or 'the end'}"
        cells = [f"`{found.check}`", span, found.severity, found.message, found.remedy]
        lines.append(f"| {' | '.join([cells[0], *map(_plain, cells[1:])])} |")
    reported = {found.check for found in findings}
    silent = [f"`{name}` ({limit:.3g})" for name, limit in checks if name not in reported]
    lines += ["", f"Silent, threshold in brackets: {', '.join(silent)}."]
    board.markdown(
        key="diagnostics",
        markdown="\n".join(lines),
        description=f"{len(checks)} checks over the metrics of the RL stage.",
    )


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
    """Publish the ``eval_results`` table: a row per source and metric, a column per checkpoint."""
    order = eval_results["checkpoint"].unique(maintain_order=True).to_list()
    rows: dict[tuple[str, ...], dict[str, Any]] = {}
    for result in eval_results.iter_rows(named=True):
        where = (result["data_source"], result["subset"], result["metric"])
        row = rows.setdefault(where, dict(zip(("source", "subset", "metric"), where, strict=True)))
        row["prompts"] = result["num_prompts"]
        row["samples"] = result["num_samples"]
        low, high = result["ci_low"], result["ci_high"]
        row[result["checkpoint"]] = f"{result['value']:.3f} ({low:.3f}-{high:.3f})"
    titles = ["source", "subset", "metric", "prompts", "samples", *order]
    lines = ["## Evaluation", "", f"| {' | '.join(map(_plain, titles))} |"]
    lines.append(f"|{':-|' * len(titles)}")
    for row in rows.values():
        lines.append(f"| {' | '.join(_plain(str(row.get(title, ''))) for title in titles)} |")
    board.markdown(
        key="evaluation",
        markdown="\n".join(lines),
        description="Each checkpoint on held-out prompts; 95 % confidence interval in brackets.",
    )


def publish_completions(board: Board, completions: pl.DataFrame, *, limit: int) -> None:
    """Publish up to ``limit`` prompts of a ``completions`` table with every checkpoint's answer.

    Greedy answers where there are any; prompts on which the checkpoints differ come first. The
    model's output is in code blocks that it cannot close.
    """
    greedy = completions.filter(pl.col("mode") == "greedy")
    shown = greedy if greedy.height else completions.filter(pl.col("sample") == 0)
    verdicts = shown.group_by("uid", maintain_order=True).agg(pl.col("outcome").n_unique())
    chosen = verdicts.sort("outcome", descending=True, maintain_order=True)["uid"].head(limit)
    lines = ["## Sample completions", ""]
    for number, uid in enumerate(chosen, start=1):
        rows = shown.filter(pl.col("uid") == uid).to_dicts()
        lines += [f"### {number}. {_plain(rows[0]['data_source'])}", "", _block(rows[0]["prompt"])]
        lines += [f"Ground truth: {_plain(rows[0]['ground_truth'] or 'none')}", ""]
        for row in rows:
            verdict = f"{row['outcome']}, {row['num_tokens']} tokens, {row['finish_reason']}"
            lines += [f"**{_plain(row['checkpoint'])}** ({_plain(verdict)})", ""]
            lines += [_block(row["response"])]
    board.markdown(
        key="completions",
        markdown="\n".join(lines),
        description="Prompts of the test split and what each checkpoint answers.",
    )


def publish_export(board: Board, uri: str) -> None:
    """Publish where the export is: a browser opens no path of a disk, so there is nothing to
    follow."""
    board.markdown(
        key="export",
        markdown=f"## Exported model\n\n{_block(uri)}",
        description="The Hugging Face directory that this run exported.",
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


def _plain(text: str) -> str:
    """Return text that Markdown shows literally."""
    return text.translate(MARKDOWN_CHARACTERS).replace("\n", " ")


def _block(text: str) -> str:
    """Return text as an indented code block, which no content can close, without control codes."""
    cut = text if len(text) <= SHOWN_CHARACTERS else f"{text[:SHOWN_CHARACTERS]} ..."
    printable = "".join(c if c.isprintable() or c == "\n" else "�" for c in cut)
    return "\n".join(f"    {line}" for line in printable.split("\n")) + "\n"
