"""The learner's step and the transformers engine on CUDA agree with CPU fp32.

One process holds DeepSpeed for one device, so the CPU side is Hugging Face and torch alone.
"""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from rlcore.algorithms.objective import SftObjective
from rlcore.cluster.in_process import InProcessWorker
from rlcore.engines.pool import EnginePool, load_model_directory
from rlcore.engines.transformers_engine import TransformersEngine
from rlcore.engines.types import EngineSpec, Sampling, TurnRequest
from rlcore.learner.attention import flash_problem
from rlcore.learner.learner import Learner
from rlcore.learner.spec import LearnerSpec, Term
from tests.rlcore.learner.algorithms import ALGORITHMS, algorithm_batch, suited, terms_of
from tests.rlcore.learner.samples import (
    assert_same_weights,
    make_batch,
    reference_step,
    weights_of,
    write_tiny_model,
)
from tests.rlcore.learner.test_own_logprobs import (
    assert_first_ratios_are_one,
    offset_batch,
    request_of,
)

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


@pytest.fixture(scope="module")
def spec(tmp_path_factory: pytest.TempPathFactory) -> LearnerSpec:
    path = tmp_path_factory.mktemp("model")
    write_tiny_model(path)
    return LearnerSpec(str(path), device="cuda", lr=0.1, eps=1.0, grad_clip=0.5)


@pytest.mark.parametrize(
    ("algorithm", "zero_stage"),
    [*((name, 1) for name in ALGORITHMS), *(("grpo", stage) for stage in (0, 2, 3))],
)
def test_step_agrees_with_cpu(algorithm, zero_stage, spec, tmp_path: Path):
    """Packed rows, several passes, nccl: the weights of one step, element by element."""
    write_tiny_model(tmp_path / "value", seed=8, head="value")
    write_tiny_model(tmp_path / "reference", seed=9)
    ours = suited(spec, algorithm, tmp_path / "value", tmp_path / "reference")
    terms = terms_of(algorithm, algorithm_batch())
    expected, norm = reference_step(ours, terms, 0.1)
    learner = Learner(replace(ours, zero_stage=zero_stage, micro_batch_tokens=160))
    metrics = learner.step(terms, 0.1)
    assert metrics[f"{terms[0].objective.name}/grad_norm"] == pytest.approx(norm, rel=1e-4)
    assert_same_weights(weights_of(learner), expected, 1e-5)
    learner.close()


@pytest.mark.parametrize("attention", ["sdpa", "flash_attention_2"])
def test_packed_bf16_rows_agree_with_fp32(attention, spec):
    """Under varlen flash attention: one long row, document borders from ``position_ids`` alone."""
    if attention == "flash_attention_2":
        pytest.importorskip("flash_attn", reason="flash-attn is not installed")
    batch = make_batch(40)
    exact = Learner(replace(spec, trainable=False)).logprobs(batch).logprobs
    learner = Learner(
        replace(spec, dtype="bfloat16", attn_implementation=attention, micro_batch_tokens=512)
    )
    found = learner.logprobs(batch).logprobs
    gap = np.abs(np.concatenate(found) - np.concatenate(exact))
    # A document that saw its neighbour would be off by whole nats.
    assert gap.max() < 0.3
    assert gap.mean() < 0.03
    loss = learner.step([Term(batch, SftObjective())], 0.1)["sft/loss"]
    mask = np.concatenate(batch.loss_mask)
    assert loss == pytest.approx(-np.concatenate(exact)[mask].mean(), rel=0.01)
    learner.close()


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_auto_takes_flash_attention_where_it_serves(dtype, spec):
    """One long row where the package is there and the dtype is its own; else sdpa."""
    learner = Learner(
        replace(spec, dtype=dtype, attn_implementation="auto", micro_batch_tokens=512)
    )
    flash = dtype == "bfloat16" and flash_problem() is None
    assert learner.spec.attn_implementation == ("flash_attention_2" if flash else "sdpa")
    batch = make_batch(20)
    found = np.concatenate(learner.logprobs(batch).logprobs)
    plain = Learner(replace(spec, dtype=dtype, trainable=False)).logprobs(batch).logprobs
    assert np.abs(found - np.concatenate(plain)).mean() < 0.03
    assert learner.packing_warning() is None
    learner.close()


def test_auto_takes_sdpa_where_rows_are_cut_so_that_documents_would_leak(spec):
    """Flash attention keeps the documents of one row apart, and not those of several rows."""
    learner = Learner(replace(spec, dtype="bfloat16", attn_implementation="auto", row_tokens=80))
    assert learner.spec.attn_implementation == "sdpa"
    learner.close()


@pytest.mark.parametrize(
    ("attention", "dtype"),
    [("sdpa", "float32"), ("sdpa", "bfloat16"), ("flash_attention_2", "bfloat16")],
)
def test_first_ratios_of_an_update_that_scores_its_own_are_one(attention, dtype, spec):
    """Kernels with and without gradient give the same bits, recomputed layers included."""
    if attention == "flash_attention_2":
        pytest.importorskip("flash_attn", reason="flash-attn is not installed")
    learner = Learner(
        replace(
            spec,
            dtype=dtype,
            attn_implementation=attention,
            micro_batch_tokens=160,
            gradient_checkpointing=True,
        )
    )
    result = learner.update(request_of(offset_batch(learner)))
    assert_first_ratios_are_one(result.steps[0])
    assert result.steps[1]["actor/ppo_kl"] != 0.0
    learner.close()


def test_transformers_engine_agrees_with_cpu(spec):
    """Greedy tokens and log-probs of the fallback engine do not depend on the device."""
    generator = np.random.default_rng(0)
    prompts = [generator.integers(0, 61, n).tolist() for n in (3, 9, 17)]
    sampling = Sampling(temperature=0.0, max_new_tokens=12)
    requests = [TurnRequest(str(i), ids, i, 12) for i, ids in enumerate(prompts)]
    answers = {}
    for device in ("cpu", "cuda"):
        engine = TransformersEngine(EngineSpec(spec.model_dir, device=device, max_model_len=64))
        group = EnginePool([InProcessWorker.of(device, engine)], timeout_s=60, sync_timeout_s=60)
        load_model_directory(group, Path(spec.model_dir))
        answers[device] = engine.generate(requests, sampling)
        engine.close()
    for ours, theirs in zip(answers["cuda"], answers["cpu"], strict=True):
        assert ours.token_ids == theirs.token_ids
        np.testing.assert_allclose(ours.logprobs, theirs.logprobs, atol=1e-4)
