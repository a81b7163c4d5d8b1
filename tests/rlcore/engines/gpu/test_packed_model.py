"""Weights that a packed decoder shares with the model that they are loaded into."""

from pathlib import Path

import pytest
import torch

from rlcore.engines import transformers_engine
from rlcore.engines.gpu.packed_model import PackedModel, is_known, packable
from rlcore.engines.transformers_engine import TransformersEngine
from rlcore.engines.types import EngineSpec, Sampling
from rlcore.models.weight_digest import UNVERIFIED, WeightSyncError, canonical_names
from tests.rlcore.engines.conftest import requests_of, tiny_model, update_of
from tests.rlcore.engines.models import OTHERS, PACKED


@pytest.mark.parametrize("kind", PACKED)
def test_packing_changes_no_weight_and_copies_none(kind: str) -> None:
    """A second copy could be stale, and takes the memory of the model again."""
    model = PACKED[kind]()
    assert [packable(model, device) for device in ("cpu", "cuda")] == [False, True]
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    names = canonical_names(model)
    packed = PackedModel(model, 8)
    assert canonical_names(model) == names
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, before[name]), name
    memories = {each.untyped_storage().data_ptr() for each in model.parameters()}
    layer = packed.layers[1]
    assert {layer.qkv.untyped_storage().data_ptr(), layer.gate_up.data_ptr()} <= memories
    with torch.no_grad():
        model.model.layers[1].self_attn.k_proj.weight.fill_(3.0)
    assert (layer.qkv == 3.0).sum() == model.model.layers[1].self_attn.k_proj.weight.numel()


@pytest.mark.parametrize("kind", OTHERS)
def test_other_models_are_not_packed(kind: str) -> None:
    """What the tables do not name is left to transformers."""
    assert not packable(OTHERS[kind](), "cuda")


@pytest.mark.parametrize("way", ["data", "parameter"])
def test_stale_packed_weights_are_refused(
    way: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A parameter that lies apart from the packed matrix is loaded and not sampled from: the
    digests are right, and probe, which is the model's own pass, is too."""
    monkeypatch.setattr(transformers_engine, "packable", lambda model, _: is_known(model))
    tiny_model(0, tied=True).save_pretrained(tmp_path / "model")
    engine = TransformersEngine(EngineSpec(str(tmp_path / "model"), max_model_len=64))
    sampling = Sampling(temperature=0.0, max_new_tokens=4)
    requests = requests_of([[5, 6, 7]], [0], sampling)
    states = [tiny_model(seed, tied=True).state_dict() for seed in (1, 2)]
    names = canonical_names(engine._model)
    first, second = (
        update_of({name: state[name] for name in names}, version, tmp_path / f"{version}")
        for version, state in enumerate(states)
    )
    engine.load_weights(first)
    projection = engine._model.model.layers[1].self_attn.k_proj
    apart = projection.weight.detach().clone()
    if way == "data":
        projection.weight.data = apart
    else:
        projection.weight = torch.nn.Parameter(apart, requires_grad=False)
    name = r"model\.layers\.1\.self_attn\.k_proj\.weight"
    with pytest.raises(WeightSyncError, match=rf"1 of the model's parameters .* stale: '{name}'"):
        engine.load_weights(second)
    assert engine.stamp() == UNVERIFIED
    with pytest.raises(WeightSyncError, match="holds no proven weights"):
        engine.generate(requests, sampling)
