"""A call that is made again continues, or is refused with what changed."""

import json
import re
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM

from flows.training import (
    DAPOConfig,
    GRPOConfig,
    Trained,
    train_with_dapo_sync,
    train_with_grpo_sync,
)
from rlcore.results.run import Run
from rlcore.store.artifacts import ArtifactStore
from schemas.errors import UserError
from tests.rlcore.api.tiny import write_tiny_model

ROOT = Path(__file__).parents[3]
PROMPTS = ["What is 2 + 2?", "Solve for x"]
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


def files(folder: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in folder.iterdir()}


@pytest.fixture(scope="module")
def trained(tiny: str, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Trained]:
    """The output_dir of a call that ended undisturbed, and what it returned."""
    folder = tmp_path_factory.mktemp("trained")
    config = grpo(num_episodes=3)
    return folder, train_with_grpo_sync(tiny, variety, PROMPTS, config, output_dir=str(folder))


def test_an_adapter_lies_beside_the_merged_model(tiny: str, tmp_path: Path) -> None:
    config = grpo(overrides={"model.adapter": {"rank": 2, "alpha": 4}})
    model, *_ = train_with_grpo_sync(tiny, variety, PROMPTS, config, output_dir=str(tmp_path))
    base = AutoModelForCausalLM.from_pretrained(tiny)
    merged = PeftModel.from_pretrained(base, str(tmp_path / "adapter")).merge_and_unload()
    found, expected = (each.state_dict() for each in (merged, model))
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        torch.testing.assert_close(found[name], tensor, rtol=0, atol=1e-6)


class _Stopped(Exception):
    pass


@pytest.mark.slow
def test_a_call_that_was_stopped_continues_to_the_same_end(
    tiny: str, tmp_path: Path, trained: tuple[Path, Trained]
) -> None:
    """Weights bit for bit, and curves of all iterations; what is done is not done again."""
    seen: list[int] = []

    def stop(iteration: int, metrics: Mapping[str, float]) -> None:
        seen.append(iteration)
        if seen == [1, 2]:
            raise _Stopped

    arguments = (tiny, variety, PROMPTS, grpo(num_episodes=3))
    with pytest.raises(_Stopped):
        train_with_grpo_sync(*arguments, output_dir=str(tmp_path), on_metrics=stop)
    assert not (tmp_path / "model").exists()
    done = train_with_grpo_sync(*arguments, output_dir=str(tmp_path), on_metrics=stop)
    assert seen == [1, 2, 3]
    assert same(done.metrics, trained[1].metrics)
    assert files(tmp_path / "model") == files(trained[0] / "model")
    assert not ArtifactStore(tmp_path / "store").keys("checkpoint"), "nothing is left to resume"


def test_a_finished_call_returns_at_once_what_it_came_to(
    tiny: str, trained: tuple[Path, Trained]
) -> None:
    """Neither the reward nor the model that its user edited since is touched."""
    folder, first = trained
    card = folder / "model" / "README.md"
    card.write_text("mine")

    def never(iteration: int, metrics: Mapping[str, float]) -> None:
        raise AssertionError("it trained again")

    config = grpo(num_episodes=3)
    again = train_with_grpo_sync(
        tiny, variety, PROMPTS, config, output_dir=str(folder), on_metrics=never
    )
    assert same(again.metrics, first.metrics)
    state = first.model.state_dict()
    assert all(torch.equal(state[name], t) for name, t in again.model.state_dict().items())
    assert card.read_text() == "mine"
    card.unlink()


def test_what_a_call_recorded_is_read_by_its_output_dir(trained: tuple[Path, Trained]) -> None:
    """The scores are those that the caller's function gave, whose mean the curve shows."""
    run = Run.open(str(trained[0]))
    assert run.iterations == [1, 2, 3]
    rows = run.trajectories(iteration=2)
    assert rows["score"].to_list() == [variety("", text) for text in rows["response"]]
    assert rows["score"].mean() == pytest.approx(trained[1].metrics["average_reward"][1])
    assert rows["kept"].all()
    policy = run.result("rl")
    assert policy is not None
    assert (run.store.directory(policy) / "model").is_dir()
    record = run.store.find("iterations", f"{run.records('rl')}/000003")
    assert record is not None
    with pytest.raises(UserError, match="no rollouts of iteration 4; it has 1 to 3"):
        run.rollouts(iteration=4)


def one_more(prompt: str, response: str) -> float:
    return variety(prompt, response) + 1


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"reward_fn": one_more}, r"arguments, .*continue: reward_fn changed; give the"),
        ({"verifier_fn": lambda p, r: True}, "verifier_fn was not given and is given"),
        ({"config": grpo(num_episodes=4)}, r"continue: config.num_episodes was 3 and is 4; give"),
        (
            {"config": grpo(num_episodes=3, seed=1, beta=0)},
            r"beta was 0.01 and is 0.0, config.seed",
        ),
        ({"train_prompts": [PROMPTS[0], "Solve for y"]}, "train_prompts changed"),
        ({"train_prompts": PROMPTS[:1]}, "train_prompts was 2 prompts and is 1 prompt"),
        (
            {"config": grpo(num_episodes=3, overrides={"rl.algorithm.clip_low": 0.1})},
            r"overrides\['rl.algorithm.clip_low'\] was unset and is 0.1",
        ),
    ],
)
def test_a_call_with_anything_else_is_refused_with_what_changed(
    changes: dict[str, Any], sentence: str, tiny: str, trained: tuple[Path, Trained]
) -> None:
    arguments = {
        "model_name": tiny,
        "reward_fn": variety,
        "train_prompts": PROMPTS,
        "config": grpo(num_episodes=3),
        "output_dir": str(trained[0]),
    }
    with pytest.raises(UserError, match=sentence) as caught:
        train_with_grpo_sync(**{**arguments, **changes})
    assert "resume=False" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_another_model_or_function_of_the_api_is_refused(
    tiny: str, tmp_path: Path, trained: tuple[Path, Trained]
) -> None:
    other = write_tiny_model(tmp_path / "other")
    (other / "generation_config.json").write_text("{}")
    arguments = {"output_dir": str(trained[0]), "config": grpo(num_episodes=3)}
    with pytest.raises(UserError, match=r"model_name was '.*/model' and is '.*/other'"):
        train_with_grpo_sync(str(other), variety, PROMPTS, **arguments)
    config = DAPOConfig(**SMALL, group_size=4)
    with pytest.raises(UserError, match="a call of train_with_grpo, not of train_with_dapo"):
        train_with_dapo_sync(tiny, variety, PROMPTS, config, output_dir=str(trained[0]))


def test_starting_anew_discards_what_was_there_once_it_can(tiny: str, tmp_path: Path) -> None:
    """A call that cannot start leaves the earlier one as it was."""
    keep = {"output_dir": str(tmp_path), "resume": False}
    first = train_with_grpo_sync(tiny, variety, PROMPTS, grpo(), **keep).metrics
    key = ArtifactStore(tmp_path / "store").keys("policy")
    with pytest.raises(UserError, match="num_prompts_per_batch = 3"):
        train_with_grpo_sync(tiny, variety, PROMPTS, grpo(num_prompts_per_batch=3), **keep)
    assert ArtifactStore(tmp_path / "store").keys("policy") == key
    again = train_with_grpo_sync(tiny, variety, PROMPTS, grpo(), output_dir=str(tmp_path))
    assert same(again.metrics, first)
    train_with_grpo_sync(tiny, variety, PROMPTS, grpo(seed=5), **keep)
    store = ArtifactStore(tmp_path / "store")
    (now,) = store.keys("policy")
    assert now != key[0]
    kinds = [kind for kind in store.kinds() if kind != "leases"]
    assert all(name.startswith(now) for kind in kinds for name in store.keys(kind)), "left over"


def test_a_second_process_is_refused_by_name(
    tiny: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The lease of the store's only key names who trains there."""
    other = ArtifactStore(tmp_path / "store", writer="train_with_grpo into 'here'")
    with (
        other.hold("training"),
        pytest.raises(UserError, match=r"is being made by train_with_grpo into 'here', process"),
    ):
        train_with_grpo_sync(tiny, variety, PROMPTS, grpo(), output_dir=str(tmp_path))


def test_a_function_with_state_that_no_process_can_compare(tiny: str, tmp_path: Path) -> None:
    words = (word for word in ("a", "b"))

    def guarded(prompt: str, response: str) -> float:
        return variety(prompt, next(words, response))

    arguments = (tiny, guarded, PROMPTS, grpo())
    with pytest.raises(UserError, match="cannot pickle 'generator' object; put the function"):
        train_with_grpo_sync(*arguments, output_dir=str(tmp_path))
    train_with_grpo_sync(*arguments, output_dir=str(tmp_path), resume=False)
    assert (tmp_path / "model").is_dir()


KILLED_AT = ("rollout", "reward", "advantage", "update", "checkpoint", "policy", "publish", "end")


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_call_that_is_killed_and_repeated_equals_an_undisturbed_one(
    tiny: str, tmp_path: Path
) -> None:
    """kill -9 at eight points in turn, the same call after each: same weights, same curves."""

    def call(folder: str, at: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "tests.rlcore.api.killed_training", tiny, folder, at]
        return subprocess.run(
            command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=300
        )

    undisturbed = call(str(tmp_path / "one"), "never")
    assert undisturbed.returncode == 0, undisturbed.stderr
    began: list[str] = []
    for at in KILLED_AT:
        killed = call(str(tmp_path / "other"), at)
        assert killed.returncode == -signal.SIGKILL, f"{at}: {killed.stderr}"
        began += re.findall(r"\[done (\d+)\]", killed.stderr)[:1] or ["none"]
    assert began == ["1", "2", "3", "4", "5", "6", "none", "none"], "each continued"
    done = call(str(tmp_path / "other"), "never")
    assert done.returncode == 0, done.stderr
    assert done.stdout == undisturbed.stdout
    assert files(tmp_path / "other" / "model") == files(tmp_path / "one" / "model")
