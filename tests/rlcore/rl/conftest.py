"""The real phases over a tiny model in this process, with a reward that a test scripts."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from flows.paths import RECIPES
from rlcore.data.prepare import prepare
from rlcore.data.read import training_texts
from rlcore.models.base import build_base_model
from rlcore.models.files import MODEL_FOLDER, model_directory
from rlcore.models.stop_tokens import stops_of
from rlcore.models.tokenizer import load_tokenizer
from rlcore.recipes.load import load_recipe
from rlcore.rewards.types import Reward, RewardRow
from rlcore.rl.phases import Phases
from rlcore.rl.prompts import PromptRows
from rlcore.rl.ptx import ptx_of
from rlcore.rl.roles import start_workers
from rlcore.rl.workers import Workers
from rlcore.store.artifacts import ArtifactStore, Lineage
from schemas.artifacts import ArtifactRef
from tests.flows.small_run import INLINE, SMALL

LINEAGE = Lineage("recipe", "code")
Score = Callable[[RewardRow], float | None]


@dataclass
class ScriptedRewards:
    """Scores by a plain function and counts what it was asked."""

    function: Score
    rows: int = 0

    def start(self, row: RewardRow) -> None:
        """Begin nothing."""

    def score(self, rows: Sequence[RewardRow]) -> list[Reward]:
        """Return one reward per row; correct from one half on."""
        self.rows += len(rows)
        return [self._reward(row) for row in rows]

    def _reward(self, row: RewardRow) -> Reward:
        score = self.function(row)
        if score is None:
            return Reward(row.trajectory_id, "error", None, detail="scripted")
        return Reward(row.trajectory_id, "ok", score, correct=score >= 0.5)


@dataclass(frozen=True)
class Dataset:
    """A prepared dataset, its base model, and the store that holds them."""

    store: ArtifactStore
    ref: ArtifactRef
    base: ArtifactRef


@pytest.fixture(scope="session")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    """64 training prompts, demonstrations, and a model of random weights."""
    store = ArtifactStore(str(tmp_path_factory.mktemp("data") / "store"))
    recipe = load_recipe("quickstart", {**SMALL, **INLINE}, directory=RECIPES)
    with store.scratch() as scratch:
        target = scratch / MODEL_FOLDER
        texts = training_texts(recipe.data, seed=0)
        build_base_model(recipe.model, target, texts=texts, seed=0)
        tokenizer = load_tokenizer(target)
        prepared = prepare(
            recipe.data, tokenizer=tokenizer, seed=0, sft_max_tokens=recipe.sft.max_tokens
        )
        base = store.put("base_model", "b", directory=scratch, lineage=LINEAGE)
    ref = store.put("dataset", "d", tables=prepared.tables, lineage=LINEAGE)
    return Dataset(store, ref, base)


@pytest.fixture
def make_phases(dataset: Dataset, tmp_path: Path) -> Iterator[Callable[..., Phases]]:
    """Return ``make(recipe_name, score, overrides, store=..., key=..., lineage=...)``; learners
    end with the test."""
    with ExitStack() as stack:

        def make(
            name: str,
            score: Score,
            overrides: dict[str, Any],
            *,
            store: ArtifactStore | None = None,
            key: str = "run",
            lineage: Lineage = LINEAGE,
        ) -> Phases:
            recipe = load_recipe(name, {**SMALL, **INLINE, **overrides}, directory=RECIPES)
            policy = model_directory(dataset.store.directory(dataset.base))
            tokenizer = load_tokenizer(policy)
            return Phases(
                recipe,
                store=store or ArtifactStore(str(tmp_path / "store")),
                key=key,
                lineage=lineage,
                prompts=PromptRows.of_file(dataset.store.table_file(dataset.ref, "prompts")),
                ptx=ptx_of(recipe.rl.ptx, dataset.store, dataset.ref, tokenizer),
                tokenizer=tokenizer,
                stop_ids=stops_of(policy, tokenizer).ids,
                workers=start_workers(
                    recipe.rl,
                    stack.enter_context(Workers(recipe)),
                    policy,
                    stack,
                    rewards=ScriptedRewards(score),
                ),
                log=lambda message: None,
            )

        yield make
