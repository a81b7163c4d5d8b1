"""What each algorithm adds to an iteration, seen through the real phases and learners."""

import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from rlcore.learner.schedule import optimizer_lr
from rlcore.models.ragged import to_arrays
from rlcore.models.tokenizer import eos_token_id
from rlcore.rewards.types import RewardRow
from rlcore.rl.batch import beside
from rlcore.rl.groups import DrawnGroups
from rlcore.rl.loop import Steps, iterate
from rlcore.rl.phases import Phases
from rlcore.rl.state import LoopState
from rlcore.rl.update import policy_steps
from rlcore.verl.translate import translate
from schemas.errors import UserError
from tests.rlcore.rl.test_update import critic_request_of, request_of
from tests.tiers import fast

Make = Callable[..., Phases]
ONE_STEP = {"rl.update.mini_batches": 1, "rl.update.epochs": 1, "rl.update.shuffle": False}


def digits(row: RewardRow) -> float:
    """Differs between any two answers: a model of random weights has something to learn."""
    return sum(c.isdigit() for c in row.response) / max(1, len(row.response))


def parity(row: RewardRow) -> float:
    """0 or 1 by the first token drawn: both occur among random answers."""
    return float((row.token_ids or [0])[-1] % 2)


def one_iteration(phases: Phases, state: LoopState) -> tuple[LoopState, pl.DataFrame, pl.DataFrame]:
    """Run all phases but sync; return the state, the rollouts with rewards, the advantages."""
    groups = DrawnGroups(wanted=phases.recipe.rl.rollout.prompts)
    rollouts = phases.rollout(state, groups)
    rewards = phases.reward(state, rollouts)
    groups = phases.collect(state, groups, rollouts, rewards)
    advantages = phases.advantage(state, groups)
    table = phases.store.table
    seen = table(rollouts, "rollouts").join(table(rewards, "rewards"), on="trajectory_id")
    after = phases.update(state, groups, advantages)
    return after, seen, table(advantages.ref, "advantages")


def test_no_worker_but_the_needed_ones(make_phases: Make) -> None:
    """A critic for group methods or a reference without KL would waste a model's memory."""
    grpo = make_phases("quickstart", digits, {})
    assert grpo.workers.critic is None
    assert grpo.workers.reference is None
    ppo = make_phases("quickstart-ppo", digits, {})
    assert ppo.workers.critic is not None
    assert ppo.workers.reference is not None


def test_kl_in_the_reward_is_zero_at_first_and_taken_afterwards(make_phases: Make) -> None:
    """At step 0 policy and reference are one; later the penalty must reach the reward."""
    phases = make_phases("quickstart-ppo", digits, {"rl.update.optimizer.lr": 0.01})
    state = phases.start()
    state, _, _ = one_iteration(phases, state)
    first = dict(phases.metrics._values)
    assert first["actor/ref_kl"] == pytest.approx(0.0, abs=1e-6)
    state = phases.sync(state)
    one_iteration(phases, state)
    values = phases.metrics._values
    assert abs(values["actor/reward_kl_penalty"]) > 1e-4
    tokens = values["response_length/mean"]
    expected = values["critic/score/mean"] - 0.001 * values["actor/reward_kl_penalty"] * tokens
    assert values["critic/rewards/mean"] == pytest.approx(expected, rel=1e-5)


def test_grpo_with_kl_in_the_reward_runs_as_verl_writes_it(make_phases: Make) -> None:
    """Once all is solved, only the KL tells answers apart: at its coefficient's scale."""
    command = (
        "algorithm.adv_estimator=grpo algorithm.use_kl_in_reward=True"
        " algorithm.kl_ctrl.type=fixed algorithm.kl_ctrl.kl_coef=0.001 env.rollout.n=4"
    )
    rl = translate(command).tree["rl"]
    solved = False
    phases = make_phases(
        "quickstart",
        lambda row: 1.0 if solved else digits(row),
        {
            "rl.preset": rl["preset"],
            "rl.algorithm": rl["algorithm"],
            "rl.update.optimizer.lr": 0.01,
        },
    )
    algorithm = phases.recipe.rl.algorithm
    assert (algorithm.advantage, algorithm.norm_by_std) == ("grpo", True)
    assert (algorithm.kl.where, algorithm.kl.estimator, algorithm.kl.coef) == (
        *("reward", "k1", 0.001),
    )
    state, _, _ = one_iteration(phases, phases.start())
    state, solved = phases.sync(state), True
    after, _, advantages = one_iteration(phases, state)
    values = phases.metrics._values
    assert values["critic/zero_std_group_fraction"] == 1.0
    spread = values["critic/rewards/max"] - values["critic/rewards/min"]
    largest = np.abs(np.concatenate(to_arrays(advantages["advantages"]))).max()
    assert 1e-5 < largest <= spread < 0.1
    assert after.version == 2


@pytest.mark.parametrize("warmup", [0, 1])
def test_adaptive_controller_uses_the_old_coefficient_and_keeps_the_new(
    make_phases: Make, warmup: int
) -> None:
    """A coefficient lost in a restart would change the reward; while the critic warms up the policy
    cannot answer to one, and it stays."""
    over = {
        "rl.critic.warmup_iterations": warmup,
        "rl.algorithm.kl.controller": "adaptive",
        "rl.algorithm.kl.target": 10.0,
        "rl.update.optimizer.lr": 0.01,
    }
    phases = make_phases("quickstart-ppo", digits, over)
    state = phases.start()
    state, seen, _ = one_iteration(phases, state)
    assert phases.metrics._values["actor/reward_kl_penalty_coef"] == 0.001
    changed = 0 if warmup else 0.2 * seen.height / 10_000
    assert state.kl_coef == pytest.approx(0.001 * (1 - changed))
    phases.sync(state)
    again = make_phases("quickstart-ppo", digits, over)
    assert again.start().kl_coef == state.kl_coef


@pytest.mark.parametrize("where", ["loss", "reward"])
def test_exact_kl_needs_no_second_learner(make_phases: Make, where: str) -> None:
    """kl 'full' is computed by the learner that holds the reference beside the policy."""
    kl = {"where": where, "estimator": "full", "coef": 0.1}
    phases = make_phases("quickstart", digits, {"rl.algorithm.kl": kl})
    assert phases.workers.reference is None
    state, _, _ = one_iteration(phases, phases.start())
    assert phases.metrics._values["actor/ref_kl"] == pytest.approx(0.0, abs=1e-6)
    _, _, advantages = one_iteration(phases, phases.sync(state))
    assert phases.metrics._values["actor/ref_kl"] > 0
    assert np.isfinite(np.concatenate(to_arrays(advantages["advantages"]))).all()


def test_remax_subtracts_the_greedy_answers_reward(make_phases: Make) -> None:
    """One extra answer at temperature 0 per prompt, the same each time, is the baseline."""
    phases = make_phases("quickstart-remax", digits, {"rl.rollout.samples": 2})
    state = phases.start()
    groups = DrawnGroups(wanted=phases.recipe.rl.rollout.prompts)
    rollouts = phases.rollout(state, groups)
    assert rollouts.rows == {"rollouts": 8, "baselines": 4}
    rewards = phases.reward(state, rollouts)
    table = phases.store.table
    greedy = table(rollouts, "baselines").join(
        table(rewards, "baseline_rewards"), on="trajectory_id"
    )
    prompts = phases.train.of_uids(greedy["uid"].to_list())
    again = phases.drawing._sample(prompts, 1, greedy=True)["rollouts"]
    assert dict(zip(again["uid"], again["token_ids"].to_list(), strict=True)) == dict(
        zip(greedy["uid"], greedy["token_ids"].to_list(), strict=True)
    )
    groups = phases.collect(state, groups, rollouts, rewards)
    advantages = table(phases.advantage(state, groups).ref, "advantages")
    baseline = dict(zip(greedy["uid"], greedy["score"], strict=True))
    seen = table(rollouts, "rollouts").join(table(rewards, "rewards"), on="trajectory_id")
    joined = seen.join(advantages, on="trajectory_id")
    for row in joined.iter_rows(named=True):
        wanted = row["score"] - baseline[row["uid"]]
        whole = np.where(row["loss_mask"], wanted, 0.0)
        assert np.allclose(row["advantages"], whole, atol=1e-6)


def test_warm_up_is_exact_and_leaves_the_policy_alone(make_phases: Make) -> None:
    """W iterations of the critic alone; the policy and its schedule start untouched."""
    over = {"rl.critic.warmup_iterations": 2, "rl.update.mini_batches": 2}
    phases = make_phases("quickstart-vapo", parity, {**over, "rl.rollout.samples": 4})
    digests, versions, rates = [], [], []

    def report(state: LoopState, metrics: dict[str, float]) -> None:
        digests.append(state.digest)
        versions.append(phases.workers.critic.stamp().version)  # type: ignore[union-attr]
        assert ("actor/pg_loss" in metrics) == (state.iteration > 2)
        assert "critic/vf_loss" in metrics
        rates.extend([metrics["actor/lr"]] if state.iteration > 2 else [])

    start = phases.start().digest
    final = iterate(phases, Steps(), report)
    assert digests[:2] == [start, start]
    assert digests[2] != start
    assert versions == [1, 2, 3, 4]
    assert final.version == 2, "the policy's own steps are counted from the end of the warm-up"
    optimizer = phases.recipe.rl.update.optimizer
    first = [optimizer_lr(optimizer, step, 4) for step in (0, 1)]
    assert rates[0] == pytest.approx(np.mean(first)), "the schedule ticks with the policy's steps"


def test_critic_target_is_the_outcome_at_every_token(make_phases: Make) -> None:
    """gamma 1, lambda_c 1, one terminal reward: return = R on every token."""
    over = {"rl.critic.warmup_iterations": 1, "rl.update.mini_batches": 2}
    phases = make_phases("quickstart-vapo", digits, over)
    _, seen, advantages = one_iteration(phases, phases.start())
    joined = seen.join(advantages, on="trajectory_id")
    for row in joined.iter_rows(named=True):
        whole = np.where(row["loss_mask"], row["score"], 0.0)
        assert np.allclose(row["returns"], whole, atol=1e-6)


@pytest.mark.slow
def test_critic_learns_a_learnable_return(make_phases: Make) -> None:
    """The first token tells the score: half of the variance is there to be explained."""
    over = {
        "rl.critic.warmup_iterations": 16,
        "rl.iterations": 17,
        "rl.rollout.prompts": 16,
        "rl.update.mini_batches": 4,
        "rl.validation.every": 17,
        "rl.rollout.max_new_tokens": 2,
        "rl.critic.clip": None,
        "rl.critic.optimizer.lr": 3e-3,
    }

    def by_first_token(row: RewardRow) -> float:
        return float((row.token_ids or [0])[-row.num_tokens] % 2)

    phases = make_phases("quickstart-vapo", by_first_token, over)
    explained: list[float] = []
    iterate(phases, Steps(), lambda s, m: explained.append(m["critic/vf_explained_var"]))
    known = [value for value in explained if not math.isnan(value)]
    assert np.mean(known[-4:]) > np.mean(known[:4]) + 0.1, known


def test_rows_without_a_score_teach_nobody(make_phases: Make) -> None:
    """A row that failed must neither move the critic nor shift the whitening."""

    def sometimes(row: RewardRow) -> float | None:
        return None if row.trajectory_id.endswith("-01") else digits(row)

    phases = make_phases(
        "quickstart-ppo", sometimes, {"rl.rollout.samples": 4, "reward.max_error_fraction": 1.0}
    )
    _, seen, advantages = one_iteration(phases, phases.start())
    request = critic_request_of(beside(seen, advantages), phases.recipe)
    joined = seen.join(advantages, on="trajectory_id", maintain_order="left")
    failed = joined["score"].is_null().to_numpy()
    assert failed.sum() == 4
    assert joined.filter(failed)["returns"].null_count() == 4
    assert not np.concatenate(to_arrays(joined.filter(failed)["advantages"])).any()
    masks = [mask for terms in request.mini_batches for mask in terms[0].sequences.loss_mask]
    assert sum(not mask.any() for mask in masks) == 4


def test_an_update_without_a_row_to_learn_from_is_counted_as_one(make_phases: Make) -> None:
    """Nothing scored: the critic makes no step and the policy steps on a zero gradient. Both must
    reach the metrics, or nobody could tell that from an iteration that learns."""

    def in_validation_only(row: RewardRow) -> float | None:
        return None if row.trajectory_id.startswith("000001-") else 1.0

    over = {"reward.max_error_fraction": 1.0}
    phases = make_phases("quickstart-ppo", in_validation_only, over)
    one_iteration(phases, phases.start())
    values, steps = phases.metrics._values, phases.recipe.rl.update.mini_batches
    assert values["critic/optimizer_steps"] == values["critic/zero_gradient_steps"] == 0.0
    assert values["actor/optimizer_steps"] == values["actor/zero_gradient_steps"] == steps


def test_ptx_mixes_demonstrations_into_every_step(make_phases: Make) -> None:
    """Eight demonstrations per trajectory, gamma times their loss, no demonstration twice."""
    over = {"rl.ptx": {"coef": 0.5, "sequences_per_sample": 2}, "rl.update.mini_batches": 2}
    phases = make_phases("quickstart-ppo", digits, over)
    _, seen, advantages = one_iteration(phases, phases.start())
    assert phases.metrics._values["ptx/loss"] > 0
    request = request_of(beside(seen, advantages), phases.recipe, ptx=phases.ptx)
    for policy, ptx in request.mini_batches:
        assert len(ptx.sequences) == 2 * len(policy.sequences)
        assert (policy.coef, ptx.coef) == (1.0, 0.5)


def test_ptx_reads_pretraining_text(make_phases: Make, tmp_path: Path) -> None:
    """Every token but the first is predicted; a long text is cut, a short one ends with EOS."""
    path = tmp_path / "text.jsonl"
    path.write_text('{"text": "3 plus 4"}\n{"text": "' + "12 " * 200 + '"}\n', encoding="utf-8")
    ptx = {"coef": 1.0, "sequences_per_sample": 1, "path": str(path), "max_tokens": 12}
    phases = make_phases("quickstart-ppo", digits, {"rl.ptx": ptx})
    assert phases.ptx is not None
    short, cut = phases.ptx.token_ids
    assert short[-1] == eos_token_id(phases.drawing.tokenizer)
    assert len(cut) == 12
    assert [mask.tolist() for mask in phases.ptx.loss_mask] == [
        [False] + [True] * (len(ids) - 1) for ids in (short, cut)
    ]
    one_iteration(phases, phases.start())
    assert phases.metrics._values["ptx/loss"] > 0
    path.write_text('{"words": "x"}\n', encoding="utf-8")
    with pytest.raises(UserError, match=r"rl\.ptx\.path = .* row 0 has no text: .*words"):
        make_phases("quickstart-ppo", digits, {"rl.ptx": ptx})


def test_gepo_measures_against_the_samplers_group(make_phases: Make) -> None:
    """E_q[q] from the sampler's own log-probs, one per prompt, whatever the order."""
    phases = make_phases("quickstart-gepo", digits, ONE_STEP)
    _, seen, advantages = one_iteration(phases, phases.start())
    shuffled = seen.sample(fraction=1.0, shuffle=True, seed=3)
    ((_, _, sequences),) = policy_steps(beside(shuffled, advantages), phases.recipe)
    sampled = zip(
        to_arrays(shuffled["sampler_logprobs"]), to_arrays(shuffled["loss_mask"]), strict=True
    )
    q = np.array([np.exp(row[mask].mean()) for row, mask in sampled])
    uids = shuffled["uid"].to_numpy()
    for index, uid in enumerate(uids):
        group = q[uids == uid]
        wanted = np.log((group**2).sum() / group.sum())
        field = sequences.per_token["group_log_expectation"][index]
        assert np.allclose(field[sequences.loss_mask[index]], wanted, atol=1e-5)


def test_positive_loss_weighs_the_tokens_of_correct_samples(make_phases: Make) -> None:
    """1 / their number in the mini-batch, by threshold or verdict; elsewhere 0."""
    phases = make_phases(
        "quickstart", parity, {"rl.algorithm.positive_nll.coef": 0.1, "rl.update.mini_batches": 1}
    )
    _, seen, advantages = one_iteration(phases, phases.start())
    request = request_of(beside(seen, advantages), phases.recipe)
    part = request.mini_batches[0][0].sequences
    weights = np.concatenate(part.per_token["nll_weights"])[np.concatenate(part.loss_mask)]
    assert weights.sum() == pytest.approx(1.0)
    correct = seen.join(advantages, on="trajectory_id", maintain_order="left")["positive"]
    tokens = np.array([mask.sum() for mask in part.loss_mask])
    assert np.count_nonzero(weights) == tokens[correct.to_numpy()].sum()


def test_truncated_rows_can_be_left_out_of_the_loss(make_phases: Make) -> None:
    """Overlong filtering: their tokens count nowhere, their scores still in the baseline."""
    phases = make_phases("quickstart", digits, {**ONE_STEP, "rl.algorithm.mask_truncated": True})
    state = phases.start()
    groups = DrawnGroups(wanted=phases.recipe.rl.rollout.prompts)
    rollouts = phases.rollout(state, groups)
    groups = phases.collect(state, groups, rollouts, phases.reward(state, rollouts))
    advantages = phases.store.table(phases.advantage(state, groups).ref, "advantages")
    seen = phases.store.table(rollouts, "rollouts")
    ends = pl.Series("finish_reason", ["length", "stop"] * (seen.height // 2))
    seen = seen.with_columns(ends)
    ((_, _, sequences),) = policy_steps(beside(seen, advantages), phases.recipe)
    kept = np.array([mask.any() for mask in sequences.loss_mask])
    assert list(kept) == list(seen["finish_reason"] != "length")
    assert not kept.all()


SEEDED = ("ppo", "rloo", "remax", "dapo", "gspo", "gepo", "vapo")


@pytest.mark.parametrize("recipe", fast(SEEDED, "ppo", "dapo"))
def test_same_seed_same_run(make_phases: Make, recipe: str, tmp_path: Path) -> None:
    """Two runs of one recipe end at the same weights, bit for bit."""
    from rlcore.store.artifacts import ArtifactStore

    over = {
        "rl.iterations": 2,
        "rl.validation.every": 2,
        "rl.update.mini_batches": 2,
        "reward.offset": 0.0,
    }
    over |= {"rl.critic.warmup_iterations": 1} if recipe == "vapo" else {}
    if recipe == "dapo":
        over |= {"rl.algorithm.dynamic_sampling.metric": "score"}
    finals = []
    for attempt in range(2):
        store = ArtifactStore(str(tmp_path / f"store{attempt}"))
        phases = make_phases(f"quickstart-{recipe}", digits, over, store=store)
        state = iterate(phases, Steps(), lambda state, metrics: None)
        critic = phases.workers.critic
        finals.append((state.digest, critic.stamp().digest if critic else ""))
    assert finals[0] == finals[1]
