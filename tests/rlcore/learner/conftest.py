"""A tiny model, batches for it, and learners of one and two ranks."""

import os

os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # read once, when torch loads OpenMP

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from rlcore.learner.group import LearnerGroup
from rlcore.learner.learner import Learner
from rlcore.learner.spec import LearnerSpec
from rlcore.models.packing import Sequences
from tests.rlcore.learner.rank_process import RankProcess, start_ranks
from tests.rlcore.learner.samples import VOCABULARY, make_batch


@pytest.fixture(scope="session")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Qwen2, two layers, tied head, with dropout configured so that forgetting to stop it shows."""
    from transformers import Qwen2Config, Qwen2ForCausalLM

    path = tmp_path_factory.mktemp("model")
    torch.manual_seed(7)
    config = Qwen2Config(
        vocab_size=VOCABULARY,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        intermediate_size=48,
        tie_word_embeddings=True,
        max_position_embeddings=128,
        attention_dropout=0.5,
    )
    model = Qwen2ForCausalLM(config)
    for parameter in model.parameters():  # from scratch, logits are almost 0 and hide errors
        if parameter.dim() > 1:
            torch.nn.init.normal_(parameter, std=0.15)
    model.save_pretrained(path)
    (path / "tokenizer.json").write_text("{}")
    return path


@pytest.fixture(scope="session")
def spec(model_dir: Path) -> LearnerSpec:
    """AdamW with eps = 1 moves by about the gradient: weights after a step show gradient errors
    that Adam's usual normalisation would hide or magnify."""
    return LearnerSpec(
        model_dir=str(model_dir),
        lr=0.1,
        eps=1.0,
        grad_clip=0.5,
        micro_batch_tokens=4096,
        collective_timeout_s=60,
    )


@pytest.fixture
def batch() -> Sequences:
    return make_batch(12)


@pytest.fixture
def learner_of(spec: LearnerSpec) -> Iterator[Callable[..., Learner]]:
    """Build learners of ``spec`` with changes; freed after the test."""
    built: list[Learner] = []

    def build(**changes: object) -> Learner:
        built.append(Learner(replace(spec, **changes)))
        return built[-1]

    yield build
    for learner in built:
        learner.close()


class Pair:
    """Two ranks that can be rebuilt, and restarted as new processes."""

    def __init__(self) -> None:
        self._ranks: list[RankProcess] = []

    def build(self, spec: LearnerSpec) -> LearnerGroup:
        if not self._ranks:
            self._ranks = start_ranks(2)
        pendings = [rank.start("build", spec) for rank in self._ranks]
        for pending in pendings:
            pending.result(120)
        return LearnerGroup(self._ranks, timeout_s=60)

    def stop(self) -> None:
        for rank in self._ranks:
            rank.stop()
        self._ranks = []


@pytest.fixture(scope="session")
def pair() -> Iterator[Pair]:
    ranks = Pair()
    yield ranks
    ranks.stop()
