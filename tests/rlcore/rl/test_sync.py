"""No row is sampled from weights that are not proven to be the learner's, through the phases."""

from collections.abc import Callable
from typing import Any

import numpy as np
import polars as pl
import pytest

from rlcore.engines.transformers_engine import TransformersEngine
from rlcore.models.weight_digest import WeightSyncError
from rlcore.recipes.load import load_recipe
from rlcore.rewards.types import RewardRow
from rlcore.rl.phases import Phases
from rlcore.rl.sync import CANARY_TOKENS, Canary
from rlcore.store.artifacts import ArtifactStore
from tests.rlcore.rl.conftest import RECIPES
from tests.rlcore.rl.test_algorithms import one_iteration

Make = Callable[..., Phases]
WEIGHT = "model.layers.0.mlp.up_proj.weight"
SLOW = {"rl.update.optimizer.lr": 1e-9}  # less than the canary or the sampler gap can see


def sampled(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The rows of every ``generate`` call from now on."""
    rows: list[int] = []
    generate = TransformersEngine.generate

    def counted(engine: Any, requests: Any, sampling: Any) -> Any:
        rows.append(len(requests))
        return generate(engine, requests, sampling)

    monkeypatch.setattr(TransformersEngine, "generate", counted)
    return rows


def tampered(monkeypatch: pytest.MonkeyPatch, change: Callable[[dict], None]) -> None:
    """Change what the engine reads after the file's names and shapes were checked."""
    from rlcore.engines import transformers_engine as module

    read = module.read_update

    def wrong(*arguments: Any) -> Any:
        state = read(*arguments)
        change(state)
        return state

    monkeypatch.setattr(module, "read_update", wrong)


def lose(state: dict) -> None:
    """Lose a tensor."""
    del state[WEIGHT]


def flip(state: dict) -> None:
    """Change one element by one unit in the last place."""
    state[WEIGHT] = state[WEIGHT].clone()
    state[WEIGHT].view(-1)[3] *= 1 + 2**-22


def digits(row: RewardRow) -> float:
    """Any score with a spread."""
    return float(sum(map(str.isdigit, row.response)))


@pytest.mark.parametrize("change", [lose, flip])
def test_a_run_does_not_start_from_other_weights(
    make_phases: Make, monkeypatch: pytest.MonkeyPatch, change: Callable[[dict], None]
) -> None:
    phases, rows = make_phases("quickstart", digits, {}), sampled(monkeypatch)
    tampered(monkeypatch, change)
    with pytest.raises(WeightSyncError, match=f"engine 'rollout-engine-0': 1 of .*'{WEIGHT}'"):
        phases.start()
    assert rows == []


def test_a_parameter_that_the_loader_leaves_alone_is_found_at_the_start(
    make_phases: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every digest is right, and the engine was built from the very directory that it is sent."""
    phases, rows = make_phases("quickstart", digits, {}), sampled(monkeypatch)
    load = TransformersEngine.load_weights

    def leaving_one(engine: Any, update: Any) -> Any:
        parameter = engine._model.get_parameter(WEIGHT)
        kept = parameter.clone()
        stamp = load(engine, update)
        parameter.copy_(kept)
        return stamp

    monkeypatch.setattr(TransformersEngine, "load_weights", leaving_one)
    with pytest.raises(WeightSyncError, match=r"'rollout-engine-0' .* above rl\.max_canary_gap"):
        phases.start()
    assert rows == []


def test_one_element_flipped_in_a_later_sync_stops_the_run(
    make_phases: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Far below what any log-prob shows, as most of a bfloat16 step is."""
    phases = make_phases("quickstart", digits, SLOW)
    state = phases.start()
    state, *_ = one_iteration(phases, state)
    rows = sampled(monkeypatch)
    tampered(monkeypatch, flip)
    with pytest.raises(WeightSyncError, match=f"other bytes than the learner holds: '{WEIGHT}'"):
        phases.sync(state)
    assert rows == []


def test_the_canary_is_a_metric_and_changes_no_rollout(
    make_phases: Make, monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    frames = []
    for name in ("with", "without"):
        store = ArtifactStore(str(tmp_path / name))
        phases = make_phases("quickstart", digits, SLOW, store=store)
        if name == "without":
            monkeypatch.setattr("rlcore.rl.sync.check_canary", lambda *a: 0.0)
        state = phases.start()
        for _ in range(2):
            state, rollouts, _ = one_iteration(phases, state)
            state = phases.sync(state)
        frames.append(rollouts)
        assert 0 <= phases.metrics.latest["training/canary_logprobs_gap"] < 1e-4
    assert frames[0].equals(frames[1])


@pytest.mark.parametrize(("prompts", "max_tokens", "length"), [([[7, 8]], 64, 32), ([[5]], 16, 15)])
def test_the_canary_is_a_few_tokens_of_the_prompts(
    prompts: list[list[int]], max_tokens: int, length: int
) -> None:
    recipe = load_recipe("quickstart", directory=RECIPES)
    model = recipe.model.model_copy(update={"max_tokens": max_tokens})
    frame = pl.DataFrame({"prompt_ids": prompts}, schema={"prompt_ids": pl.List(pl.Int32)})
    ids = Canary.of_prompts(frame, recipe.model_copy(update={"model": model})).ids
    assert length <= CANARY_TOKENS
    assert ids.tolist() == (prompts[0] * 32)[:length]
    assert ids.dtype == np.int64
