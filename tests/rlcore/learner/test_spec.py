"""What a learner cannot be or do is refused where it is described, in one sentence."""

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rlcore.learner.spec import LearnerSpec, TokenScores, UpdateRequest
from schemas.errors import UserError


@pytest.fixture
def folder(tmp_path: Path) -> str:
    (tmp_path / "config.json").write_text("{}")
    return str(tmp_path)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"dtype": "bfloat61"}, r"dtype = 'bfloat61' is unknown; .* did you mean 'bfloat16'\?"),
        ({"device": "gpu"}, r"device = 'gpu' is unknown; use one of auto, cpu, cuda"),
        ({"head": "values"}, r"head = 'values' is unknown; .* did you mean 'value'\?"),
        ({"zero_stage": 4}, r"zero_stage = 4 must be 0, 1, 2 or 3"),
        ({"dtype": "bfloat16", "zero_stage": 0}, "no fp32 master weights.*set zero_stage to 1"),
        ({"offload_params": True, "zero_stage": 2}, "needs zero_stage 3, not 2; set it to 3"),
        ({"offload_optimizer": True, "zero_stage": 0}, "needs zero_stage 1 or more; set zero"),
        ({"threads": 0}, r"threads = 0 must be >= 1; raise it"),
        ({"micro_batch_tokens": 0}, r"micro_batch_tokens = 0 must be >= 1; raise it"),
        ({"head": "value", "reference_dir": "."}, "is for the KL of a language model"),
        ({"reference_dir": "nowhere"}, r"reference_dir = 'nowhere' has no config\.json; give a"),
        ({"model_dir": "nowhere"}, r"model_dir = 'nowhere' has no config\.json; give a local"),
    ],
)
def test_a_learner_that_cannot_be_is_refused(
    folder: str, changes: dict[str, Any], sentence: str
) -> None:
    fields: dict[str, Any] = {"model_dir": folder} | changes
    with pytest.raises(UserError, match=rf"^learner .*{sentence}"):
        LearnerSpec(**fields)


def test_a_frozen_bfloat16_model_needs_no_master_weights(folder: str) -> None:
    """It takes no step, so ZeRO 0 loses nothing."""
    LearnerSpec(folder, dtype="bfloat16", zero_stage=0, trainable=False)


def test_a_model_is_asked_only_for_what_its_head_says(folder: str) -> None:
    policy = LearnerSpec(folder)
    policy.require_head("lm", "logprobs")
    with pytest.raises(UserError, match="values needs a learner with head = 'value' and this one"):
        policy.require_head("value", "values")


def test_the_exact_kl_needs_a_reference_of_its_own(folder: str) -> None:
    LearnerSpec(folder).require_reference(False)
    LearnerSpec(folder, reference_dir=folder).require_reference(True)
    with pytest.raises(UserError, match=r"kl\.estimator = 'full' .* holds no reference; set its"):
        LearnerSpec(folder).require_reference(True)


def test_every_step_of_an_update_has_its_rate() -> None:
    with pytest.raises(UserError, match="got 2 mini-batches and 1 learning rates; pass one each"):
        UpdateRequest(0, "digest", [[], []], [0.1])


def test_scores_arrive_as_they_were_sent() -> None:
    rows = [np.array([0.0, np.nan, -2.5], np.float32), np.array([-1.0], np.float32)]
    for scores in (TokenScores(rows, rows[::-1], []), TokenScores([], [], [])):
        buffers: list[pickle.PickleBuffer] = []
        sent = pickle.dumps(scores, protocol=5, buffer_callback=buffers.append)
        found = pickle.loads(sent, buffers=buffers)
        for ours, theirs in zip(vars(found).values(), vars(scores).values(), strict=True):
            assert [row.tobytes() for row in ours] == [row.tobytes() for row in theirs]
        assert len(buffers) <= 6, "two per field, however many rows"
