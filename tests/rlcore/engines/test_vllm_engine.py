"""How engines start: what they refuse, and what they do not import."""

import dataclasses
import json
import subprocess
import sys

import pytest

from rlcore.engines.types import CPU_HEADS, EngineSpec
from rlcore.engines.vllm_engine import VllmEngine, engine_env
from schemas.errors import UserError


def test_a_process_without_the_environment_is_refused(model_dirs, monkeypatch) -> None:
    """With OpenMP's own thread count vLLM runs 24 times slower, and nothing says why."""
    spec = EngineSpec(model_dir=str(model_dirs[True]))
    for name, value in engine_env(spec).items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    with pytest.raises(UserError, match="started without OMP_NUM_THREADS=1; start it with"):
        VllmEngine(spec)


def test_on_a_gpu_float32_attention_is_in_float32() -> None:
    """Triton's TF32 differs from the learner's log-probs by more than ``rl.max_canary_gap``."""
    assert engine_env(EngineSpec(model_dir="", device="cuda"))["TRITON_F32_DEFAULT"] == "ieee"


@pytest.mark.slow
def test_heads_on_cpu_are_those_of_vllm() -> None:
    backend = "vllm.v1.attention.backends.cpu_attn"
    asks = f"import {backend} as cpu; print(cpu.CPUAttentionBackend.get_supported_head_sizes())"
    said = subprocess.run([sys.executable, "-c", asks], stdout=subprocess.PIPE, check=True)
    assert list(CPU_HEADS) == json.loads(said.stdout.splitlines()[-1])


def test_a_folder_without_a_model_is_refused(tmp_path) -> None:
    with pytest.raises(UserError, match=r"has no config\.json; give a Hugging Face model"):
        VllmEngine(EngineSpec(model_dir=str(tmp_path)))
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(UserError, match=r"holds no model\*\.safetensors"):
        VllmEngine(EngineSpec(model_dir=str(tmp_path)))


@pytest.mark.timeout(120)
def test_vllm_refuses_what_cannot_run(vllm_process, model_dirs) -> None:
    spec = EngineSpec(model_dir=str(model_dirs[True]), max_model_len=256)
    with pytest.raises(UserError, match=r"device = 'cuda' and the installed vllm .* runs on 'cpu'"):
        vllm_process.call("x", "build", dataclasses.replace(spec, device="cuda"))
    with pytest.raises(UserError, match=r"kv_cache_gib = 1e-05 cannot hold one sequence"):
        vllm_process.call("x", "build", dataclasses.replace(spec, kv_cache_gib=1e-5))


@pytest.mark.timeout(120)
def test_batches_of_ever_new_sizes_do_not_fill_memory(engine_of) -> None:
    """On CPU an engine would grow by a hundred MiB with each hundred sizes of a batch, and rows
    that end make a new one every few steps."""
    synced = engine_of("vllm", True)
    synced.sync(seed=0)

    def grown_mib(lengths: range) -> float:
        before = synced.engine.process.resident_mib
        for length in lengths:
            synced.engine.probe([[5] * length])
        return synced.engine.process.resident_mib - before

    grown_mib(range(2, 60))  # fills what is bounded
    assert grown_mib(range(60, 120)) < 60.0


def test_the_environment_fits_the_device() -> None:
    cpu = engine_env(EngineSpec(model_dir="m", threads=3, tensor_parallel_size=2))
    assert cpu["OMP_NUM_THREADS"] == "3"
    assert cpu["VLLM_CPU_OMP_THREADS_BIND"] == "0|1"
    gpu = engine_env(EngineSpec(model_dir="m", device="cuda"))
    assert not gpu.keys() & {"TORCH_COMPILE_DISABLE", "ONEDNN_PRIMITIVE_CACHE_CAPACITY"}
