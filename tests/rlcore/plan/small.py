"""A small recipe to plan, and the model that a section describes."""

from typing import Any

from transformers import Qwen2Config, Qwen2ForCausalLM

from flows.paths import RECIPES
from rlcore.plan.machine import Machine
from rlcore.plan.memory import GIB
from rlcore.recipes.load import load_recipe
from schemas.model import FromScratch
from schemas.recipe import Recipe

ROOMY = Machine(host=1024 * GIB, gpus=(), disk_free=1024 * GIB)


def recipe(**overrides: Any) -> Recipe:
    """Return a small arithmetic recipe; keys are dotted paths with ``__`` for the dots."""
    base = {
        "data.max_prompt_tokens": 80,
        "model.max_tokens": 128,
        "sft.max_tokens": 128,
        "sft.batch_size": 64,
        "sft.max_steps": None,
        "rl.iterations": 100,
        "rl.rollout.prompts": 64,
        "rl.rollout.samples": 8,
        "rl.rollout.max_new_tokens": 40,
        "rl.update.mini_batches": 2,
        "rl.update.epochs": 1,
        "rl.algorithm.kl.where": "none",
        "evaluate.max_new_tokens": 40,
        "hardware.learner.micro_batch_tokens": 4096,
        "hardware.learner.ranks": 1,
        "hardware.learner.zero_stage": 1,
        "hardware.device": "auto",
    }
    changes = {path.replace("__", "."): value for path, value in overrides.items()}
    return load_recipe("quickstart", base | changes, directory=RECIPES)


def qwen2(scratch: FromScratch) -> Qwen2ForCausalLM:
    """Build the model itself, to count what a plan computes."""
    config = Qwen2Config(
        vocab_size=scratch.vocab_size,
        hidden_size=scratch.hidden_size,
        num_hidden_layers=scratch.num_layers,
        num_attention_heads=scratch.num_heads,
        num_key_value_heads=scratch.num_kv_heads,
        intermediate_size=scratch.intermediate_size,
        tie_word_embeddings=scratch.tie_word_embeddings,
    )
    return Qwen2ForCausalLM(config)
