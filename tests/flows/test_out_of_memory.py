"""A learner that runs out of memory, by a real limit of address space, continues with fewer tokens
per pass: to the weights of a run that had so few from that checkpoint on."""

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from rlcore.results.provenance import MICRO_BATCH_TOKENS
from rlcore.rl.records import RecordedIterations
from rlcore.store.artifacts import ArtifactStore
from tests.flows.small_run import INLINE, environment, model_digests, run_small

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
TOKENS = "hardware.learner.micro_batch_tokens"
FULL = 65536
# A step of one pass needs some hundred MiB more than what is held before it, mostly activations.
LARGE: dict[str, Any] = {
    **INLINE,
    "model.from_scratch.hidden_size": 256,
    "model.from_scratch.num_layers": 2,
    "rl.iterations": 2,
    "rl.rollout.prompts": 32,
    "rl.rollout.samples": 32,
    "rl.rollout.max_new_tokens": 48,
    "rl.validation.every": 100,
    TOKENS: FULL,
}


@pytest.fixture(scope="module")
def limited(prefect_server: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run whose update of iteration 2 does not fit into memory."""
    directory = tmp_path_factory.mktemp("limited")
    run = run_small(directory, LARGE, kill_at="memory")
    assert run.returncode == 0, run.stdout[-4000:]
    return directory


@pytest.fixture(scope="module")
def used(limited: Path) -> int:
    """The tokens per pass that it ended with."""
    recorded = iterations(limited)
    assert recorded.packed_for(1) == FULL
    tokens = recorded.packed_for(2)
    assert tokens is not None
    assert tokens < FULL
    return tokens


def iterations(directory: Path) -> RecordedIterations:
    store = ArtifactStore(directory / "runs" / "store")
    (key,) = {key.rpartition("/")[0] for key in store.keys("iterations")}
    return RecordedIterations(store, key, "the run")


def policies(directory: Path) -> dict[str, torch.Tensor]:
    """Return the weights that RL ended with."""
    store = ArtifactStore(directory / "runs" / "store")
    (trained,) = [m for m in store.manifests(kinds=["policy"]) if "iteration" in m.metadata]
    return load_file(store.file(trained, "model/model.safetensors"))


def test_it_is_bit_equal_to_fewer_tokens_from_that_checkpoint(
    limited: Path, used: int, tmp_path: Path
) -> None:
    run = run_small(tmp_path, LARGE, kill_at="advantage")
    assert run.returncode == -signal.SIGKILL, run.stdout[-4000:]
    run = run_small(tmp_path, {**LARGE, TOKENS: used})
    assert run.returncode == 0, run.stdout[-4000:]
    assert model_digests(tmp_path, "policy") == model_digests(limited, "policy")


def test_it_is_the_update_at_the_full_budget_but_for_rounding(
    limited: Path, tmp_path: Path
) -> None:
    run = run_small(tmp_path, LARGE)
    assert run.returncode == 0, run.stdout[-4000:]
    full, fewer = policies(tmp_path), policies(limited)
    worst = max(float((full[name] - fewer[name]).abs().max()) for name in full)
    assert worst < 1e-6


def test_lineage_and_the_page_say_so(limited: Path, used: int) -> None:
    recorded = iterations(limited)
    first, second = (recorded.iteration(number).manifest for number in (1, 2))
    assert MICRO_BATCH_TOKENS not in first.metadata
    assert second.metadata[MICRO_BATCH_TOKENS] == {"recipe": FULL, "used": used}
    said = command(limited, "lineage", "latest").stdout
    assert f"{TOKENS} = {used} instead of {FULL} from iterations/{second.key} on" in said
    summary = json.loads((limited / "runs" / "latest" / "summary.json").read_text())
    remedies = [restart["remedy"] for restart in summary["restarts"]]
    assert remedies[0] == f"{TOKENS} = {FULL // 2} instead of {FULL}"
    assert f"{TOKENS} = {used} instead of" in remedies[-1]


def test_both_iterations_are_replayed_bit_for_bit(limited: Path) -> None:
    """Each in the passes that it had."""
    replayed = command(limited, "replay", "latest", "2", "--from", "1")
    assert replayed.returncode == 0, replayed.stderr
    assert "iterations 1 to 2" in replayed.stdout


def command(directory: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the command line in ``directory``."""
    return subprocess.run(
        [sys.executable, "-m", "flows.cli", *arguments],
        cwd=directory,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
