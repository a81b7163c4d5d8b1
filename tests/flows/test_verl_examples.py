"""Each example script of verl's becomes a recipe that plans, or is refused by the name of what it
needs."""

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import yaml

from flows.cli import main
from rlcore.recipes.load import load_recipe
from tests.inputs import SHARED, reads
from tests.tiers import fast

EXAMPLES = SHARED / "reference" / "verl_examples"
LENGTHS = ("data.max_prompt_tokens", "rl.rollout.max_new_tokens")
BATCH = ("rl.rollout.prompts", "rl.update.mini_batches", "rl.rollout.samples", "rl.iterations")
ALGORITHM = ("rl.preset", "rl.algorithm.advantage", "rl.algorithm.policy_loss")
KL = tuple(f"rl.algorithm.kl.{key}" for key in ("where", "estimator", "coef"))
IN_LOSS, IN_REWARD, NONE = ("loss", "k3", 0.001), ("reward", "k1", 0.001), ("none",)

# script -> algorithm, batch, lengths, KL
RECIPES: Mapping[str, tuple[tuple[Any, ...], ...]] = {
    "ascend_extras-gspo_trainer-run_qwen3_32b_fsdp": (
        *(("gspo", "grpo", "clip"), (256, 4, 16, 69980), (2048, 8192), NONE),
    ),
    "cispo_trainer-run_qwen3_8b_fsdp": (
        *(("grpo", "grpo", "cispo"), (1024, 4, 5, 210), (1024, 2048), IN_LOSS),
    ),
    "grpo_trainer-run_qwen3_4b_fsdp": (
        *(("grpo", "grpo", "clip"), (512, 2, 5, 210), (1024, 1024), IN_LOSS),
    ),
    "grpo_trainer-run_seed_oss_36b_fsdp": (
        *(("grpo", "grpo", "clip"), (64, 8, 2, 1740), (512, 1024), IN_LOSS),
    ),
    "gspo_trainer-run_qwen3_8b_fsdp": (
        *(("gspo", "grpo", "clip"), (512, 4, 16, 290), (2048, 8192), NONE),
    ),
    "ppo_trainer-run_qwen3_8b_fsdp": (
        *(("ppo", "gae", "clip"), (1024, 4, 1, 210), (1024, 2048), NONE),
    ),
    "reinforce_plus_plus_trainer-run_qwen3_8b_fsdp": (
        *(("rloo", "reinforce++", "clip"), (1024, 1, 8, 210), (1024, 2048), IN_REWARD),
    ),
    "remax_trainer-run_qwen3_8b_fsdp": (
        *(("remax", "remax", "clip"), (1024, 4, 4, 140), (1024, 2048), IN_REWARD),
    ),
}
REFUSED = {
    "distillation": ("on_policy_distillation",),
    "GDPO": ("gdpo_trainer",),
    "GPG": ("gpg_trainer",),
    "SAPO": ("sapo_trainer",),
    "multi-token prediction": ("mtp_trainer",),
    "Megatron": ("megatron",),
    "images or video": (
        *("_vl_7b_fsdp", "_vl_8b_fsdp", "glm4_1v", "minicpm_o", "27b_fsdp_turbo", "video"),
        "35b_fsdp",
    ),
}


def _scripts() -> list[Path]:
    return sorted(EXAMPLES.glob("*.sh"))


EVERY_CHANGE = (
    "ascend_extras-gspo_trainer-run_qwen3_32b_fsdp",
    "ppo_trainer-run_qwen3_8b_fsdp",
    "remax_trainer-run_qwen3_8b_fsdp",
)


@reads(EXAMPLES)
@pytest.mark.parametrize("name", fast(RECIPES, *EVERY_CHANGE))
def test_text_with_an_objective_that_there_is_becomes_a_recipe(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")  # the scripts want 8 GPUs and more
    file = tmp_path / "recipe.yaml"
    assert main(["from-verl", str(EXAMPLES / f"{name}.sh"), "--out", str(file)]) == 0
    _write_data(file, tmp_path)
    assert main(["run", str(file), "--dry-run", "-o", f"store={tmp_path}"]) == 0
    assert "Plan of recipe" in capsys.readouterr().out
    recipe = load_recipe(str(file), directory=tmp_path).model_dump()
    for paths, values in zip((ALGORITHM, BATCH, LENGTHS, KL), RECIPES[name], strict=True):
        assert tuple(_at(recipe, path) for path in paths[: len(values)]) == values
    assert "the reference is placed like" not in " ".join(file.read_text().split())


@reads(EXAMPLES)
def test_all_others_are_refused_by_the_name_of_what_they_need(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """As a plain GRPO on text each would train something else, and say nothing."""
    refused = [path for path in _scripts() if path.stem not in RECIPES]
    assert len(refused) == 30
    for path in refused:
        assert main(["from-verl", str(path)]) == 2, path.stem
        said = capsys.readouterr()
        assert not said.out
        (sentence,) = said.err.splitlines()
        needed = {
            what for what, parts in REFUSED.items() if any(part in path.stem for part in parts)
        }
        assert needed, path.stem
        if path.stem.endswith("megatron_lite"):
            assert "starts no trainer of verl: line 11 exits after 'This example" in sentence
            assert "Megatron Lite" in sentence
            continue
        for what in needed:
            assert f"{what} (" in sentence, path.stem


def _write_data(recipe: Path, home: Path) -> None:
    """Write verl's rows into the files that a recipe reads; all are below ``home``."""
    for source in yaml.safe_load(recipe.read_text())["data"]["sources"]:
        path = Path(source["path"])
        assert path.is_relative_to(home)
        path.parent.mkdir(parents=True, exist_ok=True)
        names = hashlib.sha256(path.name.encode()).hexdigest()[:8]  # no row is in two files
        pl.DataFrame(
            {
                "data_source": "openai/gsm8k",
                "prompt": [[{"role": "user", "content": f"{names} {n} + 1?"}] for n in range(1100)],
                "ability": "math",
                "reward_model": [
                    {"style": "rule", "ground_truth": str(n + 1)} for n in range(1100)
                ],
                "extra_info": [{"index": n} for n in range(1100)],
            }
        ).write_parquet(path)


def _at(tree: Mapping[str, Any], path: str) -> Any:
    node: Any = tree
    for part in path.split("."):
        node = node[part]
    return node
