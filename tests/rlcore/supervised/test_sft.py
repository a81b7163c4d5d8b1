"""SFT through the real learner: every demonstration once an epoch, whatever the batch size."""

from pathlib import Path

import numpy as np
import polars as pl
import pytest

from rlcore.algorithms.objective import SftObjective
from rlcore.cluster.in_process import InProcessCluster
from rlcore.cluster.types import Placement
from rlcore.learner.pool import LearnerPool
from rlcore.learner.spec import LearnerSpec, Term
from rlcore.results.metrics import stage_metrics
from rlcore.store.artifacts import ArtifactStore, Lineage
from rlcore.supervised.loop import SupervisedTraining, batch_rows, epoch_steps
from rlcore.supervised.sft import DemonstrationBatches, demonstration_sequences
from schemas.errors import UserError
from schemas.optimizer import Optimizer, Schedule
from schemas.recipe import SFTSection
from tests.rlcore.learner.samples import write_tiny_model

LR = 1e-2
CONSTANT = Optimizer(lr=LR, schedule=Schedule(kind="constant"))


@pytest.mark.parametrize(("rows", "batch"), [(126, 64), (126, 200), (7, 3), (6, 3), (5, 1)])
def test_an_epoch_is_every_row_once(rows: int, batch: int) -> None:
    """With the last partial batch dropped, 62 of 126 demonstrations were never trained on."""
    steps = epoch_steps(rows, batch)
    for epoch in range(3):
        parts = [
            batch_rows(rows, batch, step=epoch * steps + step, seed=1, stage="sft")
            for step in range(steps)
        ]
        assert sorted(np.concatenate(parts).tolist()) == list(range(rows))
        assert [len(part) for part in parts[:-1]] == [batch] * (steps - 1)


@pytest.fixture
def cluster():
    running = InProcessCluster()
    yield running
    running.close()


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model")
    write_tiny_model(path)
    return path


@pytest.fixture
def learner_of(cluster: InProcessCluster, model_dir: Path):
    def build() -> LearnerPool:
        spec = LearnerSpec(model_dir=str(model_dir), lr=LR, device="cpu")
        place = Placement()
        worker = cluster.spawn(
            "rlcore.learner.learner:Learner", spec, 0, 1, ("", 0), name="sft", placement=place
        )
        return LearnerPool([worker])

    return build


def demonstrations(count: int) -> pl.DataFrame:
    """Rows of unequal length, of which the last half is trained on."""
    generator = np.random.default_rng(3)
    ids = [generator.integers(10, 60, 4 + number).tolist() for number in range(count)]
    return pl.DataFrame(
        {
            "split": ["train"] * count,
            "token_ids": pl.Series(ids, dtype=pl.List(pl.Int32)),
            "loss_mask": [[place >= len(row) // 2 for place in range(len(row))] for row in ids],
        }
    )


def sft_of(learner: LearnerPool, rows: pl.DataFrame, store: Path, **section) -> SupervisedTraining:
    settings = SFTSection(**{"optimizer": CONSTANT, **section})
    return SupervisedTraining(
        DemonstrationBatches(settings, rows, 0),
        settings,
        learner=learner,
        store=ArtifactStore(store),
        key="k",
        lineage=Lineage("recipe", "code"),
    )


def test_the_smaller_last_batch_is_the_mean_of_its_own_tokens(learner_of, tmp_path) -> None:
    """Divided by a full batch's tokens it would count its rows less than the others."""
    rows = demonstrations(5)
    trained, by_hand = learner_of(), learner_of()
    training = sft_of(trained, rows, tmp_path, batch_size=4)
    assert training.total_steps == 2
    training.run(lambda _: None, print)
    training.publish({})
    sequences, seen = demonstration_sequences(rows), set()
    for step in range(2):
        chosen = batch_rows(5, 4, step=step, seed=0, stage="sft")
        seen |= set(chosen.tolist())
        term = Term(sequences.take(chosen), SftObjective())
        if step == 1:
            scores = by_hand.logprobs(term.sequences).result().logprobs
            mask = np.concatenate(term.sequences.loss_mask)
            mean = -np.concatenate(scores)[mask].mean()
        by_hand.step([term], LR)
    assert seen == set(range(5))
    assert trained.stamp().digest == by_hand.stamp().digest
    losses = stage_metrics(ArtifactStore(tmp_path), "k").filter(pl.col("name") == "sft/loss")
    assert losses["value"].to_list()[-1] == pytest.approx(mean, rel=1e-5)


def test_killed_within_an_epoch_and_resumed(learner_of, tmp_path) -> None:
    """Two epochs of 4 + 1 rows; the kill is in the second one, after a checkpoint at its start."""

    class Killed(Exception):
        pass

    def die(progress) -> None:
        if progress.step == 4:
            raise Killed

    rows, section = demonstrations(9), {"batch_size": 4, "epochs": 2, "checkpoint_every": 1}
    whole = learner_of()
    sft_of(whole, rows, tmp_path / "whole", **section).run(lambda _: None, print)
    with pytest.raises(Killed):
        sft_of(learner_of(), rows, tmp_path / "killed", **section).run(die, print)
    resumed, steps = learner_of(), []
    sft_of(resumed, rows, tmp_path / "killed", **section).run(
        lambda progress: steps.append((progress.step, progress.total)), print
    )
    assert steps == [(4, 6), (5, 6), (6, 6)]
    assert resumed.stamp().digest == whole.stamp().digest


def test_the_cap_may_end_within_an_epoch(learner_of, tmp_path) -> None:
    training = sft_of(
        learner_of(), demonstrations(9), tmp_path, batch_size=4, epochs=2, max_steps=4
    )
    assert training.total_steps == 4


def test_a_batch_larger_than_the_rows_that_are_left_is_one_step(learner_of, tmp_path) -> None:
    """Rows rejected after the dry run must not end the run; none at all do."""
    rows = demonstrations(5)
    assert sft_of(learner_of(), rows, tmp_path, batch_size=200, epochs=3).total_steps == 3
    with pytest.raises(UserError, match="no training demonstrations"):
        sft_of(learner_of(), rows.clear(), tmp_path, batch_size=4)
