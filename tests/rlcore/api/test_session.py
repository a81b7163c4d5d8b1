"""A run that cannot learn does not return as if it had."""

import json
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file

from flows.training import GRPOConfig, train_with_grpo_sync
from rlcore.api import session
from rlcore.diagnostics.watch import DiagnosticError
from rlcore.models.tokenizer import eos_token_id, load_tokenizer
from rlcore.plan import machine as here
from rlcore.plan.machine import Machine
from schemas.errors import UserError
from tests.rlcore.api.tiny import write_tiny_model

pytestmark = pytest.mark.timeout(180)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("tiny") / "model")


def variety(prompt: str, response: str) -> float:
    """A reward that differs between samples of an untrained model: 0, 0.5 or 1."""
    return (len(response) % 3) / 2


def without_an_end(model: Path) -> None:
    """Make ``model`` never sample its end of sequence: every other token's embedding has a large
    common component, which tied logits see with the opposite sign at that one."""
    assert json.loads((model / "config.json").read_text())["tie_word_embeddings"]
    weights = load_file(model / "model.safetensors")
    embedding = weights["model.embed_tokens.weight"]
    embedding[:, 0] = 10.0
    embedding[eos_token_id(load_tokenizer(model)), 0] = -10.0
    save_file(weights, model / "model.safetensors", metadata={"format": "pt"})


@pytest.mark.parametrize("count", [1, 3, 5])
def test_a_run_of_one_iteration_returns_another_model(tiny: Path, count: int) -> None:
    """GRPO's schedule is a cosine; over so few prompts its last step is its only one."""
    prompts = [f"What is {n} + {n}?" for n in range(count)]
    config = GRPOConfig(max_completion_length=10, threads=1, learning_rate=1e-3)
    model, _, metrics = train_with_grpo_sync(str(tiny), variety, prompts, config)
    before = load_file(tiny / "model.safetensors")
    state = model.state_dict()
    moved = max(float((state[key] - tensor).abs().max()) for key, tensor in before.items())
    assert len(metrics["policy_loss"]) == 1
    assert moved > 1e-5, "the base model was returned"


@pytest.mark.slow
def test_masking_every_answer_ends_the_run_and_says_what_helps(tmp_path: Path) -> None:
    """All answers are cut off and left out of the loss: no step is ever made."""
    endless = write_tiny_model(tmp_path / "model")
    without_an_end(endless)
    seen: list[float] = []
    config = GRPOConfig(
        num_episodes=40,
        group_size=2,
        max_completion_length=3,
        threads=1,
        beta=0.0,
        overrides={"rl.algorithm.mask_truncated": True},
    )
    with pytest.raises(DiagnosticError) as ended:
        train_with_grpo_sync(
            str(endless),
            variety,
            ["What is 2 + 2?"],
            config,
            on_metrics=lambda _, metrics: seen.append(metrics["response_length/clip_ratio"]),
        )
    assert seen == [1.0] * 20, "the bound of every dead update"
    assert "made no optimizer step" in str(ended.value)
    assert ": raise rl.rollout.max_new_tokens (now 3)" in str(ended.value)
    assert "mask_truncated" not in str(ended.value)


def test_a_model_that_cannot_fit_is_refused_before_anything_is_loaded(
    tiny: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = Machine(host=2**17, gpus=(), disk_free=None)
    monkeypatch.setattr(here, "this_machine", lambda store, gpus: machine)
    with pytest.raises(UserError, match=r"optimizer of 1 rank\(s\) take .* and this machine has"):
        train_with_grpo_sync(str(tiny), variety, ["What is 2 + 2?"], GRPOConfig(threads=1))


def test_memory_that_runs_out_ends_in_a_sentence(
    tiny: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def hungry(*args: object, **kwargs: object) -> None:
        raise RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB")

    monkeypatch.setattr(session, "start_workers", hungry)
    with pytest.raises(
        UserError, match=r"^memory ran out in rl \(out_of_memory\): .*hardware\.lear"
    ):
        train_with_grpo_sync(str(tiny), variety, ["What is 2 + 2?"], GRPOConfig(threads=1))
