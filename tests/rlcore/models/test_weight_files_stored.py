"""What the headers of weight files say; false ones: ``tests/rlcore/models/test_soundness.py``."""

from pathlib import Path

import torch
from safetensors.torch import save_file

from rlcore.models.weight_files import stored_tensors, weight_files


def test_a_tensor_is_what_its_header_says(tmp_path: Path) -> None:
    state = {
        "a": torch.arange(6, dtype=torch.float32).reshape(2, 3),
        "b": torch.ones(4, dtype=torch.bfloat16),
        "c": torch.zeros(0, dtype=torch.int64),
    }
    save_file(state, tmp_path / "model.safetensors", metadata={"format": "pt"})
    (tmp_path / "model.fp16.safetensors").write_bytes(b"a variant")
    assert weight_files(tmp_path) == [tmp_path / "model.safetensors"]
    found = stored_tensors(tmp_path)
    assert {name: (t.dtype, t.shape) for name, t in found.items()} == {
        "a": ("F32", (2, 3)),
        "b": ("BF16", (4,)),
        "c": ("I64", (0,)),
    }
