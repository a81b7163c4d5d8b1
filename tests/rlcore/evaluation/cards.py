"""A policy to export and a card to export it with."""

from pathlib import Path
from typing import Any

import polars as pl
import yaml

from rlcore.evaluation.model_card import ModelCard, RewardTerm
from rlcore.models.base import build_base_model
from schemas.model import FromScratch, ModelSection
from schemas.tables import EVAL_RESULTS

TEXTS = [f"What is {a} + {b}? {a}+{b}={a + b}\n#### {a + b}" for a in range(40) for b in range(40)]


def policy(directory: Path, **shape: Any) -> Path:
    # vLLM on CPU wants heads of at least 32
    sizes = {"hidden_size": 64, "num_heads": 2, "num_kv_heads": 1, "max_position_embeddings": 256}
    section = ModelSection(
        from_scratch=FromScratch.model_validate(sizes | shape), dtype="float32", max_tokens=256
    )
    return build_base_model(section, directory, texts=TEXTS, seed=0)


def results() -> pl.DataFrame:
    rows = [
        (checkpoint, source, subset, metric, value, value - 0.05, value + 0.05, 512, 512)
        for checkpoint, value in (("sft", 0.6), ("rl", 0.9))
        for source, subset in (("openai/gsm8k", "test"), ("all", "all"))
        for metric in ("greedy/acc", "sampled/pass@4", "greedy/response_length/mean")
    ]
    schema = EVAL_RESULTS.columns
    return EVAL_RESULTS.validate(
        pl.DataFrame(rows, schema=list(schema), orient="row").with_columns(
            pl.col("num_prompts", "num_samples").cast(pl.Int64)
        )
    )


def card(**changes: Any) -> ModelCard:
    facts: dict[str, Any] = {
        "name": "quickstart",
        "checkpoint": "rl",
        "results": results(),
        "ancestors": (
            {
                "what": "the policy after RL: this model",
                "kind": "policy",
                "key": "c3d4/000007",
                "sha256": "f" * 64,
            },
            {
                "what": "prompts and demonstrations",
                "kind": "dataset",
                "key": "a1b2",
                "sha256": "0" * 64,
            },
        ),
        "recipe": {"name": "quickstart", "digest": "b" * 64, "seed": "0"},
        "reward": (RewardTerm("gsm8k", 1.0, False),),
        "sources": ("GSM8K (openai/gsm8k)",),
        "prompts": (
            {"source": "openai/gsm8k", "split": "train", "subset": "train", "prompts": "7,473"},
        ),
        "data": {"demonstrations": "7,473"},
        "versions": {"rl-pipeline": "0.1.0", "torch": "2.13.0"},
        "base_model": "Qwen/Qwen2.5-0.5B-Instruct",
        "datasets": ("openai/gsm8k", "arithmetic"),
        "training": {"algorithm": "grpo", "iterations": "100"},
        "evaluation": {"seed": "0", "temperature": "1.0"},
    }
    return ModelCard(**(facts | changes))


def front_matter(directory: Path) -> dict[str, Any]:
    text = (directory / "README.md").read_text()
    return yaml.safe_load(text.split("---\n")[1])
