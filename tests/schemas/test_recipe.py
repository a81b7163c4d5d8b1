"""Settings that contradict one another end before anything starts, in one sentence: where, which
rule, what to do. One row per rule of ``schemas.algorithm``, ``schemas.rl`` and
``schemas.recipe``. And a stage's key holds what decides its result, and no more."""

import os
from pathlib import Path
from typing import Any

import pytest

from flows.paths import RECIPES
from rlcore.recipes.load import load_recipe, resolve_recipe
from schemas.errors import UserError
from schemas.model import FromScratch, ModelSection
from schemas.presets import PRESETS
from schemas.recipe import EvaluateSection
from schemas.slices import STAGE_SLICES

PPO, GRPO, REMAX, GSPO, DAPO, VAPO = (
    f"quickstart{name}" for name in ("-ppo", "", "-remax", "-gspo", "-dapo", "-vapo")
)
VETO = {"statistic": "veto", "low": 1e-4}
MODEL_REWARD = [{"name": "reward_model"}]

# recipe, overrides, then what the sentence holds: path, rule, remedy
PAIRS: dict[str, Any] = {"data": {"kind": "file", "path": "p.jsonl"}, "max_tokens": 64}
CONTRADICTIONS: list[tuple[str, dict[str, Any], list[str]]] = [
    # preference
    (GRPO, {"preference": PAIRS | {"desirable_weight": 2.0}},
     ["preference: desirable_weight = 2.0 is not read by algorithm = 'dpo'", "algorithm to kto"]),
    (GRPO, {"preference": PAIRS | {"algorithm": "kto", "rpo_alpha": 1.0}},
     ["rpo_alpha = 1.0 is not read by algorithm = 'kto'", "remove it"]),
    (GRPO, {"preference": PAIRS | {"loss": "ipo", "label_smoothing": 0.1}},
     ["label_smoothing = 0.1 is not read by loss = 'ipo'", "set loss to sigmoid"]),
    (GRPO, {"preference": PAIRS | {"max_tokens": 4096}},
     ["preference.max_tokens = 4096 exceeds model.max_tokens", "raise model.max_tokens"]),
    (GRPO, {"rl.enabled": False},
     ["rl.enabled = false and the section preference is null", "set preference"]),
    (GRPO, {"rl.enabled": False, "preference": PAIRS},
     ["evaluate.checkpoints = ['base', 'sft', 'rl'] lacks preference", "add preference"]),
    (GRPO, {"evaluate.checkpoints": ["preference", "rl"]},
     ["holds preference and the section preference is null", "take it out"]),
    (GRPO, {"rl.enabled": False, "preference": PAIRS, "retrain": {},
            "evaluate.checkpoints": ["base", "preference"]},
     ["rl.enabled = false and the section retrain is set", "set retrain to null"]),
    # the adapter
    (GRPO, {"model.adapter": {}},
     ["model.adapter trains in sft", "model.from_scratch", "model.adapter.stages to [rl]"]),
    (GRPO, {"model.adapter.stages": ["rl"], "hardware.learner.zero_stage": 3},
     ["zero_stage = 3", "ZeRO-3 would gather the frozen weights", "0, 1 or 2"]),
    (GRPO, {"model.adapter": {"stages": ["rl"], "targets": []}},
     ["model.adapter: targets = [] trains nothing", "all-linear"]),
    (GRPO, {"model.adapter": {"stages": []}}, ["model.adapter.stages", "add one"]),
    ("gsm8k-grpo", {"model.adapter.base": "nf4"},
     ["base = 'nf4' and stages sft and rl", "quantised once more", "leave sft out"]),
    # the estimator's inputs
    (PPO, {"rl.critic": None},
     ["rl:", "'gae' needs a critic and critic is null", "set rl.critic to {}"]),
    (GRPO, {"rl.critic": {}},
     ["rl:", "critic is set", "'grpo' reads no values", "set rl.critic to null"]),
    (GRPO, {"rl.rollout.samples": 1},
     ["rl:", "'grpo' compares samples within a group", "rollout.samples to at least 2"]),
    ("quickstart-rloo", {"rl.rollout.samples": 1}, ["'rloo' compares samples", "at least 2"]),
    ("quickstart-gepo", {"rl.rollout.samples": 1, "rl.algorithm.advantage": "reinforce++"},
     ["ratio_level = 'group' compares samples", "at least 2"]),
    (PPO, {"rl.algorithm.dynamic_sampling": {}},
     ["algorithm.dynamic_sampling compares samples within a group", "at least 2"]),
    (REMAX, {"rl.rollout.greedy_baseline": False},
     ["'remax' needs the reward of a greedy answer", "rollout.greedy_baseline to true"]),
    (GRPO, {"rl.rollout.greedy_baseline": True},
     ["'grpo' reads no greedy answer", "set it to false"]),
    (GRPO, {"rl.algorithm.gae": {"gamma": 0.9}},
     ["rl.algorithm:", "reads neither gamma nor lambda", "leave gae out"]),
    (GRPO, {"rl.algorithm.advantage_options": {"x": 1}},
     ["advantage_options belong to your own function", "leave them out"]),
    (GRPO, {"rl.algorithm.advantage": "grppo"},
     ["rl.algorithm.advantage", "'grppo' is not one of", "did you mean 'grpo'"]),
    (GRPO, {"rl.algorithm.policy_loss": "clipp"},
     ["rl.algorithm.policy_loss", "'clipp' is not one of", "did you mean 'clip'"]),
    (GRPO, {"rl.preset": "dappo"}, ["rl:", "'dappo' is not one of", "did you mean 'dapo'"]),
    # the axes
    (GSPO, {"rl.algorithm.aggregation": "token-mean"},
     ["rl.algorithm:", "one loss per sequence", "set aggregation to 'seq-mean-token-mean'"]),
    (GRPO, {"rl.algorithm.kl": {"where": "loss", "controller": "adaptive"}},
     ["rl.algorithm.kl:", "steers the KL taken from the reward", "set where to 'reward'"]),
    (PPO, {"rl.algorithm.kl": {"where": "reward", "estimator": "k3+"}},
     ["rl.algorithm.kl:", "gradient only, and a reward has none", "set estimator to 'k3'"]),
    (PPO, {"rl.algorithm.kl": {"where": "reward", "controller": "adaptive", "coef": 0}},
     ["rl.algorithm.kl:", "scales coef = 0", "give coef a start"]),
    ("quickstart-gepo", {"rl.algorithm.importance_correction.level": "token"},
     ["rl.algorithm:", "correct for it twice", "set it to 'none'"]),
    ("quickstart-gepo", {"rl.algorithm.importance_correction.reject": [VETO]},
     ["rl.algorithm:", "importance_correction.reject would correct for it twice", "set it to []"]),
    (GRPO, {"rl.algorithm.importance_correction.mode": "mask"},
     ["rl.algorithm.importance_correction:", "level = 'none' has no weights and mode = 'mask'",
      "set level to 'token' or 'sequence'"]),
    (GRPO, {"rl.algorithm.importance_correction.low": 0.5},
     ["rl.algorithm.importance_correction:", "low = 0.5 bound them", "leave mode and low out"]),
    (GRPO, {"rl.algorithm.importance_correction": {"level": "token", "mode": "mask", "cap": 1}},
     ["rl.algorithm.importance_correction:", "cap = 1 would mask", "set cap above 1"]),
    (GRPO, {"rl.algorithm.importance_correction": {"level": "token", "low": 0.5, "cap": 0.4}},
     ["rl.algorithm.importance_correction:", "low = 0.5 is not below cap = 0.4", "lower it"]),
    (GRPO, {"rl.algorithm.importance_correction.low": 2},
     ["rl.algorithm.importance_correction.low = 2", "less than 1"]),
    (GRPO, {"rl.algorithm.importance_correction.reject": [VETO, VETO]},
     ["rl.algorithm.importance_correction:", "'veto' more than once", "one low and high"]),
    (GRPO, {"rl.algorithm.importance_correction.reject": [{"statistic": "k3", "low": 0.1}]},
     ["importance_correction.reject.0:", "so it has one bound, and low = 0.1, high = None",
      "set high"]),
    (GRPO, {"rl.algorithm.importance_correction.reject": [{"statistic": "geometric"}]},
     ["importance_correction.reject.0:", "'geometric' without low and high keeps", "set one"]),
    (GRPO, {"rl.algorithm.importance_correction.reject": [{"statistic": "geometric", "high": 1}]},
     ["importance_correction.reject.0:", "high = 1 would reject a response", "set it above 1"]),
    (GRPO, {"rl.algorithm.importance_correction.reject": [{"statistic": "opsm", "high": 1}]},
     ["importance_correction.reject.0.statistic", "'geometric', 'k3' or 'veto'"]),
    (GRPO, {"reward.functions.0.weight": 0},
     ["reward:", "every weight of functions is 0", "give one function a weight"]),
    (GRPO, {"rl.algorithm.kl.where": ["loss", "reward"]},
     ["rl.algorithm.kl.where", "'loss', 'reward' or 'monitor'"]),
    (GRPO, {"rl.algorithm.clip_dual": 0.5}, ["rl.algorithm.clip_dual = 0.5", "greater than 1"]),
    (GRPO, {"rl.algorithm.clip_low": 1.5}, ["rl.algorithm.clip_low = 1.5", "than or equal to 1"]),
    (GRPO, {"rl.rollout.top_p": 0.7},
     ["rl.rollout:", "cuts the distribution the learner's log-probs assume", "set top_p to 1"]),
    (GRPO, {"rl.rollout.top_k": 50}, ["rl.rollout:", "top_k > 0", "top_k to -1"]),
    (GRPO, {"rl.update.mini_batches": 7},
     ["rl:", "128 is not a multiple of update.mini_batches = 7", "a divisor of 128"]),
    ("quickstart-gepo", {"rl.update.old_logprobs": "own"},
     ["rl:", "'own' are of the learner, and algorithm.ratio_level = 'group' measures against",
      "leave update.old_logprobs out"]),
    (GSPO, {"rl.update.old_logprobs": "new"},
     ["rl.update.old_logprobs", "'first', 'own' or 'fused'"]),
    (GRPO, {"rl.update.old_logprobs": "fused"},
     ["rl:", "'fused' are of an update's only step, and mini_batches x epochs makes"]),
    (PPO, {"rl.update": {"old_logprobs": "fused", "mini_batches": 1, "epochs": 1}},
     ["rl:", "algorithm.kl.where = 'reward' takes the KL from them", "change one of the two"]),
    (GRPO, {"rl.update": {"old_logprobs": "fused", "mini_batches": 1, "epochs": 1},
            "rl.algorithm.importance_correction.level": "token"},
     ["rl:", "come after algorithm.importance_correction", "leave update.old_logprobs"]),
    (GRPO, {"rl.update": {"old_logprobs": "fused", "mini_batches": 1, "epochs": 1},
            "rl.algorithm.importance_correction.reject": [VETO]},
     ["rl:", "weighs or masks by them", "leave update.old_logprobs"]),
    (GRPO, {"rl.update": {"old_logprobs": "fused", "mini_batches": 1, "epochs": 1},
            "rl.algorithm.kl": {"where": "monitor", "estimator": "full"}},
     ["rl:", "would measure estimator = 'full'", "leave update.old_logprobs"]),
    (GRPO, {"rl.update.old_logprobs": "rollout",
            "rl.algorithm.importance_correction.level": "token"},
     ["rl:", "would correct twice", "change one of the two"]),
    (GRPO, {"rl.update.old_logprobs": "rollout",
            "rl.algorithm.importance_correction.reject": [VETO]},
     ["rl:", "(level, reject) would correct twice"]),
    (GSPO, {"rl.update.old_logprobs": "rollout"},
     ["rl:", "the sampler's rounding into ratios, and algorithm.ratio_level = 'sequence' clips",
      "change one of the two"]),
    (GSPO, {"rl.update.old_logprobs": "rollout", "rl.algorithm.ratio_level": "sequence-token"},
     ["rl:", "algorithm.ratio_level = 'sequence-token' clips", "leave update.old_logprobs out"]),
    ("quickstart-gepo", {"rl.update.old_logprobs": "rollout"},
     ["rl:", "'group' measures against already", "leave update.old_logp"]),
    (GRPO, {"rl.algorithm.policy_loss": "reinforce"}, ["reads no ratio", "later steps of 4"]),
    ("gsm8k-gspo", {"rl.algorithm.policy_loss": "reinforce", "rl.update.mini_batches": 1,
                    "rl.update.epochs": 1}, ["'reinforce' reads no ratio", "'sequence' would do"]),
    (GRPO, {"rl.update.old_logprobs": "rollout", "rl.algorithm.policy_loss": "reinforce",
            "rl.update.mini_batches": 1, "rl.update.epochs": 1},
     ["rl:", "policy_loss = 'reinforce' reads none", "leave update.old_logprobs out"]),
    (GRPO, {"rl.update.old_logprobs": "rollout", "rl.rollout.top_p": 0.9},
     ["rl.rollout:", "cuts the distribution", "set top_p to 1"]),
    # settings that could never take effect
    (VAPO, {"rl.critic.warmup_iterations": 100},
     ["rl:", "leaves none of iterations = 100 to the policy", "raise iterations or lower it"]),
    (DAPO, {"rl.algorithm.overlong": {"cache_tokens": 41}},
     ["rl.algorithm.overlong.cache_tokens = 41 exceeds max_tokens = 40", "lower it"]),
    (DAPO, {"rl.algorithm.overlong": {"max_tokens": 20480, "cache_tokens": 4096}},
     ["rl.algorithm.overlong punishes from 16384 tokens on", "ends every response before",
      "lower"]),
    ("calculator-grpo", {"rl.algorithm.overlong": {"max_tokens": 90, "cache_tokens": 26}},
     ["punishes from 64 tokens on and rl.rollout.max_new_tokens = 32 x 2 turns = 64 ends every"]),
    (GRPO, {"rl.max_logprob_gap": 11}, ["rl.max_logprob_gap = 11", "or equal to 10", "lower it"]),
    (GRPO, {"name": "My Job"}, ["name = 'My Job'", "match pattern '^[a-z0-9]", "in that form"]),
    # the reward and the models that it needs
    (GRPO, {"reward.functions": MODEL_REWARD},
     ["section reward_model is null", "set reward_model to {}"]),
    (PPO, {"rl.critic.init": "reward_model"},
     ["rl.critic.init = 'reward_model' and the section reward_model is null", "to 'policy'"]),
    (GRPO, {"reward_model": {"preferences": {"kind": "gsm8k_solutions"}}},
     ["trains a model that neither reward.functions nor rl.critic.init reads", "to null"]),
    (PPO, {"rl.ptx": {}, "sft.enabled": False, "evaluate.checkpoints": ["base", "rl"]},
     ["rl.ptx mixes in demonstrations and sft.enabled is false", "rl.ptx to null"]),
    (DAPO, {"reward.functions": MODEL_REWARD, "reward_model": {
        "preferences": {"kind": "gsm8k_solutions"}}},
     ["dynamic_sampling.metric = 'accuracy'", "no function that checks correctness",
      "set metric to 'score'"]),
    (VAPO, {"reward.functions": MODEL_REWARD, "reward_model": {
        "preferences": {"kind": "gsm8k_solutions"}}},
     ["positive_nll needs correct samples", "set positive_nll.threshold"]),
    (GRPO, {"evaluate.checkpoints": ["base", "sft"]},
     ["evaluate.checkpoints = ['base', 'sft'] lacks rl", "is exported", "add rl"]),
]  # fmt: skip


@pytest.mark.parametrize(("name", "overrides", "words"), CONTRADICTIONS)
def test_contradictions_are_refused_with_path_rule_and_remedy(
    name: str, overrides: dict[str, Any], words: list[str]
) -> None:
    with pytest.raises(UserError) as refusal:
        load_recipe(name, overrides, directory=RECIPES)
    sentence = str(refusal.value)
    assert sentence.startswith(f"recipe '{name}': "), sentence
    assert "\n" not in sentence
    for word in words:
        assert word in sentence, sentence


@pytest.mark.parametrize(
    ("name", "overrides"),
    [
        (PPO, {"rl.rollout.samples": 8}),
        (PPO, {"rl.algorithm.kl": {"where": "loss", "estimator": "k3", "coef": 0.01}}),
        (GRPO, {"rl.algorithm.kl": {"where": "reward", "controller": "adaptive"}}),
        (GRPO, {"rl.algorithm.advantage": "my.module:estimator", "rl.critic": {}}),
        (DAPO, {"rl.algorithm.kl": {"where": "loss"}}),
        (REMAX, {"rl.rollout.samples": 4}),
        (DAPO, {"rl.algorithm.dynamic_sampling.max_rounds": 0}),
        ("calculator-grpo", {"rl.algorithm.overlong": {"max_tokens": 60, "cache_tokens": 10}}),
    ],
)
def test_what_only_looks_like_a_contradiction_is_taken(
    name: str, overrides: dict[str, Any]
) -> None:
    """AlphaApollo's table marks some cells "No" that are defaults, not limits."""
    assert load_recipe(name, overrides, directory=RECIPES)


@pytest.mark.parametrize(
    ("name", "overrides", "option", "limit"),
    [
        ("quickstart", {}, "rl.max_logprob_gap", 1e-3),
        ("quickstart", {"rl.max_logprob_gap": 0.01}, "rl.max_logprob_gap", 0.01),
        ("quickstart", {"model.dtype": "bfloat16"}, "rl.max_mult_prob_error", 1.05),
        ("gsm8k-grpo", {}, "rl.max_mult_prob_error", 1.05),
        ("gsm8k-grpo", {"model.dtype": "float32"}, "rl.max_logprob_gap", 1e-3),
    ],
)
def test_the_precision_decides_how_the_sampler_gap_is_bounded(
    name: str, overrides: dict, option: str, limit: float
) -> None:
    """A recipe that changes its precision alone keeps a bound that fits."""
    bound = load_recipe(name, overrides, directory=RECIPES).sampler_gap_bound
    assert (bound.option, bound.limit) == (option, limit)


def test_hardware_and_tracking_are_in_no_cache_key() -> None:
    """Moving a run to other machines must reuse every stage."""
    recipe = load_recipe("quickstart", directory=RECIPES)
    moved = load_recipe(
        "quickstart",
        {"hardware.rollout.engines": 4, "tracking.wandb": False, "store": "elsewhere"},
        directory=RECIPES,
    )
    for stage in ("base_model", "prepare_data", "sft", "rl", "evaluate", "export"):
        assert recipe.slice_for(stage) == moved.slice_for(stage)


def test_a_file_counts_by_its_content_however_its_path_is_written(tmp_path: Path) -> None:
    """`status ../my-job/mine.yaml` made again what the absolute path had in the store."""
    folder = tmp_path / "job"
    folder.mkdir()
    (folder / "mine.yaml").write_text(
        "extends: quickstart\nreward: {functions: [{name: reward_model}]}\n"
        "data: {sources: [{kind: file, path: rows/*.jsonl}, {kind: gsm8k, path: gsm8k/}]}\n"
        "reward_model: {preferences: {kind: file, path: pairs.jsonl}}\n"
        "rl: {ptx: {path: text.jsonl}}\n"
    )
    for name in ("pairs.jsonl", "text.jsonl"):
        (folder / name).write_text("")
    paths = [
        str(folder / "mine.yaml"),
        os.path.relpath(folder / "mine.yaml"),
        f"{folder}/../job/mine.yaml",
    ]
    recipes = [load_recipe(path, directory=RECIPES) for path in paths]
    typed = {recipe.model_dump()["data"]["sources"][0]["path"] for recipe in recipes}
    assert len(typed) == 3, "they stand as they were typed"
    for stage in ("prepare_data", "reward_model", "rl"):
        first, *others = [recipe.slice_for(stage) for recipe in recipes]
        assert all(other == first for other in others), stage
    assert recipes[0].slice_for("rl")["rl"]["ptx"]["path"] == "text.jsonl"


def test_rl_change_leaves_data_and_sft_keys_alone() -> None:
    recipe = load_recipe("quickstart", directory=RECIPES)
    changed = load_recipe("quickstart", {"rl.iterations": 5}, directory=RECIPES)
    assert recipe.slice_for("rl") != changed.slice_for("rl")
    for stage in ("base_model", "prepare_data", "sft"):
        assert recipe.slice_for(stage) == changed.slice_for(stage)


def test_dataset_key_sees_what_preparation_takes_from_sft_and_no_more() -> None:
    """Demonstrations over sft.max_tokens are rejected, so that limit is part of the dataset."""
    recipe = load_recipe("quickstart", directory=RECIPES)
    shorter = load_recipe("quickstart", {"sft.max_tokens": 64}, directory=RECIPES)
    slower = load_recipe("quickstart", {"sft.optimizer.lr": 1e-4}, directory=RECIPES)
    assert recipe.slice_for("prepare_data") != shorter.slice_for("prepare_data")
    assert recipe.slice_for("prepare_data") == slower.slice_for("prepare_data")


@pytest.mark.parametrize(
    ("name", "overrides", "own"),
    [
        (GRPO, {}, False),
        (GRPO, {"rl.update.old_logprobs": "own"}, True),
        (GRPO, {"model.dtype": "bfloat16"}, True),
        (GSPO, {}, True),
        (GSPO, {"rl.update.old_logprobs": "first"}, False),
        (GSPO, {"rl.update.mini_batches": 1, "rl.update.epochs": 1}, False),
    ],
)
def test_log_probs_are_scored_again_where_rounding_would_clip(
    name: str, overrides: dict[str, Any], own: bool
) -> None:
    """GSPO's clips are as narrow as the rounding of bfloat16; a lone step has ratios of 1."""
    assert load_recipe(name, overrides, directory=RECIPES).scores_own_logprobs is own


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("sft.checkpoint_every", 7),
        ("rl.checkpoint.keep_last", 9),
        ("rl.max_canary_gap", 0.5),
        ("reward.max_error_fraction", 0.5),
        ("reward.sandbox", "none"),
        ("evaluate.completions_shown", 0),
    ],
)
def test_guards_and_display_make_no_stage_run_again(path: str, value: Any) -> None:
    recipe, changed = (load_recipe(GRPO, o, directory=RECIPES) for o in ({}, {path: value}))
    assert [recipe.slice_for(s) for s in STAGE_SLICES] == [
        changed.slice_for(s) for s in STAGE_SLICES
    ]


def test_a_model_comes_from_one_place() -> None:
    for fields, state in (({}, "neither is"), ({"path": "a/b", "from_scratch": {}}, "both are")):
        with pytest.raises(ValueError, match=f"{state} set of path and from_scratch; set exactly"):
            ModelSection.model_validate(fields)


@pytest.mark.parametrize(
    ("sizes", "sentence"),
    [
        ({"hidden_size": 100, "num_heads": 3}, "100 is not a multiple of num_heads = 3"),
        (
            {"num_heads": 4, "num_kv_heads": 3},
            "= 4 is not a multiple of num_kv_heads = 3",
        ),
        ({"hidden_size": 36, "num_heads": 4}, "gives heads of 9 .* num_heads is even"),
    ],
)
def test_a_model_from_scratch_whose_heads_do_not_divide_is_refused(
    sizes: dict[str, int], sentence: str
) -> None:
    with pytest.raises(ValueError, match=sentence):
        FromScratch.model_validate(sizes)


@pytest.mark.parametrize("k", [0, 9])
def test_pass_at_k_needs_k_samples(k: int) -> None:
    with pytest.raises(ValueError, match=rf"pass_k = {k} needs between 1 and samples = 8"):
        EvaluateSection(pass_k=(1, k))


def test_defaults_follow_what_they_depend_on() -> None:
    """What a person sets must not be refused for what we have set."""
    assert EvaluateSection.model_validate({"samples": 4}).pass_k == (1, 4)
    assert EvaluateSection.model_validate({"samples": 1}).pass_k == (1,)
    for context, positions in (({}, 2048), ({"max_tokens": 4096}, 4096), ({"max_tokens": 16}, 512)):
        section = ModelSection.model_validate({"from_scratch": {"num_layers": 1}, **context})
        assert section.from_scratch is not None
        assert section.from_scratch.max_position_embeddings == positions


@pytest.mark.parametrize("preset", PRESETS)
def test_the_smallest_recipe_of_each_preset_loads(preset: str) -> None:
    lengths = {"model": {"from_scratch": {}, "max_tokens": 32768}}
    samples = {"samples": 4} if preset in ("grpo", "rloo", "gspo", "gepo") else {}
    tree = {
        "name": "mine",
        **lengths,
        "data": {"sources": [{"kind": "arithmetic"}]},
        "reward": {"functions": [{"name": "arithmetic"}]},
        "rl": {"preset": preset, "rollout": samples},
    }
    if preset == "ppo-instructgpt":
        tree["reward_model"] = {}
    assert resolve_recipe("mine", tree).rl.preset == preset


@pytest.mark.parametrize(
    ("changed", "value"), [("mode", "mask"), ("low", 0.5), ("reject", [VETO]), ("cap", 3.0)]
)
def test_a_correction_is_in_the_key_of_rl_where_it_is_not_the_default(
    changed: str, value: Any
) -> None:
    """Recipes of before its newer settings keep their results; one that uses them has its own."""
    section = "rl.algorithm.importance_correction"
    old = load_recipe(GRPO, {f"{section}.level": "token"}, directory=RECIPES)
    named = {f"{section}.mode": "truncate", f"{section}.low": None, f"{section}.reject": []}
    new = load_recipe(
        GRPO, {f"{section}.level": "token", f"{section}.{changed}": value}, directory=RECIPES
    )
    part = old.slice_for("rl")["rl"]["algorithm"]["importance_correction"]
    assert part == {"level": "token", "cap": 2.0}
    same = load_recipe(GRPO, {f"{section}.level": "token", **named}, directory=RECIPES)
    assert same.slice_for("rl") == old.slice_for("rl") != new.slice_for("rl")
    assert same.slice_for("sft") == new.slice_for("sft")


def test_what_ends_an_answer_is_in_the_keys_of_recipes_that_say_it_alone() -> None:
    """Results of before the fields keep their keys, and other ends never share one."""
    plain = load_recipe("quickstart-rlhf", directory=RECIPES)
    for stage in STAGE_SLICES:
        part = str(plain.slice_for(stage))
        assert not any(f"'{name}'" in part for name in ("stop", "stop_tokens"))
    told = {"rl.rollout.stop": ["##"], "model.stop_tokens": ["5", 7]}
    ended = load_recipe("quickstart-rlhf", told, directory=RECIPES)
    changed = {s for s in STAGE_SLICES if plain.slice_for(s) != ended.slice_for(s)}
    assert changed == {"base_model", "reward_model", "rl", "evaluate"}


def test_every_answer_of_the_policy_ends_as_in_a_rollout_unless_told_otherwise() -> None:
    """A reward model, or an evaluation, of longer answers than were trained measures others."""
    told: dict[str, Any] = {"rl.rollout.stop": ["##"]}
    recipe = load_recipe("quickstart-rlhf", told, directory=RECIPES)
    assert recipe.reward_model is not None
    assert recipe.evaluate.stop == ("##",)
    assert recipe.reward_model.preferences.model_dump()["stop"] == ("##",)
    own = {"evaluate.stop": [], "reward_model.preferences.stop": ["\n"]}
    recipe = load_recipe("quickstart-rlhf", told | own, directory=RECIPES)
    assert recipe.reward_model is not None
    assert recipe.evaluate.stop == ()
    assert recipe.reward_model.preferences.model_dump()["stop"] == ("\n",)
    given = {"reward_model.preferences": {"kind": "file", "path": "ranked.jsonl"}}
    assert load_recipe("quickstart-rlhf", told | given, directory=RECIPES).reward_model is not None


@pytest.mark.parametrize(
    "wrong",
    [{"rl.rollout.stop": "##"}, {"rl.rollout.stop": [""]}, {"model.stop_tokens": [True]},
     {"model.stop_tokens": "</s>"}, {"evaluate.stop": [3]}],
)  # fmt: skip
def test_what_is_no_list_of_ends_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(UserError, match=next(iter(wrong)).replace(".", r"\.")):
        load_recipe("quickstart", wrong, directory=RECIPES)
