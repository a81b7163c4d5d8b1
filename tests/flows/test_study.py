"""A study's table and figure hold what the runs' own records say."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import yaml

from flows.cli import main
from flows.outcomes import RunOutcome, render, shortfalls, write_results
from flows.paths import RECIPES
from flows.study import draw, panels, print_tables, read_outcome
from rlcore.recipes.load import load_recipe
from rlcore.results.metrics import metrics_frame, publish_metrics
from rlcore.results.provenance import code_state, record_code
from rlcore.store.artifacts import ArtifactStore, Lineage
from schemas.errors import UserError
from schemas.names import RECORDS
from schemas.recipe import Recipe

PNG_LIMIT = 200_000  # bytes; it is shown in the README


def _finished_run(root: Path, name: str, **overrides: Any) -> Path:
    """Write the files of a finished run: its recipe, its summary and its metrics tables."""
    recipe = load_recipe(name, {"seed": 2, **overrides}, directory=RECIPES)
    directory = root / "runs" / f"{name}-12345678"
    directory.mkdir(parents=True)
    (directory / "recipe.yaml").write_text(yaml.safe_dump(recipe.model_dump(mode="json")))
    store = ArtifactStore(root / Path(recipe.store).expanduser())
    for step in range(4):
        values = {"timing_s/step": 1.5, "critic/score/mean": step, "critic/accuracy": 0.5}
        if step % 2 == 0:
            values["val/accuracy"] = 0.6 + step / 10
        frame = metrics_frame("rl", step, values if step else {"val/accuracy": 0.6})
        publish_metrics(store, "abc", f"{step:06d}", frame, Lineage("r", "c"))
    summary = {
        "accuracy": {"base": 0.0, "sft": 0.55, "rl": 0.9},
        "sampled_accuracy": {"base": None, "sft": 0.3, "rl": 0.8},
        "iterations": 3,
        "artifacts": {"rl": f"{store.root}/policy/abc"},
    }
    (directory / "summary.json").write_text(json.dumps(summary))
    return directory


@pytest.mark.parametrize("place", ["runs/store", "~/rl-store"])
def test_outcome_is_what_the_store_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    """A cached run reports the seconds of the time when it was trained."""
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    outcome = read_outcome(_finished_run(tmp_path, "quickstart", store=place))
    assert (outcome.recipe, outcome.seed, outcome.iterations) == ("quickstart", 2, 3)
    assert (outcome.before, outcome.rl, outcome.rise) == (0.55, 0.9, pytest.approx(0.35))
    assert outcome.seconds == pytest.approx(4.5)
    assert outcome.curve == [(0, 0.6), (2, 0.8)]
    assert outcome.proxy is None


def test_the_curve_of_a_run_that_continued_a_shorter_one_is_found(tmp_path: Path) -> None:
    """Its metrics are below the shorter one's key, its policy has its own."""
    directory = _finished_run(tmp_path, "quickstart")
    store = ArtifactStore(tmp_path / load_recipe("quickstart", {}, directory=RECIPES).store)
    (tmp_path / "policy").mkdir()
    (tmp_path / "policy" / "config.json").write_text("{}")
    longer = Lineage("r", "c", metadata={RECORDS: "abc"})
    store.put("policy", "longer", directory=tmp_path / "policy", lineage=longer)
    summary = json.loads((directory / "summary.json").read_text())
    summary["artifacts"]["rl"] = f"{store.root}/policy/longer"
    (directory / "summary.json").write_text(json.dumps(summary))
    assert read_outcome(directory).curve == [(0, 0.6), (2, 0.8)]


def test_without_sft_the_base_model_is_what_rl_starts_from(tmp_path: Path) -> None:
    asked = {"sft.enabled": False, "evaluate.checkpoints": ["base", "rl"]}
    outcome = read_outcome(_finished_run(tmp_path, "quickstart", **asked))
    assert (outcome.before, outcome.rl) == (0.0, 0.9)


def test_samples_are_judged_where_asked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Greedy answers may all be right where samples are not, which is what RL trains."""
    outcome = read_outcome(_finished_run(tmp_path, "quickstart"), sampled=True)
    assert (outcome.before, outcome.rl) == (0.3, 0.8)
    assert outcome.curve == [(1, 0.5), (2, 0.5), (3, 0.5)]
    (panel,) = panels([outcome], sampled=True)
    assert panel.y_label == "accuracy of samples"
    print_tables([outcome], sampled=True)
    assert "Held-out accuracy of samples" in capsys.readouterr().out


def test_samples_that_are_not_drawn_are_missed_before_any_run(
    capsys: pytest.CaptureFixture[str],
) -> None:
    asked = ["study", "quickstart", "--sampled", "-o", "evaluate.samples=1"]
    assert main([*asked, "-o", "evaluate.pass_k=[1]"]) == 2
    assert "evaluate.samples = 1, greedy answers only" in capsys.readouterr().err


def test_a_model_reward_is_drawn_beside_the_truth(tmp_path: Path) -> None:
    outcome = read_outcome(_finished_run(tmp_path, "quickstart-rlhf"))
    accuracy, gap = panels([outcome])
    assert accuracy.title == "quickstart-rlhf"
    (line,) = gap.lines
    assert (line.label, line.points) == ("seed 2", [(1, 0.0), (2, 0.5), (3, 1.0)])
    swept = replace(outcome, values="rl.algorithm.kl.coef=0.1, seed=2")
    accuracy, _ = panels([swept])
    assert accuracy.title == "quickstart-rlhf kl.coef=0.1, seed=2"


def _outcomes() -> list[RunOutcome]:
    curve = [(step, 1 - 0.5 * 0.97**step) for step in range(0, 101, 10)]
    proxy = pl.DataFrame({"step": [1, 2], "gap": [-1, 1]})
    names = [*(f"quickstart-{index}" for index in range(8)), "quickstart-rlhf"]
    return [
        RunOutcome(name, seed, 0.5, 0.9, 100, 60.0, curve, proxy if name.endswith("rlhf") else None)
        for name in names
        for seed in range(3)
    ]


def test_figure_is_small_and_whole(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "figures" / "learning.png"
    assert len(panels(_outcomes())) == 10
    draw(_outcomes(), path)
    assert path.read_bytes().startswith(b"\x89PNG")
    assert path.stat().st_size < PNG_LIMIT
    print_tables(_outcomes())
    output = capsys.readouterr().out
    for cell in ("quickstart-7", "0.500", "0.900", "+0.400", "100", "60"):
        assert cell in output


def _ended(recipe: str, *accuracies: float, sft: float = 0.5) -> list[RunOutcome]:
    return [
        RunOutcome(recipe, seed, sft, rl, 30, 60.0, [(0, sft)])
        for seed, rl in enumerate(accuracies)
    ]


def test_a_study_says_which_run_rose_too_little() -> None:
    runs = _ended("quickstart", 0.9, 0.995, sft=0.85)
    assert shortfalls(runs) == []
    assert shortfalls(runs, min_rise=0.05) == []
    (missed,) = shortfalls(runs, min_rise=0.2)
    assert missed == "quickstart seed 0 rose by 0.050, not 0.2", "0.995 leaves no room to rise"
    (missed,) = shortfalls(runs, min_accuracy=0.95)
    assert missed == "quickstart seed 0 ended at 0.900, not 0.95"


def test_a_study_tells_recipes_apart_from_noise() -> None:
    """Means that differ by less than twice what seeds alone do separate nothing."""
    calm = [*_ended("hard-grpo", 0.85, 0.9, 0.95), *_ended("hard-remax", 0.4, 0.5, 0.6)]
    assert shortfalls(calm, min_spread=0.15) == []
    (missed,) = shortfalls(calm, min_spread=0.5)
    assert "0.400 apart, not 0.500" in missed
    noisy = [*_ended("hard-grpo", 0.85, 0.9, 0.95), *_ended("hard-remax", 0.1, 0.5, 0.9)]
    (missed,) = shortfalls(noisy, min_spread=0.15)
    assert "0.400 apart, not 0.800" in missed


def test_what_cannot_be_studied_is_said_before_anything_starts(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["study", "quickstrat"]) == 2
    assert "did you mean 'quickstart'" in capsys.readouterr().err
    assert main(["study", "quickstart", "-o", "evaluate.checkpoints=[rl]"]) == 2
    assert "does not evaluate 'sft', from which RL starts" in capsys.readouterr().err
    asked = ["study", "smollm2-quickstart", "-o", "evaluate.checkpoints=[sft,rl]"]
    assert main(asked) == 2
    assert "does not evaluate 'base', from which RL starts" in capsys.readouterr().err
    assert main(["study", "dialogue-grpo"]) == 2
    assert "no function that checks correctness, so there is no" in capsys.readouterr().err


def test_a_recipe_of_your_own_is_studied_from_its_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The runs are checked in another folder, where its files are not."""
    (tmp_path / "mine.yaml").write_text(
        "extends: quickstart\nname: mine\ndata: {sources: [{kind: file, path: rows.jsonl}]}\n"
    )
    seen = list[str]()

    def started(recipe: Recipe) -> None:
        seen.append(recipe.data.sources[0].path)  # type: ignore[union-attr]
        raise UserError("seen")

    monkeypatch.setattr("rlcore.plan.preconditions.check_start", started)
    monkeypatch.chdir(tmp_path)
    assert main(["study", "mine.yaml", "--seeds", "0"]) == 2
    assert seen == [str(tmp_path / "rows.jsonl")]


def test_a_recipe_that_cannot_start_ends_the_study_before_it_begins(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Each of its runs was made, and failed, one after the other."""
    asked = ["study", "quickstart", "smollm2-quickstart", "-o", "model.path=./no/such/model"]
    assert main([*asked, "-o", "model.from_scratch=null"]) == 2
    said = capsys.readouterr()
    assert "model.path = './no/such/model' does not exist" in said.err
    assert said.out == ""


def test_the_page_of_results_says_where_and_with_what_each_run_was_trained(tmp_path: Path) -> None:
    """A figure without its hardware, commit and spread cannot be compared with another."""
    outcomes = [
        replace(
            outcome, values=f"rl.rollout.samples={samples}", machine="1 x H100", commit="0123ab"
        )
        for samples in (8, 16)
        for outcome in _ended("quickstart", 0.8 + samples / 100, 0.9)
    ]
    page = render(outcomes, sampled=False)
    assert "| quickstart rl.rollout.samples=8 | 2 | 0.500 | 0.890 | 0.014 | +0.390 | 1 x H" in page
    assert "rl.rollout.samples=16 | 0 | 0.500 | 0.960 | +0.460 | 30 | 60 | 1 x H100 |" in page
    write_results(outcomes, tmp_path / "results.md", sampled=False)
    assert (tmp_path / "results.md").read_text() == page
    assert [path.name for path in tmp_path.iterdir()] == ["results.md"]


def test_machine_and_commit_are_those_that_the_policy_recorded(tmp_path: Path) -> None:
    directory = _finished_run(tmp_path, "quickstart")
    bare = read_outcome(directory)
    assert (bare.machine, bare.commit) == ("not recorded", "not recorded")
    store = ArtifactStore(tmp_path / "runs" / "store")
    about = {"cpus": 4, "cpu": "Some CPU", "gpus": ["H100", "H100"]}
    code = record_code(store, Lineage("r", "c"))
    frame = metrics_frame("rl", 1, {"x": 1.0})
    made = Lineage("r", "c", {"code": code}, metadata={"machine": about})
    store.put("policy", "abc", tables={"metrics": frame}, lineage=made)
    outcome = read_outcome(directory)
    assert outcome.machine == "2 x H100, 4 CPUs (Some CPU)"
    assert outcome.commit.startswith((code_state()["commit"] or "not recorded")[:12])
