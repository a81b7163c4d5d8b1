"""The recipes that learn from preferences are planned from local files, without their models."""

import json
from pathlib import Path

import pytest

from flows.cli import main
from tests.flows.test_brought_reward_model import saved
from tests.flows.test_math_recipes import SMALL
from tests.inputs import GSM8K, reads


def dry_run(name: str, store: Path, **overrides: object) -> int:
    """``data__sources={...}`` overrides data.sources."""
    given = {"model.path": None, "model.from_scratch": json.loads(SMALL), "store": str(store)}
    given |= {key.replace("__", "."): value for key, value in overrides.items()}
    options = [
        part for key, value in given.items() for part in ("-o", f"{key}={json.dumps(value)}")
    ]
    return main(["run", name, "--dry-run", *options])


@reads(GSM8K)
def test_classic_rlhf_on_gsm8k(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sources = [{"kind": "gsm8k", "path": str(GSM8K), "limit": 600}]
    solutions = {"kind": "gsm8k_solutions", "path": str(GSM8K / "example_model_solutions.jsonl")}
    solutions |= {"limit": 200}
    planned = dry_run(
        "gsm8k-rlhf",
        tmp_path,
        data__sources=sources,
        reward_model__preferences=solutions,
        hardware__device="cpu",
    )
    assert planned == 0, capsys.readouterr().err
    said = capsys.readouterr().out
    for stage in ("sft", "reward_model", "rl"):
        assert f"  {stage:12} runs" in said


@reads(GSM8K)
def test_ppo_on_a_reward_model_that_others_trained(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sources = [{"kind": "gsm8k", "path": str(GSM8K), "limit": 600}]
    given = {"data__sources": sources, "hardware__device": "cpu"}
    short = {"data__max_prompt_tokens": 100, "rl__rollout__max_new_tokens": 100}
    short |= {"data__max_reject_fraction": 1.0}
    model = str(saved(tmp_path / "reward-model"))
    brought = {"reward_models__skywork__path": model}
    assert dry_run("gsm8k-ppo-rm", tmp_path, **given, **brought) == 2
    assert "reads 256 tokens" in capsys.readouterr().err
    assert dry_run("gsm8k-ppo-rm", tmp_path, **given, **short, **brought) == 0
    assert "reward_model:skywork" in capsys.readouterr().out


def test_dialogue_without_a_rule(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sources = []
    for split, what in (("train", "cats"), ("test", "dogs")):
        prompts = [[{"role": "user", "content": f"Tell me about {n} {what}."}] for n in range(400)]
        path = tmp_path / f"{split}.jsonl"
        path.write_text("".join(json.dumps({"prompt": prompt}) + "\n" for prompt in prompts))
        sources.append({"kind": "file", "path": str(path), "split": split})
    planned = dry_run(
        "dialogue-grpo",
        tmp_path,
        data__sources=sources,
        data__max_prompt_tokens=80,
        rl__rollout__max_new_tokens=100,
        evaluate__max_new_tokens=100,
        reward_models__skywork__path=str(saved(tmp_path / "reward-model")),
        hardware__device="cpu",
    )
    assert planned == 0, capsys.readouterr().err
    assert "400 test prompts, 0 demonstrations" in capsys.readouterr().out
