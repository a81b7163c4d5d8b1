"""A learner's weights as others get them."""

from pathlib import Path

import numpy as np
import torch

from rlcore.algorithms.objective import SftObjective
from rlcore.learner.spec import Term
from rlcore.models.weight_digest import state_digest
from rlcore.models.weight_files import read_state
from tests.rlcore.learner.samples import make_batch, request_of


def test_published_weights_carry_their_digest(learner_of):
    learner = learner_of()
    learner.update(request_of(0, "a"))
    update = learner.publish()
    assert update.stamp == learner.stamp()
    assert state_digest(read_state(update.path).items()) == update.stamp.digest


def test_digest_follows_the_weights(learner_of):
    learner = learner_of()
    before = learner.stamp().digest
    learner.step([Term(make_batch(3), SftObjective())], 0.1)
    assert learner.stamp().digest != before


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
