"""Sampling ahead of training: which policy each row is drawn from, and that no delay, no kill and
no error changes anything else."""

import random
import time
from collections.abc import Callable
from typing import Any

import polars as pl
import pytest

from rlcore.engines.pool import EnginePool
from rlcore.learner.checkpoints import KIND as CHECKPOINT
from rlcore.learner.pool import LearnerPool
from rlcore.rl.ahead import SamplingStopped
from rlcore.rl.guards import StaleWeightsError
from rlcore.rl.loop import Steps, iterate
from rlcore.rl.phases import STALENESS, Phases
from rlcore.rl.records import KIND
from rlcore.rl.state import LoopState
from tests.rlcore.rl.test_records_history import digits, half_teach

pytestmark = pytest.mark.timeout(300)
Make = Callable[..., Phases]
CORRECTED = {"rl.algorithm.importance_correction.level": "token", "rl.iterations": 5}
DAPO = {
    "rl.preset": "dapo",
    "reward.offset": 0.0,
    "rl.update.mini_batches": 2,
    "rl.algorithm.dynamic_sampling.batch_factor": 1,
    "rl.algorithm.dynamic_sampling.max_rounds": 10,
}


class Killed(BaseException):
    """Ends a run where it is, as a signal does."""


def stale(staleness: int) -> dict[str, Any]:
    return {**CORRECTED, "rl.rollout.max_staleness": staleness}


def run(phases: Phases) -> LoopState:
    return iterate(phases, Steps(), lambda state, metrics: None)


def sampled(phases: Phases, iteration: int) -> pl.DataFrame:
    keys = [k for k in phases.store.keys("rollouts", "run/") if number_of(k) == iteration]
    refs = [phases.store.find("rollouts", key) for key in keys]
    return pl.concat([phases.store.table(ref, "rollouts") for ref in refs if ref is not None])


def number_of(key: str) -> int:
    """The iteration of a record."""
    return int(key.split("/")[1][:6])


def weights(phases: Phases) -> dict[int, str]:
    """The digest after each iteration."""
    refs = [phases.store.find(KIND, key) for key in phases.store.keys(KIND, "run/")]
    rows = [phases.store.table(ref, KIND).to_dicts()[0] for ref in refs if ref is not None]
    return {row["iteration"]: row["digest_after"] for row in rows}


def dying_in(phase: str, *, iteration: int) -> Steps:
    """The phases, of which one is done in ``iteration`` and what it returns is lost."""
    original = getattr(Phases, phase)

    def dies(phases: Phases, state: LoopState, *arguments: Any) -> Any:
        done = original(phases, state, *arguments)
        if state.next_iteration == iteration:
            raise Killed
        return done

    return Steps(**{phase: dies})


def delayed(monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    """Let engines, loads of weights and updates each take some time more, now one and now the
    other."""
    dice = random.Random(seed)

    def after_a_while(owner: Any, name: str) -> None:
        original = getattr(owner, name)

        def slow(*arguments: Any, **options: Any) -> Any:
            time.sleep(dice.choice((0.0, 0.0, 0.3)))
            return original(*arguments, **options)

        monkeypatch.setattr(owner, name, slow)

    after_a_while(EnginePool, "stream")
    after_a_while(EnginePool, "start_load")
    after_a_while(LearnerPool, "update")
    after_a_while(LearnerPool, "publish")


@pytest.mark.parametrize("staleness", [1, 2, 9])
def test_each_row_is_drawn_from_the_policy_that_the_schedule_names(
    make_phases: Make, staleness: int
) -> None:
    phases = make_phases("quickstart", digits, stale(staleness))
    state = run(phases)
    digests = weights(phases)
    assert len(set(digests.values())) == 6, "all policies differ"
    for iteration in range(1, 6):
        sampler = max(0, iteration - 1 - staleness)
        assert set(sampled(phases, iteration)["weight_digest"]) == {digests[sampler]}
    steps = phases.recipe.rl.update.steps
    assert phases.metrics.latest[STALENESS] == min(staleness, 4) * steps
    assert state.behind == tuple((n, digests[n]) for n in range(5 - min(staleness, 5), 5))


def test_at_staleness_0_nothing_is_ahead(make_phases: Make) -> None:
    phases = make_phases("quickstart", digits, {"rl.iterations": 2})
    state = run(phases)
    assert phases.ahead is None
    assert STALENESS not in phases.metrics.latest
    assert "behind" not in state.to_json()


@pytest.mark.slow
@pytest.mark.parametrize("preset", ["ppo", "dapo", "rloo", "gspo", "gepo", "vapo", "remax"])
def test_every_algorithm_ends_alike_whatever_takes_how_long(
    make_phases: Make, monkeypatch: pytest.MonkeyPatch, preset: str
) -> None:
    """Its critic's updates, its rounds and its greedy answers included."""
    over = {**stale(2), "rl.validation.every": 2}
    if preset == "gepo":  # which measures against the sampler by itself
        del over["rl.algorithm.importance_correction.level"]
    if preset == "vapo":
        over["rl.critic.warmup_iterations"] = 2
    ends = []
    for seed in (0, 1):
        delayed(monkeypatch, seed) if seed else None
        reward = half_teach if preset == "dapo" else digits
        phases = make_phases(f"quickstart-{preset}", reward, over, key=f"run{seed}")
        ends.append(run(phases))
    assert (ends[0].digest, ends[0].cursor) == (ends[1].digest, ends[1].cursor)
    assert ends[0].accuracies == ends[1].accuracies
    assert phases.metrics.latest[STALENESS] > 0


@pytest.mark.parametrize(
    ("staleness", "over"),
    [
        pytest.param(1, {}, id="1-grpo", marks=pytest.mark.slow),
        pytest.param(2, {}, id="2-grpo", marks=pytest.mark.slow),
        pytest.param(1, DAPO, id="1-dapo", marks=pytest.mark.slow),
        pytest.param(2, DAPO, id="2-dapo"),
    ],
)
def test_delays_change_nothing(
    make_phases: Make, monkeypatch: pytest.MonkeyPatch, staleness: int, over: dict[str, Any]
) -> None:
    reward = half_teach if over else digits
    ends = []
    for seed in range(3):
        with monkeypatch.context() as patched:
            if seed:
                delayed(patched, seed)
            phases = make_phases("quickstart", reward, {**over, **stale(staleness)}, key=f"r{seed}")
            ends.append(run(phases))
    assert len({end.digest for end in ends}) == 1
    assert len({end.cursor for end in ends}) == 1
    assert ends[0].accuracies == ends[1].accuracies == ends[2].accuracies


@pytest.mark.slow
@pytest.mark.parametrize("over", [{}, DAPO], ids=["grpo", "dapo"])
def test_a_killed_run_draws_again_what_was_under_way(
    make_phases: Make, over: dict[str, Any]
) -> None:
    """From the policies it was under way from, though the learner has moved on since."""
    reward, over = half_teach if over else digits, {**over, **stale(2)}
    whole = run(make_phases("quickstart", reward, over, key="whole"))
    for phase in ("rollout", "reward", "advantage", "update", "sync"):
        phases = make_phases("quickstart", reward, over, key=phase)
        with pytest.raises(Killed):
            iterate(phases, dying_in(phase, iteration=4), lambda state, metrics: None)
        # Nothing that was sampled ahead of the checkpoint, so that it is drawn again.
        newest = number_of(phases.store.keys(CHECKPOINT, f"{phase}/")[-1])
        for key in phases.store.keys("rollouts", f"{phase}/"):
            if number_of(key) > newest:
                phases.store.discard("rollouts", key)
        again = make_phases("quickstart", reward, over, key=phase)
        end = run(again)
        assert (end.digest, end.cursor) == (whole.digest, whole.cursor), phase


def test_a_longer_run_continues_as_if_it_had_been_that_long(make_phases: Make) -> None:
    constant = {"rl.update.optimizer.schedule": {"kind": "constant"}}
    over = {"rl.validation.every": 1, **constant, **stale(2)}
    whole = run(make_phases("quickstart", digits, over, key="whole"))
    run(make_phases("quickstart", digits, {**over, "rl.iterations": 3}, key="run"))
    assert run(make_phases("quickstart", digits, over, key="run")).digest == whole.digest


def test_a_checkpoint_of_other_weights_is_refused(make_phases: Make) -> None:
    phases = make_phases("quickstart", digits, {**stale(1), "rl.iterations": 3})
    run(phases)
    again = make_phases("quickstart", digits, stale(1))
    state = LoopState(iteration=3, behind=((2, "0" * 64),))
    with pytest.raises(StaleWeightsError, match="checkpoint 2 holds weights"):
        again._offers_behind(state)


class Broken(Exception):
    pass


@pytest.mark.parametrize("where", ["stream", "start_load"])
def test_an_error_of_sampling_ends_the_run_with_it(
    make_phases: Make, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    """Also while it is validation that waits for the engines."""
    phases = make_phases("quickstart", digits, {"rl.validation.every": 1, **stale(1)})
    calls, original = [0], getattr(EnginePool, where)

    def breaks(*arguments: Any, **options: Any) -> Any:
        calls[0] += 1
        if calls[0] == 3:
            raise Broken("the engine")
        return original(*arguments, **options)

    monkeypatch.setattr(EnginePool, where, breaks)
    with pytest.raises(Broken, match="the engine"):
        run(phases)


def test_nothing_is_recorded_once_the_run_has_ended(make_phases: Make) -> None:
    """By then another process may hold the lease."""
    phases = make_phases("quickstart", digits, stale(1))
    with pytest.raises(Killed):
        iterate(phases, dying_in("update", iteration=1), lambda state, metrics: None)
    assert phases.ahead is not None
    records = phases.ahead._drawing.records
    for number in (1, 9):
        with pytest.raises(SamplingStopped):
            records.put("rollouts", f"run/{number:06d}", {}, {})
    assert phases.store.find("rollouts", "run/000001") is not None


def test_a_run_that_has_held_its_target_samples_no_further(make_phases: Make) -> None:
    over = {"rl.validation.stop_at": 1e-9, "rl.validation.patience": 3, "rl.validation.every": 1}
    phases = make_phases("quickstart", lambda row: 1.0, {**stale(1), **over, "rl.iterations": 50})
    state = run(phases)
    assert state.iteration < 10
    drawn = [number_of(key) for key in phases.store.keys("rollouts", "run/")]
    assert max(drawn) <= state.iteration + 2
