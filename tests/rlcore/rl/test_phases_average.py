"""The average of the weights beside them: validated under its own stamp, and chosen where it is
better."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import torch
from safetensors.torch import load_file

from flows.paths import RECIPES
from rlcore.recipes.load import load_recipe
from rlcore.rl.phases import Phases
from rlcore.rl.state import LoopState
from rlcore.rl.validation import Validation
from rlcore.store.artifacts import ArtifactStore
from schemas.errors import UserError
from schemas.rl import RLSection
from tests.rlcore.rl.test_algorithms import digits
from tests.rlcore.rl.test_own_logprobs import scored_iteration

Make = Callable[..., Phases]
WEIGHTS = "model.safetensors"
EVERY = {"rl.validation.every": 1, "rl.iterations": 2}


def two_iterations(phases: Phases) -> tuple[LoopState, list[str]]:
    state, digests = phases.start(), []
    for _ in range(2):
        groups, advantages = scored_iteration(phases, state)
        state = phases.sync(phases.update(state, groups, advantages))
        digests.append(state.digest)
    return state, digests


def tables(store: ArtifactStore, kind: str, name: str) -> list[pl.DataFrame]:
    found = [store.find(kind, key) for key in store.keys(kind)]
    return [store.table(ref, name) for ref in found if ref is not None]


def test_it_changes_no_weight_and_engines_sample_from_the_weights(
    make_phases: Make, tmp_path: Path
) -> None:
    found = []
    for ema in (None, 0.5):
        store = ArtifactStore(str(tmp_path / str(ema)))
        phases = make_phases("quickstart", digits, {**EVERY, "rl.update.ema": ema}, store=store)
        state, digests = two_iterations(phases)
        phases.checkpoints.finish_write()
        drawn = pl.concat(tables(store, "rollouts", "rollouts"))
        found.append((digests, drawn.sort("trajectory_id")["response"].to_list()))
        kept = {"1", "2"} if ema else None
        assert (state.averaged and set(state.averaged)) == kept
        names = set(pl.concat(tables(store, "metrics", "metrics"))["name"])
        assert ("ema/val/accuracy" in names) == bool(ema)
        assert "val/accuracy" in names
    assert found[0] == found[1]


def test_a_run_that_ends_while_the_average_is_held_continues_as_if_it_had_not(
    make_phases: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing of the average may reach a checkpoint as the weights."""
    over = {**EVERY, "rl.update.ema": 0.5}
    whole = make_phases("quickstart", digits, over, store=ArtifactStore(str(tmp_path / "whole")))
    expected = two_iterations(whole)
    killed = make_phases("quickstart", digits, over, store=ArtifactStore(str(tmp_path / "killed")))
    run, calls = Validation.run, []

    def ends(validation: Validation, *arguments: Any) -> Any:
        calls.append(arguments)
        if len(calls) == 3:  # of the start, of the weights, of their average
            raise KeyboardInterrupt
        return run(validation, *arguments)

    monkeypatch.setattr(Validation, "run", ends)
    with pytest.raises(KeyboardInterrupt):
        two_iterations(killed)
    monkeypatch.setattr(Validation, "run", run)
    killed.checkpoints.finish_write()
    again = make_phases("quickstart", digits, over, store=ArtifactStore(str(tmp_path / "killed")))
    state, digests = two_iterations(again)
    assert digests == expected[1]
    assert state.averaged == expected[0].averaged


@pytest.mark.parametrize("better", [True, False])
def test_the_better_of_the_two_is_exported(make_phases: Make, better: bool, tmp_path: Path) -> None:
    said: list[str] = []
    phases = make_phases("quickstart", digits, {**EVERY, "rl.update.ema": 0.5})
    phases.log = said.append
    state, _ = two_iterations(phases)
    state = replace(state, accuracies={"1": 0.2, "2": 0.4}, averaged={"2": 0.5 if better else 0.4})
    phases.workers.learner.export_hf(tmp_path / "raw")
    phases.finish(state, tmp_path / "policy")
    raw, policy = (load_file(tmp_path / name / WEIGHTS) for name in ("raw", "policy"))
    assert all(torch.equal(raw[name], policy[name]) for name in raw) is not better
    assert said == ["the average of the weights after iteration 2 is better than they are"] * better


RL = RLSection.model_validate({"preset": "grpo", "iterations": 4, "validation": {"every": 2}})


def test_the_best_is_by_the_better_of_the_two() -> None:
    state = replace(LoopState(), accuracies={"0": 0.1, "2": 0.5, "4": 0.4}, averaged={"4": 0.6})
    assert state.best(3) == [4, 2, 0]
    assert [state.takes_average(number) for number in (4, 2, 0)] == [True, False, False]
    assert LoopState.of_json(state.to_json()) == state
    tied = replace(state, averaged={"4": 0.5})
    assert tied.best() == [4]
    plain = replace(state, averaged=None)
    assert "averaged" not in plain.to_json()
    assert (plain.best(), plain.takes_average(2)) == ([2], False)


def test_a_shorter_run_forgets_what_a_longer_one_validated() -> None:
    state = replace(
        LoopState(), iteration=3, accuracies={"2": 0.5, "3": 0.4}, averaged={"2": 0.6, "3": 0.7}
    )
    assert state.within(RL).averaged == {"2": 0.6}


REFUSED: list[tuple[dict[str, Any], str]] = [
    (
        {"rl.rollout.max_staleness": 1, "rl.checkpoint.every": 1},
        "engines that sample ahead hold no average to validate",
    ),
    ({"hardware.learner.zero_stage": 3}, "averages weights that are whole on each rank"),
    ({"rl.update.ema": 1.0}, "rl.update.ema = 1.0 is refused"),
]


@pytest.mark.parametrize(("over", "said"), REFUSED)
def test_where_there_can_be_none_it_is_refused(over: dict[str, Any], said: str) -> None:
    with pytest.raises(UserError, match=said):
        load_recipe("quickstart-gepo", {"rl.update.ema": 0.9} | over, directory=RECIPES)


def test_the_preset_of_instructgpt_has_it() -> None:
    assert load_recipe("gsm8k-rlhf", {}, directory=RECIPES).rl.update.ema == 0.992
    assert load_recipe("gsm8k-grpo", {}, directory=RECIPES).rl.update.ema is None
