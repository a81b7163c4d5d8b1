"""One rank of a DeepSpeed engine: gradients summed over passes and ranks, steps.

Apart from ``sequence_parallel`` the only file that imports deepspeed. Its batch size, gradient
accumulation and schedule are not used: a step is any number of passes, and the weights of the token
losses already hold the global counts, so gradients are summed and never averaged.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from datetime import timedelta
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch.distributed import HashStore  # pyright: ignore[reportPrivateImportUsage]
from torch.utils import deterministic

from rlcore.cluster.host_settings import LOOPBACK_ENV, interface_towards, limit_onednn
from rlcore.learner.canonical import SavedState
from rlcore.learner.model import TokenModel
from rlcore.learner.shards import read_shards, write_shards
from rlcore.learner.spec import LearnerSpec
from rlcore.models.adapter import merged_state
from rlcore.models.weight_digest import canonical_names
from schemas.errors import UserError

if TYPE_CHECKING:
    from transformers import PreTrainedModel

BUCKET_ELEMENTS = 5 * 10**8  # DeepSpeed's default; _config caps it at the model's size


@dataclass(frozen=True, slots=True)
class StepOutcome:
    """``grad_norm``: before clipping, over all ranks; inf if the step was skipped because of it."""

    grad_norm: float
    applied: bool


def pick_device(wanted: str) -> str:
    """Return "cpu" or "cuda"; "auto" is CUDA if available. ``UserError`` for it without a GPU."""
    available = torch.cuda.is_available()
    if wanted == "cuda" and not available:
        raise UserError("learner device = 'cuda' and this process sees no GPU; use 'auto' or 'cpu'")
    return "cuda" if available and wanted != "cpu" else "cpu"


def make_deterministic(spec: LearnerSpec, device: str) -> None:
    """Fix threads, seed and kernels of this process.

    On CUDA an operation without a deterministic kernel only warns, since some models need such
    operations, unless ``spec.full_determinism``.
    """
    if device == "cuda":
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        os.environ.setdefault("FLASH_ATTENTION_DETERMINISTIC", "1")
        # cuDNN plans attention for each new shape, as nearly every batch has: as long as the batch.
        torch.backends.cuda.enable_cudnn_sdp(False)
    limit_onednn()
    torch.set_num_threads(spec.threads)
    torch.manual_seed(spec.seed)
    torch.use_deterministic_algorithms(
        True, warn_only=device == "cuda" and not spec.full_determinism
    )
    # Filling every new buffer costs a write, and would only reveal reads of uninitialised memory.
    deterministic.fill_uninitialized_memory = False  # pyright: ignore[reportAttributeAccessIssue]


class TrainEngine:
    """DeepSpeed around ``model``. Every method is collective: all ranks call it, in one order.

    A frozen model (``spec.trainable`` False) has no optimizer: with ZeRO 3 its weights are split
    over the ranks, which is all that it is here for.
    """

    def __init__(
        self,
        model: TokenModel,
        spec: LearnerSpec,
        *,
        device: str,
        rank: int,
        world_size: int,
        rendezvous: str,
    ) -> None:
        self.spec, self.rank, self.world_size, self.device = spec, rank, world_size, device
        deepspeed = connect(spec, device, rank, world_size, rendezvous)
        if not spec.trainable:
            model.requires_grad_(False)
        sized = [p.numel() for p in model.parameters() if p.requires_grad or not spec.trainable]
        self._engine: Any = deepspeed.initialize(
            model=model,
            optimizer=_optimizer(model, spec) if spec.trainable else None,
            config=_config(spec, sum(sized)),
            dist_init_required=False,
        )[0]
        self._gathered = deepspeed.zero.GatheredParameters

    @property
    def lockstep(self) -> bool:
        """Whether a forward pass is collective too, so that all ranks must make the same number."""
        return self.spec.zero_stage == 3 and self.world_size > 1

    def forward(self, **inputs: Any) -> tuple[torch.Tensor, ...]:
        """``forward`` of the model.

        In lockstep each call of the head gathers its weight from all ranks, so that a rank with
        fewer chunks of logits than another must call it as often.
        """
        if self.lockstep and "target_ids" in inputs:
            calls = self._engine.module.head_calls(len(inputs["target_ids"]))
            inputs["head_calls"] = max(self.exchange(calls))
        return self._engine(**inputs)

    def backward(self, loss: torch.Tensor) -> None:
        """Add the gradient of ``loss``. DeepSpeed averages gradients over ranks; the factor makes
        that a sum, since the losses are normalised by global counts."""
        self._engine.backward(loss * self.world_size, scale_wrt_gas=False)

    def begin_pass(self, *, last: bool) -> None:
        """Announce a pass with gradient, before its forward. DeepSpeed reduces the gradients over
        the ranks in the ``last`` pass of a step only."""
        self._engine.set_gradient_accumulation_boundary(last)

    def step(self, lr: float) -> StepOutcome:
        """Clip by the global norm, apply AdamW at ``lr``, clear gradients.

        With a non-finite norm, weights and optimizer state do not change.
        """
        for group in self._engine.optimizer.param_groups:
            group["lr"] = lr
        if self.spec.zero_stage == 0:
            return self._step_unsharded()
        self._engine.step()
        norm = float(self._engine.get_global_grad_norm())
        return StepOutcome(norm, applied=bool(self._engine.was_step_applied()) and isfinite(norm))

    def _step_unsharded(self) -> StepOutcome:
        """ZeRO 0: each rank has the reduced gradient; DeepSpeed would step on a non-finite norm."""
        gradients = [p.grad for p in self._engine.module.parameters() if p.grad is not None]
        norm = torch.nn.utils.get_total_norm(gradients)
        if not isfinite(float(norm)):
            self._engine.module.zero_grad(set_to_none=True)
            return StepOutcome(float("inf"), applied=False)
        if self.spec.grad_clip is not None:
            # DeepSpeed's formula for the other stages, so that the stage does not change the
            # result.
            factor = ((norm + 1e-6) / self.spec.grad_clip).clamp(min=1.0)
            for gradient in gradients:
                gradient.div_(factor)
        self._engine.step()
        return StepOutcome(float(norm), applied=True)

    at_work = nullcontext  # a model that is trained stays on its device

    def exchange(self, value: Any) -> list[Any]:
        """Return every rank's (picklable) ``value``, by rank."""
        if self.world_size == 1:
            return [value]
        values: list[Any] = [None] * self.world_size
        dist.all_gather_object(values, value)
        return values

    @property
    def lm(self) -> "PreTrainedModel":
        """The model; under ZeRO 3 its parameters are empty."""
        return self._engine.module.lm

    def state(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield the canonical state in the names of ``lm``, each tensor whole; under ZeRO 3 they
        are gathered one at a time.

        The tensors are the live weights, with an adapter merged: use each before the next, and all
        before the next step.
        """
        if self.spec.adapter is not None:
            yield from merged_state(self.lm)
            return
        tensors = self.lm.state_dict(keep_vars=True)
        for name in canonical_names(self.lm):
            tensor = tensors[name]
            if self.spec.zero_stage == 3 and isinstance(tensor, torch.nn.Parameter):
                with self._gathered([tensor]):
                    yield name, tensor.detach()
            else:
                yield name, tensor.detach()

    def save(self, stem: Path) -> dict[str, Any]:
        """Write this rank's shards as ``<stem>.*``; return their entries in the manifest."""
        return write_shards(self._engine, self.spec.zero_stage, stem)

    def load(self, saved: SavedState) -> None:
        """Restore this rank's part of what ranks of the same precision saved."""
        read_shards(self._engine, self.spec.zero_stage, saved)

    def close(self) -> None:
        """Free the engine; the process group stays for other engines of this process."""
        self._engine.destroy()


class FrozenEngine:
    """A model that only scores, whole on each rank: no optimizer, no DeepSpeed, no collectives."""

    lockstep = False

    def __init__(self, model: TokenModel, device: str, *, on_host: bool = False) -> None:
        self.device, self._rests = device, "cpu" if on_host else device
        self._model = model.requires_grad_(False).to(self._rests)

    @contextmanager
    def at_work(self) -> Iterator[None]:
        """Let the model be on its device within the context."""
        self._model.to(self.device)
        try:
            yield
        finally:
            self._model.to(self._rests)

    def forward(self, **inputs: Any) -> tuple[torch.Tensor, ...]:
        """``forward`` of the model."""
        return self._model(**inputs)

    def exchange(self, value: Any) -> list[Any]:
        """Return [value]: a frozen model has no peers."""
        return [value]

    @property
    def lm(self) -> "PreTrainedModel":
        """The model."""
        return self._model.lm

    def state(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield the canonical state in the names of ``lm``."""
        tensors = self.lm.state_dict()
        for name in canonical_names(self.lm):
            yield name, tensors[name]

    def close(self) -> None:
        """Nothing to free."""


def _import_deepspeed(device: str) -> Any:
    """Import deepspeed for ``device``; its accelerator is chosen once per process."""
    os.environ["DS_ACCELERATOR"] = device
    import deepspeed
    from deepspeed.accelerator import get_accelerator
    from deepspeed.utils import logger

    logger.setLevel("ERROR")
    accelerator = get_accelerator()
    assert accelerator is not None, "DeepSpeed knows the accelerator named by DS_ACCELERATOR"
    if (held := accelerator.device_name()) != device:
        raise UserError(
            f"this process already runs DeepSpeed on {held} and a learner asks for {device}; give "
            "each device its own process"
        )
    # Would be compiled with g++ at start-up, and is used by tensor-parallel inference only.
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    return deepspeed


def connect(spec: LearnerSpec, device: str, rank: int, world_size: int, rendezvous: str) -> Any:
    """Join the process group, once per process, and return deepspeed; ranks on one machine listen
    on loopback only."""
    deepspeed = _import_deepspeed(device)
    backend = "nccl" if device == "cuda" else "gloo"
    timeout = timedelta(seconds=spec.collective_timeout_s)
    # A rank sees its own GPU only.
    os.environ.update({"RANK": str(rank), "WORLD_SIZE": str(world_size), "LOCAL_RANK": "0"})
    if world_size == 1 or rendezvous.startswith("file:"):
        os.environ.update(LOOPBACK_ENV)
    else:  # gloo would take what the host's name resolves to, which is often the loopback
        for name in LOOPBACK_ENV:
            os.environ.setdefault(name, interface_towards(rendezvous))
    if not dist.is_initialized():
        where: dict[str, Any] = {"init_method": rendezvous, "timeout": timeout}
        if world_size == 1:
            where = {"store": HashStore()}
        dist.init_process_group(backend, rank=rank, world_size=world_size, **where)
    if (dist.get_rank(), dist.get_world_size()) != (rank, world_size):
        raise UserError(
            f"this process is rank {dist.get_rank()} of {dist.get_world_size()} already and a "
            f"learner asks for rank {rank} of {world_size}; give each rank its own process"
        )
    deepspeed.init_distributed(dist_backend=backend, timeout=timeout)
    return deepspeed


def _optimizer(model: TokenModel, spec: LearnerSpec) -> torch.optim.Optimizer:
    """AdamW over all that is trained, decay on all (as in verl): torch's own, also where its state
    is offloaded, so that ``hardware`` does not change what is computed."""
    return torch.optim.AdamW(
        [parameter for parameter in model.parameters() if parameter.requires_grad],
        lr=spec.lr,
        betas=spec.betas,
        eps=spec.eps,
        weight_decay=spec.weight_decay,
        fused=True,
    )


def _config(spec: LearnerSpec, num_parameters: int) -> dict[str, Any]:
    bucket = min(BUCKET_ELEMENTS, num_parameters + num_parameters % 2)  # ZeRO needs an even size
    zero: dict[str, Any] = {
        "stage": spec.zero_stage,
        "reduce_bucket_size": bucket,
        "allgather_bucket_size": bucket,
        "overlap_comm": False,  # overlap would vary the order of reductions, and so the rounding
    }
    if spec.offload_optimizer and spec.trainable:
        zero["offload_optimizer"] = {"device": "cpu"}
    if spec.offload_params:
        zero["offload_param"] = {"device": "cpu"}
    config: dict[str, Any] = {
        # DeepSpeed wants both; ``begin_pass`` sets the boundary of accumulation instead.
        "train_micro_batch_size_per_gpu": 1,
        "gradient_accumulation_steps": 1,
        "steps_per_print": None,
        # Without ZeRO ``_step_unsharded`` clips.
        "gradient_clipping": spec.grad_clip if spec.grad_clip and spec.zero_stage else 0.0,
        "zero_optimization": zero,
        "zero_allow_untested_optimizer": True,
        "zero_force_ds_cpu_optimizer": False,
    }
    if spec.dtype == "bfloat16":
        config["bf16"] = {"enabled": True}
        # In bf16, with 8 significant bits, a sum over many passes and ranks loses its small terms.
        config["data_types"] = {"grad_accum_dtype": "fp32"}
        config["communication_data_type"] = "fp32"
    return config
