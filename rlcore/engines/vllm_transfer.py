"""The worker side of weight sync: vLLM's weight-transfer protocol over a file in shared memory.

vLLM imports this module in every worker (``worker_extension_cls`` names a class of it), which
registers the backend and the loader of a new engine's noise. One update is one file
(``WeightUpdate``), so learner and engine share a machine. vLLM's own nccl and ipc backends, for
GPUs on several hosts, are not used here.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from vllm.config import ModelConfig
from vllm.distributed.weight_transfer.base import (
    WeightTransferEngine,
    WeightTransferInitInfo,
    WeightTransferUpdateInfo,
)
from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory
from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead
from vllm.model_executor.model_loader import DummyModelLoader, register_model_loader
from vllm.model_executor.model_loader.reload import (
    finalize_layerwise_reload,
    initialize_layerwise_reload,
)
from vllm.model_executor.model_loader.weight_utils import initialize_single_dummy_weight

from rlcore.engines.types import NOISE
from rlcore.engines.weight_check import read_update, verify_handed, verify_loaded
from rlcore.models.weight_digest import DigestTap
from rlcore.models.weight_files import checkpoint_shapes
from schemas.errors import UserError

BACKEND = "rlcore_file"
NOISE_FORMAT = "rlcore_noise"
EXTENSION = "rlcore.engines.vllm_transfer.TransferExtension"
NOTHING_RECEIVED = ("no update was received", False)


@dataclass
class FileInitInfo(WeightTransferInitInfo):
    """Empty: a file needs no rendezvous."""


@dataclass
class FileUpdateInfo(WeightTransferUpdateInfo):
    """``path``: safetensors file; ``tensors``: ``tensor_digests`` of the learner's."""

    path: str
    tensors: dict[str, str]


class FileTransferEngine(WeightTransferEngine[FileInitInfo, FileUpdateInfo]):
    """Loads a state file through vLLM's layerwise reload and verifies what the loader was given.

    Names and shapes are checked before the first layer is touched, because a layerwise reload
    without a tensor keeps that layer's old weights, or uninitialised ones, and only logs a line.
    """

    init_info_cls = FileInitInfo
    update_info_cls = FileUpdateInfo
    supports_draft_weight_update = False

    # What was wrong with an update, "" where the bytes that the model's loader was given are the
    # learner's and all were loaded; and whether a layer was changed.
    outcome = NOTHING_RECEIVED

    def init_transfer_engine(self, init_info: FileInitInfo) -> None:
        """Nothing to connect."""

    def start_weight_update(self) -> None:
        """Forget the last update; layers are put in reload state only once the file is checked."""
        self.outcome = NOTHING_RECEIVED

    def receive_weights(self, update_info: FileUpdateInfo) -> None:
        """Check that the file fits the model, load it, and compare what was loaded."""
        try:
            state = read_update(update_info.path, checkpoint_shapes(self.model_config.model))
        except UserError as error:  # reported through ``outcome``: an RPC loses the type
            self.outcome = str(error), False
            return
        tap = DigestTap()
        unloaded = self._load(tap.through(state.items()))
        try:
            verify_handed(tap.digests, update_info.tensors)
            verify_loaded(unloaded)
        except UserError as error:  # as above
            self.outcome = str(error), True
            return
        self.outcome = "", True

    def _load(self, weights: Iterator[tuple[str, torch.Tensor]]) -> set[str]:
        """Load ``weights``; return the parameters that got none of them."""
        before = {name for name, _ in self.model.named_parameters()}
        repack_experts(self.model)
        initialize_layerwise_reload(self.model)
        # Names that are valid before and after: repacking renames some, and removes that of a tied
        # head.
        names = before & {name for name, _ in self.model.named_parameters()}
        with torch.device(self.device):
            loader: Any = self.model  # vLLM's models take (name, tensor) pairs; nn.Module does not
            loaded: set[str] | None = loader.load_weights(weights)
            finalize_layerwise_reload(self.model, self.model_config)
        refresh_heads(self.model)
        return set() if loaded is None else names - loaded  # a few models return no names

    def finish_weight_update(self) -> None:
        """Nothing left to do: an update is one file, loaded whole by ``receive_weights``."""

    def shutdown(self) -> None:
        """Nothing is held between updates."""


@register_model_loader(NOISE_FORMAT)
class NoiseLoader(DummyModelLoader):
    """Gives a new model noise for weights; see ``RolloutEngine``. Reads no file."""

    def load_weights(self, model: torch.nn.Module, model_config: ModelConfig) -> None:
        """Fill every parameter; buffers are computed from the config and are already right."""
        del model_config
        for parameter in model.parameters():
            initialize_single_dummy_weight(parameter, -NOISE, NOISE)


class TransferExtension:
    """Mixed into vLLM's worker, for the driver to query what the worker loaded."""

    if TYPE_CHECKING:
        weight_transfer_engine: FileTransferEngine

    def transfer_outcome(self) -> tuple[str, bool]:
        """Return ``FileTransferEngine.outcome`` of the last update."""
        return self.weight_transfer_engine.outcome


def repack_experts(model: torch.nn.Module) -> None:
    """Let the next load repack the weights of every layer of experts that is on a CPU.

    Experts there multiply by packed weights as well, and vLLM packs them only while their kernel is
    not built: a reload would put plain weights in their place, silently.
    """
    for module in model.modules():
        method: Any = getattr(module, "quant_method", None)
        on_cpu = all(parameter.is_cpu for parameter in module.parameters(recurse=False))
        if on_cpu and getattr(method, "moe_kernel", None) is not None:
            method.moe_kernel = None


def refresh_heads(model: torch.nn.Module) -> None:
    """Repack every LM head from its current weight.

    On CPU a linear layer multiplies by a packed copy of its weight. A tied head shares the
    embedding's parameter, so the reload processes the embedding only and the head would continue
    multiplying by the OLD copy, silently. Elsewhere this does nothing.
    """
    for module in model.modules():
        if isinstance(module, ParallelLMHead):
            module.quant_method.process_weights_after_loading(module)


# Registering a second time in one process would raise.
WeightTransferEngineFactory.register_engine(BACKEND, FileTransferEngine)
