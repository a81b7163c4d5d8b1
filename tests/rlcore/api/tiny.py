"""A language model of a few thousand weights in its own directory."""

from pathlib import Path
from typing import Any

from rlcore.api.configs import TrainingConfig
from rlcore.api.recipe import recipe_of
from rlcore.models.base import build_base_model
from schemas.model import FromScratch, ModelSection
from schemas.recipe import Recipe

CONTEXT = 96  # tokens
TEXTS = (
    "What is the sum of all integers from 1 to 100?",
    "Solve for x: 3x^2 - 12x + 9 = 0",
    "Please reason step by step, and put your final answer within \\boxed{}.",
    "The final answer is 42.",
)


def write_tiny_model(target: Path, *, chat_template: str | None = None) -> Path:
    """Write the model and its tokenizer to ``target``; return it."""
    section = ModelSection(
        from_scratch=FromScratch(
            hidden_size=32,
            num_layers=1,
            num_heads=2,
            num_kv_heads=1,
            intermediate_size=32,
            vocab_size=320,
            max_position_embeddings=CONTEXT,
        ),
        dtype="float32",
        max_tokens=CONTEXT,
        chat_template=chat_template,
    )
    return build_base_model(section, target, texts=TEXTS, seed=0)


def recipe(config: TrainingConfig, **changes: Any) -> Recipe:
    """The recipe of ``config`` for a model of 32k tokens and 1,024 prompts."""
    task: dict[str, Any] = {
        "model_dir": Path("model"),
        "context": 32768,
        "num_prompts": 1024,
        "longest_prompt": 100,
        "prompts_file": "store/dataset/k/prompts.parquet",
        "store": "store",
        "functions": [{"name": "python:reward_fn"}],
        "reward_offset": 0.0,
        "tracking": {"wandb": False},
        "resumable": False,
    }
    return recipe_of(config, **{**task, **changes})
