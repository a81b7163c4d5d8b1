"""The facts of a card are the store's and the recipe's, whole, and no path is among them."""

from pathlib import Path
from typing import Any

import polars as pl
import pytest

from flows.paths import RECIPES
from rlcore.evaluation.card_facts import gather_card, versions
from rlcore.evaluation.model_card import ModelCard, RewardTerm
from rlcore.recipes.load import load_recipe, recipe_digest
from rlcore.store.artifacts import ArtifactStore, Lineage
from schemas.artifacts import ArtifactRef
from schemas.recipe import Recipe
from schemas.tables import TABLES
from tests.rlcore.evaluation.cards import results


def frame(table: str, rows: list[dict[str, Any]]) -> pl.DataFrame:
    types = {name: column.dtype.type for name, column in TABLES[table].columns.items()}
    return pl.DataFrame(rows, schema=types)


def prompt(uid: str, split: str) -> dict[str, Any]:
    return {
        "uid": uid,
        "split": split,
        "subset": split,
        "data_source": "openai/gsm8k",
        "prompt": [{"role": "user", "content": f"question {uid}"}],
        "prompt_ids": [1, 2],
        "ability": "math",
        "reward_style": "rule",
        "ground_truth": "7",
        "extra_info": "{}",
    }


COMPLETION = {
    "checkpoint": "rl",
    "uid": "c",
    "data_source": "openai/gsm8k",
    "subset": "test",
    "mode": "greedy",
    "sample": 0,
    "prompt": "question c",
    "response": "it is 7",
    "ground_truth": "7",
    "outcome": "ok",
    "score": 1.0,
    "answer": "7",
    "finish_reason": "stop",
    "num_tokens": 3,
    "turns": [],
    "valid_actions": [True],
}
JUDGED = {
    "level": "all",
    "num_prompts": 20,
    "num_pairs": 1234,
    "accuracy": 0.75,
    "ci_low": 0.7,
    "ci_high": 0.8,
}


class Made:
    """A store as a run with SFT and a reward model leaves it, every artifact at its smallest."""

    def __init__(self, folder: Path) -> None:
        self.store = ArtifactStore(folder / "store")
        base = self.put("base_model", "base", origin={"seed": 0})
        rows = [prompt("a", "train"), prompt("b", "train"), prompt("c", "test")]
        tables = {"prompts": frame("prompts", rows)}
        tables |= {name: frame(name, []) for name in ("demonstrations", "rejects")}
        dataset = self.put("dataset", "data", {"base_model": base}, tables)
        warm = self.put("policy", "sft", {"base_model": base, "dataset": dataset})
        ranked = self.put("preferences", "ranked", {"dataset": dataset, "policy": warm})
        parents = {"dataset": dataset, "policy": warm}
        tables = {"pair_accuracy": frame("pair_accuracy", [JUDGED])}
        scorer = self.put("reward_model", "scorer", parents | {"preferences": ranked}, tables)
        parents |= {"reward_model": scorer}
        policy = self.put("policy", "rl", parents, iteration=4, best_iteration=2)
        tables = {"completions": frame("completions", [COMPLETION]), "eval_results": results()}
        parents = {"dataset": dataset, "base_model": base, "sft": warm, "rl": policy}
        evaluation = self.put("evaluation", "judged", parents, tables)
        self.parents = {"dataset": dataset, "policy": policy, "evaluation": evaluation}

    def put(
        self,
        kind: str,
        key: str,
        parents: dict[str, ArtifactRef] | None = None,
        tables: dict[str, pl.DataFrame] | None = None,
        **metadata: Any,
    ) -> ArtifactRef:
        lineage = Lineage("r", "c", parents=parents or {}, metadata=metadata)
        with self.store.scratch() as folder:
            (folder / "config.json").write_text(key)
            return self.store.put(kind, key, tables=tables, directory=folder, lineage=lineage)

    def card(self, recipe: Recipe) -> ModelCard:
        return gather_card(recipe, self.store, self.parents, warn=pytest.fail)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    return Made(tmp_path_factory.mktemp("facts"))


def rlhf(**changes: Any) -> Recipe:
    return load_recipe("quickstart-rlhf", changes, directory=RECIPES)


def test_every_ancestor_stands_once_and_says_what_it_is(made: Made) -> None:
    """Three of seven were listed: the data had come from nowhere, and SFT had not been."""
    rows = [(row["kind"], row["key"]) for row in made.card(rlhf()).ancestors]
    assert rows[:2] == [("policy", "rl"), ("evaluation", "judged")]
    assert sorted(rows[2:]) == [
        *(("base_model", "base"), ("dataset", "data"), ("policy", "sft")),
        *(("preferences", "ranked"), ("reward_model", "scorer")),
    ]
    what = {row["key"]: row["what"] for row in made.card(rlhf()).ancestors}
    assert all(what.values())
    assert what["rl"] == "the policy after RL: this model"
    assert what["sft"] == "the policy after SFT, with which RL started"
    digests = {manifest.key: manifest.sha256 for manifest in made.store.manifests()}
    assert {row["key"]: row["sha256"] for row in made.card(rlhf()).ancestors} == digests


def test_reward_and_reward_model(made: Made) -> None:
    card = made.card(rlhf())
    assert RewardTerm("reward_model", 1.0, True) in card.reward
    assert card.reward_model == {
        "trained on": "samples of the policy that RL started with, ranked by the reward functions",
        "held-out pairs ordered rightly": "0.750 [0.700, 0.800] of 1,234",
        "also": "the critic starts from it",
    }


def test_a_card_says_that_the_models_own_code_was_run(made: Made) -> None:
    recipe = rlhf()
    trusting = recipe.model.model_copy(update={"trust_remote_code": True})
    card = made.card(recipe.model_copy(update={"model": trusting}))
    assert card.recipe["trust_remote_code"] == "true: the model's own code was run"


def test_recipe_training_data_and_example(made: Made) -> None:
    recipe = rlhf()
    card = made.card(recipe)
    assert card.recipe == {
        "name": "quickstart-rlhf",
        "digest": recipe_digest(recipe),
        "seed": "0",
    }
    assert card.training["RL iterations"].startswith("4; iteration 2, the best by validation")
    assert [tuple(row.values()) for row in card.prompts] == [
        ("openai/gsm8k", "train", "train", "2"),
        ("openai/gsm8k", "test", "test", "1"),
    ]
    assert card.data == {"demonstrations": "0", "rows rejected in preparation": "0"}
    assert card.snippet is not None
    assert "'content': 'question c'" in card.snippet
    assert "'it is 7'" in card.snippet


def test_sources_are_named_without_their_folders(made: Made, tmp_path: Path) -> None:
    """A card is published, and a path may hold a name or a customer."""
    sources = [
        {"kind": "file", "path": str(tmp_path / "rows.parquet")},
        {"kind": "file", "path": "s3://secret-bucket/customer/more.jsonl", "split": "test"},
        {"kind": "hub", "name": "owner/name", "config": "main", "revision": "abc"},
        {"kind": "gsm8k", "path": str(tmp_path)},
        {"kind": "math", "path": str(tmp_path)},
        {"kind": "aime", "year": 2025},
        {"kind": "programs"},
    ]
    scratch = {"kind": "file", "path": str(tmp_path / "ranks.jsonl")}
    card = made.card(rlhf(**{"data.sources": sources, "reward_model.preferences": scratch}))
    assert card.sources == (
        "file rows.parquet, as train",
        "file more.jsonl, as test",
        "hub dataset owner/name, main, abc, its train as train",
        "GSM8K (openai/gsm8k)",
        "MATH (DigitalLearningGmbH/MATH-lighteval)",
        "AIME 2025 (math-ai/aime25), as test",
        "generated descriptions of one-line Python programs",
    )
    hub = ("DigitalLearningGmbH/MATH-lighteval", "math-ai/aime25")
    assert card.datasets == ("owner/name", "openai/gsm8k", *hub)
    assert card.reward_model["trained on"] == "the rankings of the file ranks.jsonl"
    assert str(tmp_path) not in repr(card)
    assert "customer" not in repr(card)


def test_versions_are_those_of_this_process() -> None:
    import torch

    found = versions()
    assert list(found) == ["rl-pipeline", "torch", "transformers", "vllm", "deepspeed"]
    assert found["torch"] == torch.__version__.split("+")[0]
    assert "absent" not in found.values()
