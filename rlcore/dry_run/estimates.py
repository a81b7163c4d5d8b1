"""Memory, time and disk of a run, in closed form. Pure; every constant has its source.

These are planning figures. Memory of weights, gradients and optimizer is arithmetic; activations
follow a formula that is exact for Qwen2; times rest on ``Rates``: assumptions, not promises.
"""

from dataclasses import dataclass

from rlcore.dry_run.shape import ModelShape
from rlcore.learner.attention import FLASH
from rlcore.models.gpu.blocks import BLOCKS
from schemas.hardware import LearnerHardware

GIB = 2**30
BYTES = {"float32": 4, "bfloat16": 2}
LOGITS_CHUNK_BYTES = 256 * 2**20  # fp32 logits alive at once (models.logprobs.CHUNK_LOGITS)
PROCESS_BYTES = GIB // 2  # a process with torch and DeepSpeed loaded: 0.45 GiB measured
ENGINE_PROCESS_BYTES = 3 * GIB // 2  # the same with vLLM

# Parquet with zstd, bytes per sampled token; measured on Zipf tokens and random log-probs
ROLLOUT_BYTES_PER_TOKEN = 7.5  # ids 1.9, log-probs 3.7, text 1.7, prompts and masks 0.2
ADVANTAGE_BYTES_PER_TOKEN = 4.0  # old log-probs; advantages are constant within a row
OWN_LOGPROBS_BYTES_PER_TOKEN = 4.0  # old log-probs that the update computes itself, per epoch
REFERENCE_BYTES_PER_TOKEN = 4.0
CRITIC_BYTES_PER_TOKEN = 12.0  # values, returns, and advantages that vary within a row


@dataclass(frozen=True, slots=True)
class Rates:
    """What times are computed from. ASSUMPTIONS: right within a factor of two or so, where fitted.

    FLOPs per token: 2 per parameter forward, 6 with backward.
    """

    device: str
    source: str
    learner_flops: float  # FLOP/s that one rank sustains
    sampler_tokens_per_s: float  # most tokens/s of one engine, however small the model
    sampler_parameter_tokens_per_s: float  # parameters x tokens/s of one engine, large models
    start_s: float  # cluster, engine and learner start of one stage

    def learner_s(self, parameters: int, tokens: float, passes: float, ranks: int) -> float:
        """Seconds for ``tokens`` at ``passes`` forward passes' worth of work (backward = 2)."""
        return 2 * parameters * tokens * passes / (self.learner_flops * ranks)

    def sampler_s(self, parameters: int, tokens: float, engines: int) -> float:
        """Seconds to sample ``tokens``: fixed cost per token plus the model's own."""
        per_token = 1 / self.sampler_tokens_per_s + parameters / self.sampler_parameter_tokens_per_s
        return tokens * per_token / engines


def cpu_rates(threads: int) -> Rates:
    """Rates of avx512 cores: 30 GFLOP/s a thread in packed fp32 steps, vLLM on one thread.

    Fitted to 34k trained tokens/s at 0.36 M parameters on two threads, and to 11.9k and 0.86k
    sampled tokens/s at 1 M and 43 M.
    """
    return Rates(
        device=f"CPU, {threads} learner thread(s)",
        source="fitted to two avx512 cores, fp32, otherwise idle",
        learner_flops=30e9 * threads,
        sampler_tokens_per_s=12e3,
        sampler_parameter_tokens_per_s=4e10,
        start_s=45.0,
    )


def gpu_rates() -> Rates:
    """Rates of an H100-class GPU: 30 % of 989 TFLOP/s, decoding at a third of the memory bound.

    The decode figure is 3.35 TB/s over 2 bytes a parameter at 256 sequences at once, times 0.3.
    """
    return Rates(
        device="one H100-class GPU",
        source="30 % of peak bf16 FLOP/s; 30 % of the decode bandwidth bound; never measured here",
        learner_flops=0.3 * 989e12,
        sampler_tokens_per_s=100e3,
        sampler_parameter_tokens_per_s=0.3 * 3.35e12 / 2 * 256,
        start_s=120.0,
    )


@dataclass(frozen=True, slots=True)
class LearnerMemory:
    """Bytes of one learner rank. ``offloaded`` is in host memory although the rank has a GPU."""

    weights: int
    gradients: int
    optimizer: int
    activations: int
    logits: int
    offloaded: int
    reference: int = 0  # weights of its own frozen copy, for the exact KL

    @property
    def states(self) -> int:
        """Bytes on the learner's device that no batch size can reduce."""
        return self.weights + self.gradients + self.optimizer + self.reference - self.offloaded

    @property
    def device(self) -> int:
        """Bytes on the learner's device during a pass over a full micro-batch."""
        return self.states + self.activations + self.logits


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes of each kind of worker. ``reference`` and ``reward_model``: weights of the frozen
    models, 0 without them; ``critic`` is a learner with a value head.

    ``kv_tokens``: tokens that one engine's KV cache holds, None where the GPU's size is unknown.
    """

    learner: LearnerMemory
    critic: LearnerMemory | None
    reference: int
    reward_model: int
    engine: int
    kv_tokens: int | None

    @property
    def states(self) -> int:
        """Bytes that no batch size can reduce on a GPU that a rank of each kind shares."""
        critic = 0 if self.critic is None else self.critic.states
        return self.learner.states + critic + self.reference + self.reward_model


def learner_memory(
    shape: ModelShape,
    dtype: str,
    hardware: LearnerHardware,
    *,
    on_gpu: bool,
    tokens: int,
    row_tokens: int,
) -> LearnerMemory:
    """Return the memory of one rank with ``tokens`` in a micro-batch of rows of ``row_tokens``.

    Weights and gradients take the dtype's bytes each. Optimizer: 8 bytes a parameter (two fp32
    moments) at ZeRO-0; from ZeRO-1 on 16, as DeepSpeed adds fp32 masters and fp32 gradients of its
    partition (DeepSpeed docs, memory.rst: 2 + 2 + 16/N). ZeRO-1, 2, 3 divide optimizer,
    gradients, weights by the ranks. Bytes a parameter measured on CPU, one rank, 52 M parameters
    (resident, at the peak of a step): fp32 ZeRO-0 16.9, 21.4 for 16 computed; ZeRO-1 21.7, 29.7 and
    ZeRO-2 22.4, 26.4 for 24; bf16 ZeRO-1 21.7, 22.2 and ZeRO-2 17.6, 29.6 for 20. So a step briefly
    needs up to 10 more than its states, and ZeRO-3 up to 12 more for gather buffers.
    """
    ranks, stage, width = hardware.ranks, hardware.stage(dtype), BYTES[dtype]
    count = shape.parameters
    weights = width * count // (ranks if stage == 3 else 1)
    gradients = width * count // (ranks if stage >= 2 else 1)
    optimizer = 8 * count if stage == 0 else 16 * count // ranks
    offloaded = (optimizer if hardware.offload_optimizer else 0) + (
        weights if hardware.offload_params else 0
    )
    logits = min(tokens * shape.vocab_size * 4, LOGITS_CHUNK_BYTES)
    return LearnerMemory(
        weights=weights,
        gradients=gradients,
        optimizer=optimizer,
        activations=activation_bytes(shape, dtype, hardware, tokens=tokens, row_tokens=row_tokens),
        logits=3 * logits,  # logits, their log-softmax, their gradient
        offloaded=offloaded if on_gpu else 0,
    )


def activation_bytes(
    shape: ModelShape, dtype: str, hardware: LearnerHardware, *, tokens: int, row_tokens: int
) -> int:
    """Return the bytes that backward needs from the forward pass of ``tokens``.

    Per token and layer ``w·(8H + 4I) + 8H + 24``: eight hidden-sized and four feed-forward-sized
    tensors in the dtype, two norm inputs in fp32, softmax and norm statistics. sdpa adds its mask,
    ``w·row_tokens``; by blocks the layers share one, and rows of one sequence need none. Equal to
    the tensors that autograd saves for transformers' Qwen2 (tested).
    With gradient checkpointing: one layer's worth, and the input of each layer.
    """
    width, hidden = BYTES[dtype], shape.hidden_size
    mask = width * row_tokens
    if hardware.attention == FLASH:
        mask = 0
    elif hardware.attention == BLOCKS:
        mask = 0 if hardware.row_tokens is None else mask // shape.num_layers
    layer = width * (8 * hidden + 4 * shape.intermediate_size) + 8 * hidden + 24 + mask
    if hardware.gradient_checkpointing:
        return tokens * (layer + shape.num_layers * width * hidden)
    return tokens * shape.num_layers * layer


def engine_memory(shape: ModelShape, dtype: str, kv_cache_bytes: int) -> int:
    """Return the bytes of one CPU rollout engine: process, weights, KV cache."""
    return ENGINE_PROCESS_BYTES + BYTES[dtype] * shape.parameters + kv_cache_bytes


def checkpoint_bytes(shape: ModelShape) -> int:
    """Return the bytes of one resumable checkpoint: fp32 weights and two moments."""
    return 12 * shape.parameters


def iteration_table_bytes(
    sampled_tokens: int, trained_tokens: int, *, reference: bool, critic: bool, own: int = 0
) -> int:
    """Return the Parquet bytes that one RL iteration stores.

    ``sampled_tokens``: of all responses; ``trained_tokens``: of those that are trained on; ``own``:
    epochs whose old log-probs the update computes itself.
    """
    trained = ADVANTAGE_BYTES_PER_TOKEN
    trained += REFERENCE_BYTES_PER_TOKEN if reference else 0.0
    trained += CRITIC_BYTES_PER_TOKEN if critic else 0.0
    trained += OWN_LOGPROBS_BYTES_PER_TOKEN * own
    return int(sampled_tokens * ROLLOUT_BYTES_PER_TOKEN + trained_tokens * trained)
