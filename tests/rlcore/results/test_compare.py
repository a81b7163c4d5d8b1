"""Runs side by side: only what differs, the figures people look for, and each evaluation paired."""

from itertools import product
from pathlib import Path

import pytest

from rlcore.results.compare import Comparison, compare
from rlcore.results.paired import Condition
from rlcore.results.run import Run
from schemas.errors import UserError
from tests.rlcore.results.evaluated import completions, make_run

LR = "rl.update.optimizer.lr"
CURVES = {
    "sft": {1: {"sft/loss": 2.0}, 2: {"sft/loss": 1.0, "perf/throughput": 9.0}},
    "rl": {
        0: {"val/accuracy": 0.25},
        1: {"val/accuracy": 0.75, "critic/score/mean": 0.5, "timing_s/step": 2.0},
        2: {"val/accuracy": 0.5, "critic/score/mean": 0.25, "timing_s/step": 3.0},
    },
}
HALF = {f"u{n}": n % 2 == 0 for n in range(20)}
ALL = dict.fromkeys(HALF, True)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[Run]:
    """A run that is right on half its prompts, one on all, and one that is still in RL."""
    folder = tmp_path_factory.mktemp("compared") / "runs"
    make_run(folder, "a-00000001", {"seed": 1}, evaluation=completions(HALF), curves=CURVES)
    make_run(folder, "a-00000002", {"seed": 2}, evaluation=completions(ALL), curves=CURVES)
    make_run(folder, "a-00000003", {"seed": 3}, curves={"rl": CURVES["rl"]})
    return [Run.open(f"a-0000000{digit}", folder) for digit in (1, 2, 3)]


def test_twelve_runs_that_differ_in_two_keys_show_two_columns(tmp_path: Path) -> None:
    folder, grid = tmp_path / "runs", list(product((1e-6, 2e-6, 4e-6), range(4)))
    for number, (lr, seed) in enumerate(grid):
        make_run(
            folder,
            f"a-{number:08d}",
            {LR: lr, "seed": seed},
            evaluation=completions({"u": True}),
        )
    opened = [Run.open(f"a-{number:08d}", folder) for number in range(12)]
    sections = dict(compare(opened).sections())
    rows = sections["What differs"]
    assert [list(row) for row in rows] == [["run", "seed", LR]] * 12
    assert [(float(row[LR]), int(row["seed"])) for row in rows] == grid


def test_figures_of_each_run(runs: list[Run]) -> None:
    figures = compare(runs).figures
    assert figures["validation accuracy, best"] == (0.75,) * 3
    assert figures["validation accuracy, last"] == (0.5,) * 3
    assert figures["reward, last"] == (0.25,) * 3
    assert figures["iterations"] == (2.0,) * 3
    assert figures["RL seconds"] == (5.0,) * 3
    assert figures["SFT loss, last"] == (1.0, 1.0, None)
    assert "entropy, last" not in figures


def test_each_run_is_paired_with_the_first(runs: list[Run]) -> None:
    comparison = compare(runs[:2])
    (accuracy, *_) = comparison.pairs["a-00000002"]
    assert (accuracy.metric, accuracy.value, accuracy.pairs) == ("accuracy", 0.5, 20)
    assert 0.2 < accuracy.low < 0.5 < accuracy.high < 0.8
    assert comparison.notes == []
    back = compare([runs[1], runs[0]]).pairs["a-00000001"][0]
    mirrored = (-0.5, -accuracy.high, -accuracy.low)
    assert (back.value, back.low, back.high) == pytest.approx(mirrored, abs=0.06)


def _failed(comparison: Comparison, text: str) -> list[str]:
    return [run for _, run, _ in comparison.failures([Condition.parse(text)])]


def test_a_condition_is_of_every_run_but_the_first(runs: list[Run]) -> None:
    comparison = compare(runs[:2])
    assert _failed(comparison, "accuracy < -0.01") == []
    assert _failed(comparison, "accuracy > 0.1") == ["a-00000002"]
    assert _failed(compare([runs[1], runs[0]]), "accuracy < -0.01") == ["a-00000001"]


def test_a_condition_on_what_is_not_known_is_an_error(runs: list[Run]) -> None:
    """Nothing passes a check that could not be made."""
    comparison = compare(runs)
    with pytest.raises(
        UserError,
        match=r"accuracy of a-00000003 and a-00000001 cannot be compared"
        r": a-00000003 has no evaluation",
    ):
        _failed(comparison, "accuracy < -0.01")
    with pytest.raises(UserError, match=r"sampled_accuracy of a-00000002 .* cannot be"):
        _failed(compare(runs[:2]), "sampled_accuracy < -0.01")


def test_what_cannot_be_paired_is_said(tmp_path: Path) -> None:
    folder = tmp_path / "runs"
    make_run(folder, "a-00000001", evaluation=completions(HALF, {"u1": [True, False]}))
    make_run(folder, "a-00000002", evaluation=completions({"other": True}))
    make_run(folder, "a-00000003", evaluation=completions(HALF, checkpoint="sft"))
    terms = {"reward.functions.0.weight": 2.0}
    make_run(folder, "a-00000004", terms, evaluation=completions(HALF))
    opened = [Run.open(f"a-0000000{digit}", folder) for digit in (1, 2, 3, 4)]
    notes = "\n".join(compare(opened).notes)
    assert "a-00000001 and a-00000002 share no prompt that has accuracy" in notes
    assert "a-00000001 has sampled_accuracy, a-00000004 has not" in notes
    assert "a-00000003 did not evaluate 'rl' but sft" in notes
    assert "the reward functions differ" in notes


@pytest.mark.parametrize("numbers", [[0], [0, 0], [0, 1, 0]])
def test_a_run_is_not_compared_with_itself(runs: list[Run], numbers: list[int]) -> None:
    with pytest.raises(UserError, match="two or more different runs can be compared, not a-0"):
        compare([runs[number] for number in numbers])
