"""The worker side of weight sync: vLLM's weight-transfer protocol over a file in shared memory.

vLLM imports this module in every worker (``worker_extension_cls`` names a class of it), which
registers the backend. One update is one file, written whole by ``models.digest.write_state``.
Works wherever learner and engine see one file system (same host: /dev/shm). vLLM's own nccl and ipc
backends, for GPUs on several hosts, are not wired up here.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from vllm.distributed.weight_transfer.base import (
    WeightTransferEngine,
    WeightTransferInitInfo,
    WeightTransferUpdateInfo,
)
from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory
from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead
from vllm.model_executor.model_loader.reload import (
    finalize_layerwise_reload,
    initialize_layerwise_reload,
)

from rlcore.models.digest import checkpoint_shapes
from rlcore.rollout.weights import read_update
from schemas.errors import UserError

BACKEND = "rlcore_file"
EXTENSION = "rlcore.rollout.vllm_transfer.TransferExtension"


@dataclass
class FileInitInfo(WeightTransferInitInfo):
    """No rendezvous: the file is the whole channel."""


@dataclass
class FileUpdateInfo(WeightTransferUpdateInfo):
    """``path``: safetensors file; ``digest``: the ``state_digest`` the learner stamped it with."""

    path: str
    digest: str


@dataclass(frozen=True)
class TransferOutcome:
    """What one worker did with an update. ``problem`` is empty when the weights are in."""

    digest: str
    problem: str


class FileTransferEngine(WeightTransferEngine[FileInitInfo, FileUpdateInfo]):
    """Loads a state file through vLLM's layerwise reload, or leaves the model as it was.

    Everything is checked before the first layer is touched, because a layerwise reload that is
    missing a tensor leaves uninitialised memory in that layer with only a log line.
    """

    init_info_cls = FileInitInfo
    update_info_cls = FileUpdateInfo
    supports_draft_weight_update = False

    outcome = TransferOutcome(digest="", problem="no update was received")

    def init_transfer_engine(self, init_info: FileInitInfo) -> None:
        """Nothing to connect."""

    def start_weight_update(self) -> None:
        """Forget the last update; layers are put in reload state only once the file is checked."""
        self.outcome = TransferOutcome(digest="", problem="no update was received")

    def receive_weights(self, update_info: FileUpdateInfo) -> None:
        """Check the file against its digest and the model, then load it."""
        try:
            expected = checkpoint_shapes(self.model_config.model)
            state = read_update(update_info.path, update_info.digest, expected)
        except UserError as error:  # reported through ``outcome``: an RPC loses exception types
            self.outcome = TransferOutcome(digest="", problem=str(error))
            return
        initialize_layerwise_reload(self.model)
        with torch.device(self.device):
            loader: Any = self.model  # vLLM's models take (name, tensor) pairs; nn.Module does not
            loader.load_weights(state.items())
            finalize_layerwise_reload(self.model, self.model_config)
        _refresh_heads(self.model)
        self.outcome = TransferOutcome(digest=update_info.digest, problem="")

    def finish_weight_update(self) -> None:
        """Nothing left to do: an update is one file, loaded whole by ``receive_weights``."""

    def shutdown(self) -> None:
        """Nothing is held between updates."""


class TransferExtension:
    """Mixed into vLLM's worker: lets the driver ask what the worker loaded."""

    if TYPE_CHECKING:
        weight_transfer_engine: FileTransferEngine

    def transfer_outcome(self) -> tuple[str, str]:
        """Return ``(digest of the weights read, problem or "")`` of the last update."""
        outcome = self.weight_transfer_engine.outcome
        return outcome.digest, outcome.problem


def _refresh_heads(model: torch.nn.Module) -> None:
    """Repack every LM head from the weight it now holds.

    On CPU a linear layer multiplies by a packed copy of its weight. A tied head shares the
    embedding's parameter, so the reload processes the embedding only and the head would go on
    multiplying by the OLD copy, silently. Elsewhere this does nothing.
    """
    for module in model.modules():
        if isinstance(module, ParallelLMHead):
            module.quant_method.process_weights_after_loading(module)


# vLLM imports a module once per process; a second registration would raise.
WeightTransferEngineFactory.register_engine(BACKEND, FileTransferEngine)
