"""The page of a run in the Prefect UI: tables and reports, made from stored tables.

Each call is a synchronous request of about 40 ms: once per stage, never inside an iteration. Text
from models and data is escaped. Artifact keys are lower-case letters, digits and dashes.
"""

import hashlib
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import polars as pl
from prefect.artifacts import (
    create_link_artifact,
    create_markdown_artifact,
    create_table_artifact,
)

from rlcore.data.datasheet import Sheet
from rlcore.diagnostics.watch import Finding
from rlcore.results.folders import REPORTS
from schemas.artifacts import ArtifactRef
from tasks.run_page.plots import HEADLINES, curves_png, headlines, overlay_png

SHOWN_CHARACTERS = 1200  # of one prompt or completion
DIGEST_DIGITS = 12
MARKDOWN_CHARACTERS = str.maketrans({c: f"\\{c}" for c in r"\`*_{}[]<>()#+-.!|~$"})


def publish_lineage(rows: Sequence[Mapping[str, Any]]) -> None:
    """Publish the lineage: one row per stage, keys as given (``lineage_row``)."""
    create_table_artifact(
        key="lineage",
        table=[dict(row) for row in rows],
        description="Stages of this run: their artifacts, what they were made from, and by which "
        "flow run.",
    )


def lineage_row(
    stage: str,
    ref: ArtifactRef,
    *,
    cached: bool,
    seconds: float,
    parents: Mapping[str, ArtifactRef],
    producer: str,
) -> dict[str, Any]:
    """Return one row of the lineage table; ``producer`` is the flow run that made the artifact."""
    return {
        "stage": stage,
        "cached": "yes" if cached else "no",
        "seconds": round(seconds, 1),
        "artifact": f"{ref.kind}/{ref.key}",
        "sha256": ref.sha256[:DIGEST_DIGITS],
        "rows": ", ".join(f"{name} {count}" for name, count in ref.rows.items()),
        "made from": ", ".join(
            f"{role} {parent.sha256[:DIGEST_DIGITS]}" for role, parent in parents.items()
        ),
        "made by flow run": producer,
        "uri": ref.uri,
    }


def publish_datasheet(sheets: Sequence[Sheet]) -> None:
    """Publish the tables of ``datasheet``."""
    lines = ["## Data"]
    for sheet in sheets:
        lines += ["", f"### {sheet.title}", "", f"| {' | '.join(sheet.columns)} |"]
        lines.append(f"|{':-|' * len(sheet.columns)}")
        lines += [f"| {' | '.join(map(_plain, row))} |" for row in sheet.rows]
        lines += [] if sheet.rows else ["none"]
    create_markdown_artifact(
        key="data",
        markdown="\n".join(lines),
        description="The dataset of this run: counts, splits, lengths in tokens, rejects.",
    )


def publish_metrics(stage: str, metrics: pl.DataFrame, folder: Path) -> None:
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
    lines = [
        f"## {_plain(stage)}: metrics",
        "",
        f"![curves]({_picture(folder, f'{_key(stage)}-curves', curves_png(headlines(curves)))})",
        "",
        "| metric | steps | first | last | min | max |",
        "|:-|-:|-:|-:|-:|-:|",
    ]
    for name, points in ordered.items():
        values = [value for _, value in points]
        figures = [values[0], values[-1], min(values), max(values)]
        cells = [f"`{name}`", str(len(values)), *(f"{value:.4g}" for value in figures)]
        lines.append(f"| {' | '.join(cells)} |")
    create_markdown_artifact(
        key=f"{_key(stage)}-metrics",
        markdown="\n".join(lines),
        description=f"Metrics of the stage {stage}, from its metrics table.",
    )


def publish_proxy(curves: pl.DataFrame, folder: Path) -> None:
    """Publish ``proxy_and_truth``: reward model score and true accuracy. The picture goes into
    ``folder``, a report folder."""
    named = {"proxy": "reward (proxy)", "truth": "accuracy (truth)", "gap": "gap, both scaled 0-1"}
    lines = {label: list(curves.select("step", name).iter_rows()) for name, label in named.items()}
    create_markdown_artifact(
        key="proxy-vs-true",
        markdown=(
            "## Reward model and truth\n\n"
            "![reward, accuracy and their gap]"
            f"({_picture(folder, 'proxy-vs-true', overlay_png(lines))})\n\n"
            "A growing gap means that the policy learns what the model prefers, not what is right."
        ),
        description="Mean reward of each iteration and the true accuracy of the same samples.",
    )


def publish_diagnostics(findings: Sequence[Finding], checks: Sequence[tuple[str, float]]) -> None:
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
    create_markdown_artifact(
        key="diagnostics",
        markdown="\n".join(lines),
        description=f"{len(checks)} checks over the metrics of the RL stage.",
    )


def publish_reward_model(pair_accuracy: pl.DataFrame, calibration: pl.DataFrame) -> None:
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
    create_markdown_artifact(
        key="reward-model",
        markdown="\n".join(lines),
        description="The reward model on prompts it was not trained on.",
    )


def publish_evaluation(eval_results: pl.DataFrame) -> None:
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
    table = [{**row, **{name: row.get(name, "") for name in order}} for row in rows.values()]
    create_table_artifact(
        key="evaluation",
        table=table,
        description="Each checkpoint on held-out prompts; 95 % confidence interval in brackets.",
    )


def publish_completions(completions: pl.DataFrame, *, limit: int) -> None:
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
    create_markdown_artifact(
        key="completions",
        markdown="\n".join(lines),
        description="Prompts of the test split and what each checkpoint answers.",
    )


def publish_export(uri: str, text: str = "Exported model") -> None:
    """Publish a link to the export; a local directory becomes a file:// link."""
    link = uri if "://" in uri else f"file://{uri}"
    create_link_artifact(key="export", link=link, link_text=f"{text}: {uri}")


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


def _key(name: str) -> str:
    return "".join(c if c.isascii() and c.isalnum() else "-" for c in name.lower()).strip("-")
