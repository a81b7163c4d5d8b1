"""Adapters on SmolLM2: steps and memory of GRPO beside TRL with peft, the sides alternating; what a
learner holds with all weights, under an adapter and over nf4, beside the plan; and how far nf4
moves the loss.

What a learner holds is without what the C library keeps of freed memory (``GIVEN_BACK``): in a run
that is up to .9 GiB with all weights and 1.8 under an adapter, and giving it back costs a seventh
of a step.

The model must be there (``rl-pipeline models smollm2``), and the extra ``quant`` for nf4. About
twenty minutes on two cores, of which TRL takes most. TRL runs in ``.venv-trl``.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from itertools import islice
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

from flows.paths import RECIPES, ROOT
from rlcore.data.read import training_texts
from rlcore.models.smollm2 import FOLDER, write_smollm2
from rlcore.recipes.load import load_recipe
from tests.bench.grpo import IN_PROCESS, NEVER, TRL, WARMUP, Job, Size, prompt_files, sides
from tests.bench.measures import Measure
from tests.bench.peers.processes import Timed, ours

RANK = 32
SIZE = Size("SmolLM2, rank 32", {}, rounds=2, steps=5, least={}, micro_batch_tokens=1024)
LEARNERS = ("full", "full and reference", "adapter", "nf4")
TOKENS = 1024  # of a pass
LOSS_STEPS, LOSS_ROWS = 20, 320  # 16 new rows a step
GIVEN_BACK = {"MALLOC_MMAP_THRESHOLD_": "1000000"}
GIB = 2**30


@dataclass(frozen=True, slots=True)
class LearnerJob:
    """A learner that makes ``steps`` on rows of ``texts``, or of random tokens where there are
    none; ``tokens`` a pass."""

    model: str
    kind: str
    rank: int = RANK
    tokens: int = TOKENS
    steps: int = 3
    threads: int = 2
    texts: tuple[str, ...] = ()


def measures() -> list[Measure]:
    """Return the figures of both comparisons."""
    model = ROOT / FOLDER
    if not model.is_dir():
        write_smollm2(model)
    return [*memory(model), *losses(model), *beside_trl(model)]


def beside_trl(model: Path) -> list[Measure]:
    """Return seconds and memory of a step of both sides; neither may be worse than TRL's."""
    with TemporaryDirectory() as name:
        folder = Path(name)
        prompt_files(folder, SIZE)
        job = Job(
            model=str(model),
            prompts_file=str(folder / "train.jsonl"),
            test_file=str(folder / "test.jsonl"),
            folder=str(folder),
            steps=SIZE.steps,
            prompts=8,
            micro_batch_tokens=SIZE.micro_batch_tokens,
            checkpoint_every=NEVER,
            adapter_rank=RANK,
        )
        found: dict[str, list[Timed]] = {IN_PROCESS: [], TRL: []}
        for round_ in range(SIZE.rounds):
            for side, runs in found.items():
                mine = replace(job, folder=str(folder / f"{side}-{round_}"))
                runs.append(sides()[side](asdict(mine)))
    return step_figures(found)


def step_figures(found: Mapping[str, list[Timed]]) -> list[Measure]:
    """Return seconds a step, peaks and both ratios; the interval is that of the rounds."""
    each = {
        side: [median(step["seconds"] for step in run.steps[WARMUP:]) for run in runs]
        for side, runs in found.items()
    }
    peaks = {side: max(run.peak_bytes for run in runs) / GIB for side, runs in found.items()}
    ratios = [theirs / mine for mine, theirs in zip(each[IN_PROCESS], each[TRL], strict=True)]
    said = []
    for side in found:
        note = f"{min(each[side]):.2f} to {max(each[side]):.2f}"
        seconds = round(median(each[side]), 2)
        said.append(Measure(f"{side}, s a step", seconds, note=note, is_absolute=True))
        said.append(Measure(f"{side}, peak memory, GiB", round(peaks[side], 2)))
    return [
        *said,
        Measure(
            "TRL's time over ours",
            round(median(ratios), 2),
            least=1.0,
            note=f"{min(ratios):.2f} to {max(ratios):.2f}",
            is_speedup=True,
        ),
        Measure("our memory over TRL's", round(peaks[IN_PROCESS] / peaks[TRL], 2), most=1.0),
    ]


def memory(model: Path) -> list[Measure]:
    """Return what each learner held at most beside its plan, and above an idle process the share
    that an adapter needs of all weights, both with a reference."""
    found = {kind: _learner(LearnerJob(str(model), kind)) for kind in LEARNERS}
    said = []
    for kind, steps in found.items():
        held, planned = steps[-1]["peak"] / GIB, steps[-1]["planned"] / GIB
        apart = abs(held - planned) / held
        note = f"{held:.2f} GiB measured, {planned:.2f} planned"
        said.append(Measure(f"{kind}: plan apart", round(apart, 3), most=0.15, note=note))
    above = {kind: steps[-1]["peak"] - steps[-1]["idle"] for kind, steps in found.items()}
    share = above["adapter"] / above["full and reference"]
    weights = found["nf4"][-1]["linear_bytes"] / found["adapter"][-1]["linear_bytes"]
    return [
        *said,
        Measure("adapter's memory over that of all weights", round(share, 2), most=0.6),
        Measure("bytes of the linear layers, nf4 over float32", round(weights, 3), most=0.35),
    ]


def losses(model: Path) -> list[Measure]:
    """Return the largest distance of the losses of an adapter over nf4 from those over float32,
    most of which is there before the first step: what 4 bits cost a model of this size."""
    recipe = load_recipe("quickstart", directory=RECIPES)
    texts = tuple(islice(training_texts(recipe.data, seed=0), LOSS_ROWS))
    job = LearnerJob(str(model), "adapter", steps=LOSS_STEPS, texts=texts)
    plain, coded = (
        [step["loss"] for step in _learner(each)] for each in (job, replace(job, kind="nf4"))
    )
    apart = max(abs(theirs / mine - 1) for mine, theirs in zip(plain, coded, strict=True))
    note = f"{plain[0]:.3f} to {plain[-1]:.3f}; {coded[0]:.3f} to {coded[-1]:.3f}"
    return [Measure(f"nf4: loss of {LOSS_STEPS} steps apart", round(apart, 3), note=note)]


def _learner(job: LearnerJob) -> list[dict[str, Any]]:
    return ours("tests.bench.peers.ours_learner", asdict(job), GIVEN_BACK).steps
