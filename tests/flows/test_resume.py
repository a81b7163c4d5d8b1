"""Kill -9 at any point, rerun: the final weights equal those of an uninterrupted run, bit for
bit."""

import signal
from pathlib import Path

import pytest

from rlcore.store.records import LEASES
from tests.flows.small_run import INLINE, artifact_digests, model_digests, run_small

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

# In the order in which one run reaches them: each rerun is killed at the next one.
POINTS = (
    "sft",
    "rollout",
    "reward",
    "advantage",
    "checkpoint",
    "write",
    "update",
    "sync",
    "before-sync",
    "export",
)


@pytest.fixture(scope="module")
def uninterrupted(prefect_server: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("uninterrupted")
    run = run_small(directory, INLINE, fresh=True)
    assert run.returncode == 0, run.stdout[-4000:]
    return directory


@pytest.fixture(scope="module")
def killed(prefect_server: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that was killed at each crash point in turn before it could complete."""
    directory = tmp_path_factory.mktemp("killed")
    for point in POINTS:
        run = run_small(directory, INLINE, kill_at=point)
        assert run.returncode == -signal.SIGKILL, f"{point}: {run.stdout[-4000:]}"
        assert not artifact_digests(directory, "export"), f"{point} came after the export"
    run = run_small(directory, INLINE)
    assert run.returncode == 0, run.stdout[-4000:]
    return directory


def test_training_moves_the_weights(uninterrupted: Path) -> None:
    """Otherwise equal digests below would prove nothing."""
    policies = model_digests(uninterrupted, "policy")
    assert len(set(policies.values())) == 2  # SFT and RL


def test_final_weights_are_those_of_an_uninterrupted_run(uninterrupted: Path, killed: Path) -> None:
    assert model_digests(killed, "policy") == model_digests(uninterrupted, "policy")
    assert model_digests(killed, "export") == model_digests(uninterrupted, "export")


@pytest.mark.parametrize("kind", ["dataset", "rollouts", "advantages"])
def test_every_table_trained_on_is_the_same(uninterrupted: Path, killed: Path, kind: str) -> None:
    """No prompt is skipped, repeated or sampled again."""
    assert artifact_digests(killed, kind) == artifact_digests(uninterrupted, kind)


def test_nothing_half_written_remains(killed: Path) -> None:
    """Leftovers of dead writers are removed, and no file is outside an artifact."""
    store = killed / "runs" / "store"
    staged = list((store / ".staging").glob("*"))
    assert not staged
    for path in store.rglob("*"):
        if path.is_file() and path.parent.name != LEASES:
            assert any((parent / "manifest.json").is_file() for parent in path.parents), path
