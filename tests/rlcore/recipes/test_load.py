"""Bad recipes end in one sentence that says where, what, why and what to do."""

import shutil
from pathlib import Path

import pytest

from flows.paths import RECIPES
from rlcore.recipes.load import load_recipe, parse_override, recipe_digest, recipe_names
from rlcore.recipes.text import write_yaml
from schemas.errors import UserError

SMALLEST = """
model: {path: x}
data: {sources: [{kind: gsm8k}]}
reward: {functions: [{name: gsm8k}]}
"""


@pytest.mark.parametrize("name", recipe_names(RECIPES))
def test_every_shipped_recipe_loads(name: str) -> None:
    assert load_recipe(name, directory=RECIPES).name == name


@pytest.mark.parametrize("extends", ["", "extends: gsm8k-grpo\n"])
def test_a_recipe_without_a_name_is_called_after_its_file(tmp_path: Path, extends: str) -> None:
    """And not after the recipe that it extends: their runs would be mistaken for its own."""
    path = tmp_path / "My_first job.yaml"
    path.write_text(f"{extends}{SMALLEST}")
    assert load_recipe(str(path), directory=RECIPES).name == "my-first-job"


def test_resolved_recipe_means_the_same_when_read_back(tmp_path: Path) -> None:
    """A rerun of an old run reads its recorded recipe: it must not drift through defaults."""
    commit = {"model.revision": "1234e56", "rl.update.optimizer.lr": "2e-6"}
    recipe = load_recipe("quickstart", commit, directory=RECIPES)
    path = tmp_path / "recipe.yaml"
    path.write_text(write_yaml(recipe.model_dump(mode="json")))
    again = load_recipe(str(path), directory=RECIPES)
    assert again == recipe
    assert recipe_digest(again) == recipe_digest(recipe)
    path.write_text(path.read_text().replace("store: runs/store", "store: ~nobody9/store"))
    seen = load_recipe(str(path), directory=RECIPES, recorded=True)
    assert seen.store == "~nobody9/store", "a colleague of another machine looks at it"


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        ({"rl.iteratons": 3}, ["rl.iteratons", "did you mean 'iterations'"]),
        ({"rl.rollout.prompts": "many"}, ["rl.rollout.prompts", "'many'", "integer"]),
        ({"rl.update.optimizer.lrr": 1}, ["rl.update.optimizer.lrr", "did you mean 'lr'"]),
        ({"data.sources.0.trian": 4}, ["data.sources.0.trian", "did you mean 'train'"]),
        ({"data.sources.3.train": 4}, ["data.sources.3.train", "index from 0 to 0"]),
        ({"data.sources.0.kind": "foo"}, ["data.sources.0", "'foo'", "arithmetic"]),
        ({"model.path": "x/y"}, ["model", "both are set", "exactly one"]),
        ({"model.from_scratch": None}, ["model", "neither is set", "exactly one"]),
        ({"model": None}, ["model = None"]),
        (
            {"store": "~nobody9/store"},
            ["store = '~nobody9/store'", "home of a user", "write ~/"],
        ),
        (
            {"model": {"path": "~nobody9/x", "max_tokens": 128}},
            ["model.path = '~nobody9/x'", "home of a user"],
        ),
        ({"seed.x": 1}, ["seed.x", "override 'seed' itself"]),
        ({"seed": -1}, ["seed = -1", "greater than or equal to 0"]),
        ({"rl.preset": "grppo"}, ["preset 'grppo'", "did you mean 'grpo'"]),
        ({"rl.rollout.top_p": 0.5}, ["rl.rollout", "top_p", "set top_p to 1"]),
        ({"rl.rollout.samples": 1}, ["rollout.samples", "at least 2"]),
        ({"rl.update.mini_batches": 3}, ["128", "mini_batches = 3", "divisor"]),
        ({"rl.rollout.max_new_tokens": 100}, ["rl.rollout.max_new_tokens", "model.max_tokens"]),
        ({"rl.max_logprob_gap": 50}, ["rl.max_logprob_gap = 50", "or equal to 10"]),
        ({"evaluate.pass_k": [16]}, ["pass_k = 16", "samples = 8"]),
        ({"hardware.learner.zero_stage": 7}, ["hardware.learner.zero_stage = 7", "0, 1, 2 or 3"]),
        ({"hardware.learner.offload_params": True}, ["offload_params", "zero_stage 3"]),
        (
            {"hardware.cluster": "in_process", "hardware.rollout.engine": "vllm"},
            ["vLLM", "transformers"],
        ),
        (
            {"model.dtype": "bfloat16", "hardware.learner.zero_stage": 0},
            ["bfloat16", "zero_stage >= 1"],
        ),
        (
            {"model.dtype": "bfloat16", "rl.max_logprob_gap": 0.5},
            ["rl.max_logprob_gap = 0.5", "bfloat16", "remove it", "rl.max_mult_prob_error"],
        ),
        (
            {"model.dtype": "float32", "rl.max_mult_prob_error": 1.05},
            ["rl.max_mult_prob_error = 1.05", "float32", "remove it", "rl.max_logprob_gap"],
        ),
        ({"rl.max_mult_prob_error": 1.0}, ["rl.max_mult_prob_error = 1.0", "greater than 1"]),
        (
            {"model.from_scratch.num_heads": 3, "model.from_scratch.num_kv_heads": 1},
            ["num_heads = 3", "divisor"],
        ),
        (
            {"model.from_scratch.num_heads": 8, "hardware.rollout.engine": "vllm"},
            ["= 16 is below 32", "lower num_heads"],
        ),
        ({"evaluate.checkpoints": []}, ["evaluate.checkpoints", "at least 1"]),
        ({"data.deduplicate": "near"}, ["deduplicate", "'exact'"]),
        ({"hardware.rollout.tensor_parallel": 2}, ["tensor_parallel = 2", "gpus_per_engine"]),
        (
            {"hardware.learner.ranks": 2, "hardware.learner.gpus_per_rank": 0.5},
            ["hardware", "learner.gpus_per_rank = 0.5", "learner.ranks = 2", "NCCL", "to 1"],
        ),
        ({"hardware.learner.ranks": 2, "hardware.device": "cuda"}, ["gpus_per_rank = 0.3"]),
    ],
)
def test_bad_override_names_path_rule_and_remedy(overrides: dict, words: list[str]) -> None:
    with pytest.raises(UserError) as refusal:
        load_recipe("quickstart", overrides, directory=RECIPES)
    sentence = str(refusal.value)
    assert "\n" not in sentence
    for word in words:
        assert word in sentence


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (
            {"reward_model.preferences.promts": 3},
            ["reward_model.preferences.promts", "did you mean 'prompts'", "validation_prompts"],
        ),
        ({"reward_model.preferences": {"kind": "x"}}, ["'x'", "'samples', 'gsm8k_solutions'"]),
        (
            {"reward_model.preferences.max_new_tokens": 90},
            ["reward_model.preferences.max_new_tokens", "model.max_tokens"],
        ),
        ({"reward.functions": [{"name": "reward_model"}]}, ["ranked by correctness", "weight 0"]),
        ({"reward_model": None}, ["reward.functions names 'reward_model'"]),
    ],
)
def test_a_reward_model_is_refused_where_it_cannot_be_made(
    overrides: dict, words: list[str]
) -> None:
    with pytest.raises(UserError) as refusal:
        load_recipe("quickstart-rlhf", overrides, directory=RECIPES)
    for word in words:
        assert word in str(refusal.value)


def test_unknown_recipe_names_the_nearest() -> None:
    with pytest.raises(UserError, match="did you mean 'quickstart'"):
        load_recipe("quikstart", directory=RECIPES)


def test_missing_and_broken_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"nowhere\.yaml.*does not exist"):
        load_recipe("nowhere.yaml", directory=RECIPES)
    broken = tmp_path / "broken.yaml"
    broken.write_text("model: [1")
    with pytest.raises(UserError, match="not valid YAML"):
        load_recipe(str(broken), directory=RECIPES)
    broken.write_text("just text")
    with pytest.raises(UserError, match="holds str"):
        load_recipe(str(broken), directory=RECIPES)


def test_override_text_is_read_as_yaml_and_scientific_numbers_are_numbers() -> None:
    assert parse_override("rl.update.optimizer.lr=2e-6") == ("rl.update.optimizer.lr", 2e-6)
    assert parse_override("evaluate.pass_k=[1, 2]") == ("evaluate.pass_k", [1, 2])
    with pytest.raises(UserError, match="path=value"):
        parse_override("rl.iterations")


def test_of_two_bases_the_later_one_holds(tmp_path: Path) -> None:
    """A variant of a task is one file for all algorithms: no copy of each recipe."""
    for name in ("_quickstart", "quickstart-ppo"):
        shutil.copy(RECIPES / f"{name}.yaml", tmp_path)
    task = "data: {sources: [{kind: arithmetic, steps: [2, 3]}]}\nrl: {iterations: 7}\n"
    (tmp_path / "_hard.yaml").write_text(task)
    (tmp_path / "hard.yaml").write_text("extends: [quickstart-ppo, _hard]\nname: hard\n")
    recipe = load_recipe("hard", directory=tmp_path)
    assert (recipe.name, recipe.rl.preset, recipe.rl.iterations) == ("hard", "ppo", 7)
    assert recipe.data.sources[0].model_dump()["steps"] == (2, 3)
    (tmp_path / "_hard.yaml").write_text("extends: hard\n")
    with pytest.raises(UserError, match="leads back to itself"):
        load_recipe("hard", directory=tmp_path)


@pytest.mark.parametrize(("task", "variants"), [("quickstart", 9), ("hard", 8)])
def test_variants_of_a_task_differ_in_rl_alone(task: str, variants: int) -> None:
    """They share data and SFT from the cache, sample alike, and so can be compared."""
    learnt = {"quickstart-rlhf", "quickstart-preference"}  # whose rewards are trained first
    names = [name for name in recipe_names(RECIPES) if name.startswith(task)]
    recipes = [load_recipe(name, directory=RECIPES) for name in names if name not in learnt]
    assert len(recipes) == variants
    for part in ("data", "model", "sft", "evaluate", "hardware"):
        assert len({getattr(recipe, part).model_dump_json() for recipe in recipes}) == 1, part
    sampled = {(r.rl.iterations, r.rl.rollout.prompts * r.rl.rollout.samples) for r in recipes}
    assert len(sampled) == 1


RATIO = "rl.update.optimizer.schedule.warmup_ratio"
STEPS = "rl.update.optimizer.schedule.warmup_steps"


@pytest.mark.parametrize(
    ("overrides", "steps", "ratio"),
    [
        ({}, 10, 0.1),
        ({RATIO: 0.2}, None, 0.2),
        ({RATIO: 0.2, STEPS: 5}, 5, 0.2),
        ({STEPS: 5, RATIO: 0.2}, None, 0.2),
    ],
)
def test_the_later_warm_up_holds(overrides: dict, steps: int | None, ratio: float) -> None:
    """A ratio given as an override lost to the steps of the recipe without a word."""
    schedule = load_recipe("quickstart", overrides, directory=RECIPES).rl.update.optimizer.schedule
    assert (schedule.warmup_steps, schedule.warmup_ratio) == (steps, ratio)


@pytest.mark.parametrize("base", ["../base", "../base.yaml"])
def test_a_file_is_extended_with_and_without_its_ending(tmp_path: Path, base: str) -> None:
    (tmp_path / "base.yaml").write_text("extends: quickstart\nseed: 7\n")
    (tmp_path / "jobs").mkdir()
    path = tmp_path / "jobs" / "mine.yaml"
    path.write_text(f"extends: {base}\n")
    assert load_recipe(str(path), {}, directory=RECIPES).seed == 7


@pytest.mark.parametrize("extends", ["3", "null", "[quickstart, 3]", "{a: b}"])
def test_what_no_recipe_can_extend_is_one_sentence(tmp_path: Path, extends: str) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(f"extends: {extends}\n")
    with pytest.raises(UserError, match=r"mine\.yaml': extends = .* is neither the name .*; name"):
        load_recipe(str(path), directory=RECIPES)


def test_an_empty_file_is_told_so(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").touch()
    with pytest.raises(UserError, match=r"mine\.yaml' holds nothing, not sections; write name"):
        load_recipe(str(tmp_path / "mine.yaml"), directory=RECIPES)


def test_a_recipe_elsewhere_extends_ours_and_reads_its_own_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """People keep recipe, data and model together, and start runs from anywhere."""
    mine, here = tmp_path / "mine", tmp_path / "here"
    for folder in (mine / "model", here):
        folder.mkdir(parents=True)
    (here / "old.jsonl").touch()
    (mine / "own.yaml").write_text(
        "extends: gsm8k-grpo\nname: own\nmodel: {path: model}\n"
        "data:\n  sources:\n    - {kind: file, path: train.jsonl}\n"
        "    - {kind: file, path: old.jsonl, split: test}\n"
        "    - {kind: file, path: s3://bucket/rows.parquet, split: validation}\n"
        "hardware: {rollout: {engine: 'engine.py:Mine'}}\n"
        "environment: {name: mcp, command: [python, server.py, -v], max_turns: 1}\n"
    )
    monkeypatch.chdir(here)
    recipe = load_recipe(str(mine / "own.yaml"), directory=RECIPES)
    assert recipe.rl.preset == "grpo"
    paths = [source.path for source in recipe.data.sources]  # type: ignore[union-attr]
    assert paths == [str(mine / "train.jsonl"), "old.jsonl", "s3://bucket/rows.parquet"]
    assert recipe.model.path == str(mine / "model")
    assert recipe.hardware.rollout.engine == str(mine / "engine.py:Mine")
    assert recipe.environment is not None
    assert recipe.environment.command == ("python", str(mine / "server.py"), "-v")
    (mine / "own.yaml").write_text("extends: gsm8k-gpro\nname: own\n")
    looked = r"no gsm8k-gpro\.yaml in '.*mine' nor among .*did you mean"
    with pytest.raises(UserError, match=looked):
        load_recipe(str(mine / "own.yaml"), directory=RECIPES)


@pytest.mark.parametrize("base", ["_base", "shared/base"])
def test_a_base_of_the_users_extends_ours_and_reads_its_own_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, base: str
) -> None:
    """A schedule starts runs in the folder of the program, where another train.jsonl may lie."""
    mine, here = tmp_path / "mine", tmp_path / "here"
    file = mine / f"{base}.yaml"
    for folder in (file.parent / "model", here):
        folder.mkdir(parents=True)
    for folder in (file.parent, here):
        (folder / "train.jsonl").touch()
    file.write_text(
        "extends: gsm8k-grpo\nmodel: {path: model}\n"
        "data: {sources: [{kind: file, path: train.jsonl}]}\n"
        "reward: {functions: [{name: 'rewards.py:f'}]}\n"
    )
    (mine / "own.yaml").write_text(f"extends: {base}\n")
    monkeypatch.chdir(here)
    recipe = load_recipe(str(mine / "own.yaml"), directory=RECIPES)
    assert (recipe.name, recipe.rl.preset) == ("own", "grpo")
    (source,) = recipe.data.sources
    assert source.path == str(file.parent / "train.jsonl")  # type: ignore[union-attr]
    assert recipe.model.path == str(file.parent / "model")
    assert recipe.reward.functions[0].name == str(file.parent / "rewards.py:f")


def test_a_recipe_called_as_one_of_ours_may_extend_ours(tmp_path: Path) -> None:
    """quickstart-ppo extends our quickstart, and not the file that extends it."""
    (tmp_path / "_quickstart.yaml").write_text("extends: quickstart-ppo\n")
    (tmp_path / "quickstart.yaml").write_text("extends: _quickstart\nrl: {iterations: 7}\n")
    recipe = load_recipe(str(tmp_path / "quickstart.yaml"), directory=RECIPES)
    assert (recipe.rl.preset, recipe.rl.iterations) == ("ppo", 7)
    (tmp_path / "_quickstart.yaml").write_text("extends: quickstart\n")
    with pytest.raises(UserError, match="leads back to itself"):
        load_recipe(str(tmp_path / "quickstart.yaml"), directory=RECIPES)


def test_a_variable_in_a_path_is_not_looked_for_beside_the_recipe(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HERE", str(tmp_path))
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "own.yaml").write_text(
        "extends: gsm8k-grpo\nname: own\ndata: {sources: [{kind: file, path: $HERE/train.jsonl}]}\n"
    )
    (source,) = load_recipe(str(tmp_path / "mine" / "own.yaml"), directory=RECIPES).data.sources
    assert source.path == "$HERE/train.jsonl"  # type: ignore[union-attr]


def test_pairs_reward_models_and_ranking_code_lie_beside_a_recipe(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A hub name stays one where the recipe's folder has no such directory."""
    mine, here = tmp_path / "mine", tmp_path / "here"
    for folder in (mine / "small", mine / "judge", here):
        folder.mkdir(parents=True)
    (mine / "own.yaml").write_text(
        "extends: gsm8k-rlhf\nname: own\n"
        "preference: {algorithm: dpo, data: {kind: file, path: pairs.jsonl}}\n"
        "reward_model:\n  base: small\n"
        "  preferences: {kind: samples, ranked_by: 'taste.py:rank'}\n"
        "reward_models: {mine: {path: judge}, theirs: {path: owner/judge}}\n"
        "reward:\n  functions: [{name: reward_model}, {name: 'reward_model:mine'},"
        " {name: 'reward_model:theirs'}, {name: 'taste.py:rank', weight: 0}]\n"
    )
    monkeypatch.chdir(here)
    recipe = load_recipe(str(mine / "own.yaml"), directory=RECIPES)
    assert recipe.preference is not None
    assert recipe.preference.data.path == str(mine / "pairs.jsonl")
    assert recipe.reward_model is not None
    assert recipe.reward_model.base == str(mine / "small")
    ranked = recipe.reward_model.preferences.model_dump()["ranked_by"]
    assert ranked == str(mine / "taste.py:rank")
    models = {name: model.path for name, model in recipe.reward_models.items()}
    assert models == {"mine": str(mine / "judge"), "theirs": "owner/judge"}
