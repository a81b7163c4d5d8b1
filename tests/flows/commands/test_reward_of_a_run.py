"""``rl-pipeline reward try`` on a finished run scores its rollouts as the run did."""

from pathlib import Path

import pytest

from tests.flows.commands.test_reward import figure, listing, tried
from tests.flows.small_run import INLINE, SMALL, run_small


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_finished_run_scores_again_as_it_did(
    prefect_server: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Its rewards were made by the task ``reward``, row by row while rollouts continued."""
    del prefect_server
    ended = run_small(tmp_path, INLINE)
    assert ended.returncode == 0, ended.stdout[-2000:]
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PREFECT_API_URL", raising=False)
    before = listing(tmp_path / "runs")
    name = SMALL["reward.functions"][0]["name"]
    rows = tried(capsys, name, "latest", "-n", "0")
    expected = SMALL["rl.iterations"] * SMALL["rl.rollout.prompts"] * SMALL["rl.rollout.samples"]
    assert figure(rows, "against", "scored by both")[0] == expected
    assert figure(rows, "against", "disagree")[0] == 0.0
    assert listing(tmp_path / "runs") == before
