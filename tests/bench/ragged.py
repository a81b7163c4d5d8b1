"""Passes over ragged sequences beside passes over equal ones, per useful token.

The learner's own packing and model (0.43 M parameters, fp32), forward and backward of SFT's loss,
in batches of 64, with the attention that "auto" takes on a CPU. The kinds of batches alternate.
Times are those of one thread on the CPU, the best of ``TRIES``: on a busy machine the clock of two
threads says nothing.
"""

import time
from collections.abc import Callable

import numpy as np
import torch

from rlcore.models.logprobs import TokenLogprobModel
from rlcore.models.packing import MicroBatch, Sequences, pack
from tests.bench.measures import Measure

BATCHES, BATCH, TRIES = 6, 64, 7
MEAN, LONGEST, SIGMA = 37, 300, 0.8  # tokens; the spread of the logarithm of a length
NARROW = (12, 20)  # tokens: rows of the longest would hold one sequence each
BUDGET, VOCABULARY = 4096, 512


def measures() -> list[Measure]:
    """Return the figures of this benchmark; about half a minute."""
    rng = np.random.default_rng(0)
    ragged = [_lognormal(rng) for _ in range(BATCHES)]
    narrow = [rng.integers(NARROW[0], NARROW[1] + 1, BATCH) for _ in range(BATCHES)]
    kinds = {
        "ragged": [_packed(lengths, rng) for lengths in ragged],
        "equal": [_packed(np.full(BATCH, MEAN), rng) for _ in ragged],
        "narrow": [_packed(lengths, rng) for lengths in narrow],
        "narrow, rows of the longest": [
            _packed(lengths, rng, row_tokens=int(lengths.max())) for lengths in narrow
        ],
    }
    rates = _rates(kinds)
    padding = {
        name: 1 - sum(b.num_tokens for b in batches) / sum(b.input_ids.size for b in batches)
        for name, packed in kinds.items()
        for batches in [[batch for parts in packed for batch in parts]]
    }
    found = [Measure(f"{name}, useful tokens/s", rate) for name, rate in rates.items()]
    found += [Measure(f"{name}, share of padding", share) for name, share in padding.items()]
    gain = rates["narrow"] / rates["narrow, rows of the longest"]
    slower = rates["equal"] / rates["ragged"]
    return [
        *found,
        Measure("narrow, speed over rows of the longest", gain, least=1.0),
        Measure("ragged, time per useful token over equal", slower),  # of a model nobody trains
    ]


def _lognormal(rng: np.random.Generator) -> np.ndarray:
    drawn = rng.lognormal(np.log(MEAN) - SIGMA**2 / 2, SIGMA, BATCH)
    return np.clip(np.round(drawn), 4, LONGEST).astype(np.int64)


def _packed(
    lengths: np.ndarray, rng: np.random.Generator, row_tokens: int | None = None
) -> list[MicroBatch]:
    ids = [rng.integers(0, VOCABULARY, length).astype(np.int32) for length in lengths]
    sequences = Sequences(ids, [np.arange(len(row)) > 0 for row in ids])
    return pack(sequences, micro_batch_tokens=BUDGET, row_tokens=row_tokens)


def _rates(kinds: dict[str, list[list[MicroBatch]]]) -> dict[str, float]:
    """Return useful tokens/s of each kind: the best pass over each of its batches."""
    step = _stepper()
    best = {name: np.full(len(packed), np.inf) for name, packed in kinds.items()}
    for _ in range(TRIES):
        for index in range(BATCHES):
            for name, packed in kinds.items():
                began = time.process_time()
                step(packed[index])
                best[name][index] = min(best[name][index], time.process_time() - began)
    return {
        name: sum(b.num_tokens for parts in packed for b in parts) / float(best[name].sum())
        for name, packed in kinds.items()
    }


def _stepper() -> Callable[[list[MicroBatch]], None]:
    """Return a function that sums the gradients of one optimizer step."""
    from transformers import Qwen2Config, Qwen2ForCausalLM

    torch.set_num_threads(1)
    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=VOCABULARY,
        hidden_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        intermediate_size=256,
        max_position_embeddings=512,
    )
    lm = Qwen2ForCausalLM(config)
    model = TokenLogprobModel(lm)

    def step(batches: list[MicroBatch]) -> None:
        for batch in batches:
            fields = (batch.input_ids, batch.position_ids, batch.predictors, batch.target_ids)
            inputs = (torch.from_numpy(field) for field in fields)
            logprobs, *_ = model(*inputs)
            (-logprobs.mean()).backward()

    return step
