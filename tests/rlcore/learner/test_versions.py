"""Versions, publishing, checkpoints and export of one rank."""

import json
import os
import pickle
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from rlcore.algorithms.objective import PolicyObjective, SftObjective
from rlcore.learner.pool import LearnerPool
from rlcore.learner.spec import Term, UpdateRequest, VersionConflict
from rlcore.weights.digest import state_digest
from rlcore.weights.files import read_state
from schemas.errors import UserError
from tests.rlcore.learner.rank_process import start_ranks
from tests.rlcore.learner.samples import make_batch


def request_of(version: int, digest: str, seed: int = 0) -> UpdateRequest:
    batches = [[Term(make_batch(6, seed + step), PolicyObjective())] for step in range(2)]
    return UpdateRequest(version, digest, batches, [0.05, 0.04])


def test_update_is_a_compare_and_set(learner_of):
    """A retried task gets the recorded result; a stale one is refused; neither steps twice."""
    learner = learner_of()
    result = learner.update(request_of(0, "a"))
    stamp = learner.stamp()
    assert (result.version, stamp.version, len(result.steps)) == (1, 1, 2)
    assert result.metrics["actor/lr"] == pytest.approx(0.045)
    assert result.metrics["actor/ratio_max"] == max(s["actor/ratio_max"] for s in result.steps)
    assert learner.update(request_of(0, "a")) == result
    assert learner.stamp() == stamp
    for version, digest in [(0, "b"), (2, "a"), (2, "c")]:
        with pytest.raises(VersionConflict, match=rf"requested for version {version} .* version 1"):
            learner.update(request_of(version, digest))
    assert learner.stamp() == stamp
    assert learner.update(request_of(1, "b", seed=5)).version == 2


def test_update_that_broke_off_must_be_reloaded(learner_of, tmp_path):
    """Weights between two versions must not be trained on or called by either version."""
    learner = learner_of()
    learner.save(tmp_path / "checkpoint")
    good = request_of(0, "a")
    poor = [Term(replace(make_batch(6), per_token={}), PolicyObjective())]
    with pytest.raises(UserError, match="reads per_token"):
        learner.update(replace(good, mini_batches=[good.mini_batches[0], poor]))
    with pytest.raises(VersionConflict, match=r"failed between .* load a checkpoint"):
        learner.update(good)
    learner.load(tmp_path / "checkpoint")
    assert learner.update(good).metrics == learner_of().update(good).metrics


def test_published_weights_carry_their_digest(learner_of, tmp_path):
    learner = learner_of()
    learner.update(request_of(0, "a"))
    update = learner.publish(tmp_path / "w.safetensors", version=1)
    assert update.stamp == learner.stamp()
    assert state_digest(read_state(update.path).items()) == update.stamp.digest
    with pytest.raises(VersionConflict, match="version 7 was to be published"):
        learner.publish(tmp_path / "w.safetensors", version=7)


def test_digest_follows_the_weights(learner_of):
    learner = learner_of()
    before = learner.stamp().digest
    learner.step([Term(make_batch(3), SftObjective())], 0.1)
    assert learner.stamp().digest != before


def test_resume_in_a_new_process_is_bit_exact(spec, learner_of, tmp_path):
    """Kill -9 after a checkpoint, go on in a fresh process: the same weights, bit for bit."""
    (worker,) = ranks = start_ranks(1)
    try:
        for stage in (0, 1):
            learner = learner_of(zero_stage=stage, eps=1e-8)
            first = learner.update(request_of(0, "a"))
            learner.save(tmp_path / str(stage))
            after = learner.update(request_of(1, "b", seed=5))
            worker.start("build", replace(spec, zero_stage=stage, eps=1e-8)).result(120)
            resumed = LearnerPool(ranks, timeout_s=60)
            resumed.load(tmp_path / str(stage))
            assert resumed.update(request_of(0, "a")) == first, "the recorded update is lost"
            assert resumed.update(request_of(1, "b", seed=5)) == after
            assert resumed.stamp() == learner.stamp(), f"ZeRO {stage}"
    finally:
        worker.stop()


@pytest.mark.parametrize("steps_before", [0, 1])
@pytest.mark.parametrize("zero_stage", [1, 2, 3])
def test_resume_in_bfloat16_is_bit_exact(zero_stage, steps_before, learner_of, tmp_path):
    """DeepSpeed keeps the float32 weights of bfloat16 models elsewhere for each stage; the step
    size is one that bfloat16 weights alone would lose."""

    def build():
        return learner_of(dtype="bfloat16", zero_stage=zero_stage, eps=1e-8, lr=1e-5)

    learner = build()
    for step in range(steps_before):
        learner.update(request_of(step, "abc"[step]))
    learner.save(tmp_path)
    after = [learner.update(request_of(steps_before + n, f"n{n}", seed=n)) for n in range(3)]
    for resumed in (learner, build()):  # over weights that went on, and in a new learner
        resumed.load(tmp_path)
        again = [resumed.update(request_of(steps_before + n, f"n{n}", seed=n)) for n in range(3)]
        assert again == after
        assert resumed.stamp() == learner.stamp()


class _Command:
    """Pickled, it makes a file where it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self):
        return os.mkdir, (str(self.path),)


@pytest.mark.parametrize("zero_stage", [0, 1, 3])
def test_nothing_in_a_checkpoint_is_run(zero_stage, learner_of, tmp_path):
    """Who can write to a store must not be able to run commands where a run resumes."""
    learner = learner_of(zero_stage=zero_stage)
    directory, ran = tmp_path / "checkpoint", tmp_path / "ran"
    learner.save(directory)
    files = [path for path in directory.rglob("*") if path.is_file()]
    assert {path.suffix for path in files} == {".json", ".safetensors"}
    for path in files:
        whole = path.read_bytes()
        path.write_bytes(pickle.dumps(_Command(ran)))
        with pytest.raises(UserError, match="damaged"):
            learner.load(directory)
        path.write_bytes(whole)
    learner.load(directory)
    assert not ran.exists()


def test_a_checkpoint_of_pickles_is_refused_in_a_sentence(learner_of, tmp_path):
    (tmp_path / "rank00000.pt").write_bytes(pickle.dumps(_Command(tmp_path / "ran")))
    with pytest.raises(UserError, match="earlier version, whose pickled shards are no longer"):
        learner_of().load(tmp_path)
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("zero_stage", [0, 1])
def test_a_checkpoint_of_another_model_is_refused(zero_stage, learner_of, tmp_path):
    """By its manifest or by its tensors: one element would be spread over a whole parameter."""
    learner = learner_of(zero_stage=zero_stage)
    learner.update(request_of(0, "a"))
    learner.save(tmp_path)
    manifest = tmp_path / "rank00000.json"
    whole = manifest.read_bytes()
    saved = json.loads(whole)
    saved["parameters"].popitem()
    manifest.write_text(json.dumps(saved))
    with pytest.raises(UserError, match="holds other parameters than this model"):
        learner.load(tmp_path)
    manifest.write_text("[]")
    with pytest.raises(UserError, match=r"rank00000\.json is missing or damaged"):
        learner.load(tmp_path)
    manifest.write_bytes(whole)
    for role in ("weights", "exp_avg_sq"):
        path = tmp_path / f"rank00000.{role}.safetensors"
        tensors = load_file(path)
        name = next(iter(tensors))
        save_file({**tensors, name: tensors[name][:1]}, path)
        with pytest.raises(UserError, match="holds other parameters than this model"):
            learner.load(tmp_path)
        save_file(tensors, path)
    learner.load(tmp_path)


def test_foreign_checkpoints_are_refused(learner_of, tmp_path):
    learner_of(zero_stage=2).save(tmp_path)
    with pytest.raises(UserError, match="saved with zero_stage = 2 and this learner has 1"):
        learner_of().load(tmp_path)
    with pytest.raises(UserError, match=r"rank00000\.json does not exist"):
        learner_of().load(tmp_path / "missing")


def test_export_loads_in_transformers(learner_of, model_dir, tmp_path):
    """The exported directory is the trained model, config and tokenizer beside it."""
    from transformers import AutoModelForCausalLM

    (model_dir / "manifest.json").write_text("{}")
    learner = learner_of()
    learner.step([Term(make_batch(3), SftObjective())], 0.1)
    learner.export_hf(tmp_path / "out")
    names = {path.name for path in Path(tmp_path / "out").iterdir()}
    assert names == {
        "config.json",
        "generation_config.json",
        "model.safetensors",
        "tokenizer.json",
    }
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "out").eval()
    assert model.config.attention_dropout == 0.5, "the configuration is the source's"
    batch = make_batch(1, seed=2)
    ids = torch.from_numpy(batch.token_ids[0]).long()
    with torch.no_grad():
        expected = torch.log_softmax(model(ids[None]).logits[0, :-1], -1)
    expected = expected.gather(-1, ids[1:, None]).squeeze(-1).numpy()
    np.testing.assert_allclose(learner.logprobs(batch).logprobs[0][1:], expected, atol=1e-5)


def test_scores_of_all_tokens_and_of_loss_tokens(learner_of):
    batch, learner = make_batch(7), learner_of(micro_batch_tokens=60)
    everything = learner.logprobs(batch, 0.7, entropy=True)
    masked = learner.logprobs(batch, 0.7, targets="loss_mask")
    assert masked.entropies == []
    for row, mask in enumerate(batch.loss_mask):
        assert everything.logprobs[row].shape == mask.shape
        assert everything.logprobs[row][0] == 0.0
        assert (everything.entropies[row][1:] > 0).all()
        np.testing.assert_allclose(
            masked.logprobs[row], np.where(mask, everything.logprobs[row], 0.0), atol=1e-5
        )


def test_frozen_learner_scores_and_refuses_to_step(learner_of, batch):
    """The reference policy costs no optimizer and cannot drift."""
    frozen, policy = learner_of(trainable=False), learner_of()
    for ours, theirs in zip(
        frozen.logprobs(batch).logprobs, policy.logprobs(batch).logprobs, strict=True
    ):
        # DeepSpeed moves the policy's weights, and on a CPU rounding may depend on their alignment.
        np.testing.assert_allclose(ours, theirs, atol=1e-5)
    assert frozen.stamp() == policy.stamp()
    with pytest.raises(UserError, match="is frozen"):
        frozen.step([Term(batch, SftObjective())], 0.1)


def test_model_with_capped_logits_is_refused(spec, tmp_path):
    """Gemma 2 caps its logits after the head: training without the cap trains another model."""
    from transformers import Gemma2Config, Gemma2ForCausalLM

    from rlcore.learner.learner import Learner

    config = Gemma2Config(
        vocab_size=61,
        hidden_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=16,
        intermediate_size=32,
        final_logit_softcapping=0.5,
    )
    Gemma2ForCausalLM(config).save_pretrained(tmp_path)
    with pytest.raises(UserError, match="Gemma2ForCausalLM changes its logits"):
        Learner(replace(spec, model_dir=str(tmp_path)))
