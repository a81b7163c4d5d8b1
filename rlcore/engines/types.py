"""The protocol of a rollout engine and what passes through it: requests, sampled tokens, settings.
Imports nothing heavy.

Producers: ``vllm_engine.VllmEngine``, ``transformers_engine.TransformersEngine``.
Consumers: the rollout phase, evaluation, the sync phase.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from rlcore.models.weight_digest import WeightStamp, WeightUpdate
from schemas.errors import UserError
from schemas.outcomes import FinishReason
from schemas.sampling import NO_TOP_K

NOISE = 0.5  # a new engine's weights are uniform in (-NOISE, NOISE): finite, unlike any trained
CPU_HEADS = (32, 64, 80, 96, 112, 128, 160, 192, 224, 256, 512)  # of vLLM's attention


def check_heads(head_dim: int, model: str) -> None:
    """Raise ``UserError`` for heads that vLLM has no kernel for on CPU."""
    if head_dim not in CPU_HEADS:
        raise UserError(
            f"model {model} has heads of {head_dim} and vLLM on CPU supports {CPU_HEADS}; set"
            " hardware.rollout.engine to 'transformers', or take another model"
        )


@dataclass(frozen=True, slots=True)
class Sampling:
    """How tokens are drawn; one value for a whole rollout.

    Log-probs are those of the distribution sampled from: logits / temperature, then (top_k,
    top_p) renormalised. Temperature 0 is greedy and its log-probs are at temperature 1.
    Training rollouts keep top_p = 1 and top_k = -1, otherwise the importance ratio would contain
    the probability mass that was kept.

    A row ends with its first token of ``stop_token_ids``, or that completes a text of ``stop``
    (``stop_strings``), which may begin and end inside a token.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = NO_TOP_K
    max_new_tokens: int = 256
    stop_token_ids: tuple[int, ...] = ()
    stop: tuple[str, ...] = ()


@dataclass(frozen=True)  # without slots: hundreds go between processes, at half the time
class TurnRequest:
    """One turn to sample: the policy continues ``token_ids``, all of its episode so far.

    ``key``: unique within a rollout, as "<trajectory id>/<turn>"; the answer is returned under it.
    ``seed`` decides every token. ``max_new_tokens``: the turn's own budget, which replaces that of
    ``Sampling``.
    """

    key: str
    token_ids: Sequence[int]
    seed: int
    max_new_tokens: int

    def plain(self) -> "TurnRequest":
        """Return the request with Python's own integers, whatever its caller counts with."""
        token_ids = [int(token) for token in self.token_ids]
        return TurnRequest(self.key, token_ids, int(self.seed), int(self.max_new_tokens))


@dataclass(frozen=True)  # without slots: hundreds go between processes, at half the time
class Generation:
    """One sampled continuation.

    ``token_ids`` holds the response only and INCLUDES the stop token, or the token that completes a
    stop string; ``logprobs`` (nats) is aligned with it. ``stamp`` names the weights that it was
    sampled from.
    """

    token_ids: list[int]
    logprobs: list[float]
    finish_reason: FinishReason
    stamp: WeightStamp


class RolloutEngine(Protocol):
    """A sampler that knows which weights it holds.

    It starts with noise for weights and gets weights through ``load_weights`` only: a tensor that
    is missing from a sync stays noise and shows in every log-prob. Had the engine read the model
    directory, that tensor would be right until the first update. ``generate`` and ``probe`` raise
    ``WeightSyncError`` before the first verified load.

    A subclass inherits what an engine needs that samples a batch to its end and keeps nothing
    between calls: ``begin``, ``advance`` and ``rest``.
    """

    def begin(self) -> None:
        """A rollout begins: forget what an earlier one left, so that a rerun gets the same bits.

        What was computed for a turn may serve the next turns until then.
        """

    def generate(self, requests: Sequence[TurnRequest], sampling: Sampling) -> list[Generation]:
        """Return one continuation per request, in order.

        Row i depends on (weights, requests[i], sampling) only. Raises ``UserError`` for empty or
        over-long ``token_ids``.
        """
        ...

    def advance(
        self, requests: Sequence[TurnRequest], sampling: Sampling, wait_s: float
    ) -> list[tuple[str, Generation]]:
        """Take up ``requests``, continue with all that are under way, and return (key,
        continuation) of those that have finished.

        Returns after about ``wait_s`` seconds, or as soon as nothing is under way; the others
        continue in the next call. All calls of a rollout have one ``sampling``. An engine that
        cannot leave a batch returns once its requests have finished. Raises ``UserError`` as
        ``generate`` does.
        """
        del wait_s
        keys = [request.key for request in requests]
        return list(zip(keys, self.generate(requests, sampling), strict=True)) if keys else []

    def rest(self) -> None:
        """The rollout is over: give memory of the device back until the next call, at which the
        weights are the same."""

    def load_weights(self, update: WeightUpdate) -> WeightStamp:
        """Load, drop every cache built from older weights, return the stamp of what was loaded.

        The stamp's digest is of the bytes that the model's loader was handed. Raises
        ``WeightSyncError`` naming the tensors when names or shapes are not the model's (nothing is
        touched and the old stamp holds), or when bytes are not the sender's or the loader left a
        tensor out (the engine then refuses to sample until a load is verified).
        """
        ...

    def probe(self, token_ids: Sequence[Sequence[int]]) -> list[list[float]]:
        """Return log p(token t | tokens < t) for t >= 1 of each sequence, at temperature 1.

        Lengths are len(sequence) - 1. They must agree with what the learner computes for the same
        ids, which shows independently of the digest that a sync reached the layers.
        """
        ...

    def stamp(self) -> WeightStamp:
        """Return the stamp of the weights sampled from; ``UNVERIFIED`` before a verified load."""
        ...

    def close(self) -> None:
        """Free the engine. Idempotent."""


@dataclass(frozen=True, slots=True)
class EngineSpec:
    """How an engine is built; hardware and layout only, so it stays out of cache keys."""

    model_dir: str
    dtype: str = "float32"  # or "bfloat16"
    max_model_len: int = 1024  # tokens, prompt + response
    max_num_seqs: int = 512  # sequences decoded at once
    gpu_memory_utilization: float = 0.5  # share of GPU memory for weights + KV cache (GPU only)
    tensor_parallel_size: int = 1
    kv_cache_gib: float = 1.0  # limit of the KV cache on CPU; less if that is enough
    seed: int = 0
    threads: int = 1  # OpenMP threads on CPU
    block_size: int = 32  # tokens per KV block on CPU; a multiple of 32
    device: str = "cpu"  # "cpu" or "cuda"
    sleeps: bool = False  # whether ``rest`` gives memory back


def check_requests(requests: Sequence[TurnRequest], max_model_len: int, vocab_size: int) -> None:
    """Refuse requests that no engine can serve, before the engine is called.

    Raises ``UserError`` as ``check_token_ids``.
    """
    for request in requests:
        assert 0 <= request.seed < 2**63, f"request '{request.key}' has no seed"
        assert request.max_new_tokens >= 1, f"request '{request.key}' has no token left"
        check_token_ids(f"request '{request.key}'", request.token_ids, max_model_len, vocab_size)


def check_token_ids(
    what: str, token_ids: Sequence[int], max_model_len: int, vocab_size: int
) -> None:
    """Raise ``UserError``, which begins with ``what``, for an empty sequence, a token id outside
    the vocabulary, or a length that leaves no room for one new token."""
    if len(token_ids) == 0:
        raise UserError(
            f"{what} is empty; give every prompt at least one token (a BOS token is enough)"
        )
    if len(token_ids) >= max_model_len:
        raise UserError(
            f"{what} has {len(token_ids)} tokens and max_model_len is {max_model_len}; keep prompts"
            f" at {max_model_len - 1} tokens or fewer, or raise max_model_len"
        )
    if min(token_ids) < 0 or max(token_ids) >= vocab_size:
        raise UserError(
            f"{what} holds a token id outside [0, {vocab_size}); tokenise it with the model's own"
            " tokenizer"
        )
