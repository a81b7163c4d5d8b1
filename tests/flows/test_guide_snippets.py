"""The snippets of StateSet's guide to GRPO and related algorithms, run as a user would paste them.

Unchanged except for the import line, the model, and the two numbers that set the length of a run.
Names that the guide leaves to the reader (prompts, score, reward_fn, verifier_fn) are defined here.
"""

import ast
import asyncio
import math
from pathlib import Path
from typing import Any

import pytest

from tests.rlcore.api.tiny import write_tiny_model

pytestmark = pytest.mark.timeout(180)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(write_tiny_model(tmp_path_factory.mktemp("tiny") / "model"))


GEPO = """
from training import GEPOConfig, train_with_gepo

# Define reward function
def reward_fn(prompt: str, response: str) -> float:
    # Your reward logic
    return score

# Configure GEPO
config = GEPOConfig(
    model_name="Qwen/Qwen2.5-7B-Instruct",
    group_size=8,  # Responses per prompt
    clip_eps=0.2,
    learning_rate=1e-6,
)

# Train
model, tokenizer, metrics = await train_with_gepo(
    model_name="Qwen/Qwen2.5-7B-Instruct",
    reward_fn=reward_fn,
    train_prompts=prompts,
    config=config,
)
"""

DAPO = """
from training import DAPOConfig, train_with_dapo, train_reasoning_with_dapo

# For math problems with verifiable answers
math_problems = [
    {"problem": "Solve: 2x + 3 = 7", "answer": "x = 2"},
    # ... more problems
]

model, tokenizer, metrics = await train_reasoning_with_dapo(
    model_name="Qwen/Qwen2.5-32B",
    math_problems=math_problems,
    output_dir="./outputs/dapo-math",
)

# Or with custom reward function
config = DAPOConfig(
    model_name="Qwen/Qwen2.5-7B-Instruct",
    group_size=16,
    clip_eps_low=0.2,
    clip_eps_high=0.28,
    use_dynamic_sampling=True,
    use_overlong_shaping=True,
)

model, tokenizer, metrics = await train_with_dapo(
    model_name="Qwen/Qwen2.5-7B-Instruct",
    reward_fn=reward_fn,
    train_prompts=prompts,
    verifier_fn=verifier_fn,  # Optional: binary correctness check
    config=config,
)
"""

VAPO = """
from training import VAPOConfig, train_with_vapo

config = VAPOConfig(
    model_name="Qwen/Qwen2.5-32B",
    group_size=16,
    value_warmup_steps=50,
    actor_learning_rate=1e-6,
    critic_learning_rate=2e-6,
    use_positive_lm_loss=True,
    positive_lm_weight=0.1,
)

model, tokenizer, metrics = await train_with_vapo(
    model_name="Qwen/Qwen2.5-32B",
    reward_fn=reward_fn,
    train_prompts=prompts,
    verifier_fn=verifier_fn,
    config=config,
)
"""

EXAMPLE = """
import asyncio
from training import VAPOConfig, train_with_vapo

# Prepare math dataset
math_problems = [
    "What is the sum of all integers from 1 to 100?",
    "Solve for x: 3x^2 - 12x + 9 = 0",
    # ... more problems
]

# Define reward (use verifier for correctness)
def reward_fn(prompt: str, response: str) -> float:
    # In practice, use a proper math verifier
    if "final answer" in response.lower():
        return 1.0
    return 0.0

def verifier_fn(prompt: str, response: str) -> bool:
    # Check if answer is correct
    # Use symbolic computation or pattern matching
    return True  # Placeholder

async def main():
    config = VAPOConfig(
        model_name="Qwen/Qwen2.5-7B-Instruct",
        group_size=8,
        num_episodes=1000,
        value_warmup_steps=50,
        output_dir="./outputs/math-vapo",
    )

    model, tokenizer, metrics = await train_with_vapo(
        model_name="Qwen/Qwen2.5-7B-Instruct",
        reward_fn=reward_fn,
        train_prompts=math_problems,
        verifier_fn=verifier_fn,
        config=config,
        use_wandb=True,
        wandb_project="math-reasoning",
    )

    print(f"Final accuracy: {metrics['accuracy'][-1]:.2%}")

if __name__ == "__main__":
    asyncio.run(main())
"""


def run_snippet(text: str, model: str) -> dict[str, Any]:
    """Run a snippet as a notebook cell would; return its names."""
    swaps = {
        "from training import": "from flows.training import",
        '"Qwen/Qwen2.5-7B-Instruct"': repr(model),
        '"Qwen/Qwen2.5-32B"': repr(model),
        "value_warmup_steps=50": "value_warmup_steps=1",
        "num_episodes=1000": "num_episodes=2",
    }
    for old, new in swaps.items():
        text = text.replace(old, new)
    names: dict[str, Any] = {
        "__name__": "__main__",
        "score": 1.0,
        "prompts": ["What is 2 + 2?", "Solve for x"],
        "reward_fn": lambda prompt, response: (len(response) % 3) / 2,
        "verifier_fn": lambda prompt, response: len(response) % 2 == 0,
    }
    code = compile(text, "snippet", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    cell = eval(code, names)
    if cell is not None:
        asyncio.run(cell)
    return names


@pytest.mark.slow
@pytest.mark.parametrize("text", [GEPO, DAPO, VAPO], ids=["gepo", "dapo", "vapo"])
def test_quick_starts_of_the_guide_run_as_written(
    text: str, tiny: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    names = run_snippet(text, tiny)
    assert math.isfinite(names["metrics"]["accuracy"][-1])
    tokenizer, model = names["tokenizer"], names["model"]
    ids = tokenizer("What is 2 + 2?", return_tensors="pt")
    assert model.generate(**ids, max_new_tokens=2).shape[1] == ids["input_ids"].shape[1] + 2
    if text is DAPO:
        assert (tmp_path / "outputs/dapo-math/model/model.safetensors").is_file()


def test_the_example_of_the_guide_runs_as_written(
    tiny: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """verifier_fn decides accuracy, output_dir of the config counts, wandb needs no key."""
    monkeypatch.chdir(tmp_path)
    run_snippet(EXAMPLE, tiny)
    assert "Final accuracy: 100.00%" in capsys.readouterr().out
    assert (tmp_path / "outputs/math-vapo/model/config.json").is_file()
    assert list((tmp_path / "outputs/math-vapo/wandb").glob("offline-run-*"))
