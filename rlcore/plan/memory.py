"""Memory and disk that a run takes, in closed form. Pure; every constant has its source.

Memory of weights, gradients and optimizer is arithmetic; activations follow a formula that is exact
for Qwen2; both, and disk, are those of the longest legal sequences.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from rlcore.learner.attention import FLASH
from rlcore.models.classifier import parameters_of
from rlcore.models.shape import ModelShape
from rlcore.plan.batches import BatchPlans, evaluation_tokens, sampled_sequences
from rlcore.plan.data_size import DataSize
from schemas.hardware import LearnerHardware
from schemas.model import Adapter
from schemas.names import BASE_MODEL, PREFERENCE, REWARD_MODEL
from schemas.recipe import Recipe
from schemas.stages import Stage

GIB = 2**30
BYTES = {"float32": 4, "bfloat16": 2}
NF4_BYTES = 0.516  # of a weight: 4 bits, and 8 of its block of 64, and a little of 256 blocks
LOGITS_CHUNK_BYTES = 256 * 2**20  # fp32 logits alive at once (models.logprobs.CHUNK_LOGITS)
DATA_BYTES_PER_TOKEN = 8  # prompts and demonstrations: ids and text in Parquet
PROCESS_BYTES = GIB // 2  # a process with torch and DeepSpeed loaded: 0.45 GiB measured
ENGINE_PROCESS_BYTES = 3 * GIB // 2  # the same with vLLM

# Parquet with zstd, bytes per sampled token; measured on Zipf tokens and random log-probs
ROLLOUT_BYTES_PER_TOKEN = 7.5  # ids 1.9, log-probs 3.7, text 1.7, prompts and masks 0.2
COLUMN_BYTES_PER_TOKEN = 4.0  # log-probs, values; advantages are constant within a row


def gib(num_bytes: float) -> str:
    """Return bytes as text: ``"1.5 GiB"``, ``"12.0 MiB"``."""
    unit, name = (GIB, "GiB") if num_bytes >= GIB else (2**20, "MiB")
    return f"{num_bytes / unit:.1f} {name}"


@dataclass(frozen=True, slots=True)
class LearnerMemory:
    """Bytes of one learner rank. ``offloaded`` is in host memory although the rank has a GPU."""

    weights: int
    gradients: int
    optimizer: int
    activations: int
    logits: int
    offloaded: int
    reference: int = 0  # weights of the separate frozen copy, for the exact KL

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
    """Bytes of each kind of worker. ``reference`` (of one rank) and ``reward_model``: weights of
    the frozen models, 0 without them; ``critic`` is a learner with a value head; ``published``:
    policies that lie in the host's memory until the engines have loaded them, all together.

    ``kv_tokens``: tokens that one engine's KV cache holds, None where the GPU's size is unknown.
    """

    learner: LearnerMemory
    critic: LearnerMemory | None
    reference: int
    reward_model: int
    engine: int
    kv_tokens: int | None
    published: int = 0

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
    adapter: Adapter | None = None,
) -> LearnerMemory:
    """Return the memory of one rank with ``tokens`` in a micro-batch of rows of ``row_tokens``.

    Weights and gradients take the dtype's bytes each. Optimizer: 8 bytes a parameter (two fp32
    moments) at ZeRO-0; from ZeRO-1 on 16, as DeepSpeed adds fp32 masters and fp32 gradients of its
    partition (DeepSpeed docs, memory.rst: 2 + 2 + 16/N); ZeRO-1 of bf16 keeps the latter whole on
    each rank (runtime/bf16_optimizer.py). ZeRO-1, 2, 3 divide optimizer, gradients, weights by the
    ranks. Bytes a parameter measured on CPU, one rank, 52 M parameters
    (resident, at the peak of a step): fp32 ZeRO-0 16.9, 21.4 for 16 computed; ZeRO-1 21.7, 29.7 and
    ZeRO-2 22.4, 26.4 for 24; bf16 ZeRO-1 21.7, 22.2 and ZeRO-2 17.6, 29.6 for 20. So a step briefly
    needs up to 10 more than its states, and ZeRO-3 up to 12 more for gather buffers. With an
    ``adapter`` gradients and optimizer are those of its factors, and the weights come on top.
    """
    ranks, stage, width = hardware.ranks, hardware.stage(dtype), BYTES[dtype]
    count = shape.parameters
    weights = width * count // (ranks if stage == 3 else 1)
    if adapter is not None:
        if adapter.base == "nf4":  # of the rest, embeddings and head stay as they are
            linear = shape.parameters - shape.vocab_size * shape.hidden_size
            weights += int((NF4_BYTES - width) * linear)
        count = adapter_parameters(shape, adapter)
        weights += width * count
    whole = 4 * count if stage == 1 and width == 2 else 0
    gradients = whole + width * count // (ranks if stage >= 2 else 1)
    partition = 12 if whole and not hardware.offload_optimizer else 16
    optimizer = 8 * count if stage == 0 else partition * count // ranks
    offloaded = (optimizer if hardware.offload_optimizer else 0) + (
        weights if hardware.offload_params else 0
    )
    tokens = -(-tokens // hardware.sequence_parallel)
    logits = min(tokens * shape.vocab_size * 4, LOGITS_CHUNK_BYTES)
    return LearnerMemory(
        weights=weights,
        gradients=gradients,
        optimizer=optimizer,
        activations=activation_bytes(shape, dtype, hardware, tokens=tokens, row_tokens=row_tokens),
        logits=3 * logits,  # logits, their log-softmax, their gradient
        offloaded=offloaded if on_gpu else 0,
    )


def adapter_parameters(shape: ModelShape, adapter: Adapter) -> int:
    """Return the number of parameters of the factors of ``adapter``: rank x (inputs + outputs) of
    each layer that it is on; one whose name is not Llama's counts as square."""
    hidden, feed = shape.hidden_size, shape.intermediate_size
    keys = shape.num_kv_heads * shape.head_dim
    sides = {
        **dict.fromkeys(("q_proj", "o_proj"), 2 * hidden),
        **dict.fromkeys(("k_proj", "v_proj"), hidden + keys),
        **dict.fromkeys(("gate_proj", "up_proj", "down_proj"), hidden + feed),
    }
    targets = sides if isinstance(adapter.targets, str) else adapter.targets
    return adapter.rank * shape.num_layers * sum(sides.get(name, 2 * hidden) for name in targets)


def activation_bytes(
    shape: ModelShape, dtype: str, hardware: LearnerHardware, *, tokens: int, row_tokens: int
) -> int:
    """Return the bytes that backward needs from the forward pass of ``tokens``.

    Per token and layer ``w·(8H + 4I) + 8H + 24``: eight hidden-sized and four feed-forward-sized
    tensors in the dtype, two norm inputs in fp32, softmax and norm statistics. sdpa adds its mask,
    ``w·row_tokens``. Equal to the tensors that autograd saves for transformers' Qwen2 (tested).
    With gradient checkpointing: one layer's worth, and the input of each layer. ``tokens``: of this
    rank; where ranks divide sequences, each has the mask of all of theirs.
    """
    width, hidden = BYTES[dtype], shape.hidden_size
    mask = 0 if hardware.attention == FLASH else width * row_tokens * hardware.sequence_parallel
    layer = width * (8 * hidden + 4 * shape.intermediate_size) + 8 * hidden + 24 + mask
    if hardware.gradient_checkpointing:
        return tokens * (layer + shape.num_layers * width * hidden)
    return tokens * shape.num_layers * layer


def memory_of(
    recipe: Recipe, shape: ModelShape, batches: BatchPlans, gpus: Sequence[int], device: str
) -> Memory:
    """Return what each worker needs with its fullest micro-batch; ``gpus``: bytes of each."""
    dtype, rollout, kl = recipe.model.dtype, recipe.hardware.rollout, recipe.rl.algorithm.kl
    hardware = recipe.hardware.learner
    adapter = recipe.model.adapter_of(recipe.policies[-1])
    weights = BYTES[dtype] * shape.parameters
    cache: int | None = rollout.kv_cache_gib * GIB
    kv_token = shape.kv_bytes_per_token(BYTES[dtype])
    if device == "cuda":
        gpu = min(gpus, default=0)
        shared = recipe.hardware.memory_of_an_engine * gpu - weights / rollout.tensor_parallel
        cache = int(shared * rollout.tensor_parallel) if gpu else None
    learner = learner_memory(
        shape,
        dtype,
        hardware,
        on_gpu=device == "cuda",
        tokens=batches.fullest.micro_batch_tokens,
        row_tokens=batches.fullest.row_tokens,
        adapter=adapter,
    )
    if recipe.rl.update.ema is not None:
        trained = adapter_parameters(shape, adapter) if adapter else shape.parameters
        learner = replace(learner, optimizer=learner.optimizer + 4 * trained)
    # the exact KL needs the logits of both models in one place; a value head has one output
    exact = kl.uses_reference and kl.estimator == "full"
    critic = replace(learner, logits=0) if recipe.rl.critic is not None else None
    scored = any(function.name == REWARD_MODEL for function in recipe.reward.functions)
    brought = recipe.reward_models.values()  # as far as they are at hand
    frozen = sum(parameters_of(model.path) * BYTES[model.dtype] for model in brought)
    if scored and recipe.reward_model is not None:
        other = parameters_of(recipe.reward_model.base)
        frozen += other * BYTES[dtype] if other else weights
    reference = weights if recipe.has_reference_worker else 0
    if hardware.shares_reference:
        reference = -(-reference // hardware.reference_ranks)
    return Memory(
        learner=replace(learner, reference=weights) if exact and not adapter else learner,
        critic=critic,
        reference=reference,
        reward_model=frozen,
        engine=ENGINE_PROCESS_BYTES + weights + (0 if device == "cuda" else cache or 0),
        kv_tokens=None if cache is None else max(0, cache) // kv_token,
        published=(recipe.rl.rollout.max_staleness + 1) * weights,  # by LearnerWeights.share
    )


def disk_of(
    recipe: Recipe, shape: ModelShape, data: DataSize, batches: BatchPlans
) -> dict[str, int]:
    """Return the bytes that each stage leaves, in the order in which they run; 0 where rows are not
    counted."""
    weights = BYTES[recipe.model.dtype] * shape.parameters

    # one checkpoint is replaced by the next before it goes, and the model is written at the end
    def supervised(stage: str) -> int:
        return 2 * checkpoint_bytes(shape, recipe.model.adapter_of(stage)) + weights

    found = {BASE_MODEL: weights, "prepare_data": 0}
    demonstrations = data.demonstrations or 0
    if data.train is not None:
        prompts = data.train + (data.validation or 0) + sum(data.test or ())
        tokens = prompts * recipe.data.max_prompt_tokens + demonstrations * recipe.sft.max_tokens
        found["prepare_data"] = tokens * DATA_BYTES_PER_TOKEN
    if batches.sft is not None:
        found["sft"] = supervised("sft")
    if batches.preference is not None:
        # The rows with the reference's log-probs, of which no more than all are trained on.
        rows = (batches.preference.most_tokens or 0) // batches.preference.rounds
        found[PREFERENCE] = supervised(PREFERENCE) + rows * DATA_BYTES_PER_TOKEN
    if batches.reward_model is not None:
        sections = recipe.sampled_preferences.values()  # nothing is sampled where files are read
        sampled = sum(section.responses * section.max_new_tokens for section in sections)
        found[REWARD_MODEL] = supervised(REWARD_MODEL) + sampled * DATA_BYTES_PER_TOKEN
    section = recipe.rl
    response = recipe.max_turns * section.rollout.max_new_tokens
    kept = section.checkpoints_kept + section.checkpoint.keep_best + 1  # one being written
    # Of each trained token: the old log-probs, the reference's, the critic's values, returns and
    # advantages, and, per epoch, those that the update computes itself.
    columns = 1 + section.algorithm.kl.uses_reference + 3 * (section.critic is not None)
    columns += section.update.epochs * (recipe.scores_own_logprobs or section.update.fused)
    trained = section.rollout.prompts * section.rollout.samples * response
    sampled = sampled_sequences(recipe) * response
    tables = section.iterations * int(
        sampled * ROLLOUT_BYTES_PER_TOKEN + trained * columns * COLUMN_BYTES_PER_TOKEN
    )
    models = 1 if section.critic is None else 2
    state = checkpoint_bytes(shape, recipe.model.adapter_of(Stage.RL))
    if section.enabled:
        found["rl"] = kept * models * state + tables + weights  # of the policy
    tokens, _ = evaluation_tokens(recipe, data)
    found["evaluate"] = len(recipe.evaluate.checkpoints) * tokens * 2  # completions, compressed
    found["export"] = BYTES[recipe.export.dtype or recipe.model.dtype] * shape.parameters
    return found


def checkpoint_bytes(shape: ModelShape, adapter: Adapter | None = None) -> int:
    """Return the bytes of a checkpoint: fp32 weights and two moments of what is trained."""
    return 12 * (shape.parameters if adapter is None else adapter_parameters(shape, adapter))
