"""A run whose store is a bucket: killed, exported, replayed, continued, lengthened and forked."""

from pathlib import Path

import pytest

from rlcore.results.run import Run
from rlcore.store.artifacts import ArtifactStore
from tests.flows.commands.test_export import cli
from tests.flows.small_run import run_small
from tests.rlcore.conftest import bucket, s3_server
from tests.tasks.runtime.test_earlier_runs_shorter import CONSTANT

__all__ = ["bucket", "s3_server"]  # fixtures
pytestmark = [pytest.mark.timeout(900), pytest.mark.slow]
FEW = {**CONSTANT, "rl.checkpoint.keep_last": 1, "rl.checkpoint.keep_best": 1}


def digests(store: str | Path, kind: str) -> dict[str, str]:
    return {made.key: made.sha256 for made in ArtifactStore(store).manifests() if made.kind == kind}


def test_what_a_local_store_can_do_a_bucket_can(
    prefect_server: str, bucket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Machines that come and go keep nothing but the bucket."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    here, alone, runs = tmp_path / "here", tmp_path / "alone", tmp_path / "here" / "runs"
    few, more = ({**FEW, "store": bucket, "rl.iterations": number} for number in (4, 5))
    assert run_small(here, few, kill_at="update").returncode != 0
    killed = cli(here, "export", "latest")
    assert "has not ended; iteration 2 is the newest whole one" in killed.stderr
    assert killed.returncode == 0, killed.stderr[-3000:]

    assert run_small(here, few).returncode == 0
    kept = digests(bucket, "checkpoint")
    pruned = [number for number in (1, 2, 3) if not any(k.endswith(f"{number:06d}") for k in kept)]
    assert len(pruned) >= 2
    again = cli(here, "replay", "latest", "3", "--from", "1")
    assert again.stdout.startswith("iterations 1 to 3 of "), again.stderr[-3000:]

    longer = run_small(here, more)
    assert "continues after iteration 4 of a run of 4 iterations" in longer.stdout
    assert run_small(alone, {**more, "store": "runs/store"}).returncode == 0
    for kind in ("policy", "rollouts", "iterations"):
        one_go = digests(alone / "runs" / "store", kind)
        assert one_go
        assert set(digests(bucket, kind).values()) >= set(one_go.values()), kind

    parent = Run.open("latest", runs).records("rl")
    forked = cli(here, "fork", "latest@5", "-o", "rl.iterations=6", "--until", "rl")
    assert forked.returncode == 0, forked.stderr[-3000:]
    fork = Run.open("latest", runs)
    assert fork.iterations == [6]
    begun = fork.store.peek("iterations", f"{fork.records('rl')}/000005")
    assert begun is not None
    assert begun.parents["fork"].key == f"{parent}/000005"
