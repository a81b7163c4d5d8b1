"""The step that tries the memory before the first iteration: large enough, and undone."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from flows.paths import RECIPES
from rlcore.models.packing import Sequences, pack
from rlcore.models.ragged import to_arrays
from rlcore.models.rows import SHARING_MULTIPLES
from rlcore.recipes.load import load_recipe
from rlcore.rl.loop import Steps, iterate
from rlcore.rl.memory_probe import longest_batches, probe_memory
from rlcore.rl.phases import Phases
from tests.rlcore.rl.test_algorithms import digits

Make = Callable[..., Phases]
SHORT = {"rl.iterations": 1, "rl.update.mini_batches": 2}


def saved(phases: Phases, folder: Path) -> dict[str, bytes]:
    """Return the learners' whole state: weights, moments, random state, versions."""
    for role, learner in phases.workers.trained.items():
        learner.save(folder / role).result()
    return {
        str(file.relative_to(folder)): file.read_bytes()
        for file in sorted(folder.rglob("*"))
        if file.is_file()
    }


@pytest.mark.parametrize(
    ("name", "stage"),
    [
        *[("quickstart", 1), ("quickstart-ppo", 0), ("quickstart-gepo", 1)],
        *[
            pytest.param(name, stage, marks=pytest.mark.slow)
            for name, stage in [("quickstart", 0), ("quickstart-ppo", 1), ("quickstart-gepo", 0)]
        ],
    ],
)
def test_it_leaves_nothing_behind(
    make_phases: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, stage: int
) -> None:
    """Else every run would train something else than its recipe says."""
    over = {**SHORT, "hardware.learner.zero_stage": stage}
    digests: dict[str, list[str]] = {}
    states: dict[str, dict[str, bytes]] = {}
    for key in ("probed", "without"):
        if key == "without":
            monkeypatch.setattr(Phases, "_probe", lambda self, state: None)
        phases = make_phases(name, digits, over, key=key)
        begun = phases.start()
        phases.checkpoints.finish_write(wait=True)  # from which iterate continues
        states[key] = saved(phases, tmp_path / key)
        seen = digests.setdefault(key, [begun.digest])
        iterate(phases, Steps(), lambda state, _, seen=seen: seen.append(state.digest))
    assert states["probed"].keys() == states["without"].keys()
    assert "actor/rank00000.rng.safetensors" in states["probed"]
    assert states["probed"] == states["without"]
    assert digests["probed"] == digests["without"]
    assert len(set(digests["probed"])) == 2, "the iteration trained"


def test_it_makes_the_steps_that_an_iteration_makes(make_phases: Make) -> None:
    """A probe that trains nothing would not allocate what the optimizer needs."""
    phases = make_phases("quickstart-ppo", digits, SHORT)
    state = phases.start()
    before = [learner.stamp().digest for learner in phases.workers.trained.values()]
    probe_memory(
        phases.recipe, phases.workers, state, prompts=phases.train.with_shortest(9), ptx=phases.ptx
    )
    after = [learner.stamp().digest for learner in phases.workers.trained.values()]
    assert all(old != new for old, new in zip(before, after, strict=True))


def test_a_run_that_goes_on_is_not_tried_again(
    make_phases: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried: list[int] = []
    monkeypatch.setattr(Phases, "_probe", lambda self, state: tried.append(state.iteration))
    make_phases("quickstart", digits, SHORT).start()
    assert tried == [0]
    phases = make_phases("quickstart", digits, SHORT)
    assert phases.start().iteration == 0
    assert tried == [0, 0], "nothing was trained yet"
    iterate(phases, Steps(), lambda state, metrics: None)
    again = make_phases("quickstart", digits, {**SHORT, "rl.iterations": 2})
    assert again.start().iteration == 1
    assert tried == [0, 0, 0]


def prompts_of(lengths: list[int]) -> pl.DataFrame:
    return pl.DataFrame({"prompt_ids": [list(range(2, 2 + n)) for n in lengths]})


@pytest.mark.parametrize("share", [True, False])
@pytest.mark.parametrize(
    ("row_tokens", "attention"), [(None, "sdpa"), (300, "sdpa"), (None, "auto")]
)
def test_no_batch_that_can_come_is_larger(
    row_tokens: int | None, attention: str, share: bool
) -> None:
    """A step that needs more than the probe would run out of memory after hours; in models whose
    answers share their prompt, and in others."""
    over: dict[str, Any] = {
        "data.max_prompt_tokens": 88,
        "rl.rollout.max_new_tokens": 40,
        "hardware.learner.micro_batch_tokens": 1024,
        "hardware.learner.row_tokens": row_tokens,
        "hardware.learner.attention": attention,
    }
    recipe = load_recipe("quickstart", over, directory=RECIPES)
    rng = np.random.default_rng(0)
    prompts = [int(n) for n in rng.integers(5, 89, size=64)]

    def sizes(ids: list[np.ndarray], masks: list[np.ndarray]) -> tuple[int, int, int]:
        """Return the most padded tokens, targets, and width of a micro-batch."""
        parts = pack(
            Sequences(ids, masks),
            micro_batch_tokens=1024,
            # One row a pass, as flash attention has it, which "auto" may mean.
            row_tokens=1024 if attention == "auto" else row_tokens,
            share_prompts=share,
        )
        return (
            max(part.input_ids.size for part in parts),
            max(len(part.target_ids) for part in parts),
            max(part.input_ids.shape[1] for part in parts),
        )

    tried = [
        (
            to_arrays(batch["token_ids"]),
            [mask.astype(bool) for mask in to_arrays(batch["loss_mask"])],
        )
        for batch in longest_batches(recipe, prompts_of(prompts), budget=1024)
    ]
    assert {len(mask) for mask in tried[0][1]} == {128}
    assert {(len(mask), int(mask.sum())) for mask in tried[1][1]} == {(min(prompts) + 40, 40)}
    tokens, targets, _ = (max(part) for part in zip(*(sizes(*rows) for rows in tried), strict=True))
    samples = recipe.rl.rollout.samples
    for _ in range(200):
        asked = [rng.integers(0, 300, p) for p in rng.choice(prompts, size=64 // samples)]
        rows = [(p, int(rng.integers(1, 41))) for p in asked for _ in range(samples)]
        got = sizes(
            [np.concatenate([p, np.zeros(n, dtype=np.int64)]) for p, n in rows],
            [np.arange(len(p) + n) >= len(p) for p, n in rows],
        )
        assert got[0] <= max(tokens, 1024)
        assert got[1] <= targets + 40, "a row more at most"
        # Wider rows have a wider mask, which is little beside the tokens' activations.
        assert got[2] <= (row_tokens or max(SHARING_MULTIPLES) * 128)


def test_no_more_rows_than_a_step_has() -> None:
    """A budget beyond the batch is never filled: to fill it would ask for memory in vain."""
    over = {
        "rl.rollout.prompts": 4,
        "rl.rollout.samples": 3,
        "rl.update.mini_batches": 2,
        "hardware.learner.micro_batch_tokens": 100_000,
    }
    recipe = load_recipe("quickstart", over, directory=RECIPES)
    batches = longest_batches(recipe, prompts_of([8, 20]), budget=100_000)
    assert [batch.height for batch in batches] == [6, 6]


def test_episodes_are_as_long_as_the_context_allows() -> None:
    recipe = load_recipe("calculator-grpo", {}, directory=RECIPES)
    environment, new = recipe.environment, recipe.rl.rollout.max_new_tokens
    assert environment is not None
    batches = longest_batches(recipe, prompts_of([8]), budget=8192)
    longest = environment.tokens(recipe.data.max_prompt_tokens, new)
    assert set(batches[0]["token_ids"].list.len()) == {longest}
    assert longest <= recipe.model.max_tokens
    assert set(batches[0]["loss_mask"].list.sum()) == {environment.turns * new}
