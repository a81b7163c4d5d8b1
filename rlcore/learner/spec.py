"""The types that a learner's callers use: its settings, requests for an update, and results.
Imports nothing heavy."""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from rlcore.models.packing import Sequences
from schemas.errors import UserError

if TYPE_CHECKING:
    from rlcore.algorithms.objective_types import Objective
    from schemas.model import Adapter


class VersionConflict(UserError):
    """An update was requested for weights that the learner does not hold."""


@dataclass(frozen=True)
class LearnerSpec:
    """Model, precision, optimizer and layout of one learner; equal on all ranks.

    ``model_dir``: local Hugging Face directory. ``head``: "lm", or "value" for one scalar per token
    (critic, reward model), whose directory is a ``<X>ForSequenceClassification`` or a causal LM;
    then the score starts at exactly 0. ``reference_dir``: a frozen causal LM, kept whole on every
    rank in addition to the policy, for the exact KL only. ``adapter``: trained in place of the
    weights, and the reference is the model without it; ``adapter_base``: the base model's name.
    ``on_host``: a frozen model waits in host memory while it does not score. ``yields_memory``: on
    CUDA, what is cached is given back after each pass, to engines that share the GPU.
    ``trainable`` False: a frozen model that only scores, without optimizer; whole on each rank
    unless there are several with ``zero_stage`` 3. ``micro_batch_tokens``: padded tokens of
    one pass; on CPU about 4k is fastest. ``sequence_parallel``: consecutive ranks that divide the
    tokens of each pass among them. ``row_tokens`` None: one to eight times the longest
    sequence (``rlcore.models.rows``), or ``micro_batch_tokens`` under flash attention.
    ``attn_implementation``: transformers' name, or "auto" (``rlcore.learner.attention``).
    ``grad_clip`` None: no clipping. ``ema``: decay of the average of the weights, None = none.
    ``collective_timeout_s``: how long a rank waits for its peers. ``full_determinism``: a CUDA
    operation without a deterministic kernel is an error, not a warning.
    """

    model_dir: str
    dtype: str = "float32"
    zero_stage: int = 1
    offload_optimizer: bool = False
    offload_params: bool = False
    lr: float = 1e-6
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    weight_decay: float = 0.01
    grad_clip: float | None = 1.0
    micro_batch_tokens: int = 4096
    row_tokens: int | None = None
    sequence_parallel: int = 1
    attn_implementation: str = "sdpa"
    gradient_checkpointing: bool = False
    threads: int = 1
    seed: int = 0
    device: str = "auto"
    trainable: bool = True
    collective_timeout_s: float = 600.0
    head: str = "lm"
    reference_dir: str | None = None
    adapter: "Adapter | None" = None
    adapter_base: str = ""
    ema: float | None = None
    full_determinism: bool = False
    on_host: bool = False
    yields_memory: bool = False


@dataclass(frozen=True)
class Term:
    """One part of what a step minimises: ``coef`` x ``objective(sequences)``.

    Each term is normalised over its own ``sequences``, all ranks together.
    """

    sequences: Sequences
    objective: "Objective"
    coef: float = 1.0


@dataclass(frozen=True)
class UpdateRequest:
    """One learner update: an optimizer step per mini-batch, as a compare-and-set on ``version``.

    ``version``: the weights the batch was made for. ``batch_digest``: content digest of the batch.
    ``mini_batches``: the terms of each step. ``lrs``: learning rate of each step.
    ``own_logprobs``: before the first step the learner computes the log-probs of the micro-batches
    of every step's first term, and uses them in place of its ``old_logprobs``. The ratio then
    depends on the weights alone: log-probs from another packing differ by rounding, in bfloat16 by
    more than GSPO's clip range.
    """

    version: int
    batch_digest: str
    mini_batches: list[list[Term]]
    lrs: list[float]
    own_logprobs: bool = False

    def __post_init__(self) -> None:
        assert len(self.lrs) == len(self.mini_batches), "each mini-batch has its learning rate"


@dataclass(frozen=True)
class UpdateResult:
    """``version``: of the weights after the update. ``metrics``: over its steps (means averaged,
    maxima taken, counts added). ``steps``: each step's own metrics. ``old_logprobs``: where the
    request has ``own_logprobs``, the old log-probs that each step used, [tokens of its first term's
    sequences] float32, NaN on tokens it did not train on. ``seconds``: that it took.
    ``peak_bytes``: ``peak_memory`` of the fullest rank. A checkpoint keeps none of the last three.
    """

    version: int
    metrics: dict[str, float]
    steps: list[dict[str, float]]
    old_logprobs: list[np.ndarray] = field(default_factory=list, compare=False)
    seconds: float = field(default=0.0, compare=False)
    peak_bytes: int = field(default=0, compare=False)


@dataclass(frozen=True)
class TokenScores:
    """Per sequence and token, float32, aligned with ``token_ids``; 0 where nothing was scored."""

    logprobs: list[np.ndarray]
    entropies: list[np.ndarray]  # empty unless requested
    kls: list[np.ndarray]  # exact KL(policy || reference) in nats; empty unless requested
