"""README.md of an export: YAML front matter for the hub, then use, results and origin."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import polars as pl
from jinja2 import Environment, StrictUndefined

from rlcore.evaluation.hf_directory import Proof
from rlcore.evaluation.license import License
from schemas.errors import UserError

_HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
_MARKDOWN = re.compile(r"([\\`*_{}\[\]#!|~$])")
# metric of EvalResults -> metric type of the hub; @k and @n are kept in the name
_METRIC_TYPES = {"greedy/acc": "accuracy", "sampled/avg": "accuracy"}
_METRIC_TYPES |= {"sampled/pass": "pass@k", "sampled/maj": "maj@k"}

_TEMPLATE = """\
# {{ card.name }}

{% if base %}{{ base }}, post-trained{% else %}A model trained from scratch
{%- endif %} with reinforcement learning on {{ learnt_from }}.
{{ "{:,}".format(proof.parameters) }} parameters, {{ proof.dtype }},
{{ "tied" if proof.tied else "untied" }} embeddings. License:
{% if card.license %}{{ card.license.text }}{% else -%}
not stated; the recipe's key export.license states it
{%- endif %}. Needs transformers {{ proof.transformers }} or newer.

{% if card.snippet -%}
## Use

```python
{{ literal(card.snippet) -}}
```

{% endif -%}
## Results

{% if not checkpoints -%}
Not evaluated.

{% else -%}
Value with its 95 % confidence interval, per source and subset of the test split. This model is
the checkpoint {{ card.checkpoint }}.

| source | subset | metric |{% for name in checkpoints %} {{ name }} |{% endfor %} prompts |
|---|---|---|{% for name in checkpoints %}---|{% endfor %}---|
{% for row in results -%}
| {{ row.source }} | {{ row.subset }} | {{ row.metric }} |
{%- for cell in row.cells %} {{ cell }} |{% endfor %} {{ row.prompts }} |
{% endfor %}
{% endif -%}
An answer ends with {{ "the token" if proof.stop_tokens|length == 1 else "one of the tokens" }}
{{ proof.stop_tokens|join(", ") }}.

{% if card.evaluation -%}
How it was evaluated:

{{ facts(card.evaluation) }}
{% endif -%}
## How it was trained

{% if card.training -%}
{{ facts(card.training) }}
{%- else -%}
Not recorded.
{% endif %}
Recipe:

{{ facts(card.recipe) }}
## Reward

| function | weight | |
|---|---|---|
{% for term in card.reward -%}
| {{ term.name }} | {{ "%g"|format(term.weight) }} |
{%- if not term.weight %} reported, not trained on{% elif term.is_model %} a trained model
{%- endif %} |
{% endfor %}
{% if card.reward_model -%}
The reward model:

{{ facts(card.reward_model) }}
{% endif -%}
## Data

{% for source in card.sources -%}
* {{ source }}
{% endfor %}
| source | split | subset | prompts |
|---|---|---|---|
{% for row in card.prompts -%}
| {{ row.source }} | {{ row.split }} | {{ row.subset }} | {{ row.prompts }} |
{% endfor %}
{{ facts(card.data) }}
## Lineage

The artifacts that this model and its figures descend from, by content.

| what | kind | key | sha256 |
|---|---|---|---|
{% for row in card.ancestors -%}
| {{ row.what }} | {{ row.kind }} | {{ row.key }} | {{ row.sha256 }} |
{% endfor %}
{% if card.inputs -%}
Read from outside:

| by | file or dataset | sha256 or commit |
|---|---|---|
{% for row in card.inputs -%}
| {{ row.source }} | {{ row.url }} | {{ row.digest }} |
{% endfor %}
{% endif -%}
Digest of the weights: {{ proof.weights_digest }}; of the chat template:
{{ proof.chat_template_sha256 }}. Before it was published the directory was reloaded and its
logits, tokenizer and chat template compared with the trained policy: no difference.

Made with:

{{ facts(card.versions) -}}
"""


class _Literal(str):
    """Text that is already what it should be in the card."""


@dataclass(frozen=True, slots=True)
class RewardTerm:
    """One reward function; of weight 0 it is reported only."""

    name: str
    weight: float
    is_model: bool


@dataclass(frozen=True, slots=True)
class ModelCard:
    """The contents of the card that do not follow from the weights.

    ``checkpoint``: label of the exported weights in ``results`` (an EvalResults table; None where
    they were not evaluated).
    ``base_model`` and ``datasets`` go to the metadata when they are hub names (owner/name).
    ``sources`` are the recipe's, ``prompts`` a row per source, split and subset: source, split,
    subset, prompts. ``ancestors``: a row per artifact that the model or its figures descend from:
    what, kind, key, sha256. ``inputs``: a row per file or hub dataset that was read: source, url,
    digest. The dicts hold fact -> value, printed in order. ``snippet``: see ``render_snippet``.
    """

    name: str
    checkpoint: str
    results: pl.DataFrame | None
    ancestors: tuple[dict[str, str], ...]
    recipe: dict[str, str]
    reward: tuple[RewardTerm, ...]
    sources: tuple[str, ...]
    prompts: tuple[dict[str, str], ...]
    data: dict[str, str]
    versions: dict[str, str]
    inputs: tuple[dict[str, str], ...] = ()
    reward_model: dict[str, str] = field(default_factory=dict)
    base_model: str | None = None
    datasets: tuple[str, ...] = ()
    license: License | None = None
    tags: tuple[str, ...] = ("reinforcement-learning", "rl-pipeline")
    training: dict[str, str] = field(default_factory=dict)
    evaluation: dict[str, str] = field(default_factory=dict)
    snippet: str | None = None


def render_card(card: "ModelCard", proof: Proof) -> str:
    """Return README.md of an export. All text from outside is escaped.

    Raises ``UserError`` when ``card.results`` holds no row of ``card.checkpoint``.
    """
    names: list[str] = []
    if card.results is not None:
        names = card.results["checkpoint"].unique(maintain_order=True).to_list()
    if card.results is not None and card.checkpoint not in names:
        raise UserError(
            f"the results have no row of checkpoint '{card.checkpoint}', only of"
            f" {', '.join(names) or 'none'}; add it to evaluate.checkpoints"
        )
    environment = Environment(
        # For every expression, so that none is missed.
        finalize=lambda value: value if isinstance(value, _Literal) else escape_markdown(value),
        autoescape=False,
        undefined=StrictUndefined,
        keep_trailing_newline=True,
    )
    body = environment.from_string(_TEMPLATE).render(
        card=card,
        proof=proof,
        base=_hub_name(card.base_model) or Path(card.base_model or "").name,
        checkpoints=names,
        results=[] if card.results is None else _result_rows(card.results, names),
        learnt_from=_learnt_from(card.reward),
        facts=_facts,
        literal=_Literal,
    )
    return f"---\n{_front_matter(card)}\n---\n\n{body}"


def escape_markdown(value: Any) -> str:
    """Return ``value`` as text that Markdown and HTML show literally, on one line.

    >>> escape_markdown("a|b <i>*x*</i>")
    'a\\\\|b &lt;i&gt;\\\\*x\\\\*&lt;/i&gt;'
    """
    text = _one_line(str(value)).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return _MARKDOWN.sub(r"\\\1", text)


def _facts(facts: Mapping[str, str]) -> _Literal:
    """Return the lines of a list: each fact and its value, escaped."""
    lines = [f"* {escape_markdown(fact)}: {escape_markdown(v)}\n" for fact, v in facts.items()]
    return _Literal("".join(lines))


def _learnt_from(reward: Sequence[RewardTerm]) -> str:
    """Return what gave the reward that was trained on."""
    counted = [term for term in reward if term.weight]
    functions = sum(not term.is_model for term in counted)
    model = ["a trained reward model"] if functions < len(counted) else []
    rules = {0: [], 1: ["a reward function"]}.get(functions, [f"{functions} reward functions"])
    return " and ".join([*model, *rules])


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

    mine = pl.DataFrame()
    if card.results is not None:
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
    stated = card.license
    data = ModelCardData(
        base_model=_hub_name(card.base_model),
        datasets=[name for name in card.datasets if _hub_name(name)] or None,
        eval_results=evaluations or None,
        library_name="transformers",
        # The hub calls a license that nobody stated unknown.
        license="unknown" if stated is None else _one_line(stated.id),
        license_name=None if stated is None or not stated.name else _one_line(stated.name),
        license_link=None if stated is None or not stated.link else _one_line(stated.link),
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
