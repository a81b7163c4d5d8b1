"""``rl-pipeline wandb``: all stages of a recorded run as one wandb run."""

from pathlib import Path

import pytest

from flows.cli import main
from tests.rlcore.results.evaluated import completions, make_run

RUN = "a-00000001"


def _wandb(runs: Path, *arguments: str) -> int:
    return main(["wandb", *arguments, "--runs", str(runs)])


def test_stages_of_a_run_are_written_and_the_way_to_send_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    curves = {"sft": {1: {"sft/loss": 1.0}}, "rl": {1: {"critic/score/mean": 0.5}}}
    folder = make_run(tmp_path / "runs", RUN, curves=curves)
    assert _wandb(tmp_path / "runs", RUN) == 0
    (written,) = folder.glob("wandb/offline-run-*")
    assert written.name.endswith("00000001-0000-4000-8000-000000000000-rebuilt")
    assert capsys.readouterr().out == f"wrote {written}; to send it: wandb sync {written}\n"


def test_wrong_input_ends_in_a_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runs = tmp_path / "runs"
    make_run(runs, RUN, evaluation=completions({"a": True}))
    for arguments, said in (
        (["a-00000002"], f"there is no run 'a-00000002' in {runs}; did you mean '{RUN}'?"),
        ([RUN], f"the run '{RUN}' has no metrics: it has come to evaluate;"),
    ):
        assert _wandb(runs, *arguments) == 2
        assert said in capsys.readouterr().err
    make_run(runs, "a-00000003", curves={"rl": {1: {"loss": 1.0}}})
    assert _wandb(runs, "a-00000003", "--online") == 2
    assert "--online and WANDB_MODE=offline contradict" in capsys.readouterr().err
