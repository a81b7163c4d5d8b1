"""The value head: loaded, served, trained, saved, exported; and kept apart from the policy."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from rlcore.algorithms.objective import PolicyObjective, ValueObjective
from rlcore.learner.learner import Learner
from rlcore.learner.spec import Term, UpdateRequest
from rlcore.models.weight_files import checkpoint_shapes
from schemas.errors import UserError
from tests.rlcore.learner.samples import assert_same_weights, make_batch, weights_of

CRITIC = ValueObjective(clip=None)


@pytest.fixture
def critic_of(learner_of):
    """A value learner that has learned a little, so that its head is not 0."""

    def build(**changes: object) -> Learner:
        critic = learner_of(head="value", **changes)
        critic.step([Term(make_batch(6), CRITIC)], 0.1)
        return critic

    return build


def test_a_new_score_is_exactly_zero_whatever_the_seed(learner_of, batch):
    """A random score would be noise in the first advantages, and another one on every rank."""
    first, second = learner_of(head="value", seed=1), learner_of(head="value", seed=2)
    assert all(not row.any() for row in first.values(batch, targets="last"))
    assert first.stamp() == second.stamp()


def test_values_before_each_token_and_of_the_whole_text(critic_of, model_dir, tmp_path):
    """GAE wants the state before a token, a reward the state after the last: an off-by-one here
    shifts every credit."""
    from transformers import AutoModelForSequenceClassification

    critic, batch = critic_of(micro_batch_tokens=60), make_batch(7)
    critic.export_hf(tmp_path)
    model = AutoModelForSequenceClassification.from_pretrained(tmp_path).eval()
    bias = weights_of(critic)["score.bias"].item()
    assert bias != 0.0
    before, whole = critic.values(batch), critic.values(batch, targets="last")
    for row, ids in enumerate(batch.token_ids):
        with torch.no_grad():
            hidden = model.base_model(torch.from_numpy(ids).long()[None]).last_hidden_state
            everywhere = model.score(hidden)[0, :, 0].numpy() + bias
        shifted = np.where(batch.loss_mask[row], np.roll(everywhere, 1), 0.0)
        np.testing.assert_allclose(before[row], shifted, atol=1e-5)
        assert not whole[row][:-1].any()
        assert whole[row][-1] == pytest.approx(everywhere[-1], abs=1e-5)


def test_export_is_a_classifier_of_transformers_and_of_ours(critic_of, learner_of, tmp_path):
    """Reward models are exchanged as <X>ForSequenceClassification directories."""
    from transformers import AutoModelForSequenceClassification

    critic, batch = critic_of(), make_batch(5)
    critic.export_hf(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    assert config["architectures"] == ["Qwen2ForSequenceClassification"]
    assert config["pad_token_id"] == 0
    assert (tmp_path / "tokenizer.json").is_file()
    shapes = checkpoint_shapes(tmp_path)
    assert (shapes["score.weight"], shapes["score.bias"]) == ((1, 32), (1,))
    model = AutoModelForSequenceClassification.from_pretrained(tmp_path).eval()
    assert model.config.num_labels == 1
    width = int(batch.lengths.max())
    ids = torch.tensor([[*row.clip(1), *[0] * (width - len(row))] for row in batch.token_ids])
    texts = replace(batch, token_ids=[row.clip(1) for row in batch.token_ids])
    scores = np.array([row[-1] for row in critic.values(texts, targets="last")])
    bias = weights_of(critic)["score.bias"].item()
    with torch.no_grad():
        logits = model(ids, attention_mask=(ids > 0).long()).logits[:, 0].numpy()
    np.testing.assert_allclose(scores - bias, logits, atol=1e-5)

    frozen = learner_of(model_dir=str(tmp_path), head="value", trainable=False)
    assert frozen.stamp().digest == critic.stamp().digest
    for ours, theirs in zip(frozen.values(batch), critic.values(batch), strict=True):
        np.testing.assert_allclose(ours, theirs, atol=1e-6)


@pytest.mark.parametrize("padding", [None, 2])
def test_padding_that_ends_a_text_is_not_exported(padding, model_dir, learner_of, tmp_path):
    """transformers scores the last token that is no padding: were that the end of the text, every
    score would silently be that of the token before."""
    source, target = tmp_path / "source", tmp_path / "target"
    source.mkdir()
    for file in model_dir.iterdir():
        (source / file.name).write_bytes(file.read_bytes())
    config = json.loads((source / "config.json").read_text())
    (source / "config.json").write_text(
        json.dumps(config | {"eos_token_id": [2, 3], "pad_token_id": padding})
    )
    (source / "generation_config.json").write_text("{}")
    learner_of(model_dir=str(source), head="value").export_hf(target)
    assert json.loads((target / "config.json").read_text())["pad_token_id"] is None


@pytest.mark.parametrize("zero_stage", [1, 3])
def test_checkpoint_of_a_critic_resumes_bit_for_bit(zero_stage, critic_of, learner_of, tmp_path):
    critic = critic_of(zero_stage=zero_stage, eps=1e-8)
    critic.save(tmp_path)
    request = UpdateRequest(0, "a", [[Term(make_batch(6, 3), CRITIC)]], [0.01])
    expected = critic.update(request)
    resumed = learner_of(head="value", zero_stage=zero_stage, eps=1e-8)
    resumed.load(tmp_path)
    assert resumed.update(request) == expected
    assert resumed.stamp() == critic.stamp()
    with pytest.raises(UserError, match="saved with head = value and this learner has lm"):
        learner_of(zero_stage=zero_stage).load(tmp_path)


def test_actor_and_critic_are_two_models(learner_of):
    """Critic-only steps leave the actor bit-identical, optimizer included; and the
    order of the two updates does not matter."""
    batch = make_batch(6)
    actor_term, critic_term = Term(batch, PolicyObjective()), Term(batch, CRITIC)

    def train(order: str) -> list[dict[str, torch.Tensor]]:
        actor, critic = learner_of(eps=1e-8), learner_of(eps=1e-8, head="value")
        for who in order:
            (actor if who == "a" else critic).step(
                [actor_term if who == "a" else critic_term], 1e-2
            )
        return [weights_of(actor), weights_of(critic)]

    (warmed, trained), (untouched, _) = train("cccaa"), train("aa")
    assert_same_weights(warmed, untouched, 0.0)
    for ours, theirs in zip(train("cacac"), (warmed, trained), strict=True):
        assert_same_weights(ours, theirs, 0.0)


@pytest.mark.parametrize("zero_stage", [1, 3])
def test_bf16_values_are_fp32(zero_stage, critic_of, batch):
    """Scores in bf16 would tie for a reward model and step by 1/128 for a critic."""
    exact, half = critic_of(), critic_of(dtype="bfloat16", zero_stage=zero_stage)
    found, expected = (np.concatenate(critic.values(batch)) for critic in (half, exact))
    np.testing.assert_allclose(found, expected, atol=0.05)
    assert len(np.unique(found)) > 0.9 * np.concatenate(batch.loss_mask).sum()


def test_a_critic_learns_its_returns(learner_of, batch):
    critic = learner_of(head="value", eps=1e-8, grad_clip=None)
    losses = [critic.step([Term(batch, CRITIC)], 1e-2)["critic/vf_loss"] for _ in range(20)]
    assert losses[-1] < 0.2 * losses[0]


def test_a_classifier_of_several_labels_is_refused(learner_of, tmp_path):
    three_labels(Path(tmp_path))
    with pytest.raises(UserError, match="scores 3 labels and a value model one"):
        learner_of(head="value", model_dir=str(tmp_path))


def three_labels(path: Path) -> None:
    from transformers import AutoModelForSequenceClassification, Qwen2Config

    config = Qwen2Config(
        vocab_size=61,
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        intermediate_size=16,
    )
    config.num_labels = 3
    AutoModelForSequenceClassification.from_config(config).save_pretrained(path)
