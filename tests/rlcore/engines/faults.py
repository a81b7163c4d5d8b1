"""What can go wrong between a learner's tensors and an engine's layers, switched on by name.

``inject`` works in the process that holds the engine and returns what takes the fault away again.
"""

import sys
from collections.abc import Callable
from typing import Any

import torch

State = dict[str, torch.Tensor]
DROPPED = "model.layers.1.mlp.up_proj.weight"
SWAPPED = ("model.layers.0.mlp.gate_proj.weight", "model.layers.1.mlp.gate_proj.weight")
FLIPPED = "model.layers.0.self_attn.v_proj.weight"
SKIPPED = "model.layers.1.mlp.down_proj.weight"
READERS = ("rlcore.engines.transformers_engine", "rlcore.engines.vllm_transfer")


def drop(state: State) -> State:
    """Lose a tensor after the file's names were checked."""
    return {name: tensor for name, tensor in state.items() if name != DROPPED}


def swap(state: State) -> State:
    """Swap the names of two tensors of one shape."""
    first, second = SWAPPED
    return state | {first: state[second], second: state[first]}


def flip(state: State) -> State:
    """Change the lowest bit of one element: far too little for any log-prob to show."""
    changed = state[FLIPPED].clone()
    changed.view(torch.int32).view(-1)[5] ^= 1
    return state | {FLIPPED: changed}


TAMPERINGS = {"dropped": drop, "swapped": swap, "flipped": flip}


def inject(fault: str) -> Callable[[], None]:
    """Switch ``fault`` on: one of ``TAMPERINGS``, "stale head", "skips" or "skips and says so"."""
    if fault in TAMPERINGS:
        return _patch_readers(TAMPERINGS[fault])
    from rlcore.engines import vllm_transfer

    if fault == "stale head":
        return _patch(vllm_transfer, "refresh_heads", lambda model: None)
    from vllm.model_executor.models.qwen2 import Qwen2ForCausalLM

    load = Qwen2ForCausalLM.load_weights

    def skipping(model: Any, weights: Any) -> set[str]:
        """vLLM's loaders leave out what they do not know, with a log line at most."""
        loaded = load(model, ((name, tensor) for name, tensor in weights if name != SKIPPED))
        return loaded if fault == "skips and says so" else loaded | {SKIPPED}

    return _patch(Qwen2ForCausalLM, "load_weights", skipping)


def _patch_readers(tamper: Callable[[State], State]) -> Callable[[], None]:
    """Change what ``read_update`` gives to every engine of this process."""
    undo = []
    for module in [sys.modules[name] for name in READERS if name in sys.modules]:
        read = module.read_update
        undo.append(_patch(module, "read_update", lambda *a, read=read: tamper(read(*a))))

    def heal() -> None:
        for each in undo:
            each()

    return heal


def _patch(owner: Any, name: str, value: Any) -> Callable[[], None]:
    original = getattr(owner, name)
    setattr(owner, name, value)
    return lambda: setattr(owner, name, original)
