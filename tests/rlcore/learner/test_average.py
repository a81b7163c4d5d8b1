"""The average of the weights: its closed form, held in their place, resumed bit for bit."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from rlcore.learner.training_state import average_file
from tests.rlcore.learner.samples import make_batch, request_of

DECAY = 0.9


def parameters(learner) -> dict[str, torch.Tensor]:
    return {n: p.detach().clone() for n, p in learner._engine.lm.named_parameters()}


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_it_is_that_of_the_closed_form(dtype, learner_of, tmp_path):
    """decay^n w0 + (1 - decay) sum decay^(n - i) wi, over the weights after each optimizer step."""
    learner = learner_of(ema=DECAY, dtype=dtype)
    history = [parameters(learner)]
    for seed in range(4):
        learner.step(request_of(0, "a", seed=seed).mini_batches[0], 0.05)
        history.append(parameters(learner))
    learner.save(tmp_path)
    found = load_file(average_file(tmp_path))
    steps = len(history) - 1
    moved = 0.0
    for name, mean in found.items():
        expected = DECAY**steps * history[0][name].double()
        for number, weights in enumerate(history[1:], start=1):
            expected += (1 - DECAY) * DECAY ** (steps - number) * weights[name].double()
        np.testing.assert_allclose(mean.double(), expected, rtol=1e-6, atol=1e-7)
        moved = max(moved, float((mean - history[0][name].float()).abs().max()))
    assert found.keys() == history[0].keys()
    assert moved > 1e-3, "steps that change nothing show nothing"


@pytest.mark.parametrize("zero_stage", [0, 1, 2])
def test_it_is_held_in_place_of_the_weights_and_given_back_bit_for_bit(
    zero_stage, learner_of, tmp_path
):
    learner, plain = (learner_of(ema=ema, zero_stage=zero_stage) for ema in (DECAY, None))
    assert learner.stamp() == plain.stamp()
    for one in (learner, plain):
        one.update(request_of(0, "a"))
    raw, batch = learner.stamp(), make_batch(4)
    assert raw == plain.stamp(), "the average changes no weight"
    before = learner.logprobs(batch).logprobs
    learner.swap_average()
    held = learner.stamp()
    assert (held.version, held.digest != raw.digest) == (raw.version, True)
    assert not np.allclose(learner.logprobs(batch).logprobs[0], before[0], atol=1e-6)
    with pytest.raises(AssertionError, match="swap back first"):
        learner.update(request_of(1, "b"))
    learner.export_hf(tmp_path / "average")
    learner.swap_average()
    assert learner.stamp() == raw
    np.testing.assert_array_equal(learner.logprobs(batch).logprobs[0], before[0])
    averaged = learner_of(model_dir=str(tmp_path / "average"))
    assert averaged.stamp().digest == held.digest, "what is exported is what was held"


def test_it_resumes_bit_for_bit_and_begins_anew_where_none_was_taken(learner_of, tmp_path):
    learner = learner_of(ema=DECAY, eps=1e-8)
    learner.update(request_of(0, "a"))
    learner.save(tmp_path / "one")
    learner.update(request_of(1, "b", seed=5))
    learner.swap_average()
    resumed = learner_of(ema=DECAY, eps=1e-8)
    resumed.load(tmp_path / "one")
    resumed.update(request_of(1, "b", seed=5))
    resumed.swap_average()
    assert resumed.stamp() == learner.stamp()

    plain = learner_of(eps=1e-8)
    plain.update(request_of(0, "a"))
    plain.save(tmp_path / "two")
    assert not average_file(tmp_path / "two").exists()
    resumed = learner_of(ema=DECAY, eps=1e-8)
    resumed.load(tmp_path / "two")
    resumed.swap_average()
    assert resumed.stamp() == plain.stamp()


@pytest.mark.parametrize("zero_stage", [1, 2])
def test_two_ranks_have_that_of_one(zero_stage, spec, pair, learner_of, tmp_path):
    alone = learner_of(ema=DECAY)
    group = pair.build(replace(spec, ema=DECAY, zero_stage=zero_stage))
    for number in range(2):
        for one in (alone, group):
            one.update(request_of(number, "ab"[number], seed=number))
    means = []
    for name, one in (("alone", alone), ("group", group)):
        one.save(Path(tmp_path / name))
        means.append(load_file(average_file(tmp_path / name)))
    for name, mean in means[0].items():
        torch.testing.assert_close(means[1][name], mean, rtol=0, atol=1e-5)
    group.swap_average()
    held = group.stamp()
    group.swap_average()
    assert held.digest != group.stamp().digest


def test_a_step_that_is_skipped_adds_nothing(learner_of, tmp_path):
    learner = learner_of(ema=DECAY)
    learner.update(request_of(0, "a"))
    learner.save(tmp_path / "before")
    request = request_of(1, "b")
    for terms in request.mini_batches:
        for rows in terms[0].sequences.per_token["advantages"]:
            rows[:] = np.inf
    result = learner.update(request)
    assert sum(v for n, v in result.metrics.items() if n.endswith("skipped_steps")) > 0
    learner.save(tmp_path / "after")
    before, after = (load_file(average_file(tmp_path / name)) for name in ("before", "after"))
    assert all(torch.equal(before[name], after[name]) for name in before)
