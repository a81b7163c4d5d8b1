"""The contract of engines: kept by ours and by a user's, and it finds what breaks it."""

import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rlcore.engines.contract import CHECKS, CONTEXT, broken, broken_by, main
from rlcore.engines.own_engine import OwnEngine
from rlcore.engines.registry import engine_kind
from rlcore.engines.transformers_engine import TransformersEngine
from rlcore.engines.types import EngineSpec, Generation, Sampling, TurnRequest
from rlcore.models.weight_digest import UNVERIFIED, WeightStamp, WeightUpdate
from rlcore.models.weight_files import read_state
from schemas.outcomes import FinishReason
from tests.rlcore.engines.conftest import EngineProcess, RemoteEngine
from tests.rlcore.engines.forty_lines import SmallEngine

ROOT = Path(__file__).parents[3]
pytestmark = pytest.mark.timeout(180)
OWN = "tests.rlcore.engines.forty_lines:SmallEngine"


@pytest.mark.slow
@pytest.mark.parametrize("tied", [True, False], ids=["tied", "untied"])
def test_vllm_keeps_it(
    vllm_process: EngineProcess, model_dirs: dict[bool, Path], tied: bool
) -> None:
    spec = EngineSpec(str(model_dirs[tied]), max_model_len=CONTEXT, max_num_seqs=32)
    vllm_process.call(f"contract {tied}", "build", spec)
    assert broken_by(RemoteEngine(vllm_process, f"contract {tied}"), spec) == {}


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("tied", [True, False], ids=["tied", "untied"])
def test_vllm_keeps_it_where_two_processes_share_the_weights(
    start_process: Callable[[EngineSpec], EngineProcess], model_dirs: dict[bool, Path], tied: bool
) -> None:
    spec = EngineSpec(
        str(model_dirs[tied]), max_model_len=CONTEXT, max_num_seqs=32, tensor_parallel_size=2
    )
    process = start_process(spec)
    process.call("shared", "build", spec)
    assert broken_by(RemoteEngine(process, "shared"), spec) == {}


def test_transformers_keeps_it(model_dirs: dict[bool, Path]) -> None:
    assert broken("transformers", model_dirs[True]) == {}


@pytest.mark.slow
def test_an_engine_of_forty_lines_keeps_it(model_dirs: dict[bool, Path]) -> None:
    """In a process of its own, which the command replaces to set the environment of engines."""
    command = [sys.executable, "-m", "rlcore.engines.contract", OWN, str(model_dirs[False])]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, cwd=ROOT)
    assert ended.returncode == 0, ended.stderr[-2000:]
    said = ended.stdout.splitlines()
    assert len(said) == len(CHECKS)
    assert all(line.startswith("holds   ") for line in said)


class Careless(TransformersEngine):
    """Samples from whatever it holds."""

    def generate(self, requests: Sequence[TurnRequest], sampling: Sampling) -> list[Generation]:
        return self._decode(list(requests), sampling)


class Trusting(TransformersEngine):
    """Says that it holds what it was sent."""

    def load_weights(self, update: WeightUpdate) -> WeightStamp:
        if self._stamp == UNVERIFIED:
            return super().load_weights(update)
        self._stamp = update.stamp
        return update.stamp


class Seedless(TransformersEngine):
    """Draws by position in the batch."""

    def generate(self, requests: Sequence[TurnRequest], sampling: Sampling) -> list[Generation]:
        return super().generate([replace(r, seed=n) for n, r in enumerate(requests)], sampling)


class Plain(TransformersEngine):
    """Reports log-probs at temperature 1, and drops the stop token."""

    def generate(self, requests: Sequence[TurnRequest], sampling: Sampling) -> list[Generation]:
        rows = []
        for request, row in zip(requests, super().generate(requests, sampling), strict=True):
            stopped = row.finish_reason == FinishReason.STOP and len(row.token_ids) > 1
            tokens = row.token_ids[:-1] if stopped else row.token_ids
            (probed,) = self.probe([[*request.token_ids, *tokens]])
            rows.append(replace(row, token_ids=tokens, logprobs=probed[-len(tokens) :]))
        return rows


class Generous(TransformersEngine):
    """Gives every request the budget of the rollout."""

    def generate(self, requests: Sequence[TurnRequest], sampling: Sampling) -> list[Generation]:
        most = sampling.max_new_tokens
        return super().generate([replace(r, max_new_tokens=most) for r in requests], sampling)


class Mapped(SmallEngine):
    """Samples from the memory of the file that it was sent."""

    def load_weights(self, update: WeightUpdate) -> WeightStamp:
        stamp = super().load_weights(update)
        self.model.load_state_dict(read_state(update.path), strict=False, assign=True)
        return stamp


@pytest.mark.slow
@pytest.mark.parametrize(
    ("engine", "found"),
    [
        (Careless, {"new holds nothing", "wrong requests are refused", "other bytes are refused"}),
        (Seedless, {"a row depends on its own seed"}),
        (Plain, {"logprobs are of what was sampled", "a stop token ends its row"}),
        (Generous, {"a row keeps its own budget"}),
        (Mapped, {"it keeps no view of the file"}),
    ],
)
def test_an_engine_that_breaks_it_is_found(
    model_dirs: dict[bool, Path], engine: Callable[[EngineSpec], Any], found: set[str]
) -> None:
    spec = EngineSpec(str(model_dirs[True]), max_model_len=CONTEXT)
    own = OwnEngine(spec, f"{__name__}:{engine.__name__}")
    assert own.stamp() == UNVERIFIED
    assert found <= set(broken_by(own, spec))


@pytest.mark.slow
def test_an_engine_that_keeps_old_weights_is_found(model_dirs: dict[bool, Path]) -> None:
    spec = EngineSpec(str(model_dirs[True]), max_model_len=CONTEXT)
    said = broken_by(OwnEngine(spec, f"{__name__}:Trusting"), spec)
    assert "nats off" in said["new weights leave nothing of the old"]
    assert "not refused" in said["weights of another model are refused"]
    assert "loads and says what" not in said


def test_a_name_that_is_no_engine_ends_in_a_sentence(
    model_dirs: dict[bool, Path], capsys: pytest.CaptureFixture[str], monkeypatch: Any
) -> None:
    name = "tests.rlcore.engines.forty_lines:SmallEngine"
    spec = EngineSpec(str(model_dirs[True]), device="cpu", threads=1)
    for variable, value in engine_kind(name).environment(spec).items():
        monkeypatch.setenv(variable, value)  # else it would begin again in this process's place
    assert main(["tests.rlcore.engines.forty_lines:Smallengine", str(model_dirs[True])]) == 2
    assert "has no class Smallengine; did you mean 'SmallEngine'?" in capsys.readouterr().err
