"""Recorded iterations, made again from the nearest checkpoint, give the recorded weights; what was
changed afterwards is named."""

import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from rlcore.learner.checkpoints import KIND as CHECKPOINT
from rlcore.models.files import MODEL_FOLDER, model_directory
from rlcore.rl.phases import Phases
from rlcore.rl.records import RecordedIterations
from rlcore.rl.replay import CreditError, Replay, ReplayError
from rlcore.store.artifacts import ArtifactStore, Lineage
from schemas.errors import UserError
from tests.rlcore.rl.conftest import Dataset
from tests.rlcore.rl.test_fused import FUSED, half
from tests.rlcore.rl.test_records_history import digits, half_teach, one_iteration
from tests.tiers import fast

pytestmark = pytest.mark.timeout(180)
Make = Callable[..., Phases]
ITERATIONS = 4
PRUNED = {"rl.checkpoint.keep_last": 1, "rl.checkpoint.keep_best": 1, "rl.validation.every": 100}
# What each of them adds to an update: rounds, a critic and KL in the reward, KL in the loss.
Variant = tuple[str, Callable[[Any], float], dict[str, Any]]
VARIANTS: dict[str, Variant] = {
    "grpo": ("quickstart", digits, {"rl.update.mini_batches": 2}),
    "fused": ("quickstart", half, FUSED),
    "dapo": (
        "quickstart",
        half_teach,
        {
            "rl.preset": "dapo",
            "rl.algorithm.dynamic_sampling.batch_factor": 1,
            "rl.algorithm.dynamic_sampling.max_rounds": 10,
        },
    ),
    "ppo": ("quickstart-ppo", digits, {"rl.critic.warmup_iterations": 1}),
    "remax": ("quickstart-remax", digits, {}),
    "adapter": ("quickstart", digits, {"model.adapter": {"rank": 2, "stages": ["rl"]}}),
    "sampled ahead": (
        "quickstart",
        digits,
        {
            "rl.rollout.max_staleness": 1,
            "rl.algorithm.importance_correction": {"level": "sequence", "mode": "mask"},
        },
    ),
    "against the sampler": (
        "quickstart",
        digits,
        {"rl.rollout.max_staleness": 1, "rl.update.old_logprobs": "rollout"},
    ),
    "gepo, ahead": ("quickstart-gepo", digits, {"rl.rollout.max_staleness": 1}),
    "exact KL in the reward": (
        "quickstart",
        digits,
        {"rl.algorithm.kl": {"where": "reward", "estimator": "full", "coef": 0.05}},
    ),
}

TWO_KEPT: Variant = ("quickstart", digits, {"rl.checkpoint.keep_last": 2, "rl.validation.every": 1})


def trained(
    make_phases: Make, dataset: Dataset, store: ArtifactStore, variant: str
) -> tuple[Phases, list[str]]:
    """Return a run of ``ITERATIONS`` iterations in ``store``, and the digest after each."""
    name, score, over = VARIANTS.get(variant, TWO_KEPT)
    base = model_directory(dataset.store.directory(dataset.base))
    tables = {t: dataset.store.table(dataset.ref, t) for t in dataset.ref.rows}
    made = Lineage("recipe", "code")
    with store.scratch() as scratch:
        shutil.copytree(base, scratch / MODEL_FOLDER)
        policy = store.put("base_model", "b", directory=scratch, lineage=made)
    parents = {
        "policy": policy,
        "dataset": store.put(
            "dataset", "d", tables=tables, lineage=replace(made, parents={"base_model": policy})
        ),
    }
    phases = make_phases(
        name,
        score,
        {"rl.iterations": ITERATIONS, **PRUNED, **over},
        store=store,
        lineage=Lineage("recipe", "code", parents, metadata={"version": "2"}),
    )
    state = phases.start()
    digests = [state.digest]
    while state.iteration < ITERATIONS:
        state = one_iteration(phases, state)
        digests.append(state.digest)
    phases.checkpoints.finish_write()
    return phases, digests


@contextmanager
def replay(phases: Phases, start: int) -> Iterator[Replay]:
    """Open a replay of the run of ``phases``."""
    recorded = RecordedIterations(phases.store, "run", "small-0123abcd")
    with Replay.open(recorded, phases.recipe, start=start, log=lambda line: None) as opened:
        yield opened


@pytest.mark.parametrize("variant", fast(VARIANTS, "fused", "dapo", "ppo", "sampled ahead"))
def test_pruned_iterations_are_replayed_bit_for_bit(
    variant: str, make_phases: Make, dataset: Dataset, tmp_path: Path
) -> None:
    phases, digests = trained(make_phases, dataset, ArtifactStore(tmp_path / "s"), variant)
    kept = RecordedIterations(phases.store, "run", "r").checkpoints()
    assert {1, 2}.isdisjoint(kept), "their checkpoints are to be gone"
    with replay(phases, 2) as opened:
        assert opened.at == 0
        found = [opened.step().digest for _ in range(3)]
    assert found == digests[1:4]


def test_it_starts_from_the_nearest_checkpoint_and_passes_over_a_damaged_one(
    make_phases: Make, dataset: Dataset, tmp_path: Path
) -> None:
    phases, digests = trained(make_phases, dataset, ArtifactStore(tmp_path / "s"), "kept")
    kept = RecordedIterations(phases.store, "run", "r").checkpoints()[-2]
    assert 0 < kept < ITERATIONS
    with replay(phases, ITERATIONS - 1) as opened:
        assert opened.at == kept
        assert opened.learner.stamp().digest == digests[kept]
    ref = phases.store.find(CHECKPOINT, f"run/{kept:06d}")
    assert ref is not None
    with next(Path(ref.uri).rglob("*.safetensors")).open("r+b") as file:
        file.seek(-1, 2)
        file.write(b"x")
    with replay(phases, ITERATIONS - 1) as opened:
        assert opened.at == 0


def changed_reward(phases: Phases, iteration: int, *, hidden: bool) -> None:
    """Flip the score of one trajectory in the store; ``hidden``: as if it had always been so."""
    store, name = phases.store, f"run/{iteration:06d}"
    old = store.find("rewards", name)
    assert old is not None
    flipped = pl.when(pl.int_range(pl.len()) == 0).then(1 - pl.col("score"))
    frame = store.table(old, "rewards").with_columns(score=flipped.otherwise(pl.col("score")))
    made = Lineage("recipe", "code", store.manifest(old).parents)
    store.discard("rewards", name)
    new = store.put("rewards", name, tables={"rewards": frame}, lineage=made)
    if not hidden:
        return
    for kind in ("advantages", "iterations"):
        ref = store.find(kind, name)
        assert ref is not None
        manifest = store.manifest(ref)
        tables = {table: store.table(ref, table) for table in manifest.rows}
        parents = {**manifest.parents, "rewards": new}
        store.discard(kind, name)
        made = Lineage("recipe", "code", parents, metadata=manifest.metadata)
        store.put(kind, name, tables=tables, lineage=made)


def test_a_flipped_reward_is_named(make_phases: Make, dataset: Dataset, tmp_path: Path) -> None:
    phases, _ = trained(make_phases, dataset, ArtifactStore(tmp_path / "s"), "grpo")
    changed_reward(phases, 2, hidden=True)
    rollouts = phases.store.find("rollouts", "run/000002")
    assert rollouts is not None
    first = phases.store.table(rollouts, "rollouts")
    group = first.filter(pl.col("uid") == first["uid"][0])["trajectory_id"].to_list()
    with replay(phases, 2) as opened:
        opened.step()
        with pytest.raises(CreditError, match=r"iteration 2 .* advantages of trajectory") as error:
            opened.step()
    assert any(name in str(error.value) for name in group)


def test_a_reward_that_was_written_again_is_named(
    make_phases: Make, dataset: Dataset, tmp_path: Path
) -> None:
    phases, _ = trained(make_phases, dataset, ArtifactStore(tmp_path / "s"), "grpo")
    changed_reward(phases, 1, hidden=False)
    with (
        replay(phases, 1) as opened,
        pytest.raises(ValueError, match=r"rewards/run/000001 .*written again since"),
    ):
        opened.step()


def test_other_weights_are_named_by_tensor(
    make_phases: Make, dataset: Dataset, tmp_path: Path
) -> None:
    phases, _ = trained(make_phases, dataset, ArtifactStore(tmp_path / "s"), "grpo")
    rate = {"rl.update.optimizer.lr": 1e-2}
    other = make_phases("quickstart", digits, {"rl.iterations": ITERATIONS, **rate}).recipe
    recorded = RecordedIterations(phases.store, "run", "small-0123abcd")
    with (
        Replay.open(recorded, other, start=1, log=lambda line: None) as opened,
        pytest.raises(ReplayError, match=r"iteration 1 .*of \d+ tensors differ.*model\.") as error,
    ):
        opened.step()
    why = r"Version 2 of rl made them and this is version \d+\S*: .*torch's own functions"
    assert re.search(why, str(error.value)), "and a reason is given"


def test_an_iteration_beyond_the_run_is_refused(
    make_phases: Make, dataset: Dataset, tmp_path: Path
) -> None:
    phases, _ = trained(make_phases, dataset, ArtifactStore(tmp_path / "s"), "grpo")
    with (
        pytest.raises(UserError, match="has no iteration 9; it has 0 to 4"),
        replay(phases, 9),
    ):
        pass
