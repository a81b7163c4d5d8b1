"""Steps of fixed shapes, against a plain forward pass over the whole sequence."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from rlcore.engines import row_decoder, transformers_engine
from rlcore.engines.gpu import graph_rows
from rlcore.engines.gpu.packed_model import is_known
from rlcore.engines.types import Sampling
from schemas.outcomes import FinishReason
from tests.devices import DEVICES
from tests.rlcore.engines.models import PACKED
from tests.rlcore.engines.rows import engine_of, furthest, requests_of_budgets

NEAR = {"cpu": 1e-5, "cuda": 1e-4}  # nats, float32


@pytest.fixture
def replays(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Decode by ``GraphRows`` on a CPU too, with buffers that grow; an entry per replay of a
    graph."""
    monkeypatch.setattr(transformers_engine, "packable", lambda model, _: is_known(model))
    monkeypatch.setattr(row_decoder, "BLOCK", 8)
    for module in (row_decoder, graph_rows):
        monkeypatch.setattr(module, "COLUMNS", 8)
    seen: list[int] = []
    replay: Callable[[torch.cuda.CUDAGraph], None] = torch.cuda.CUDAGraph.replay

    def counted(graph: torch.cuda.CUDAGraph) -> None:
        seen.append(1)
        replay(graph)

    monkeypatch.setattr(torch.cuda.CUDAGraph, "replay", counted)
    return seen


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("kind", PACKED)
def test_logprobs_are_those_of_the_whole_sequence(
    kind: str, device: str, tmp_path: Path, replays: list[int]
) -> None:
    """Rows leave and take each other's places, prompts leave, columns are added: what is read at
    fixed addresses must follow."""
    torch.manual_seed(3)
    engine = engine_of(PACKED[kind](), tmp_path, device=device)
    requests, stops = requests_of_budgets(9, samples=3), (0, 1, 2)
    rows = engine.generate(requests, Sampling(stop_token_ids=stops))
    assert furthest(engine, requests, rows) < NEAR[device]
    assert {row.finish_reason for row in rows} == {FinishReason.STOP, FinishReason.LENGTH}
    assert (len(replays) > 20) == (device == "cuda")


@pytest.mark.parametrize("device", DEVICES)
def test_the_same_batch_has_the_same_bits(device: str, tmp_path: Path, replays: list[int]) -> None:
    del replays
    engine = engine_of(PACKED["Qwen2, tied"](), tmp_path, device=device)
    requests = requests_of_budgets(5, samples=4)
    first, second = (engine.generate(requests, Sampling()) for _ in range(2))
    assert first == second
