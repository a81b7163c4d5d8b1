"""The Python API as its users call it: one real step of every algorithm, rewards, refusals."""

import asyncio
import json
import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

import flows.training as api
from flows.training import (
    DAPOConfig,
    GRPOConfig,
    VAPOConfig,
    train_reasoning_with_dapo_sync,
    train_with_dapo_sync,
    train_with_grpo,
    train_with_grpo_sync,
    train_with_vapo_sync,
)
from rlcore.api.progress import CURVES
from rlcore.rewards.unscored_rows import RewardFailureError
from rlcore.store.artifacts import ArtifactStore
from schemas.errors import UserError
from tests.rlcore.api.tiny import CONTEXT, write_tiny_model

ROOT = Path(__file__).parents[2]
PROMPTS = ["What is 2 + 2?", "Solve for x"]
ALGORITHMS = ("grpo", "ppo", "dapo", "rloo", "gspo", "gepo", "vapo", "remax")
SMALL: dict[str, Any] = {"num_episodes": 1, "max_completion_length": 10, "threads": 1}

pytestmark = pytest.mark.timeout(180)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(write_tiny_model(tmp_path_factory.mktemp("tiny") / "model"))


def variety(prompt: str, response: str) -> float:
    """A reward that differs between samples of an untrained model: 0, 0.5 or 1."""
    return (len(response) % 3) / 2


def grpo(**changes: Any) -> GRPOConfig:
    return GRPOConfig(**{**SMALL, "group_size": 4, "learning_rate": 1e-3, **changes})


def same(first: dict[str, list[float]], second: dict[str, list[float]]) -> bool:
    """Equality in which NaN equals NaN."""
    return json.dumps(first) == json.dumps(second)


# ---------------------------------------------------------------- every algorithm


@pytest.mark.parametrize("name", ALGORITHMS)
def test_every_algorithm_takes_a_real_step(name: str, tiny: str, tmp_path: Path) -> None:
    """The returned weights are the exported ones, and not those it began with."""
    config_type = next(c for n, c in vars(api).items() if n.lower() == f"{name}config")
    rate = "actor_learning_rate" if name in ("ppo", "vapo") else "learning_rate"
    warmup = {"value_warmup_steps": 1} if name == "vapo" else {}
    config = config_type(**SMALL, group_size=4, **{rate: 1e-3}, **warmup)
    train: Callable[..., Any] = vars(api)[f"train_with_{name}_sync"]
    model, tokenizer, metrics = train(tiny, variety, PROMPTS, config, output_dir=str(tmp_path))
    before = load_file(Path(tiny) / "model.safetensors")
    exported = load_file(tmp_path / "model" / "model.safetensors")
    state = model.state_dict()
    assert all(torch.equal(state[key], tensor) for key, tensor in exported.items())
    moved = max(float((exported[key] - before[key]).abs().max()) for key in before)
    assert moved > 1e-5, f"{name} trained nothing"
    assert tokenizer.chat_template
    iterations = config.model_dump().get("value_warmup_steps", 0) + 1
    assert {len(values) for values in metrics.values()} == {iterations}
    assert set(metrics) == set(CURVES)
    defined = ("accuracy", "average_reward", "policy_loss", "filtered_ratio", "kl", "entropy")
    assert all(math.isfinite(metrics[curve][-1]) for curve in defined)
    assert math.isfinite(metrics["explained_variance"][-1]) == (name in ("ppo", "vapo"))


def test_the_reward_rises(tiny: str) -> None:
    """Reward an untrained model for spaces, which must become frequent."""

    def spaces(prompt: str, response: str) -> float:
        return response.count(" ") / max(1, len(response))

    config = grpo(num_episodes=30, group_size=16, learning_rate=1e-2, beta=0.0)
    rewards = train_with_grpo_sync(tiny, spaces, PROMPTS, config).metrics["average_reward"]
    assert sum(rewards[-5:]) / 5 > sum(rewards[:5]) / 5 + 0.3, rewards


def test_value_warmup_is_exact_and_leaves_the_policy_alone(tiny: str, tmp_path: Path) -> None:
    config = VAPOConfig(
        num_episodes=2, value_warmup_steps=3, group_size=2, max_completion_length=6, threads=1
    )
    metrics = train_with_vapo_sync(tiny, variety, PROMPTS, config, output_dir=str(tmp_path)).metrics
    assert [math.isnan(loss) for loss in metrics["policy_loss"]] == [True] * 3 + [False] * 2
    store = ArtifactStore(tmp_path / "store")
    tables = [
        store.table(ref, "rollouts")
        for key in sorted(store.keys("rollouts"))
        if (ref := store.find("rollouts", key)) is not None
    ]
    digests = [table["weight_digest"][0] for table in tables]
    assert len(set(digests[:4])) == 1, "the policy moved while its critic warmed up"
    assert digests[4] != digests[3]


def test_same_seed_same_metrics_and_another_seed_others(tiny: str) -> None:
    runs = [
        train_with_grpo_sync(tiny, variety, PROMPTS, grpo(num_episodes=2, seed=seed)).metrics
        for seed in (1, 1, 2)
    ]
    assert same(runs[0], runs[1])
    assert not same(runs[0], runs[2])


# ---------------------------------------------------------------- rewards and verdicts


def test_without_a_verifier_correctness_follows_the_reward(tiny: str) -> None:
    """Dynamic sampling keeps the groups that the reward splits; a verdict taken before rewards
    exist would filter every group, forever."""
    config = DAPOConfig(**SMALL, group_size=16, on_exhausted="error")
    metrics = train_with_dapo_sync(
        tiny, lambda prompt, response: float(len(response) % 2), PROMPTS, config
    ).metrics
    assert metrics["filtered_ratio"] == [0.0]
    assert 0 < metrics["accuracy"][0] < 1


def test_a_constant_verdict_filters_every_group_and_says_so(tiny: str) -> None:
    config = DAPOConfig(**SMALL, group_size=4)
    metrics = train_with_dapo_sync(
        tiny, variety, PROMPTS, config, verifier_fn=lambda prompt, response: False
    ).metrics
    assert metrics["filtered_ratio"] == [1.0]
    strict = DAPOConfig(**SMALL, group_size=4, on_exhausted="error")
    with pytest.raises(UserError, match="samples all agree"):
        train_with_dapo_sync(tiny, variety, PROMPTS, strict, verifier_fn=lambda p, r: False)


def test_a_failing_reward_marks_its_rows_and_too_many_stop_the_run(
    tiny: str, tmp_path: Path
) -> None:
    """A row that raised must not count as reward 0."""
    calls: list[str] = []

    def fails_once(prompt: str, response: str) -> float:
        calls.append(response)
        if len(calls) == 1:
            raise ZeroDivisionError("no such luck")
        return variety(prompt, response)

    config = grpo(max_error_fraction=0.2)
    metrics = train_with_grpo_sync(
        tiny, fails_once, PROMPTS, config, output_dir=str(tmp_path)
    ).metrics
    assert metrics["error_fraction"] == [1 / 8]
    scored = [variety("", response) for response in calls[1:]]
    assert metrics["average_reward"][0] == pytest.approx(sum(scored) / 7)
    with pytest.raises(RewardFailureError, match="returned None"):
        train_with_grpo_sync(tiny, lambda prompt, response: None, PROMPTS, grpo())


def test_coroutine_rewards_run_side_by_side_on_the_callers_loop(tiny: str) -> None:
    loops = set()
    waiting = 0
    most = 0

    async def judge(prompt: str, response: str) -> float:
        nonlocal waiting, most
        loops.add(asyncio.get_running_loop())
        waiting += 1
        most = max(most, waiting)
        await asyncio.sleep(0.02)
        waiting -= 1
        return variety(prompt, response)

    async def main() -> None:
        beats = 0

        async def heart() -> None:
            nonlocal beats
            while True:
                beats += 1
                await asyncio.sleep(0.01)

        beating = asyncio.create_task(heart())
        await train_with_grpo(tiny, judge, PROMPTS, grpo())
        beating.cancel()
        assert loops == {asyncio.get_running_loop()}
        assert beats > 5, "the loop stood still while training"

    asyncio.run(main())
    assert most == 8


def test_the_blocking_form_works_inside_a_running_loop(tiny: str) -> None:
    """A notebook cell has a loop already."""

    async def cell() -> float:
        return train_with_grpo_sync(tiny, variety, PROMPTS, grpo()).metrics["accuracy"][-1]

    assert 0 <= asyncio.run(cell()) <= 1


def test_cancelling_ends_the_run_after_its_iteration(tiny: str) -> None:
    seen: list[int] = []

    async def main() -> float:
        run = asyncio.create_task(
            train_with_grpo(
                tiny,
                variety,
                PROMPTS,
                grpo(num_episodes=10_000),
                on_metrics=lambda iteration, metrics: seen.append(iteration),
            )
        )
        while not seen:
            await asyncio.sleep(0.01)
        began = time.monotonic()
        run.cancel()
        with pytest.raises(asyncio.CancelledError):
            await run
        return time.monotonic() - began

    assert asyncio.run(main()) < 30
    assert len(seen) < 100


@pytest.fixture
def interruptible() -> Iterator[None]:
    """A process that a shell started in the background ignores interrupts; a notebook does not."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def test_an_interrupt_in_a_notebook_ends_the_run(tiny: str, interruptible: None) -> None:
    seen: list[int] = []

    def stop_button(iteration: int, metrics: Mapping[str, float]) -> None:
        seen.append(iteration)
        if iteration == 1:
            os.kill(os.getpid(), signal.SIGINT)

    async def cell() -> None:
        train_with_grpo_sync(
            tiny, variety, PROMPTS, grpo(num_episodes=10_000), on_metrics=stop_button
        )

    notebook = asyncio.new_event_loop()
    with pytest.raises(KeyboardInterrupt):
        notebook.run_until_complete(cell())
    assert len(seen) < 100
    notebook.close()


# ---------------------------------------------------------------- mathematics


def test_reasoning_takes_overrides_that_stateset_refuses(tiny: str, tmp_path: Path) -> None:
    problems = [{"problem": "1+1", "answer": 2}, {"problem": "Solve 2x = 6", "answer": "x = 3"}]
    metrics = train_reasoning_with_dapo_sync(
        tiny,
        problems,
        output_dir=str(tmp_path),
        instruction="",
        use_dynamic_sampling=False,
        group_size=4,
        **SMALL,
    ).metrics
    assert metrics["filtered_ratio"] == [0.0]
    assert metrics["average_reward"][0] >= -2, "right is +1, wrong -1, the overlong at most 1 less"
    recipe = (tmp_path / "recipe.yaml").read_text()
    assert "name: math\n" in recipe


@pytest.mark.parametrize(
    ("row", "sentence"),
    [
        ({"problem": "1+1", "answer": " "}, r"math_problems\[0\] has no answer"),
        ({"problem": "1+1", "anwser": "2"}, "did you mean 'anwser'"),
        ({"answer": "2"}, "has no problem"),
    ],
)
def test_a_problem_without_an_answer_is_refused(row: dict[str, Any], sentence: str) -> None:
    """An empty answer would be found in every response."""
    with pytest.raises(UserError, match=sentence):
        train_reasoning_with_dapo_sync("unused", [row])


# ---------------------------------------------------------------- models, prompts, contradictions


def test_lengths_follow_the_models_context_unless_they_are_set(tiny: str) -> None:
    short = grpo(max_completion_length=CONTEXT)
    with pytest.raises(UserError, match=r"max_completion_length = 96 .* lower it to"):
        train_with_grpo_sync(tiny, variety, PROMPTS, short)


def test_a_model_without_chat_template_gets_prompts_as_they_stand(tmp_path: Path) -> None:
    source = write_tiny_model(tmp_path / "plain")
    for file in source.glob("chat_template*"):
        file.unlink()
    config = json.loads((source / "tokenizer_config.json").read_text())
    config.pop("chat_template", None)
    (source / "tokenizer_config.json").write_text(json.dumps(config))
    seen: list[str] = []

    def reward_fn(prompt: str, response: str) -> float:
        seen.append(prompt)
        return variety(prompt, response)

    _, tokenizer, _ = train_with_grpo_sync(
        str(source), reward_fn, PROMPTS, grpo(), output_dir=str(tmp_path / "out")
    )
    assert set(seen) == set(PROMPTS)
    store = ArtifactStore(tmp_path / "out" / "store")
    ref = store.find("dataset", store.keys("dataset")[0])
    assert ref is not None
    ids = store.table(ref, "prompts")["prompt_ids"][0].to_list()
    assert tokenizer.decode(ids) == PROMPTS[0]
    assert "chat_template" not in json.loads((source / "tokenizer_config.json").read_text())


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"config": DAPOConfig()}, "takes a GRPOConfig and config is a DAPOConfig; use train_with"),
        ({"config": GRPOConfig(model_name="other")}, "model_name = .* differ; give one of them"),
        ({"config": GRPOConfig(output_dir="a"), "output_dir": "b"}, "output_dir = 'b' and"),
        ({"train_prompts": []}, "train_prompts is empty"),
        ({"train_prompts": "What is 2 + 2?"}, "train_prompts is a single prompt"),
        ({"reward_fn": lambda response: 1.0}, "reward_fn has the signature"),
        ({"config": GRPOConfig(num_prompts_per_batch=3)}, "num_prompts_per_batch = 3"),
        ({"config": GRPOConfig(overrides={"rl.algorithm.clip_lwo": 1})}, "did you mean 'clip_low'"),
        ({"model_name": "./no-such-model"}, "is not a directory"),
        ({"model_name": str(ROOT / "tests")}, "has no config.json"),
    ],
)
def test_what_cannot_work_ends_early_in_one_sentence(
    changes: dict[str, Any], sentence: str, tiny: str
) -> None:
    arguments = {"model_name": tiny, "reward_fn": variety, "train_prompts": PROMPTS, **changes}
    with pytest.raises(UserError, match=sentence) as caught:
        train_with_grpo_sync(**arguments)
    assert "\n" not in str(caught.value)


def test_a_foreign_folder_is_never_replaced(tiny: str, tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "precious.txt").write_text("mine")
    with pytest.raises(UserError, match="no earlier run wrote"):
        train_with_grpo_sync(tiny, variety, PROMPTS, grpo(), output_dir=str(tmp_path))
    assert (tmp_path / "model" / "precious.txt").read_text() == "mine"


def test_importing_the_api_loads_no_orchestrator() -> None:
    """Nor torch: a config is written and refused at once."""
    code = (
        "import sys; import flows.training;"
        "print([m for m in ('prefect', 'ray', 'vllm', 'wandb', 'torch') if m in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"
