"""The dry run says what each algorithm adds: other batches, other models, other memory."""

from typing import Any

import pytest

from flows.paths import RECIPES
from rlcore.plan.dry_run import render_plan
from rlcore.plan.machine import Fit, Machine, check_machine
from rlcore.plan.memory import GIB
from rlcore.plan.preconditions import StartCheck
from rlcore.recipes.load import load_recipe
from schemas.errors import UserError

SAMPLED = {"kind": "samples", "max_new_tokens": 40}
ROOMY = Machine(host=1024 * GIB, gpus=(), disk_free=1024 * GIB)
# Qwen2.5-0.5B's sizes, never built
HALF_B = {
    "hidden_size": 896,
    "num_layers": 24,
    "num_heads": 14,
    "num_kv_heads": 2,
    "intermediate_size": 4864,
    "vocab_size": 151936,
    "max_position_embeddings": 4096,
}


def planned(name: str, machine: Machine = ROOMY, **overrides: Any) -> Fit:
    """Plan a shipped recipe; keys are dotted paths with ``__`` for the dots."""
    changes = {path.replace("__", "."): value for path, value in overrides.items()}
    if name.startswith(("gsm8k", "math", "aime")):
        changes |= {"model.path": None, "model.from_scratch": HALF_B}
    return check_machine(load_recipe(name, changes, directory=RECIPES), machine)


@pytest.mark.parametrize(
    ("name", "sentences"),
    [
        (
            "gsm8k-ppo",
            [
                "116 iterations -> 7,424 prompts = 1.0 passes over the training prompts, 7,424"
                " sequences, 232 optimizer steps",
                "critic: 2 step(s) an iteration, 232 in all; the policy takes 232 in 116",
                "critic, per rank",
                "reference (rl.algorithm.kl is on), 1 rank(s): weights ",
            ],
        ),
        (
            "gsm8k-vapo",
            ["4 step(s) an iteration, 664 in all; the policy takes 464 in 116 iterations"],
        ),
        (
            "gsm8k-remax",
            ["greedy baseline: 64 more answers an iteration"],
        ),
        (
            "gsm8k-dapo",
            [
                "a round draws 3 x 64 = 192 new prompts x 16 samples = 3,072 sequences; rounds: at"
                " most 10 (then 'error')",
            ],
        ),
        (
            "math-dapo",
            [
                "7,275 training prompts, 5,030 test prompts, 0 demonstrations",
                "112 iterations -> 7,168 prompts learnt from, 114,688 sequences, 448 optimizer",
                "2 checkpoints x 530 prompts x 5 completions",
            ],
        ),
        (
            "code-dapo",
            [
                "a round draws 3 x 128 = 384 new prompts x 16 samples = 6,144 sequences",
                "200 iterations -> 25,600 prompts learnt from, 409,600 sequences, 800 optimizer",
            ],
        ),
        (
            "aime-vapo",
            [
                "4 step(s) an iteration, 696 in all; the policy takes 496 in 124 iterations",
                "2 checkpoints x 30 prompts x 17 completions",
            ],
        ),
    ],
)
def test_the_plan_says_what_the_algorithm_adds(name: str, sentences: list[str]) -> None:
    text = render_plan(StartCheck(planned(name)))
    for sentence in sentences:
        assert sentence in text, f"missing from the plan: {sentence}\n{text}"


def test_old_log_probs_of_the_updates_own_are_kept_for_the_replay() -> None:
    """Four bytes a token of the responses."""
    own, first = planned("gsm8k-gspo"), planned("gsm8k-gspo", rl__update__old_logprobs="first")
    tokens = 116 * 64 * 8 * 512
    assert own.disk["rl"] - first.disk["rl"] == pytest.approx(4 * tokens, rel=1e-6)


def test_a_critic_takes_a_learners_memory_and_disk() -> None:
    """Who plans for the policy alone runs out of memory when the critic starts."""
    with_critic, without = planned("gsm8k-vapo"), planned("gsm8k-rloo")
    assert with_critic.memory is not None
    assert without.memory is not None
    critic = with_critic.memory.critic
    assert critic is not None
    assert critic.states == with_critic.memory.learner.states
    assert critic.logits == 0
    assert without.memory.critic is None
    assert with_critic.host_bytes > without.host_bytes + critic.states


def test_ptx_and_reward_model_are_counted() -> None:
    reward = [{"name": "reward_model"}, {"name": "arithmetic", "weight": 0}]
    result = planned(
        "quickstart-ppo",
        reward__functions=reward,
        reward_model={"preferences": SAMPLED, "max_tokens": 128},
        rl__ptx={"sequences_per_sample": 2},
    )
    text = render_plan(StartCheck(result))
    for sentence in (
        "reward model: 1,024 prompts x 4 to 9 samples of the policy (and 256 held-out prompts) ->"
        " all pairs of a prompt in one of 64 batch elements x 1 epoch(s) -> at most 16 optimizer"
        " steps of at most 576 responses, 120 tokens each",
        "ptx: 2 x 128 = 256 demonstrations added to each policy step, at most 32,768 tokens",
        "reward model, one rank, frozen: weights 1.4 MiB",
    ):
        assert sentence in text, f"missing from the plan: {sentence}\n{text}"
    assert list(result.disk) == [
        *("base_model", "prepare_data", "sft", "reward_model", "rl", "evaluate", "export")
    ]


def test_responses_of_a_prompt_that_no_micro_batch_holds_are_refused() -> None:
    """The reward model compares them in one pass: found out here, not after the sampling."""
    with pytest.raises(UserError, match=r"does not hold the 9 responses of 120.* at least 1080"):
        planned(
            "quickstart-ppo",
            reward__functions=[{"name": "reward_model"}, {"name": "arithmetic", "weight": 0}],
            reward_model={"preferences": SAMPLED, "max_tokens": 128},
            hardware__learner__micro_batch_tokens=1000,
        )


def test_one_gpu_holds_ppos_workers_at_the_recipes_shares_and_no_more() -> None:
    gpu = Machine(host=256 * GIB, gpus=(80 * GIB,), disk_free=None)
    assert planned("gsm8k-ppo", gpu).memory is not None
    with pytest.raises(UserError) as refusal:
        planned("gsm8k-ppo", gpu, hardware__learner__gpus_per_rank=0.3)
    assert (
        "ranks (1 of the policy + 1 of the critic + 1 of the reference) x learner.gpus_per_rank ="
        " 0.3 plus 1 engine(s) x rollout.gpus_per_engine = 0.3 need 1.2 GPUs and 1 are visible"
    ) in str(refusal.value)
    with pytest.raises(UserError, match=r"take 19\.\d GiB per GPU, the engine that shares it"):
        planned("gsm8k-ppo", gpu, hardware__rollout__gpu_memory_utilization=0.8)


def test_the_exact_kl_keeps_the_reference_inside_the_learner() -> None:
    kl = {"where": "loss", "estimator": "full"}
    memory = planned("gsm8k-grpo", rl__algorithm__kl=kl).memory
    plain = planned("gsm8k-grpo").memory
    assert memory is not None
    assert plain is not None
    assert memory.reference == 0
    assert memory.learner.states == plain.learner.states + plain.reference


def test_the_plan_warns_of_a_kl_that_pulls_nowhere() -> None:
    """Told before hours are spent on it; a plan without warnings has no such section."""
    k1 = {"where": "loss", "estimator": "k1"}
    fitting: dict[str, Any] = {"sft__optimizer__lr": 1e-3}
    text = render_plan(StartCheck(planned("gsm8k-grpo", rl__algorithm__kl=k1, **fitting)))
    (warning,) = [line for line in text.splitlines() if "WARNING" in line]
    assert "(kl_without_pull): set rl.algorithm.kl.estimator to k2, or to k1+" in warning
    assert "Warnings" not in render_plan(StartCheck(planned("gsm8k-grpo", **fitting)))
