"""The real phases over a tiny model in this process, with a reward that a test scripts."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from rlcore.data.prepare import prepare
from rlcore.models.files import model_directory
from rlcore.models.tokenizer import load_tokenizer
from rlcore.recipes import load_recipe
from rlcore.rewards.types import Reward, RewardRow
from rlcore.rl.phases import Crew, Phases
from rlcore.store import ArtifactStore, Lineage
from rlcore.workers import Workers
from schemas.artifacts import ArtifactRef
from tests.flows.small_run import INLINE, SMALL

RECIPES = Path(__file__).parents[3] / "flows" / "recipes"
LINEAGE = Lineage("recipe", "code")
Score = Callable[[RewardRow], float | None]


@dataclass
class ScriptedRewards:
    """Scores by a plain function and counts what it was asked."""

    function: Score
    rows: int = 0

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
    """A prepared dataset and the store that holds it."""

    store: ArtifactStore
    ref: ArtifactRef


@pytest.fixture(scope="session")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    """64 training prompts, demonstrations, and a model of random weights."""
    store = ArtifactStore(str(tmp_path_factory.mktemp("data") / "store"))
    recipe = load_recipe("quickstart", {**SMALL, **INLINE}, directory=RECIPES)
    with store.scratch() as scratch:
        prepared = prepare(
            data=recipe.data,
            model=recipe.model,
            seed=0,
            workdir=scratch,
            sft_max_tokens=recipe.sft.max_tokens,
        )
        ref = store.put("dataset", "d", tables=prepared.tables, directory=scratch, lineage=LINEAGE)
    return Dataset(store, ref)


@pytest.fixture
def make_phases(dataset: Dataset, tmp_path: Path) -> Iterator[Callable[..., Phases]]:
    """Return ``make(recipe_name, score, overrides, store=...)``; learners end with the test."""
    learners: list[Any] = []

    def make(
        name: str, score: Score, overrides: dict[str, Any], *, store: ArtifactStore | None = None
    ) -> Phases:
        recipe = load_recipe(name, {**SMALL, **INLINE, **overrides}, directory=RECIPES)
        rl = recipe.rl
        workers = Workers(recipe)
        policy = model_directory(dataset.store.directory(dataset.ref))
        exact = rl.algorithm.kl.uses_reference and rl.algorithm.kl.estimator == "full"
        learner = workers.learner(
            policy,
            rl.update.optimizer,
            name="learner",
            reference_dir=policy if exact else None,
        )
        reference = None
        if rl.algorithm.kl.uses_reference and not exact:
            reference = workers.reference(policy)
        critic = None
        if rl.critic is not None:
            critic = workers.learner(policy, rl.critic.optimizer, name="critic", head="value")
        crew = Crew(
            learner=learner,
            engines=workers.engines(policy),
            rewards=ScriptedRewards(score),
            reference=reference,
            critic=critic,
        )
        learners.extend(group for group in (learner, reference, critic) if group is not None)
        table = dataset.store.table
        return Phases(
            recipe,
            store=store or ArtifactStore(str(tmp_path / "store")),
            key="run",
            lineage=LINEAGE,
            prompts=table(dataset.ref, "prompts"),
            demonstrations=table(dataset.ref, "demonstrations"),
            tokenizer=load_tokenizer(policy),
            crew=crew,
            log=lambda message: None,
        )

    yield make
    for learner in learners:
        learner.stop()
