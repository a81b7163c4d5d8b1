"""Which edit runs which stage again: what can change its result, and nothing else."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from flows.paths import RECIPES
from flows.rl_pipeline import STAGES as CACHED
from flows.rl_pipeline import stages
from rlcore.recipes.load import load_recipe
from rlcore.store.artifacts import ArtifactStore
from rlcore.store.versions import versioned_code
from schemas.artifacts import ArtifactRef
from schemas.stages import Stage
from tasks.runtime.caching import CachedStage
from tests.flows.checkout import Checkout, edited, fill

STAGES: Mapping[str, CachedStage] = {stage.value: made for stage, made in CACHED.items()}
LEARNT = {"sft", "preference", "reward_model", "rl"}
SAMPLED = {"reward_model", "rl", "evaluate"}
EDITS = {
    "schemas.algorithm": set(),
    "schemas.rl": set(),
    "schemas.presets": set(),
    "schemas.hardware": set(),
    "schemas.judges": set(),
    "schemas.retrain": set(),
    "rlcore.data.formats": {"base_model", "prepare_data", "preference", "reward_model", "rl"},
    "rlcore.evaluation.promotion_rule": set(),
    "rlcore.retraining.gate_records": set(),
    "rlcore.algorithms.advantages": {"rl"},
    "rlcore.algorithms.losses": {"preference", "reward_model", "rl"},
    "rlcore.algorithms.preference": {"preference"},
    "rlcore.algorithms.aggregation": LEARNT | {"evaluate"},
    "rlcore.algorithms.kl": {"preference", "reward_model", "rl", "evaluate"},
    "rlcore.learner.passes": LEARNT | {"evaluate"},
    "rlcore.learner.schedule": LEARNT,
    "rlcore.supervised.loop": LEARNT,
    "rlcore.models.packing": LEARNT | {"evaluate"},
    "rlcore.engines.vllm_engine": SAMPLED,
    "rlcore.engines.transformers_engine": SAMPLED,
    "rlcore.rollout.episodes": SAMPLED,
    "rlcore.rewards.gsm8k": SAMPLED,
    "rlcore.envs.pool": {"rl", "evaluate"},
    "rlcore.envs.calculator": set(),
    "rlcore.rl.advantage": {"rl"},
    "rlcore.rewards.pool": SAMPLED,
    "rlcore.rewards.judge": SAMPLED,
    "rlcore.rewards.judges.question": SAMPLED,
    "rlcore.models.base": {"base_model"},
    "rlcore.models.tokenizer": {"base_model", "prepare_data", "export"} | LEARNT | SAMPLED,
    "rlcore.data.arithmetic": {"base_model", "prepare_data"},
    "rlcore.data.programs": {"base_model", "prepare_data"},
    "rlcore.data.filters": {"prepare_data"},
    "rlcore.results.conditions": {"prepare_data"},
    "rlcore.results.queries": set(),
    "rlcore.results.summary": set(),
    "rlcore.diagnostics.dead_updates": set(),
    "rlcore.rl.metrics": set(),
    "rlcore.rl.guards": set(),
    "rlcore.rl.update": {"rl"},
    "rlcore.rl.validation": {"rl"},
    "rlcore.algorithms.statistics": {"reward_model", "evaluate"},
    "rlcore.evaluation.license": {"export"},
    "rlcore.evaluation.model_card": {"export"},
    "rlcore.evaluation.card_facts": {"export"},
    "schemas.licenses": {"export"},
    "rlcore.cluster.ray_cluster": set(),
    "rlcore.store.leases": set(),
    "rlcore.plan.dry_run": set(),
    "rlcore.report.draw": set(),
    "tasks.runtime.caching": set(),
    "tasks.update": {"rl"},
}


@pytest.mark.parametrize("module", EDITS)
def test_an_edit_of_a_module_is_one_of_these_stages_code(module: str) -> None:
    assert {stage for stage in STAGES if module in versioned_code(stage).modules} == EDITS[module]


# Dotted path -> a value other than the recipe's -> the stages whose slice it is in.
SETTINGS: dict[str, tuple[Any, set[str]]] = {
    "sft.optimizer.lr": (9e-4, {"sft"}),
    "sft.checkpoint_every": (7, set()),
    "rl.update.optimizer.lr": (9e-4, {"rl"}),
    "rl.max_canary_gap": (0.5, set()),
    "reward.offset": (0.25, {"rl", "evaluate"}),
    "reward.timeout_s": (77, {"rl", "evaluate"}),
    "reward.functions.0.weight": (0.5, {"rl", "evaluate"}),
    "hardware.learner.threads": (3, set()),
    "tracking.wandb": (False, set()),
    "retrain.cron": ("0 3 * * 1", set()),
    "evaluate.samples": (2, {"evaluate"}),
    "export.dtype": ("bfloat16", {"export"}),
    "export.license": ("mit", {"export"}),
    "name": ("renamed", {"export"}),  # the model card says it
    "model.from_scratch.hidden_size": (256, {"base_model"}),
    "model.max_tokens": (127, LEARNT | {"evaluate", "export"}),
    "data.sources.0.train": (500, {"base_model", "prepare_data"}),
    "data.filters": (["subset = 'x'"], {"prepare_data"}),
    "data.max_prompt_tokens": (70, {"prepare_data"}),
    "seed": (5, {"base_model", "prepare_data", "evaluate"} | LEARNT),
}


@pytest.mark.parametrize("path", SETTINGS)
def test_a_setting_runs_these_stages_again(path: str) -> None:
    value, stages = SETTINGS[path]
    more = {"evaluate.pass_k": [1, 2]}
    before = load_recipe("quickstart", more, directory=RECIPES)
    after = load_recipe("quickstart", {**more, path: value}, directory=RECIPES)
    changed = {name for name in STAGES if before.slice_for(name) != after.slice_for(name)}
    assert changed == stages


def test_the_users_engine_runs_what_it_samples_again(tmp_path: Path) -> None:
    """It draws by its own random numbers. Which of our engines samples is in no key: the code of
    all of them is."""
    file = tmp_path / "mine.py"

    def engine_code(engine: str) -> dict[str, str]:
        recipe = load_recipe("quickstart", {"hardware.rollout.engine": engine}, directory=RECIPES)
        codes = {name: made.declared.user_code(recipe) for name, made in STAGES.items()}
        return {
            name: code["mine.py:Mine"] for name, code in codes.items() if "mine.py:Mine" in code
        }

    file.write_text("class Mine: ...")
    first = engine_code(f"{file}:Mine")
    assert set(first) == SAMPLED
    file.write_text("class Mine: seed = 3")
    second = engine_code(f"{file}:Mine")
    assert all(first[stage] != second[stage] for stage in SAMPLED)
    assert engine_code("transformers") == engine_code("vllm") == {}


def test_whether_a_verdict_counts_is_in_the_reward_models_key() -> None:
    """Of two functions that judge, the one that counts ranks the responses."""
    functions = [{"name": "arithmetic"}, {"name": "gsm8k", "weight": 0.0}]
    first = load_recipe("quickstart", {"reward.functions": functions}, directory=RECIPES)
    functions = [{"name": "arithmetic", "weight": 0.0}, {"name": "gsm8k"}]
    second = load_recipe("quickstart", {"reward.functions": functions}, directory=RECIPES)
    assert first.slice_for("reward_model") != second.slice_for("reward_model")


@pytest.mark.parametrize("optional", [True, False])
def test_the_flow_calls_the_stages_of_the_table(optional: bool) -> None:
    """A stage that is called by another way, or by none, is in no test of this file."""
    name = "quickstart-rlhf" if optional else "quickstart"
    pairs = {"data": {"kind": "file", "path": "p.jsonl"}, "max_tokens": 64}
    overrides = {"sft.enabled": optional, "preference": pairs if optional else None}
    recipe = load_recipe(name, overrides, directory=RECIPES)
    calls: dict[str, CachedStage] = {}

    def call(stage: CachedStage, **parents: ArtifactRef) -> ArtifactRef:
        assert {ref.key for ref in parents.values()} <= set(calls), "a parent is made before"
        calls[stage.stage] = stage
        return ArtifactRef(kind=stage.kind, key=stage.stage, uri="", sha256=stage.stage)

    made = stages(recipe, call)
    expected = dict(STAGES)
    if not optional:
        del expected["sft"], expected["preference"], expected["reward_model"]
    assert list(calls.items()) == list(expected.items())
    assert {stage.value: ref.key for stage, ref in made.items()} == {name: name for name in calls}


def test_a_run_ends_after_the_stage_that_it_was_to_end_after() -> None:
    recipe = load_recipe("quickstart", directory=RECIPES)
    calls: list[str] = []

    def call(stage: CachedStage, **parents: ArtifactRef) -> ArtifactRef:
        calls.append(stage.stage)
        return ArtifactRef(kind=stage.kind, key=stage.stage, uri="", sha256=stage.stage)

    made = stages(recipe, call, Stage.SFT)
    assert calls == [stage.value for stage in made] == ["base_model", "prepare_data", "sft"]


MORE = {"evaluate.pass_k": [1, 2]}
OF_ALL = "quickstart-rlhf"  # the recipe that has each stage but preference


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Checkout:
    made = Checkout(tmp_path_factory.mktemp("checkout"))
    store = ArtifactStore(made.folder / "runs" / "store")
    fill(store, OF_ALL, {}, made.folder / "files")
    fill(store, "quickstart", MORE, made.folder / "more")
    return made


def states(rows: Mapping[str, Mapping[str, Any]]) -> dict[str, str]:
    return {stage: row["state"] for stage, row in rows.items()}


def runs(rows: Mapping[str, Mapping[str, Any]]) -> set[str]:
    """Return the stages that run whatever those before them make."""
    return {stage for stage, state in states(rows).items() if state == "runs"}


@pytest.mark.slow
@pytest.mark.parametrize("module", EDITS)
def test_status_says_which_stages_an_edit_runs_again(checkout: Checkout, module: str) -> None:
    file = checkout.folder / f"{module.replace('.', '/')}.py"
    before = file.read_text(encoding="utf-8")
    file.write_text(edited(before), encoding="utf-8")
    try:
        rows = checkout.status(OF_ALL, {})
    finally:
        file.write_text(before, encoding="utf-8")
    again = EDITS[module] - {"preference"}
    assert runs(rows) == again
    causes = [cause for stage in again for cause in rows[stage]["causes"]]
    assert [cause["what"] for cause in causes] == ["version"] * len(again)
    if not again:
        assert set(states(rows).values()) == {"cached"}


@pytest.mark.slow
@pytest.mark.parametrize("path", SETTINGS)
def test_status_says_which_stages_a_setting_runs_again(checkout: Checkout, path: str) -> None:
    value, stages = SETTINGS[path]
    rows = checkout.status("quickstart", {**MORE, path: value})
    assert runs(rows) == stages - {"preference", "reward_model"}
    if not stages:
        assert set(states(rows).values()) == {"cached"}
