"""`rl-pipeline fork` continues from a checkpoint of a run; what it cannot do is one sentence."""

import json
from pathlib import Path

import pytest

from rlcore.results.run import Run
from tests.flows.commands.test_export import cli
from tests.flows.commands.test_rerun import check_schema
from tests.flows.small_run import INLINE, artifact_digests, run_small

pytestmark = pytest.mark.timeout(600)


@pytest.mark.slow
def test_a_fork_names_its_origin_and_begins_as_that_went_on(
    prefect_server: str, tmp_path: Path
) -> None:
    assert run_small(tmp_path, {**INLINE, "rl.checkpoint.keep_last": 1}).returncode == 0
    parent = Run.open("latest", tmp_path / "runs")
    key = parent.records("rl")
    drawn = artifact_digests(tmp_path, "rollouts")
    kept = sorted(int(name.rpartition("/")[2]) for name in parent.store.keys("checkpoint", key))
    gone = next(number for number in range(1, 4) if number not in kept)
    for words, says in (
        ([f"latest@{gone}"], f"is gone, there are those of {', '.join(map(str, kept))}"),
        (["latest@9"], "has no iteration 9; it has 0 to 4"),
        (["latest@4"], "rl.iterations = 4 counts from the start of RL"),
        (["latest@4", "-o", "model.from_scratch.num_layers=2"], "num_layers 1 -> 2 makes another"),
        (["latest"], "is not of the form RUN@N"),
    ):
        refused = cli(tmp_path, "fork", *words)
        assert refused.returncode == 2
        (line,) = [one for one in refused.stderr.splitlines() if one.startswith("error")]
        assert says in line

    more = ["-o", "rl.iterations=5", "-o", "rl.update.optimizer.lr=1e-5", "--until", "rl"]
    done = cli(tmp_path, "fork", "latest@4", *more, "--format", "json")
    assert done.returncode == 0, done.stderr[-3000:]
    summary = json.loads(done.stdout)
    check_schema(summary, "fork")
    assert summary["iterations"] == 5
    fork = Run.open("latest", tmp_path / "runs")
    assert fork.iterations == [5]
    assert {k: v for k, v in artifact_digests(tmp_path, "rollouts").items() if k in drawn} == drawn
    first = parent.store.peek("iterations", f"{fork.records('rl')}/000004")
    assert first is not None
    assert first.parents["fork"].key == f"{key}/000004"
    shown = cli(tmp_path, "lineage", "latest", "--format", "json")
    assert shown.returncode == 0, shown.stderr
    assert f"{key}/000004" in shown.stdout
