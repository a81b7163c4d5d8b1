"""GRPO steps beside TRL's: the same model, prompts, batch, lengths, reward, dtype and threads, one
optimizer step each, the sides alternating in one run.

No side scores old log-probs before its only step, nor writes a checkpoint between steps (what that
costs: ``iteration-large``). A model of random weights rarely ends an answer,
so that nearly all have the full length; the tokens that were sampled are in the notes. TRL runs in
an environment of its own, ``.venv-trl``, which the first run makes.
"""

import json
import random
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

from flows.paths import RECIPES
from rlcore.data.read import training_texts
from rlcore.models.base import build_base_model
from rlcore.recipes.load import load_recipe
from tests.bench.measures import Measure
from tests.bench.peers.processes import Timed, by_trl, ours

TRL = "TRL"
WARMUP = 2  # steps of a process that are not counted
NEVER = 10**6  # steps between two checkpoints


@dataclass(frozen=True, slots=True)
class Size:
    """A model, how often each side trains it, and the ratio to TRL that each of ours must reach.

    ``micro_batch_tokens``: of ours; TRL computes all rows of a step at once.
    """

    name: str
    shape: Mapping[str, int]
    rounds: int
    steps: int
    least: Mapping[str, float]
    micro_batch_tokens: int = 8192


IN_PROCESS, PIPELINE = "in one process", "Prefect and Ray"
SMALL = Size("0.36 M", {}, rounds=3, steps=12, least={})  # told: nobody trains such a model
LARGE = Size(
    "43 M",
    {
        "hidden_size": 576,
        "num_layers": 10,
        "num_heads": 9,
        "num_kv_heads": 9,
        "intermediate_size": 1728,
    },
    rounds=1,
    steps=5,
    least={PIPELINE: 1.3},
    micro_batch_tokens=2048,
)


@dataclass(frozen=True, slots=True)
class Job:
    """What one process of any side does; ``lr`` is too small to change what is sampled."""

    model: str
    prompts_file: str
    test_file: str
    folder: str
    steps: int
    prompts: int = 32
    samples: int = 8
    new_tokens: int = 24
    lr: float = 1e-8
    threads: int = 2
    micro_batch_tokens: int = 8192
    engine: str = "transformers"
    engines: int = 2
    old_logprobs: str = "fused"
    checkpoint_every: int = 1
    adapter_rank: int = 0  # 0: all weights are trained


def small() -> list[Measure]:
    """Return the figures of a model whose matrices are too small to fill a core; about six
    minutes."""
    return _measures(SMALL)


def large() -> list[Measure]:
    """Return the figures of a model that spends its time in matrix products; about ten minutes."""
    return _measures(LARGE)


def _measures(size: Size) -> list[Measure]:
    with TemporaryDirectory() as name:
        job = replace(job_of(Path(name), size), checkpoint_every=NEVER)
        found: dict[str, list[Timed]] = {}
        for round_ in range(size.rounds):
            for side, run in sides().items():
                mine = replace(job, folder=str(Path(name) / f"{side}-{round_}"))
                found.setdefault(side, []).append(run(asdict(mine)))
    return _figures(size, found)


def sides() -> dict[str, Callable[[Mapping[str, Any]], Timed]]:
    return {
        IN_PROCESS: partial(ours, "tests.bench.peers.ours_grpo"),
        PIPELINE: partial(ours, "tests.bench.peers.ours_pipeline"),
        TRL: partial(by_trl, "trl_grpo.py"),
    }


def _figures(size: Size, found: Mapping[str, list[Timed]]) -> list[Measure]:
    """Per side seconds, tokens and memory, where the time went, and the ratio to TRL."""
    result, seconds = [], dict[str, float]()
    for side, runs in found.items():
        steps = [step for run in runs for step in run.steps[WARMUP:]]
        each = [median(step["seconds"] for step in run.steps[WARMUP:]) for run in runs]
        seconds[side] = median(each)
        tokens = median(step["tokens"] for step in steps)
        note = f"{min(each):.3f} to {max(each):.3f}; {tokens:.0f} tokens sampled"
        result.append(Measure(f"{size.name}: {side}, s a step", round(seconds[side], 3), note=note))
        peak = max(run.peak_bytes for run in runs) / 2**30
        result.append(Measure(f"{size.name}: {side}, peak memory, GiB", round(peak, 2)))
        for phase in steps[0].get("phases", {}):
            taken = median(step["phases"].get(phase, 0.0) for step in steps)
            if phase != "step" and taken >= 0.001:
                name = f"{size.name}: {side}, {phase}, s"
                result.append(Measure(name, round(taken, 3)))
    for side in (IN_PROCESS, PIPELINE):
        ratio = Measure(
            f"{size.name}: {side}, TRL's time over ours",
            round(seconds[TRL] / seconds[side], 2),
            least=size.least.get(side),
            is_speedup=True,
        )
        result.append(ratio)
    return result


def base_model(folder: Path, shape: Mapping[str, int]) -> None:
    """Write the quickstart's model, of random weights, with what ``shape`` sets otherwise."""
    settings = {f"model.from_scratch.{name}": value for name, value in shape.items()}
    recipe = load_recipe("quickstart", settings, directory=RECIPES)
    texts = training_texts(recipe.data, seed=0)
    build_base_model(recipe.model, folder, texts=texts, seed=0)


def job_of(folder: Path, size: Size) -> Job:
    """Write the model, of random weights, and the prompts; return the job on them."""
    base_model(folder / "model", size.shape)
    prompt_files(folder, size)
    return Job(
        model=str(folder / "model"),
        prompts_file=str(folder / "train.jsonl"),
        test_file=str(folder / "test.jsonl"),
        folder=str(folder),
        steps=size.steps,
        micro_batch_tokens=size.micro_batch_tokens,
    )


def prompt_files(folder: Path, size: Size) -> None:
    """Write the prompts of ``size``'s steps, train.jsonl, and some more, test.jsonl."""
    draw = random.Random(0)
    for split, count, thing in (("train", 32 * (size.steps + 2), "apples"), ("test", 8, "pears")):
        with (folder / f"{split}.jsonl").open("w") as file:
            for _ in range(count):
                first, second = draw.randint(10, 99), draw.randint(10, 99)
                text = f"Ann has {first} {thing} and gets {second} more; how many?"
                print(json.dumps({"prompt": [{"role": "user", "content": text}]}), file=file)
