"""README.md of an export: YAML front matter for the hub, then lineage, results and training."""

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import polars as pl
from jinja2 import Environment, StrictUndefined

from rlcore.export.publish import Proof
from schemas.errors import UserError

_HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
_MARKDOWN = re.compile(r"([\\`*_{}\[\]#!|~$])")
# metric of EvalResults -> metric type of the hub; @k and @n are kept in the name
_METRIC_TYPES = {"greedy/acc": "accuracy", "sampled/avg": "accuracy"}
_METRIC_TYPES |= {"sampled/pass": "pass@k", "sampled/maj": "maj@k"}

_TEMPLATE = """\
# {{ card.name }}

{% if base %}{{ base }}, post-trained{% else %}A model trained from scratch
{%- endif %} with reinforcement learning on verifiable rewards.
{{ "{:,}".format(proof.parameters) }} parameters, {{ proof.dtype }},
{{ "tied" if proof.tied else "untied" }} embeddings. License: {{ card.license or "unknown" }}.

## Results

Value with its 95 % confidence interval, per source and subset of the test split. This model is
the checkpoint {{ card.checkpoint }}.

| source | subset | metric |{% for name in checkpoints %} {{ name }} |{% endfor %} prompts |
|---|---|---|{% for name in checkpoints %}---|{% endfor %}---|
{% for row in results -%}
| {{ row.source }} | {{ row.subset }} | {{ row.metric }} |
{%- for cell in row.cells %} {{ cell }} |{% endfor %} {{ row.prompts }} |
{% endfor %}
{% if card.evaluation -%}
How it was evaluated:

{% for fact, value in card.evaluation.items() -%}
* {{ fact }}: {{ value }}
{% endfor %}
{% endif -%}
## How it was trained

{% for fact, value in card.training.items() -%}
* {{ fact }}: {{ value }}
{% else -%}
Not recorded.
{% endfor %}
## Lineage

Every artifact that this model descends from, by content.

| stage | kind | key | sha256 |
|---|---|---|---|
{% for row in card.lineage -%}
| {{ row.stage }} | {{ row.kind }} | {{ row.key }} | {{ row.sha256 }} |
{% endfor %}
Digest of the weights: {{ proof.weights_digest }}; of the chat template:
{{ proof.chat_template_sha256 }}. Before it was published the directory was reloaded and its
logits, tokenizer and chat template compared with the trained policy: no difference.
"""


@dataclass(frozen=True, slots=True)
class LineageRow:
    """One artifact that the model descends from."""

    stage: str
    kind: str
    key: str
    sha256: str


@dataclass(frozen=True, slots=True)
class ModelCard:
    """The contents of the card that do not follow from the weights.

    ``checkpoint``: label of the exported weights in ``results`` (an EvalResults table).
    ``base_model`` and ``datasets`` go to the metadata when they are hub names (owner/name).
    ``training`` and ``evaluation``: fact -> value, printed in order. ``license`` None: unknown.
    """

    name: str
    checkpoint: str
    results: pl.DataFrame
    lineage: tuple[LineageRow, ...]
    base_model: str | None = None
    datasets: tuple[str, ...] = ()
    license: str | None = None
    tags: tuple[str, ...] = ("reinforcement-learning", "rl-pipeline")
    training: dict[str, str] = field(default_factory=dict)
    evaluation: dict[str, str] = field(default_factory=dict)


def render_card(card: "ModelCard", proof: Proof) -> str:
    """Return README.md of an export. All text from outside is escaped.

    Raises ``UserError`` when ``card.results`` holds no row of ``card.checkpoint``.
    """
    names = card.results["checkpoint"].unique(maintain_order=True).to_list()
    if card.checkpoint not in names:
        raise UserError(
            f"the results have no row of checkpoint '{card.checkpoint}', only of"
            f" {', '.join(names) or 'none'}; add it to evaluate.checkpoints"
        )
    environment = Environment(
        finalize=escape_markdown,  # for every expression, so that none is missed
        autoescape=False,
        undefined=StrictUndefined,
        keep_trailing_newline=True,
    )
    body = environment.from_string(_TEMPLATE).render(
        card=card,
        proof=proof,
        base=_hub_name(card.base_model) or Path(card.base_model or "").name,
        checkpoints=names,
        results=_result_rows(card.results, names),
    )
    return f"---\n{_front_matter(card)}\n---\n\n{body}"


def escape_markdown(value: Any) -> str:
    """Return ``value`` as text that Markdown and HTML show literally, on one line.

    >>> escape_markdown("a|b <i>*x*</i>")
    'a\\\\|b &lt;i&gt;\\\\*x\\\\*&lt;/i&gt;'
    """
    text = _one_line(str(value)).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return _MARKDOWN.sub(r"\\\1", text)


def _result_rows(results: pl.DataFrame, checkpoints: list[str]) -> list[dict[str, Any]]:
    """Return one row per source, subset and metric, a cell per checkpoint."""
    rows = []
    keys = ["data_source", "subset", "metric"]
    for (source, subset, metric), group in results.group_by(keys, maintain_order=True):
        by_name = {row["checkpoint"]: row for row in group.iter_rows(named=True)}
        cells = [
            f"{row['value']:.3f} [{row['ci_low']:.3f}, {row['ci_high']:.3f}]" if row else ""
            for row in (by_name.get(name) for name in checkpoints)
        ]
        prompts = f"{group['num_prompts'].max():,}"
        rows.append(
            {
                "source": source,
                "subset": subset,
                "metric": metric,
                "cells": cells,
                "prompts": prompts,
            }
        )
    return rows


def _front_matter(card: "ModelCard") -> str:
    """Return the hub's metadata as YAML; names that are not hub names are left out."""
    from huggingface_hub import EvalResult, ModelCardData

    mine = card.results.filter(
        (pl.col("checkpoint") == card.checkpoint) & (pl.col("data_source") != "all")
    )
    evaluations = [
        EvalResult(
            task_type="text-generation",
            dataset_type=_one_line(row["data_source"]),
            dataset_name=_one_line(row["data_source"]),
            dataset_split=_one_line(row["subset"]),
            metric_type=kind,
            metric_name=row["metric"],
            metric_value=round(row["value"], 6),
        )
        for row in mine.iter_rows(named=True)
        if (kind := _METRIC_TYPES.get(row["metric"].partition("@")[0]))
    ]
    data = ModelCardData(
        base_model=_hub_name(card.base_model),
        datasets=[name for name in card.datasets if _hub_name(name)] or None,
        eval_results=evaluations or None,
        library_name="transformers",
        license=_one_line(card.license or "unknown"),
        model_name=_one_line(card.name),
        pipeline_tag="text-generation",
        tags=[_one_line(tag) for tag in card.tags],
    )
    return data.to_yaml()


def _hub_name(name: str | None) -> str | None:
    """Return ``name`` if it is a hub name; a path of this machine must not be published."""
    if name is None or not _HUB_NAME.fullmatch(name) or Path(name).exists():
        return None
    return name


def _one_line(text: str) -> str:
    """Return ``text`` without line breaks: a line of ``---`` would end the front matter."""
    return " ".join(text.split())
