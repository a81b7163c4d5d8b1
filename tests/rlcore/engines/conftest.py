"""Tiny Qwen2 models, and every engine behind one fixture (vLLM in a process of its own)."""

import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cache
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
from transformers import Qwen2Config, Qwen2ForCausalLM

from rlcore.engines.transformers_engine import TransformersEngine
from rlcore.engines.types import EngineSpec, Generation, RolloutEngine, Sampling, TurnRequest
from rlcore.engines.vllm_engine import engine_env
from rlcore.models.weight_digest import (
    WeightStamp,
    WeightUpdate,
    canonical_names,
    combined_digest,
    tensor_digests,
)
from rlcore.models.weight_files import write_state
from tests.rlcore.engines.faults import inject

ROOT = Path(__file__).parents[3]
VOCAB = 200
CALL_TIMEOUT_S = 400.0  # the first call imports vllm


def tiny_model(seed: int, *, tied: bool, vocab_size: int = VOCAB) -> Qwen2ForCausalLM:
    """A Qwen2 whose next-token distribution is neither flat nor certain."""
    config = Qwen2Config(
        vocab_size=vocab_size,
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=512,
        tie_word_embeddings=tied,
        eos_token_id=1,
        initializer_range=0.15,
        dtype=torch.float32,
    )
    torch.manual_seed(seed)
    return Qwen2ForCausalLM(config).eval()


def requests_of(prompts: Any, seeds: Any, sampling: Sampling) -> list[TurnRequest]:
    """A request per prompt, its key the index, all with the budget of ``sampling``."""
    return [
        TurnRequest(str(row), prompt, seed, sampling.max_new_tokens)
        for row, (prompt, seed) in enumerate(zip(prompts, seeds, strict=True))
    ]


class EngineProcess:
    """A child process that holds vLLM engines; calls are answered or time out."""

    def __init__(self, env: dict[str, str], *, timeout_s: float = CALL_TIMEOUT_S) -> None:
        self._timeout_s = timeout_s
        ours, theirs = socket.socketpair()
        os.set_inheritable(theirs.fileno(), True)
        self._process = subprocess.Popen(
            [
                sys.executable,
                str(Path(__file__).with_name("engine_process.py")),
                str(theirs.fileno()),
            ],
            env=os.environ | env | {"PYTHONPATH": str(ROOT)},
            pass_fds=[theirs.fileno()],
            stdout=subprocess.DEVNULL,
        )
        theirs.close()
        self._connection = Connection(ours.detach())

    @property
    def resident_mib(self) -> float:
        """Of the whole process."""
        return psutil.Process(self._process.pid).memory_info().rss / 2**20

    def call(self, engine: str, method: str, *arguments: Any) -> Any:
        self._connection.send((engine, method, arguments))
        if not self._connection.poll(self._timeout_s):
            self._process.kill()
            raise TimeoutError(f"vLLM engine '{engine}' did not answer {method}")
        ok, value = self._connection.recv()
        if not ok:
            raise value
        return value

    def close(self) -> None:
        self._process.kill()  # holds nothing worth saving; vLLM's own exit takes seconds
        self._process.wait(timeout=300)


@dataclass
class RemoteEngine:
    """``RolloutEngine`` whose calls run in an ``EngineProcess``."""

    process: EngineProcess
    name: str

    def begin(self) -> None:
        self.process.call(self.name, "begin")

    def generate(self, requests: Any, sampling: Sampling) -> list[Generation]:
        return self.process.call(self.name, "generate", requests, sampling)

    def advance(self, requests: Any, sampling: Sampling, wait_s: float) -> Any:
        return self.process.call(self.name, "advance", requests, sampling, wait_s)

    def prefilled(self) -> tuple[int, int]:
        return self.process.call(self.name, "prefilled")

    def probe(self, token_ids: Any) -> list[list[float]]:
        return self.process.call(self.name, "probe", token_ids)

    def load_weights(self, update: WeightUpdate) -> WeightStamp:
        return self.process.call(self.name, "load_weights", update)

    def stamp(self) -> WeightStamp:
        return self.process.call(self.name, "stamp")

    def rest(self) -> None:
        self.process.call(self.name, "rest")

    def inject(self, fault: str) -> Callable[[], None]:
        self.process.call(self.name, "inject", fault)
        return lambda: self.process.call(self.name, "heal")

    def close(self) -> None:
        self.process.call(self.name, "close")


def update_of(state: dict[str, torch.Tensor], version: int, path: Path) -> WeightUpdate:
    """``state`` as its sender writes it."""
    write_state(path, state)
    tensors = tensor_digests(state.items())
    return WeightUpdate(WeightStamp(version, combined_digest(tensors)), str(path), tensors)


@dataclass
class Synced:
    """An engine and the model whose weights it was last sent; ``sync`` sends another's."""

    engine: RolloutEngine
    spec: EngineSpec
    tied: bool
    folder: Path
    model: Qwen2ForCausalLM = field(init=False)
    version: int = 0

    def publish(self, model: Qwen2ForCausalLM) -> WeightUpdate:
        self.version += 1
        state = {name: model.state_dict()[name] for name in canonical_names(model)}
        return update_of(state, self.version, self.folder / f"v{self.version}.safetensors")

    def generate(self, prompts: Any, seeds: Any, sampling: Sampling) -> list[Generation]:
        """A rollout of one turn."""
        self.engine.begin()
        return self.engine.generate(requests_of(prompts, seeds, sampling), sampling)

    @contextmanager
    def fault(self, name: str) -> Iterator[None]:
        """``faults.inject`` in the engine's process, for the length of a ``with``."""
        engine = self.engine
        heal = engine.inject(name) if isinstance(engine, RemoteEngine) else inject(name)
        try:
            yield
        finally:
            heal()

    def sync(self, seed: int) -> WeightStamp:
        self.model = tiny_model(seed, tied=self.tied)
        return self.engine.load_weights(self.publish(self.model))


@pytest.fixture(scope="session")
def model_dirs(tmp_path_factory: pytest.TempPathFactory) -> dict[bool, Path]:
    """Model directories by whether the head is tied."""
    dirs = {tied: tmp_path_factory.mktemp("model") / str(tied) for tied in (True, False)}
    for tied, path in dirs.items():
        tiny_model(0, tied=tied).save_pretrained(path)
    return dirs


@pytest.fixture(scope="session")
def start_process() -> Iterator[Callable[[EngineSpec], EngineProcess]]:
    started: list[EngineProcess] = []

    def start(spec: EngineSpec) -> EngineProcess:
        started.append(EngineProcess(engine_env(spec)))
        return started[-1]

    yield start
    for process in started:
        process.close()


@pytest.fixture(scope="session")
def vllm_process(start_process: Callable[[EngineSpec], EngineProcess]) -> EngineProcess:
    return start_process(EngineSpec(model_dir="unused"))


EngineOf = Callable[[str, bool], Synced]


@pytest.fixture(scope="session")
def engine_of(
    request: pytest.FixtureRequest,
    model_dirs: dict[bool, Path],
    tmp_path_factory: pytest.TempPathFactory,
) -> EngineOf:
    """Return the engine of a kind, of a model whose head is tied or not; each is built once."""

    @cache
    def engine_of(kind: str, tied: bool) -> Synced:
        spec = EngineSpec(
            model_dir=str(model_dirs[tied]), max_model_len=256, max_num_seqs=64, sleeps=True
        )
        if kind == "vllm":
            process: EngineProcess = request.getfixturevalue("vllm_process")
            name = f"tied={tied}"
            process.call(name, "build", spec)
            engine: RolloutEngine = RemoteEngine(process, name)
        else:
            engine = TransformersEngine(replace(spec, max_num_seqs=16))
        return Synced(engine, spec, tied, tmp_path_factory.mktemp("updates"))

    return engine_of


@pytest.fixture(
    params=[("vllm", True), ("vllm", False), ("transformers", True), ("transformers", False)],
    ids=["vllm-tied", "vllm-untied", "transformers-tied", "transformers-untied"],
)
def synced(request: pytest.FixtureRequest, engine_of: EngineOf) -> Synced:
    """Each engine in turn, holding weights it was not built with."""
    engine = engine_of(*request.param)
    engine.sync(seed=engine.version + 100)
    return engine
