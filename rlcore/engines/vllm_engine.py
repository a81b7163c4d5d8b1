"""The vLLM rollout engine: one in-process ``LLM`` per actor, the same code on CPU and GPU.

vLLM patches process globals (thread counts, memory binding), so an engine lives in a separate
process, started with ``engine_env(spec)`` in its environment before torch or vllm is imported. This
module imports vllm only when an engine is built.
"""

import math
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Any, TypeVar

from rlcore.cluster.host_settings import LOOPBACK_ENV
from rlcore.cluster.progress import advance
from rlcore.engines.stop_strings import StopStrings
from rlcore.engines.types import (
    EngineSpec,
    Generation,
    Sampling,
    TurnRequest,
    check_heads,
    check_requests,
    check_token_ids,
)
from rlcore.engines.weight_check import require_verified
from rlcore.models.architectures import keeps_states
from rlcore.models.shape import directory_shape
from rlcore.models.weight_digest import UNVERIFIED, WeightStamp, WeightSyncError, WeightUpdate
from rlcore.models.weight_files import checkpoint_shapes
from schemas.errors import UserError
from schemas.outcomes import FinishReason

if TYPE_CHECKING:
    from vllm import RequestOutput, SamplingParams

T = TypeVar("T")
MIN_PREFILL_TOKENS = 16384  # tokens per step on CPU; a whole quickstart batch prefills in one step
# oneDNN keeps a compiled matrix product, .1 to .5 MiB, of each shape it has seen, by default 1,024
# of them. A batch that ends row by row has a new number of rows every few steps, so they never
# stop coming. These are enough for the batches of one rollout.
KEPT_KERNELS = 256


def engine_env(spec: EngineSpec) -> dict[str, str]:
    """Return the environment an engine's process must START with (before torch is imported).

    CPU: vLLM in the actor's own process (each extra process imports vllm again), one OpenMP thread
    per ``spec.threads`` (more threads than cores is ~24 times slower), no torch.compile of sampler
    helpers, which runs even in eager mode and delays the first batch by seconds, and a bound on
    oneDNN's cache, without which memory grows with every rollout. GPU: float32 attention in
    float32; Triton's default is TF32, whose log-probs differ from the learner's by 1e-3.
    """
    env = {
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_HOST_IP": "127.0.0.1",  # an engine's processes share a machine
        "VLLM_LOGGING_LEVEL": "ERROR",
        "VLLM_NO_USAGE_STATS": "1",
        "TRITON_F32_DEFAULT": "ieee",
        **LOOPBACK_ENV,
    }
    if spec.device == "cpu":
        env |= {
            "OMP_NUM_THREADS": str(spec.threads),
            "TORCH_COMPILE_DISABLE": "1",
            "ONEDNN_PRIMITIVE_CACHE_CAPACITY": str(KEPT_KERNELS),
        }
        if spec.tensor_parallel_size > 1:
            cores = range(spec.tensor_parallel_size)
            env["VLLM_CPU_OMP_THREADS_BIND"] = "|".join(str(core) for core in cores)
    return env


class VllmEngine:
    """``RolloutEngine`` on vLLM.

    Log-probs are those of the distribution sampled from (``processed_logprobs``). Each row has its
    own generator, seeded by its request. The prefix cache lives for a rollout.
    """

    def __init__(self, spec: EngineSpec) -> None:
        """Build the engine of ``spec.model_dir`` with noise for weights; see ``RolloutEngine``.

        Raises ``UserError`` when the directory is no model, when the process was not started with
        ``engine_env(spec)``, or when the installed vllm is for another device.
        """
        checkpoint_shapes(spec.model_dir)
        _check_env(spec)
        import vllm
        from vllm.platforms import current_platform

        if current_platform.is_cpu() != (spec.device == "cpu"):
            raise UserError(
                f"rollout device = '{spec.device}' and the installed vllm {vllm.__version__} runs "
                f"on '{current_platform.device_type}'; install the extra for {spec.device}, or set "
                "the device to match"
            )
        self._spec = spec
        self._llm = vllm.LLM(**_llm_arguments(spec))
        self._llm.llm_engine.step = _counted(self._llm.llm_engine.step)
        self._closed = self._rests = False
        self._strings = StopStrings(spec.model_dir)
        self._under_way: set[str] = set()  # keys of the requests that ``advance`` continues with
        self._prompt_tokens = self._cached_tokens = 0
        self._vocab_size = self._llm.model_config.get_vocab_size()
        self._stamp: WeightStamp | None = UNVERIFIED

    def begin(self) -> None:
        """Drop the prefix cache, so that a rerun of the same rollout gives the same bits,
        independent of earlier ones."""
        self._wake()
        self._abort()
        self._llm.reset_prefix_cache()
        self._prompt_tokens = self._cached_tokens = 0

    def generate(self, requests: Sequence[TurnRequest], sampling: Sampling) -> list[Generation]:
        """Return one continuation per request, in order; see ``RolloutEngine.generate``."""
        if sampling.stop:  # an answer is looked at after each token
            assert not self._under_way, "the requests of advance would continue among these"
            done = dict(self.advance(requests, sampling, math.inf))
            return [done[request.key] for request in requests]
        check_requests(requests, self._spec.max_model_len, self._vocab_size)
        params = [_sampling_params(request, sampling) for request in requests]
        outputs = self._run([request.token_ids for request in requests], params)
        return [self._generation(output) for output in outputs]

    def advance(
        self, requests: Sequence[TurnRequest], sampling: Sampling, wait_s: float
    ) -> list[tuple[str, Generation]]:
        """Return what has finished after about ``wait_s`` seconds; see ``RolloutEngine.advance``.

        Requests join those under way at the next step of vLLM.
        """
        require_verified(self.stamp())
        self._wake()
        check_requests(requests, self._spec.max_model_len, self._vocab_size)
        engine, deadline = self._llm.llm_engine, monotonic() + wait_s
        for request in requests:
            prompt: Any = {"prompt_token_ids": list(request.token_ids)}
            engine.add_request(request.key, prompt, _sampling_params(request, sampling))
            self._under_way.add(request.key)
        finished: list[tuple[str, Generation]] = []
        while engine.has_unfinished_requests():
            finished += self._finished(engine.step(), sampling)
            if monotonic() >= deadline:
                break
        self._under_way -= {key for key, _ in finished}
        return finished

    def probe(self, token_ids: Sequence[Sequence[int]]) -> list[list[float]]:
        """Return log p(token t | tokens < t), t >= 1, at temperature 1; see ``RolloutEngine``."""
        from vllm import SamplingParams

        for row, ids in enumerate(token_ids):
            check_token_ids(
                f"probe's token_ids[{row}]", ids, self._spec.max_model_len, self._vocab_size
            )
        # Asked for prompt_logprobs, vLLM reads nothing from the prefix cache.
        params = SamplingParams(max_tokens=1, temperature=0.0, prompt_logprobs=0, detokenize=False)
        scored: list[list[float]] = []
        outputs = self._run(token_ids, [params] * len(token_ids))
        for ids, output in zip(token_ids, outputs, strict=True):
            rows = zip(ids, output.prompt_logprobs or [], strict=True)
            scored.append([row[token].logprob for token, row in rows if row is not None])
        return scored

    def rest(self) -> None:
        """Sleep, where ``spec.sleeps``: weights move to the host, the KV cache is dropped; see
        ``RolloutEngine.rest``.

        By level 1: at level 2 the weights are gone, and an iteration that trains nothing samples
        again without a load.
        """
        if self._spec.sleeps and not self._rests:
            self._abort()
            self._llm.sleep(level=1)
            self._rests = True

    def _wake(self) -> None:
        if self._rests:
            self._llm.wake_up()
            self._rests = False

    def load_weights(self, update: WeightUpdate) -> WeightStamp:
        """Load a state file through vLLM's weight-transfer protocol; see ``RolloutEngine``."""
        self._wake()
        self._abort()
        before, self._stamp = self.stamp(), None
        llm = self._llm
        llm.start_weight_update()
        info = {"path": update.path, "tensors": dict(update.tensors)}
        llm.update_weights({"update_info": info})
        llm.finish_weight_update(weight_version=str(update.stamp.version))
        outcomes: list[tuple[str, bool]] = llm.collective_rpc("transfer_outcome")
        problems = [problem for problem, _ in outcomes if problem]
        if problems:
            self._stamp = UNVERIFIED if any(touched for _, touched in outcomes) else before
            raise WeightSyncError(f"weight sync to version {update.stamp.version}: {problems[0]}")
        llm.reset_prefix_cache()
        self._stamp = update.stamp
        return self._stamp

    def stamp(self) -> WeightStamp:
        """Return the stamp of the weights sampled from; ``WeightSyncError`` after half a load."""
        if self._stamp is None:
            raise WeightSyncError(
                "the last weight load was not completed; build a new engine and load again"
            )
        return self._stamp

    def prefilled(self) -> tuple[int, int]:
        """Return the prompt tokens of the rollout so far, and how many of them were computed: the
        others were in the prefix cache."""
        return self._prompt_tokens, self._prompt_tokens - self._cached_tokens

    def close(self) -> None:
        """Shut the engine down. Idempotent; nothing else may be called afterwards."""
        if not self._closed:
            self._closed = True
            self._llm.llm_engine.engine_core.shutdown()

    def _finished(self, outputs: Sequence[Any], sampling: Sampling) -> list[tuple[str, Generation]]:
        """Return the answers that ended in a step, and end those that complete a stop string."""
        rows = [output.outputs[0].token_ids for output in outputs]
        complete = self._strings.complete(rows, sampling.stop)
        ended = [one.request_id for one, ends in zip(outputs, complete, strict=True) if ends]
        finished = [
            (output.request_id, self._generation(output, FinishReason.STOP if ends else None))
            for output, ends in zip(outputs, complete, strict=True)
            if ends or output.finished
        ]
        if ended:
            self._llm.llm_engine.abort_request(ended)
        return finished

    def _generation(
        self, output: "RequestOutput", ended_by: FinishReason | None = None
    ) -> Generation:
        """Return the answer so far; ``ended_by``: why it ends, where vLLM does not know it."""
        from vllm.logprobs import FlatLogprobs

        completion = output.outputs[0]
        reason = ended_by or completion.finish_reason
        if reason not in set(FinishReason):
            raise RuntimeError(f"vLLM ended a request with '{reason}'")
        assert isinstance(completion.logprobs, FlatLogprobs), "asked for with flat_logprobs"
        self._prompt_tokens += len(output.prompt_token_ids or ())
        self._cached_tokens += output.num_cached_tokens or 0
        return Generation(
            token_ids=list(completion.token_ids),
            logprobs=list(completion.logprobs.logprobs),
            finish_reason=FinishReason(reason),
            stamp=self.stamp(),
        )

    def _abort(self) -> None:
        """Forget the requests of a rollout that an error has ended."""
        self._llm.llm_engine.abort_request(sorted(self._under_way))
        self._under_way.clear()

    def _run(
        self, prompts: Sequence[Sequence[int]], params: "list[SamplingParams]"
    ) -> "list[RequestOutput]":
        require_verified(self.stamp())
        self._wake()
        assert not self._under_way, "vLLM would return the requests of advance among these"
        inputs: Any = [{"prompt_token_ids": list(prompt)} for prompt in prompts]
        return self._llm.generate(inputs, params, use_tqdm=False)


def _counted(step: Callable[[], T]) -> Callable[[], T]:
    """Report every step of the engine as a sign of progress."""

    def counted() -> T:
        outputs = step()
        advance()
        return outputs

    return counted


def _llm_arguments(spec: EngineSpec) -> dict[str, Any]:
    from rlcore.engines import vllm_transfer

    arguments: dict[str, Any] = {
        "model": spec.model_dir,
        "dtype": spec.dtype,
        "max_model_len": spec.max_model_len,
        "max_num_seqs": spec.max_num_seqs,
        "tensor_parallel_size": spec.tensor_parallel_size,
        "seed": spec.seed,
        "logprobs_mode": "processed_logprobs",
        "skip_tokenizer_init": True,
        "generation_config": "vllm",  # ignore the sampling defaults of the model directory
        "load_format": vllm_transfer.NOISE_FORMAT,
        "weight_transfer_config": {"backend": vllm_transfer.BACKEND},
        "worker_extension_cls": vllm_transfer.EXTENSION,
    }
    if spec.device != "cpu":
        return arguments | {
            "gpu_memory_utilization": spec.gpu_memory_utilization,
            "enable_sleep_mode": spec.sleeps,
        }
    return arguments | {
        "enforce_eager": True,
        "block_size": spec.block_size,
        "kv_cache_memory_bytes": _kv_cache_bytes(spec),
        # With chunked prefill vLLM rewinds the seeded generator of a partly prefilled row by its
        # offset, and raises since CPU generators have none. So prompts are prefilled whole, many
        # per step.
        "enable_chunked_prefill": False,
        # Without chunks vLLM cannot keep the states of a hybrid's layers for a prefix.
        "enable_prefix_caching": not keeps_states(spec.model_dir),
        "max_num_batched_tokens": max(MIN_PREFILL_TOKENS, spec.max_model_len),
    }


def _kv_cache_bytes(spec: EngineSpec) -> int:
    """Return the KV cache to allocate on CPU, in bytes: enough for full batches, within the limit.

    vLLM fills the whole cache with zeros at start-up (3 s a GiB on a small machine). Raises
    ``UserError`` when one sequence does not fit into the limit, and as ``check_heads``: vLLM itself
    would fail at the first batch.
    """
    shape = directory_shape(Path(spec.model_dir), spec.model_dir)
    check_heads(shape.head_dim, spec.model_dir)
    value_bytes = {"float32": 4, "bfloat16": 2}[spec.dtype]
    per_block = shape.kv_bytes_per_token(value_bytes) * spec.block_size
    blocks = -(-spec.max_model_len // spec.block_size)
    limit = int(spec.kv_cache_gib * 2**30)
    if limit < (blocks + 1) * per_block:
        raise UserError(
            f"rollout kv_cache_gib = {spec.kv_cache_gib} cannot hold one sequence of max_model_len "
            f"= {spec.max_model_len} tokens; raise it to {(blocks + 1) * per_block / 2**30:.2g} or "
            "lower max_model_len"
        )
    return min(limit, (spec.max_num_seqs * blocks + 1) * per_block)


def _sampling_params(request: TurnRequest, sampling: Sampling) -> "SamplingParams":
    from vllm import SamplingParams
    from vllm.sampling_params import RequestOutputKind

    return SamplingParams(
        temperature=sampling.temperature,
        top_p=sampling.top_p,
        top_k=sampling.top_k,
        max_tokens=request.max_new_tokens,
        stop_token_ids=list(sampling.stop_token_ids),
        ignore_eos=True,  # ``sampling`` alone decides, not generation_config
        seed=request.seed,
        logprobs=0,  # log-probs of the sampled token only
        flat_logprobs=True,
        detokenize=False,
        output_kind=(
            RequestOutputKind.CUMULATIVE if sampling.stop else RequestOutputKind.FINAL_ONLY
        ),
        skip_clone=True,
    )


def _check_env(spec: EngineSpec) -> None:
    wrong = {k: v for k, v in engine_env(spec).items() if os.environ.get(k) != v}
    if wrong:
        wanted = " ".join(f"{key}={value}" for key, value in sorted(wrong.items()))
        raise UserError(
            f"the vLLM engine's process was started without {wanted}; start it with "
            "engine_env(spec) in its environment, set before torch is imported"
        )
