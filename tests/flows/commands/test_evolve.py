"""``rl-pipeline evolve`` refuses in one sentence, before anything starts, what cannot be meant."""

from pathlib import Path

import pytest

from flows.cli import main


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["a/b", "quickstart", "-o", "evolve.verifiers=4"], "verifiers = 4 is even"),
        (["a/b", "quickstart", "-o", "evolve.rounds=0"], "evolve.rounds"),
        (["a/b", "quickstart", "-o", "evolve.policy_prompt={{ truth }}"], "evolve.policy_prompt"),
        (["a/b", "quickstrat"], "quickstart"),
        (["a/b", "text-game-grpo"], "is a game"),
        (["latest", "quickstart"], "no run 'latest'"),
    ],
)
def test_what_cannot_be_meant_ends_in_a_sentence(
    arguments: list[str],
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert main(["evolve", *arguments]) == 2
    error = capfd.readouterr().err
    assert error.startswith("error: ")
    assert said in error
    assert not any(tmp_path.iterdir())
