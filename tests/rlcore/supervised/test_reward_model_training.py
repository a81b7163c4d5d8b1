"""Training on ranked responses through the real learner: steps, learning, resumption, zero."""

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import polars as pl
import pytest
import torch

from rlcore.algorithms.losses import is_preferred
from rlcore.algorithms.objective import PreferenceObjective
from rlcore.algorithms.objective_types import TokenBatch, TokenOutputs
from rlcore.cluster.in_process import InProcessCluster
from rlcore.cluster.types import Placement
from rlcore.learner.pool import LearnerPool
from rlcore.learner.spec import LearnerSpec
from rlcore.models.packing import Sequences
from rlcore.results.metrics import stage_metrics
from rlcore.store.artifacts import ArtifactStore, Lineage
from rlcore.supervised.loop import SupervisedTraining
from rlcore.supervised.preferences import preference_sequences
from rlcore.supervised.reward_model import (
    PreferenceBatches,
    last_token_scores,
    pair_accuracy,
    pairs_of,
    ranked_sequences,
    shift_bias,
    zero_sequences,
)
from schemas.errors import UserError
from schemas.optimizer import Optimizer
from schemas.reward_model import RewardModelSection
from tests.rlcore.learner.samples import write_tiny_model
from tests.rlcore.supervised.responses import make_preferences

SECTION = RewardModelSection(
    batch_prompts=4, epochs=2, checkpoint_every=3, optimizer=Optimizer(lr=3e-3)
)


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("policy")
    write_tiny_model(path)
    return path


@pytest.fixture
def learner_of() -> Iterator[Callable[[Path], LearnerPool]]:
    cluster = InProcessCluster()

    def build(directory: Path) -> LearnerPool:
        spec = LearnerSpec(model_dir=str(directory), lr=3e-3, head="value", device="cpu")
        place = Placement()
        worker = cluster.spawn(
            "rlcore.learner.learner:Learner", spec, 0, 1, ("", 0), name="rm", placement=place
        )
        return LearnerPool([worker])

    yield build
    cluster.close()


def trained(learner: LearnerPool, store: ArtifactStore, on_step=lambda _: None) -> int:
    """Run a training to its end under one key; returns its steps."""
    training = SupervisedTraining(
        PreferenceBatches(SECTION, make_preferences(24), 0),
        SECTION,
        learner=learner,
        store=store,
        key="k",
        lineage=Lineage("recipe", "code"),
    )
    training.run(on_step, log=lambda _: None)
    training.publish({})
    return training.total_steps


def test_a_step_holds_whole_prompts_and_only_those_that_compare() -> None:
    table = make_preferences(24)
    tied = table.filter(pl.col("uid") == "train-3").with_columns(
        pl.lit("tied").alias("uid"), pl.lit(2, pl.Int32).alias("rank")
    )
    batches = PreferenceBatches(SECTION, pl.concat([table, tied]), seed=0)
    assert batches.total_steps == 2 * (24 // 4)
    sizes = dict(table.group_by("uid").len().iter_rows())
    seen: list[int] = []
    for step in range(6):
        part = batches.term(step).sequences
        assert part.groups is not None
        seen += np.bincount(part.groups).tolist()
        weights = np.array([row[-1] for row in part.per_token["pair_weights"]])
        assert (weights > 0).all(), "a prompt of ties alone was drawn"
    assert sorted(seen) == sorted(sizes.values()), "an epoch is every prompt, whole, once"


def test_the_last_batch_holds_the_prompts_that_are_left() -> None:
    """Each prompt weighs the same within its step, however few it has."""
    table = make_preferences(26)
    batches = PreferenceBatches(SECTION, table, seed=0)
    assert batches.total_steps == 2 * 7
    for epoch in range(2):
        parts = [batches.term(7 * epoch + step).sequences for step in range(7)]
        assert sum(len(part) for part in parts) == table.height
        last = parts[-1]
        assert last.groups is not None
        assert len(np.unique(last.groups)) == 2
        weights = np.array([row[-1] for row in last.per_token["pair_weights"]])
        pairs = is_preferred(
            torch.tensor([row[-1] for row in last.per_token["ranks"]]), torch.tensor(last.groups)
        ).numpy()
        assert (weights[:, None] * pairs).sum() == pytest.approx(1.0)


def test_too_few_prompts_that_compare_are_refused() -> None:
    table = make_preferences(8).with_columns(pl.lit(1, pl.Int32).alias("rank"))
    with pytest.raises(UserError, match="batch_prompts = 4 exceeds the 0 training prompts"):
        PreferenceBatches(SECTION, table, seed=0)


def test_perfect_ranking_costs_what_the_paper_says() -> None:
    """Scores [2, 1, 0, -1] in order of rank cost .207038, also together with another prompt."""
    sequences = Sequences([np.array([1, 2], np.int32)] * 7, [np.zeros(2, bool)] * 7)
    groups = np.array([0, 0, 0, 0, 1, 1, 2])
    batch = ranked_sequences(sequences, np.array([1, 2, 3, 4, 2, 2, 1]), groups)
    fields = {
        name: torch.tensor([row[-1] for row in rows]) for name, rows in batch.per_token.items()
    }
    objective = PreferenceObjective()
    outputs = TokenOutputs(values=torch.tensor([2.0, 1, 0, -1, 7, -7, 50]))
    loss, metrics = objective(
        outputs, TokenBatch(torch.ones(7), 1 / 7, torch.arange(7), fields, torch.tensor(groups))
    )
    assert float(loss) == pytest.approx(0.207038, abs=1e-6)
    assert float(metrics.sums["reward_model/pair_accuracy"]) == pytest.approx(1.0)


def test_it_learns_what_the_ranks_say(model_dir, learner_of, tmp_path) -> None:
    """The level is in the last token: a model that does not learn it is read at another place."""
    learner = learner_of(model_dir)
    assert trained(learner, ArtifactStore(tmp_path / "store")) == 12
    held_out = make_preferences(16, split="validation", seed=1)
    scores = last_token_scores(learner, preference_sequences(held_out))
    figures = pair_accuracy(pairs_of(held_out, scores), seed=0)
    assert figures["accuracy"].to_numpy().min() > 0.9, figures
    metrics = stage_metrics(ArtifactStore(tmp_path / "store"), "k")
    losses = metrics.filter(pl.col("name") == "reward_model/loss")["value"].to_list()
    assert losses[0] == pytest.approx(np.log(2), abs=1e-6)
    assert losses[-1] < 0.3


def test_killed_and_resumed_is_as_if_never_killed(model_dir, learner_of, tmp_path) -> None:
    """At step 5 of 12 the newest checkpoint is of step 3: steps 4 and 5 are taken again."""

    class Killed(Exception):
        pass

    def die_at_five(progress) -> None:
        if progress.step == 5:
            raise Killed

    whole = learner_of(model_dir)
    trained(whole, ArtifactStore(tmp_path / "whole"))
    store = ArtifactStore(tmp_path / "killed")
    with pytest.raises(Killed):
        trained(learner_of(model_dir), store, on_step=die_at_five)
    resumed, steps = learner_of(model_dir), []
    trained(resumed, store, on_step=lambda progress: steps.append((progress.step, progress.eta_s)))
    assert steps[0] == (4, None), "the first step of a process also warms it up"
    assert steps[1][1] is not None
    assert steps[-1][1] == 0.0
    assert resumed.stamp().digest == whole.stamp().digest
    assert stage_metrics(store, "k").filter(pl.col("name") == "reward_model/loss").height == 12


def test_demonstrations_score_zero_after_reload(model_dir, learner_of, tmp_path) -> None:
    """The shift is in the files that a later stage loads, not only in this process."""
    learner = learner_of(model_dir)
    trained(learner, ArtifactStore(tmp_path / "store"))
    preferences = make_preferences(24)
    demonstrations = preferences.filter(pl.col("rank") == 1)
    zeros = zero_sequences(demonstrations, preferences, 20, seed=0)
    assert len(zeros) == 20
    before = last_token_scores(learner, zeros)
    assert abs(before.mean()) > 0.1
    learner.export_hf(tmp_path / "model")
    shift_bias(tmp_path / "model", -float(before.mean()))
    reloaded = learner_of(tmp_path / "model")
    after = last_token_scores(reloaded, zeros)
    assert after.mean() == pytest.approx(0.0, abs=1e-5)
    np.testing.assert_allclose(after - after.mean(), before - before.mean(), atol=1e-5)
