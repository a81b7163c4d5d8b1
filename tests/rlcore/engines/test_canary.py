"""What the digest cannot see, the canary does: layers that do not use what was loaded."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rlcore.cluster.in_process import InProcessWorker
from rlcore.engines.pool import EnginePool
from rlcore.engines.transformers_engine import TransformersEngine
from rlcore.engines.types import EngineSpec, RolloutEngine
from rlcore.learner.learner import Learner
from rlcore.learner.pool import LearnerPool
from rlcore.learner.spec import LearnerSpec
from rlcore.models.weight_digest import WeightSyncError
from rlcore.rl.sync import CANARY_TOKENS, Canary, sync_weights
from schemas.rl import GapBound
from tests.rlcore.engines.conftest import (
    VOCAB,
    EngineProcess,
    RemoteEngine,
    Synced,
    tiny_model,
)
from tests.rlcore.engines.faults import FLIPPED, SKIPPED, inject

pytestmark = pytest.mark.timeout(180)
CANARY = Canary(
    np.random.default_rng(0).integers(2, VOCAB, CANARY_TOKENS),
    GapBound("rl.max_canary_gap", "mean", 1e-4),
)


def learner_of(model_dir: Path) -> LearnerPool:
    spec = LearnerSpec(model_dir=str(model_dir), trainable=False, device="cpu")
    return LearnerPool([InProcessWorker.of("learner-0", Learner(spec))])


def engines_of(*engines: RolloutEngine) -> EnginePool:
    workers = [InProcessWorker.of(f"rollout-engine-{i}", each) for i, each in enumerate(engines)]
    return EnginePool(workers, timeout_s=60, sync_timeout_s=60)


@pytest.fixture
def other_dir(tmp_path: Path) -> Path:
    """A tied model of other weights than the engines were built for."""
    tiny_model(7, tied=True).save_pretrained(tmp_path / "other")
    return tmp_path / "other"


@pytest.fixture(scope="module")
def new_vllm(
    vllm_process: EngineProcess, model_dirs: dict[bool, Path], tmp_path_factory: Any
) -> Iterator[Synced]:
    """A tied vLLM engine that was never synced."""
    spec = EngineSpec(model_dir=str(model_dirs[True]), max_model_len=256, max_num_seqs=8)
    vllm_process.call("new", "build", spec)
    engine = RemoteEngine(vllm_process, "new")
    yield Synced(engine, spec, True, tmp_path_factory.mktemp("updates"))
    engine.close()


@pytest.mark.slow
def test_vllm_layers_that_keep_other_weights_are_found(
    new_vllm: Synced, model_dirs: dict[bool, Path], other_dir: Path
) -> None:
    """One engine from its first sync on. It was built for the learner's own directory: read from
    there, a tensor missing from the sync would be right until the first update."""
    same, other = learner_of(model_dirs[True]), learner_of(other_dir)
    engines = engines_of(new_vllm.engine)
    with (
        new_vllm.fault("stale head"),
        pytest.raises(WeightSyncError, match=r"above rl\.max_canary_gap = 0\.0001"),
    ):
        sync_weights(same, engines, CANARY)
    with (
        new_vllm.fault("skips and says so"),
        pytest.raises(WeightSyncError, match=rf"engine-0': .* got no tensor: '{SKIPPED}'"),
    ):
        sync_weights(same, engines, CANARY)
    with (
        new_vllm.fault("skips"),
        pytest.raises(WeightSyncError, match=r"'rollout-engine-0' .* 31 canary tokens .* \|gap"),
    ):
        sync_weights(other, engines, CANARY)
    synced, gap = sync_weights(same, engines, CANARY)
    assert synced.published.stamp == same.stamp() == engines.stamp()
    assert gap < 1e-4
    with (
        new_vllm.fault("stale head"),
        pytest.raises(WeightSyncError, match=r"above rl\.max_canary_gap = 0\.0001"),
    ):
        sync_weights(other, engines, CANARY)


def transformers_engine(model_dir: Path) -> TransformersEngine:
    return TransformersEngine(EngineSpec(model_dir=str(model_dir), max_model_len=256))


def test_a_skipped_engine_is_named(
    model_dirs: dict[bool, Path], other_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether it answers with its old stamp or claims the new one."""
    first, second = transformers_engine(model_dirs[True]), transformers_engine(model_dirs[True])
    engines = engines_of(first, second)
    sync_weights(learner_of(model_dirs[True]), engines, CANARY)
    updated = learner_of(other_dir)
    old = second.stamp()
    monkeypatch.setattr(second, "load_weights", lambda update: old)
    with pytest.raises(WeightSyncError, match=r"'rollout-engine-1' holds weights version 0"):
        sync_weights(updated, engines, CANARY)
    monkeypatch.setattr(second, "load_weights", lambda update: update.stamp)
    with pytest.raises(WeightSyncError, match=r"'rollout-engine-1' was handed .* canary tokens"):
        sync_weights(updated, engines, CANARY)
    monkeypatch.undo()
    assert sync_weights(updated, engines, CANARY)[0].published.stamp == updated.stamp()


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("tied", [True, False])
def test_one_flipped_bit_on_one_engine_is_refused_and_named(
    model_dirs: dict[bool, Path], monkeypatch: pytest.MonkeyPatch, tied: bool, dtype: str
) -> None:
    """No log-prob shows it, and one engine of many would sample another policy."""
    spec = LearnerSpec(str(model_dirs[tied]), trainable=False, device="cpu", dtype=dtype)
    learner = LearnerPool([InProcessWorker.of("learner-0", Learner(spec))])
    first, second = (
        TransformersEngine(EngineSpec(str(model_dirs[tied]), dtype=dtype, max_model_len=256))
        for _ in range(2)
    )
    canary = Canary(CANARY.ids, GapBound("rl.max_canary_gap", "mean", 0.1))
    load = second.load_weights

    def flipped(update: Any) -> Any:
        heal = inject("flipped")
        try:
            return load(update)
        finally:
            heal()

    with monkeypatch.context() as patched:
        patched.setattr(second, "load_weights", flipped)
        with pytest.raises(
            WeightSyncError, match=rf"'rollout-engine-1': 1 of \d+ tensors .*: '{FLIPPED}'"
        ):
            sync_weights(learner, engines_of(first, second), canary)
    assert first.stamp() == learner.stamp() != second.stamp()
    with pytest.raises(WeightSyncError, match="holds no proven weights"):
        second.probe([[2, 3]])
    sync_weights(learner, engines_of(first, second), canary)
    assert first.stamp() == second.stamp() == learner.stamp()
    assert first.probe([CANARY.ids.tolist()]) == second.probe([CANARY.ids.tolist()])


@pytest.mark.parametrize(("measure", "passes"), [("mean", True), ("max", False)])
def test_one_unlikely_token_off_by_rounding_stops_no_run(
    model_dirs: dict[bool, Path], monkeypatch: pytest.MonkeyPatch, measure: Any, passes: bool
) -> None:
    """In bfloat16 it is off by its logit's spacing; a wrong layer moves all tokens."""
    engine, learner = transformers_engine(model_dirs[True]), learner_of(model_dirs[True])
    probe = engine.probe

    def one_off(ids: Any) -> list[list[float]]:
        ((first, *rest),) = probe(ids)
        return [[first - 0.3, *rest]]

    monkeypatch.setattr(engine, "probe", one_off)
    canary = Canary(CANARY.ids, GapBound("rl.max_canary_gap", measure, 0.1))
    if passes:
        assert 0.009 < sync_weights(learner, engines_of(engine), canary)[1] < 0.011
    else:
        with pytest.raises(WeightSyncError, match=r"max \|gap\| = 0\.3 nats"):
            sync_weights(learner, engines_of(engine), canary)
