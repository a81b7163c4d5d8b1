"""PPO steps on one GPU in the shape of verl's GSM8K recipe: a policy, its frozen reference and a
critic of 0.5 B parameters, 64 responses a step, prompts and answers of up to 512 tokens.

    python -m tests.bench gpu

Learner and sampler run in one process, which needs torch, transformers and DeepSpeed, and neither
Ray, vLLM nor Prefect. The weights are random, so that answers do not end of themselves: their
lengths are drawn, 354 tokens a sequence with the prompt, which is what verl's run had (13.30 s a
step and 1,702 tokens/s on one H800, with vLLM as the sampler).
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Any

import numpy as np
import torch

from rlcore.algorithms.objective import PolicyObjective, ValueObjective
from rlcore.cluster.in_process import InProcessWorker
from rlcore.engines.pool import EnginePool
from rlcore.engines.transformers_engine import TransformersEngine
from rlcore.engines.types import EngineSpec, Generation, Sampling, TurnRequest
from rlcore.learner.learner import Learner
from rlcore.learner.spec import LearnerSpec, Term
from rlcore.models.packing import Sequences
from schemas.errors import UserError
from tests.bench.measures import Measure

WARMUP = 1  # steps that are not counted
PROMPT_TOKENS, ANSWER_TOKENS, LONGEST = 110, 244, 512  # means of each, and the most of either
SPREAD = 0.5  # standard deviation of the logarithm of a length
VERL = "verl on one H800: 13.30 s a step, 1,702 tokens/s"


@dataclass(frozen=True, slots=True)
class Work:
    """What is measured; the defaults are Qwen2.5-0.5B's shape and verl's batch."""

    device: str = "cuda"
    dtype: str = "bfloat16"
    steps: int = 4
    rows: int = 64
    longest: int = LONGEST
    micro_batch_tokens: int = 16384
    shape: Mapping[str, Any] = field(
        default_factory=lambda: {
            "vocab_size": 151_936,
            "hidden_size": 896,
            "num_hidden_layers": 24,
            "num_attention_heads": 14,
            "num_key_value_heads": 2,
            "intermediate_size": 4864,
            "tie_word_embeddings": True,
            "max_position_embeddings": 2 * LONGEST,
        }
    )


def measures() -> list[Measure]:
    """Return the figures of ``Work()``; about two minutes. Raises UserError without a GPU."""
    if not torch.cuda.is_available():
        raise UserError("BENCH = 'gpu' needs a CUDA device and torch sees none; run it on a GPU")
    return measured(Work())


def measured(work: Work) -> list[Measure]:
    """Return seconds of a step and its parts, tokens per second, memory and MFU on ``work``."""
    with TemporaryDirectory() as name, _Started(work, Path(name)) as step:
        steps = [step() for _ in range(WARMUP + work.steps)][WARMUP:]
    seconds = {part: median(each[part] for each in steps) for part in steps[0]}
    tokens = seconds.pop("tokens")
    flops = seconds.pop("flops")
    peak, whole = seconds.pop("peak FLOP/s"), sum(seconds.values())
    trained = seconds["update"] + seconds["critic update"]
    found = [
        Measure("gpu: s a step", round(whole, 3), note=VERL),
        Measure("gpu: tokens/s, prompts included", round(tokens / whole, 1)),
        *(Measure(f"gpu: {part}, s", round(taken, 3)) for part, taken in seconds.items()),
    ]
    if peak:
        share = round(flops / trained / peak, 3)
        found.append(Measure("gpu: MFU of the updates", share))
    if work.device == "cuda":
        most = torch.cuda.max_memory_allocated() / 2**30
        found.append(Measure("gpu: peak memory, GiB", round(most, 2)))
    return found


class _Started:
    """Learners and sampler of ``work``; entered, it is a function that makes a step and returns
    the seconds of its parts, its tokens, and FLOPs of its updates beside the device's peak."""

    def __init__(self, work: Work, folder: Path) -> None:
        from transformers import Qwen2Config, Qwen2ForCausalLM

        torch.manual_seed(0)
        config = Qwen2Config(**work.shape)
        with torch.device("meta" if work.device == "cuda" else "cpu"):
            model = Qwen2ForCausalLM(config)
        if work.device == "cuda":
            model = model.to_empty(device="cuda")
            for parameter in model.parameters():
                torch.nn.init.normal_(parameter, std=0.02)
            model.tie_weights()
        model.to(getattr(torch, work.dtype)).save_pretrained(folder)
        (folder / "tokenizer.json").write_text("{}")
        del model
        spec = LearnerSpec(
            str(folder),
            dtype=work.dtype,
            device=work.device,
            micro_batch_tokens=work.micro_batch_tokens,
            attn_implementation="auto",
            gradient_checkpointing=True,
            threads=1 if work.device == "cuda" else 2,
        )
        self._work, self._folder = work, folder
        self._policy = Learner(spec)
        self._critic = Learner(replace(spec, head="value"))
        self._reference = Learner(replace(spec, trainable=False))
        self._sampler = TransformersEngine(
            EngineSpec(
                str(folder),
                dtype=work.dtype,
                device=work.device,
                max_model_len=2 * work.longest,
                max_num_seqs=work.rows,
            )
        )
        self._engine = EnginePool(
            [InProcessWorker.of("engine", self._sampler)], timeout_s=600, sync_timeout_s=600
        )
        self._rng, self._made = np.random.default_rng(0), 0

    def __enter__(self) -> Callable[[], dict[str, float]]:
        return self._step

    def __exit__(self, *error: object) -> None:
        for learner in (self._policy, self._critic, self._reference):
            learner.close()

    def _step(self) -> dict[str, float]:
        taken: dict[str, float] = {}

        def timed(part: str, do: Callable[[], Any]) -> Any:
            begun = perf_counter()
            found = do()
            if self._work.device == "cuda":
                torch.cuda.synchronize()
            taken[part] = perf_counter() - begun
            return found

        self._made += 1
        timed("sync", lambda: self._engine.load_weights(self._policy.publish()))
        requests = self._requests()
        sampling = Sampling(max_new_tokens=self._work.longest)
        answers = timed("sampling", lambda: self._sampler.generate(requests, sampling))
        batch = _sequences(requests, answers)
        old = timed("log-probs", lambda: self._policy.logprobs(batch, targets="loss_mask"))
        ref = timed("reference", lambda: self._reference.logprobs(batch, targets="loss_mask"))
        values = timed("values", lambda: self._critic.values(batch))
        fields = {
            "old_logprobs": old.logprobs,
            "ref_logprobs": ref.logprobs,
            "rollout_logprobs": batch.per_token["rollout_logprobs"],
            "advantages": [self._rng.normal(0, 1, len(m)).astype(np.float32) for m in values],
            "returns": values,
            "old_values": values,
        }
        batch = replace(batch, per_token=fields)
        policy, critic = PolicyObjective(kl_coef=0.001), ValueObjective()
        report = timed("update", lambda: self._policy.step([Term(batch, policy)], 1e-6))
        more = timed("critic update", lambda: self._critic.step([Term(batch, critic)], 1e-5))
        flops = report["actor/model_flops"] + more["critic/model_flops"]
        peak = self._policy.peak_flops() or 0.0
        return {**taken, "tokens": batch.num_tokens, "flops": flops, "peak FLOP/s": peak}

    def _requests(self) -> list[TurnRequest]:
        work = self._work
        vocabulary, share = work.shape["vocab_size"], work.longest / LONGEST
        asked = _lengths(self._rng, PROMPT_TOKENS * share, work)
        said = _lengths(self._rng, ANSWER_TOKENS * share, work)
        return [
            TurnRequest(
                str(row), self._rng.integers(0, vocabulary, p).tolist(), self._made * 1000 + row, n
            )
            for row, (p, n) in enumerate(zip(asked, said, strict=True))
        ]


def _lengths(rng: np.random.Generator, mean: float, work: Work) -> list[int]:
    drawn = rng.lognormal(np.log(mean) - SPREAD**2 / 2, SPREAD, work.rows)
    return np.clip(np.round(drawn), 2, work.longest).astype(int).tolist()


def _sequences(requests: list[TurnRequest], answers: list[Generation]) -> Sequences:
    """Return the sequences with the sampler's log-probs."""
    ids, masks, logprobs = [], [], []
    for request, answer in zip(requests, answers, strict=True):
        asked = len(request.token_ids)
        ids.append(np.array([*request.token_ids, *answer.token_ids], dtype=np.int32))
        masks.append(np.arange(len(ids[-1])) >= asked)
        logprobs.append(np.array([0.0] * asked + list(answer.logprobs), dtype=np.float32))
    return Sequences(ids, masks, {"rollout_logprobs": logprobs})
