"""What engines and references hold of a GPU while others need it."""

from pathlib import Path

import numpy as np
import pytest
import torch

from rlcore.engines.types import EngineSpec, Sampling
from rlcore.learner.learner import Learner
from rlcore.learner.spec import LearnerSpec
from rlcore.models.packing import Sequences
from rlcore.models.weight_digest import canonical_names
from tests.rlcore.engines.conftest import (
    EngineProcess,
    RemoteEngine,
    requests_of,
    tiny_model,
    update_of,
)
from tests.rlcore.learner.samples import make_batch, write_tiny_model

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
UTILIZATION = 0.2


def test_an_engine_that_sleeps_gives_its_share_back(tmp_path: Path) -> None:
    """And samples the same rows once it is asked again, with a sync before or without."""
    pytest.importorskip("vllm")
    from rlcore.engines.vllm_engine import engine_env

    model = tiny_model(0, tied=True)
    model.save_pretrained(tmp_path)
    spec = EngineSpec(
        str(tmp_path),
        max_model_len=256,
        device="cuda",
        gpu_memory_utilization=UTILIZATION,
        sleeps=True,
    )
    process = EngineProcess(engine_env(spec))
    try:
        process.call("one", "build", spec)
        engine = RemoteEngine(process, "one")
        state = {name: model.state_dict()[name] for name in canonical_names(model)}
        engine.load_weights(update_of(state, 1, tmp_path / "v1.safetensors"))
        greedy = Sampling(temperature=0.0, max_new_tokens=8)
        requests = requests_of([[5, 6, 7]], [0], greedy)
        awake = engine.generate(requests, greedy)
        free, total = torch.cuda.mem_get_info()
        engine.rest()
        assert torch.cuda.mem_get_info()[0] - free > 0.5 * UTILIZATION * total
        engine.begin()
        assert engine.generate(requests, greedy) == awake
        engine.rest()
        engine.load_weights(update_of(state, 2, tmp_path / "v2.safetensors"))
        (row,) = engine.generate(requests, greedy)
        assert row.token_ids == awake[0].token_ids
    finally:
        process.close()


def test_a_reference_on_the_host_holds_the_gpu_while_it_scores_only(tmp_path: Path) -> None:
    write_tiny_model(tmp_path)
    spec = LearnerSpec(str(tmp_path), device="cuda", trainable=False)
    batch: Sequences = make_batch(5)
    expected = Learner(spec).logprobs(batch).logprobs
    torch.cuda.empty_cache()
    before = torch.cuda.memory_allocated()
    resting = Learner(LearnerSpec(str(tmp_path), device="cuda", trainable=False, on_host=True))
    assert torch.cuda.memory_allocated() <= before
    for mine, theirs in zip(resting.logprobs(batch).logprobs, expected, strict=True):
        assert np.array_equal(mine, theirs)
    assert torch.cuda.memory_allocated() <= before
