"""One training run in this process: prompts and a config in, a model and its curves out.

The loop, its phases and its store are the pipeline's own (``rlcore.rl``); learner and engine are
built inline. Nothing here knows an algorithm.
"""

import json
import logging
import shutil
import tempfile
import threading
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from rlcore.api.configs import TrainingConfig
from rlcore.api.curves import Curves
from rlcore.api.progress import TrainingBar
from rlcore.api.prompts import Prompt, prompts_frame
from rlcore.api.recipe import Task, recipe_of
from rlcore.diagnostics.memory import explained
from rlcore.diagnostics.watch import Diagnostics
from rlcore.dry_run.plan import plan
from rlcore.models.base import copy_base_model
from rlcore.models.files import MODEL_FOLDER, locate_model, model_files
from rlcore.models.pretrained import load_pretrained
from rlcore.models.tokenizer import has_chat_template, load_tokenizer
from rlcore.recipe_text import write_yaml
from rlcore.recipes import recipe_digest
from rlcore.rewards.types import Scorers
from rlcore.rl.loop import Steps, iterate
from rlcore.rl.phases import Phases
from rlcore.rl.state import LoopState
from rlcore.rl.workers import start_workers
from rlcore.store.artifacts import ArtifactStore, Lineage
from rlcore.telemetry import switch_off
from rlcore.workers.workers import Workers
from schemas.errors import UserError
from schemas.recipe import ModelSection, Recipe

if TYPE_CHECKING:
    from rlcore.models.pretrained import PreTrainedModel
    from rlcore.models.tokenizer import ChatTokenizer

logger = logging.getLogger(__name__)

# For a tokenizer without a chat template: the messages' texts unchanged.
PLAIN_TEMPLATE = (
    "{% for m in messages %}{{ m.content }}{% if m.role == 'assistant' %}{{ eos_token }}"
    "{% elif not loop.last %}{{ '\\n' }}{% endif %}{% endfor %}"
)
STORE_FOLDER = "store"
RECIPE_FILE = "recipe.yaml"
# Threads, kernels and the process group are this process's: one run at a time.
_ONE_RUN = threading.Lock()


class Trained(NamedTuple):
    """The trained model (CPU, eval mode), its tokenizer, and a list per curve
    (``rlcore.api.curves``)."""

    model: "PreTrainedModel"
    tokenizer: "ChatTokenizer"
    metrics: dict[str, list[float]]


@dataclass(frozen=True)
class Job:
    """What to train, and on which prompts.

    ``scorers``: None where the recipe's own ``functions`` score in a worker process. ``tracking``:
    the recipe's section of that name. ``on_start`` gets the recipe, ``on_metrics`` the number of
    each iteration (from 1) and its metrics under verl's names; an exception of either ends the run.
    """

    config: TrainingConfig
    model_name: str
    prompts: Sequence[Prompt]
    scorers: Scorers | None
    functions: Sequence[dict[str, Any]]
    output_dir: Path | None
    reward_offset: float = 0.0
    tracking: Mapping[str, Any] = field(default_factory=dict)
    on_start: Callable[[Recipe], None] = field(default=lambda recipe: None)
    on_metrics: Callable[[int, Mapping[str, float]], None] = field(
        default=lambda iteration, metrics: None
    )


def train(job: Job) -> Trained:
    """Train and return model, tokenizer and curves.

    With ``output_dir``, ``model`` below it is the exported Hugging Face directory (an earlier one
    is replaced once the new one is complete), ``recipe.yaml`` the recipe, and ``store`` keeps every
    rollout, reward and metric. Every call trains from the start: there is no way to compare the
    caller's functions with those of an earlier call. Raises UserError for anything in ``job`` that
    cannot work or cannot fit this machine and for memory that runs out (with keys of
    ``config.overrides``), and what the loop raises.
    """
    switch_off()
    with _ONE_RUN, _root(job.output_dir) as root, tempfile.TemporaryDirectory() as scratch:
        source = _base_model(job, Path(scratch))
        tokenizer = load_tokenizer(source, name=job.model_name)
        prompts = prompts_frame(job.prompts, tokenizer, max_tokens=job.config.max_prompt_length)
        store = ArtifactStore(root / STORE_FOLDER)
        key = f"{job.config.preset}-{uuid.uuid4().hex[:12]}"
        recipe = recipe_of(job.config, _task(job, source, prompts, store, key))
        plan(recipe)  # refuses what surely cannot fit this machine
        lineage = Lineage(recipe_digest(recipe), code_fingerprint="")
        dataset = store.put("dataset", key, tables={"prompts": prompts}, lineage=lineage)
        text = write_yaml(recipe.model_dump(mode="json"))
        (root / RECIPE_FILE).write_text(text, encoding="utf-8")
        job.on_start(recipe)
        curves = Curves()
        with (
            explained(recipe, "rl"),
            Workers(recipe, warn=logger.warning) as workers,
            ExitStack() as stack,
        ):
            phases = Phases(
                recipe,
                store=store,
                key=key,
                lineage=replace(lineage, parents={"dataset": dataset}),
                prompts=prompts,
                ptx=None,
                tokenizer=tokenizer,
                workers=start_workers(recipe.rl, workers, source, stack, rewards=job.scorers),
                log=logger.warning,
            )
            bar = TrainingBar(
                job.config.preset, recipe.rl.iterations, shown=job.config.show_progress
            )
            with bar:
                state = iterate(phases, Steps(), _Report(job, recipe, curves, bar))
            exported = Path(scratch) / "exported"
            phases.finish(state, exported)
        for checkpoint in store.keys("checkpoint", f"{key}/"):  # no call can resume this one
            store.discard("checkpoint", checkpoint)
        published = _publish(exported, root / MODEL_FOLDER)
        model, tokenizer = load_pretrained(published)
        return Trained(model, tokenizer, curves.values)


class _Report:
    """Called after each iteration. Raises DiagnosticError when a check ends the run."""

    def __init__(self, job: Job, recipe: Recipe, curves: Curves, bar: TrainingBar) -> None:
        self._bar = bar
        self._on_metrics, self._total, self._curves = job.on_metrics, recipe.rl.iterations, curves
        self._diagnostics = Diagnostics(recipe, log=logger.warning)

    def __call__(self, state: LoopState, metrics: dict[str, float]) -> None:
        self._curves.add(metrics)
        logger.info(
            "iteration %d/%d  reward %.3f  accuracy %.3f  %.2f s",
            state.iteration,
            self._total,
            self._curves.values["average_reward"][-1],
            self._curves.values["accuracy"][-1],
            metrics["timing_s/step"],
        )
        self._bar.show(state.iteration, metrics)
        self._on_metrics(state.iteration, metrics)
        self._diagnostics.observe(state.iteration, metrics)


@contextmanager
def _root(output_dir: Path | None) -> Iterator[Path]:
    if output_dir is None:
        with tempfile.TemporaryDirectory(prefix="rl-training-") as folder:
            yield Path(folder)
        return
    if output_dir.exists() and not output_dir.is_dir():
        raise UserError(f"output_dir = '{output_dir}' is a file; give a directory")
    if (output_dir / MODEL_FOLDER).exists() and not (output_dir / RECIPE_FILE).is_file():
        raise UserError(
            f"output_dir = '{output_dir}' holds a '{MODEL_FOLDER}' that no earlier run wrote (there"
            f" is no {RECIPE_FILE}); give a new or empty directory"
        )
    output_dir.mkdir(parents=True, exist_ok=True)
    yield output_dir.absolute()


def _base_model(job: Job, scratch: Path) -> Path:
    """Return the directory to start from: the model's own, or a copy with a plain chat template."""
    source = locate_model(job.model_name, None)
    model_files(source)
    if has_chat_template(source, name=job.model_name):
        return source
    logger.info("%s has no chat template; prompts are passed to it unchanged", job.model_name)
    section = ModelSection(path=str(source), chat_template=PLAIN_TEMPLATE, max_tokens=16)
    return copy_base_model(section, source, scratch / "base")


def _task(job: Job, source: Path, prompts: Any, store: ArtifactStore, key: str) -> Task:
    import torch

    return Task(
        model_dir=source,
        context=json.loads((source / "config.json").read_text()).get("max_position_embeddings"),
        num_prompts=prompts.height,
        longest_prompt=int(prompts["prompt_ids"].list.len().max()),
        prompts_file=f"{store.root}/dataset/{key}/prompts.parquet",
        store=Path(store.root),
        functions=job.functions,
        reward_offset=job.reward_offset,
        tracking=job.tracking,
        dtype=job.config.dtype or ("bfloat16" if torch.cuda.is_available() else "float32"),
        threads=job.config.threads or torch.get_num_threads(),
    )


def _publish(exported: Path, target: Path) -> Path:
    """Move the export to ``target``; an earlier one is removed only after the new one is in
    place."""
    partial, old = target.with_name(f".{target.name}.partial"), target.with_name(".old-model")
    shutil.rmtree(partial, ignore_errors=True)
    shutil.rmtree(old, ignore_errors=True)
    shutil.move(exported, partial)
    if target.exists():
        target.rename(old)
    partial.rename(target)
    shutil.rmtree(old, ignore_errors=True)
    return target
