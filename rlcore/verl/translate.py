"""Translates a verl run to a recipe: single settings, settings that belong together, GPUs,
notes."""

import re
import textwrap
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from rlcore.recipes.load import resolve_recipe, set_key
from rlcore.recipes.text import write_yaml
from rlcore.verl import batches, episodes, learning, refusals
from rlcore.verl.settings import (
    ACTOR,
    MODEL,
    REFERENCE,
    ROLLOUT,
    Notes,
    VerlRun,
    entry,
    full_key,
)
from rlcore.verl.text import VerlSettings, read_settings
from schemas.errors import UserError
from schemas.recipe import Recipe
from schemas.rl import RLSection

SHARED = 0.2  # of one GPU: actor, critic, reference, reward model and engine make 1.0
SHARED_MEMORY = 0.4  # of the GPU for an engine that shares it with learners


def layout(run: VerlRun) -> dict[str, Any]:
    """Ranks, engines and offload. None of it changes the result of training."""
    gpus = run.count("trainer.n_gpus_per_node", 1) * run.count("trainer.nnodes", 1)
    width = run.count(f"{ROLLOUT}.tensor_model_parallel_size", 1)
    if run.get(f"{ROLLOUT}.name") == "sglang":
        run.note(f"{ROLLOUT}.name = sglang: vLLM samples here")
    if run.get("trainer.device") == "npu":
        run.note("trainer.device = npu: Ascend NPUs are not supported; the recipe is for GPUs")
    offload = run.flag(f"{ACTOR}.fsdp_config.param_offload")
    if offload and lora_rank(run):
        run.note("the frozen weights under an adapter stay where they are: no param_offload")
        offload = False
    ours: dict[str, Any] = {
        "hardware.device": run.choice("trainer.device"),
        "hardware.rollout.engine": run.choice(f"{ROLLOUT}.name"),
        "hardware.learner.offload_params": offload,
        "hardware.learner.offload_optimizer": run.flag(f"{ACTOR}.fsdp_config.optimizer_offload"),
        "hardware.learner.offload_reference": run.flag(f"{REFERENCE}.fsdp_config.param_offload"),
        "hardware.learner.gradient_checkpointing": True,
        **_placement(run, gpus, width),
    }
    ranks = ours["hardware.learner.ranks"]
    divided = _divided(run)
    if divided > 1 and ranks % divided:
        run.note(
            f"{ACTOR}.ulysses_sequence_parallel_size = {divided} does not divide the {ranks} ranks"
            " that are left to the learner: sequences are not divided"
        )
    elif divided > 1:
        ours["hardware.learner.sequence_parallel"] = divided
    return ours | {"hardware.learner.zero_stage": 3 if offload else 2 if ranks > 1 else 1}


def adapter(run: VerlRun) -> dict[str, Any]:
    """LoRA on the actor. Without a warm start verl's reference is what ours is: the base."""
    rank = lora_rank(run)
    if not rank:
        return {}
    found: dict[str, Any] = {"model.adapter.rank": rank}
    for key in (f"{MODEL}.lora.alpha", f"{MODEL}.lora_alpha"):
        if run.has(key):
            found["model.adapter.alpha"] = run.number(key, 16.0)
    found.setdefault("model.adapter.alpha", 16.0)  # verl's default
    targets = run.get(f"{MODEL}.target_modules", "all-linear")
    if targets != "all-linear":
        found["model.adapter.targets"] = [targets] if isinstance(targets, str) else list(targets)
    return found


def lora_rank(run: VerlRun) -> int:
    """Return the rank of the actor's adapter, 0 where all weights are trained."""
    return run.count(f"{MODEL}.lora_rank", 0) or run.count(f"{MODEL}.lora.rank", 0)


def _divided(run: VerlRun) -> int:
    """Return among how many ranks the actor divides each sequence."""
    return run.count(f"{ACTOR}.ulysses_sequence_parallel_size", 1)


def _placement(run: VerlRun, gpus: int, width: int) -> dict[str, Any]:
    """Divide ``gpus`` among learner ranks and engines of ``width`` GPUs each.

    Actor and critic have equal ranks, reference and reward model one each. One GPU is shared by
    all. When only one GPU is left for the learners, they share it; otherwise each rank has its own
    GPU, about half of the GPUs train, and the engines get the rest.
    """
    groups = 2 if learning.estimator(run) == "gae" else 1
    term = learning.kl(run)
    own_reference = term["rl.algorithm.kl.where"] != "none"
    if term.get("rl.algorithm.kl.estimator") == "full":
        own_reference = False  # in the learner: the exact KL needs both models' logits
    singles = int(own_reference) + int(batches.trains_reward_model(run))
    divided = _divided(run)
    if gpus == 1 and max(width, divided) > 1 and not run.has("trainer.n_gpus_per_node"):
        gpus = divided * groups + singles + width  # an excerpt with only the widths
    if gpus == 1:
        return _places(run, 1, SHARED, 1, 1, shared=True)
    if width > gpus - 1:
        run.note(
            f"{ROLLOUT}.tensor_model_parallel_size = {width} would leave the learner none of {gpus}"
            f" GPUs: {gpus - 1}"
        )
        width = gpus - 1
    ranks = -(-(gpus - singles) // (2 * groups))
    ranks = min(ranks, (gpus - singles - width) // groups)
    if ranks < 2:
        share = round(1 / (groups + singles) - 0.005, 2)
        return _places(run, 1, share, (gpus - 1) // width, width, shared=False)
    if ranks > divided:
        ranks -= ranks % divided
    engines = (gpus - singles - ranks * groups) // width
    return _places(run, ranks, 1, engines, width, shared=False)


def _places(
    run: VerlRun, ranks: int, share: float, engines: int, width: int, *, shared: bool
) -> dict[str, Any]:
    key = f"{ROLLOUT}.gpu_memory_utilization"
    memory = run.number(key, 0.5)
    by_vllm = run.choice(f"{ROLLOUT}.name") == "vllm"
    sleeps = run.flag(f"{ROLLOUT}.free_cache_engine", default=True) and shared and by_vllm
    if shared and memory > SHARED_MEMORY and run.has(key):
        run.note(
            f"{key} = {memory:g}: {SHARED_MEMORY:g}, as weights and optimizer of the learners stay"
            " on that GPU while it samples"
        )
    memory = min(memory, SHARED_MEMORY) if shared else memory
    run.note(
        f"trainer.*: {ranks} learner rank(s) and {engines} engine(s) of {width} GPU(s) that stay in"
        " place; verl's roles share all GPUs, one after another"
    )
    return {
        "hardware.learner.ranks": ranks,
        "hardware.learner.gpus_per_rank": share,
        "hardware.rollout.engines": engines,
        "hardware.rollout.gpus_per_engine": SHARED if shared else width,
        "hardware.rollout.tensor_parallel": width,
        "hardware.rollout.gpu_memory_utilization": memory,
        "hardware.rollout.sleep": sleeps,
    }


VERLS_OWN = ("=ppo_trainer", "=ppo_trainer.yaml", "--config-path=config")  # its defaults are known
# Settings that belong together, by the function that keys.yaml names; in the order of a recipe.
TOGETHER: dict[str, Callable[[VerlRun], dict[str, Any]]] = {
    part.__name__: part
    for part in (
        *(batches.data, batches.reward, episodes.environment, adapter, learning.advantage),
        *(learning.clips, learning.kl, learning.correction, learning.filter_groups),
        *(learning.overlong, batches.batches, learning.samples, learning.optimizers),
        *(learning.critic, batches.evaluation, batches.bookkeeping, layout, refusals.media),
    )
}


@dataclass(frozen=True, slots=True)
class Translation:
    """``tree``: the recipe as written; ``recipe``: resolved and validated."""

    tree: dict[str, Any]
    recipe: Recipe
    notes: Notes
    only_evaluates: bool = False

    def next_command(self, recipe: str) -> str:
        """Return what to do with the file ``recipe`` that this was written into."""
        if self.only_evaluates:
            return f"rl-pipeline evaluate {self.recipe.model.path} {recipe}"
        return f"rl-pipeline run {recipe} --dry-run"


def translate(
    text: str,
    *,
    name: str | None = None,
    train_rows: int | None = None,
    reward: str | None = None,
) -> Translation:
    """Return the recipe that does what the verl command or config ``text`` does.

    ``name``: of the recipe; default: trainer.experiment_name. ``train_rows``: rows of the training
    files, where they cannot be counted here. ``reward``: 'package.module:function' for data whose
    reward is built into verl. Raises UserError for an unknown key, settings that contradict one
    another, an essential setting without counterpart, and a recipe that does not validate.
    """
    read = read_settings(text)
    notes = Notes(remarks=list(read.remarks))
    values, unread = _by_full_key(read, notes)
    run = VerlRun(values, read.excerpt, notes, train_rows, reward, unread)
    refusals.refuse(run, read.config_files, defaults=read.defaults)
    fates = {key: entry(key) for key in values}
    for key in map(full_key, read.deleted):
        entry(key)
    notes.differs += [
        f"{flag}: its settings are not read; translate that file"
        for flag in read.config_files
        if not flag.endswith(VERLS_OWN)
    ]
    lines: dict[tuple[bool, str], list[str]] = {}
    for key, fate in fates.items():
        if fate.asks(run.shown(key)):
            why = fate.differs or fate.lacks
            lines.setdefault((bool(fate.differs), why), []).append(f"{key} = {run.shown(key)}")
    for (differs, why), settings in lines.items():
        (notes.differs if differs else notes.unneeded).append(f"{', '.join(settings)}: {why}")
    paths = {path: value for part in TOGETHER.values() for path, value in part(run).items()}
    for key, fate in fates.items():
        if fate.to and run.has(key):
            paths[fate.to] = run.read(key, fate.kind)
            if fate.remark:
                run.note(f"{key}: {fate.remark}")
    title = name or _name(run)
    tree = _tree({"name": title, "description": "Translated from verl.", **paths})
    return Translation(tree, resolve_recipe(title, tree), notes, run.flag("trainer.val_only"))


def _by_full_key(read: VerlSettings, notes: Notes) -> tuple[dict[str, Any], dict[str, str]]:
    """Return values and unread keys by full key; of two places of one key, what is set there."""
    values: dict[str, Any] = {}
    unread: dict[str, str] = {}
    for key, value in read.values.items():
        full = full_key(key)
        if full in values and value is None:
            continue
        if full != key and value is not None:
            notes.remarks.append(f"{key} is read as {full}")
        values[full] = value
        unread.pop(full, None)
        if key in read.unread:
            unread[full] = read.unread[key]
    return values, unread


def render(translation: Translation) -> str:
    """Return the recipe as YAML, headed by the notes as comments."""
    notes = translation.notes
    parts = {
        "Without counterpart, and the run differs for it:": notes.differs,
        "How it was read:": notes.remarks,
        "Without counterpart, and without effect on what is learnt:": notes.unneeded,
    }
    lines = []
    for title, items in parts.items():
        if items:
            lines += [f"# {title}", *(line for item in items for line in _comment(item))]
    return "\n".join([*lines, write_yaml(translation.tree, width=100)])


def _comment(item: str) -> list[str]:
    return textwrap.wrap(
        " ".join(item.split()),
        width=98,
        initial_indent="#   - ",
        subsequent_indent="#     ",
        break_long_words=False,
        break_on_hyphens=False,
    )


def _name(run: VerlRun) -> str:
    key = "trainer.experiment_name"
    if key in run.unread:
        raise UserError(f"{key}: {run.unread[key]}, or pass --name NAME")
    text = str(run.get(key, "from-verl"))
    slug = re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")
    if not slug:
        raise UserError(f"{key} = {text!r} is no valid name; pass --name NAME")
    return slug


def _tree(paths: dict[str, Any]) -> dict[str, Any]:
    """Return nested sections for dotted paths, in the order of a recipe."""
    sections, ours = list(Recipe.model_fields), list(RLSection.model_fields)

    def place(item: tuple[str, Any]) -> tuple[int, int]:
        top, _, below = item[0].partition(".")
        return sections.index(top), ours.index(below.split(".")[0]) if top == "rl" else 0

    tree: dict[str, Any] = {}
    for path, value in sorted(paths.items(), key=place):
        set_key(tree, path, value)
    return tree
