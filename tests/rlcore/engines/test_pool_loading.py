"""A model directory reaches every engine whole, and leaves nothing in shared memory."""

from pathlib import Path

import pytest
import torch

from rlcore.cluster.in_process import InProcessWorker
from rlcore.engines.pool import EnginePool, load_model_directory
from rlcore.models.weight_digest import WeightStamp, WeightUpdate, state_digest
from rlcore.models.weight_files import read_checkpoint, read_state, write_state


class Receiver:
    """Keeps what it was sent."""

    def __init__(self) -> None:
        self.update: WeightUpdate | None = None
        self.state: dict[str, torch.Tensor] = {}

    def load_weights(self, update: WeightUpdate) -> WeightStamp:
        self.update = update
        self.state = {name: t.clone() for name, t in read_state(update.path).items()}
        return WeightStamp(update.stamp.version, state_digest(self.state.items()))


@pytest.fixture
def model_dir(tmp_path: Path) -> Path:
    (tmp_path / "config.json").write_text("{}")
    write_state(
        tmp_path / "model.safetensors", {"a": torch.arange(6.0).reshape(2, 3), "b": torch.ones(2)}
    )
    return tmp_path


def test_every_engine_gets_the_directorys_weights(model_dir: Path) -> None:
    """An engine that evaluates other weights reports another model's accuracy."""
    receivers = [Receiver(), Receiver()]
    workers = [InProcessWorker.of(f"e{i}", receiver) for i, receiver in enumerate(receivers)]
    stamp = load_model_directory(EnginePool(workers, timeout_s=5, sync_timeout_s=5), model_dir)
    expected = read_checkpoint(model_dir)
    assert stamp == WeightStamp(0, state_digest(expected.items()))
    for receiver in receivers:
        assert receiver.state.keys() == expected.keys()
        assert receiver.update is not None
        assert not Path(receiver.update.path).exists(), "weights stay in shared memory"
