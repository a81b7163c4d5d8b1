"""One training run in this process: prompts and a config in, a model and its curves out.

The loop, its phases and its store are the pipeline's own (``rlcore.rl``); learner and engine are
built inline. Nothing here knows an algorithm. Below an ``output_dir`` the call is recorded
(``rlcore.api.call``), holds the lease of its store, and continues at the newest checkpoint.
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
from datetime import UTC, datetime
from math import nan
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Any, NamedTuple

import polars as pl

from rlcore.api.call import TRAINING, ApiCall, arguments_of, functions_of, program_of, read_call
from rlcore.api.configs import TrainingConfig
from rlcore.api.progress import CURVES, TrainingBar, curves
from rlcore.api.prompts import Prompt, prompts_frame
from rlcore.api.recipe import recipe_of
from rlcore.cluster.host_settings import set_variables
from rlcore.diagnostics.memory import explained
from rlcore.diagnostics.watch import Diagnostics
from rlcore.evaluation.export import put_in_place
from rlcore.models.adapter import ADAPTER_FOLDER
from rlcore.models.base import check_model_files, copy_base_model, load_pretrained, with_file_names
from rlcore.models.files import MODEL_FOLDER, context_of, locate_model, read_config
from rlcore.models.soundness import check_tokenizer_fits
from rlcore.models.stop_tokens import record_stops, stops_of
from rlcore.models.tokenizer import load_tokenizer, read_tokenizer
from rlcore.plan.machine import check_machine
from rlcore.recipes.load import recipe_digest
from rlcore.recipes.text import write_yaml
from rlcore.results.folders import RECIPE, STORE_FOLDER
from rlcore.results.metrics import stage_metrics
from rlcore.results.run import StageRecord, record_stage, stage_rows
from rlcore.rewards.types import Scorers
from rlcore.rl.loop import Steps, iterate
from rlcore.rl.phases import Phases
from rlcore.rl.prompts import PromptRows
from rlcore.rl.roles import start_workers
from rlcore.rl.state import LoopState
from rlcore.rl.workers import Workers
from rlcore.store.artifacts import ArtifactStore, Lineage
from rlcore.store.versions import modified_sentences
from schemas.artifacts import ArtifactRef
from schemas.errors import UserError
from schemas.model import ModelSection
from schemas.recipe import Recipe

if TYPE_CHECKING:
    from rlcore.models.base import PreTrainedModel
    from rlcore.models.tokenizer import ChatTokenizer

logger = logging.getLogger(__name__)

# For a tokenizer without a chat template: the messages' texts unchanged.
PLAIN_TEMPLATE = (
    "{% for m in messages %}{{ m.content }}{% if m.role == 'assistant' %}{{ eos_token }}"
    "{% elif not loop.last %}{{ '\\n' }}{% endif %}{% endfor %}"
)
POLICY = "policy"  # kind of the artifact that a call ends with
# Threads, kernels and the process group are this process's: one run at a time.
ONE_RUN = threading.Lock()


class Trained(NamedTuple):
    """The trained model (CPU, eval mode), its tokenizer, a list per curve (``api.progress``)."""

    model: "PreTrainedModel"
    tokenizer: "ChatTokenizer"
    metrics: dict[str, list[float]]


@dataclass(frozen=True)
class Job:
    """What to train, and on which prompts.

    ``call``: the function that was called. ``scorers``: None where the recipe's own ``functions``
    score in a worker process. ``sources``: the caller's functions by argument, which must be those
    of the call that is resumed. ``resume``: continue or return what ``output_dir`` holds.
    ``tracking``: the recipe's section of that name. ``on_start`` gets the recipe and an id that
    stays the same over resumptions, ``on_metrics`` the number of each iteration (from 1) and its
    metrics under verl's names; an exception of either ends the run.
    """

    call: str
    config: TrainingConfig
    model_name: str
    prompts: Sequence[Prompt]
    output_dir: Path | None
    resume: bool
    scorers: Scorers | None = None
    functions: Sequence[dict[str, Any]] = ()
    sources: Mapping[str, Callable[..., Any] | None] = field(default_factory=dict)
    reward_offset: float = 0.0
    tracking: Mapping[str, Any] = field(default_factory=dict)
    on_start: Callable[[Recipe, str], None] = field(default=lambda recipe, run_id: None)
    on_metrics: Callable[[int, Mapping[str, float]], None] = field(
        default=lambda iteration, metrics: None
    )


@dataclass(frozen=True, slots=True)
class _Prepared:
    """A job whose arguments are read and checked. ``begun``: an earlier call left off in it."""

    job: Job
    root: Path
    store: ArtifactStore
    call: ApiCall
    begun: bool
    recipe: Recipe
    source: Path
    tokenizer: "ChatTokenizer"
    prompts: pl.DataFrame
    lineage: Lineage


def train(job: Job) -> Trained:
    """Train, continue or return what was trained: model, tokenizer and curves.

    With ``output_dir``, ``model`` below it is the exported Hugging Face directory (an earlier one
    is replaced once the new one is complete), ``recipe.yaml`` the recipe, ``call.json`` what the
    call was given, and ``store`` keeps checkpoints and every rollout, reward and metric. A call
    that was given the same continues at the newest checkpoint, or returns what is there. Raises
    UserError for one that was given anything else, for what in ``job`` cannot work or cannot fit
    this machine and for memory that runs out (with keys of ``config.overrides``); LeaseError while
    another process trains into ``output_dir``; and what the loop raises.
    """
    with only_run(job.call, job.output_dir) as (root, store, scratch):
        run = _prepared(job, root, store, scratch)
        policy = None
        if run.begun:
            policy = store.find_or_discard(POLICY, run.call.key, logger.warning)
        began = monotonic()
        if policy is None:
            policy = _trained(run)
        _close(run, policy, began)
        model, tokenizer = load_pretrained(store.directory(policy) / MODEL_FOLDER)
        return Trained(model, tokenizer, curves(stage_metrics(store, run.call.key)))


def _prepared(job: Job, root: Path, store: ArtifactStore, scratch: Path) -> _Prepared:
    """Read and check what the job is given, before anything of an earlier call is touched."""
    kept = job.output_dir is not None
    functions = functions_of(job.sources, resume=job.resume) if kept else {}
    earlier = read_call(root) if kept and job.resume else None
    located = locate_model(job.model_name, None)
    source = base_model(job.model_name, located, scratch)
    tokenizer = load_tokenizer(source, name=job.model_name)
    config = read_config(source)
    check_tokenizer_fits(tokenizer, source, config, name=job.model_name)
    prompts = prompts_frame(job.prompts, tokenizer, max_tokens=job.config.max_prompt_length)
    name = f"{job.config.preset}-{uuid.uuid4().hex[:12]}" if earlier is None else earlier.id
    recipe = recipe_of(
        job.config,
        model_dir=source,
        context=context_of(config),
        num_prompts=prompts.height,
        longest_prompt=int(prompts["prompt_ids"].list.len().to_numpy().max()),
        prompts_file=f"{store.root}/dataset/{TRAINING}/{name}/prompts.parquet",
        store=store.root,
        functions=job.functions,
        reward_offset=job.reward_offset,
        tracking=job.tracking,
        resumable=kept,
    )
    code, program = program_of(recipe) if kept else ("", "")
    arguments = {}
    for sentence in modified_sentences(["api"] if kept else []):
        logger.warning(sentence)
    if kept:
        arguments = arguments_of(job.config, recipe, (job.model_name, located), prompts)
    call = ApiCall(name, job.call, arguments, functions, program)
    if earlier is not None:
        call.check_same(earlier, root)
    check_machine(recipe)  # refuses what surely cannot fit this machine
    lineage = Lineage(recipe_digest(recipe), code, producer=call.key)
    begun = earlier is not None
    return _Prepared(job, root, store, call, begun, recipe, source, tokenizer, prompts, lineage)


def _trained(run: _Prepared) -> ArtifactRef:
    """Run what is left of the iterations; return the policy that the run ends with."""
    job, recipe, store = run.job, run.recipe, run.store
    stops = stops_of(run.source, run.tokenizer, recipe.model.stop_tokens)
    with (
        explained(lambda: recipe, "rl"),
        Workers(recipe, warn=logger.warning) as workers,
        ExitStack() as stack,
        store.scratch() as exported,
    ):
        rl_workers = start_workers(recipe.rl, workers, run.source, stack, rewards=job.scorers)
        dataset = _begun(run)
        _discard_others(store, run.call.key)
        job.on_start(recipe, run.call.id)
        phases = Phases(
            recipe,
            store=store,
            key=run.call.key,
            lineage=replace(run.lineage, parents={"dataset": dataset}),
            prompts=PromptRows.of_frame(run.prompts),
            ptx=None,
            tokenizer=run.tokenizer,
            stop_ids=stops.ids,
            workers=rl_workers,
            log=logger.warning,
        )
        bar = TrainingBar(job.config.preset, recipe.rl.iterations, shown=job.config.show_progress)
        with bar:
            state = iterate(phases, Steps(), _Report(run, bar))
        phases.finish(state, exported / MODEL_FOLDER)
        record_stops(exported / MODEL_FOLDER, stops)
        best = {"iteration": state.iteration, "best_iteration": state.best()[0]}
        made = replace(run.lineage, metadata={**best, **state.to_json()})
        return store.put(POLICY, run.call.key, directory=exported, lineage=made)


def _begun(run: _Prepared) -> ArtifactRef:
    """Make this the call of its folder unless it is, the last thing that can fail being behind it;
    return the artifact of its prompts."""
    store, key = run.store, run.call.key
    dataset = store.find_or_discard("dataset", key, logger.warning)
    if dataset is None:
        dataset = store.put("dataset", key, tables={"prompts": run.prompts}, lineage=run.lineage)
    if not run.begun:
        record_stage(store, _record(run), run.lineage)
        text = write_yaml(run.recipe.model_dump(mode="json"))
        (run.root / RECIPE).write_text(text, encoding="utf-8")
        if run.job.output_dir is not None:
            run.call.write(run.root)
    return dataset


def _discard_others(store: ArtifactStore, key: str) -> None:
    """Remove what earlier calls left in the store."""
    for kind in store.kinds():
        for other in store.keys(kind, f"{TRAINING}/"):
            if not f"{other}/".startswith(f"{key}/"):
                store.discard(kind, other)


def _close(run: _Prepared, policy: ArtifactRef, began: float) -> None:
    """Publish ``policy`` and drop the checkpoints, once: a call that ended in it is repeated
    without a change of what its user has made of ``model`` since."""
    store, target = run.store, run.root / MODEL_FOLDER
    rows = stage_rows(store, f"{run.call.key}/")
    ended = rows is not None and rows["sha256"][0] == policy.sha256
    if not ended or not target.exists():
        publish(store.directory(policy), run.root)
    for checkpoint in store.keys("checkpoint", f"{run.call.key}/"):  # nothing is left to resume
        store.discard("checkpoint", checkpoint)
    if not ended:
        done = replace(
            _record(run), sha256=policy.sha256, cached=False, seconds=monotonic() - began
        )
        record_stage(store, done, run.lineage)


def _record(run: _Prepared) -> StageRecord:
    """Return what is recorded of a call that begins now: it is a run of the stage ``rl`` alone."""
    return StageRecord(
        flow_run_id=run.call.key,
        run=run.root.name,
        recipe=run.recipe.name,
        recipe_digest=run.lineage.recipe_digest,
        seed=run.recipe.seed,
        overrides=json.dumps(run.job.config.overrides, sort_keys=True, default=str),
        stage="rl",
        result_kind=POLICY,
        result_key=run.call.key,
        records_key=run.call.key,
        began=datetime.now(UTC).isoformat(),
    )


class _Report:
    """Called after each iteration. Raises DiagnosticError when a check ends the run."""

    def __init__(self, run: _Prepared, bar: TrainingBar) -> None:
        self._run, self._bar = run, bar
        self._diagnostics = Diagnostics(run.recipe, log=logger.warning)
        self._replayed = False

    def __call__(self, state: LoopState, metrics: dict[str, float]) -> None:
        if not self._replayed:  # a resumed run has a history
            run, done = self._run, state.iteration - 1
            self._diagnostics.replay(stage_metrics(run.store, run.call.key, last=done))
            self._replayed = True
        logger.info(
            "iteration %d/%d  reward %.3f  accuracy %.3f  %.2f s",
            state.iteration,
            self._run.recipe.rl.iterations,
            metrics.get(CURVES["average_reward"], nan),
            metrics.get(CURVES["accuracy"], nan),
            metrics["timing_s/step"],
        )
        self._bar.show(state.iteration, metrics)
        self._run.job.on_metrics(state.iteration, metrics)
        self._diagnostics.observe(state.iteration, metrics)


@contextmanager
def only_run(call: str, output_dir: Path | None) -> Iterator[tuple[Path, ArtifactStore, Path]]:
    """Be the only run of this process, and of ``output_dir``; yield the folder of its results, the
    store there, which is held, and a scratch folder. Raises UserError as ``_root_of``, and
    LeaseError while another process trains into ``output_dir``."""
    set_variables()
    with ONE_RUN, _root_of(output_dir) as root, tempfile.TemporaryDirectory() as scratch:
        store = ArtifactStore(root / STORE_FOLDER, writer=f"{call} into '{root}'")
        with store.hold(TRAINING):
            yield root, store, Path(scratch)


@contextmanager
def _root_of(output_dir: Path | None) -> Iterator[Path]:
    """Yield the folder that a call keeps its results in, a temporary one where it keeps none.
    Raises UserError for a file, and for a model there that no earlier call wrote."""
    if output_dir is None:
        with tempfile.TemporaryDirectory(prefix="rl-training-") as folder:
            yield Path(folder)
        return
    if output_dir.exists() and not output_dir.is_dir():
        raise UserError(f"output_dir = '{output_dir}' is a file; give a directory")
    if (output_dir / MODEL_FOLDER).exists() and not (output_dir / RECIPE).is_file():
        raise UserError(
            f"output_dir = '{output_dir}' holds a '{MODEL_FOLDER}' that no earlier run wrote (there"
            f" is no {RECIPE}); give a new or empty directory"
        )
    output_dir.mkdir(parents=True, exist_ok=True)
    yield output_dir.absolute()


def base_model(name: str, source: Path, scratch: Path) -> Path:
    """Return the directory to start from: ``source`` of the model ``name``, or a copy in
    ``scratch`` with a plain chat template or the file names of its class."""
    check_model_files(source)
    if read_tokenizer(source, name).chat_template:
        section = ModelSection(path=str(source), max_tokens=16)
        return with_file_names(section, source, scratch / "base")
    logger.info("%s has no chat template; prompts are passed to it unchanged", name)
    section = ModelSection(path=str(source), chat_template=PLAIN_TEMPLATE, max_tokens=16)
    return copy_base_model(section, source, scratch / "base")


def publish(made: Path, root: Path) -> None:
    """Copy model and adapter of a policy to ``root``; an earlier one is removed only after the new
    one is in place. A copy, since what is in the store must not change with it."""
    for name in (ADAPTER_FOLDER, MODEL_FOLDER):  # the model last: it tells that both are there
        partial = root / f".{name}.partial"
        if (made / name).is_dir():
            shutil.rmtree(partial, ignore_errors=True)
            shutil.copytree(made / name, partial)
            put_in_place(root / name, partial)
