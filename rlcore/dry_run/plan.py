"""The dry run: batches, memory, time and disk of a recipe, computed before anything starts."""

import os
import shutil
import subprocess
from dataclasses import dataclass, field, replace
from pathlib import Path

from rlcore.diagnostics.watch import Diagnostics
from rlcore.dry_run.algorithm import worker_counts
from rlcore.dry_run.batches import Batches, DataSize, all_batches, data_size
from rlcore.dry_run.estimates import (
    BYTES,
    GIB,
    PROCESS_BYTES,
    Memory,
    Rates,
    cpu_rates,
    engine_memory,
    gpu_rates,
    learner_memory,
)
from rlcore.dry_run.judges import check_calls, judge_lines
from rlcore.dry_run.shape import ModelShape, find_shape
from rlcore.dry_run.stages import InStore, StageEstimate, stage_estimates
from rlcore.dry_run.states import state_lines
from rlcore.dry_run.text import (
    assumption_lines,
    attention_line,
    batch_lines,
    engine_lines,
    gib,
    memory_lines,
    sampler_line,
    stage_lines,
    stop_lines,
    store_lines,
)
from rlcore.engines.choice import choose
from rlcore.learner.attention import Attention, choose_attention, flash_missing
from rlcore.models.stops import Stops
from rlcore.recipe_text import write_yaml
from schemas.errors import UserError
from schemas.names import REWARD_MODEL
from schemas.recipe import Recipe


@dataclass(frozen=True, slots=True)
class Machine:
    """What the plan must fit, in bytes. ``disk_free`` is None where the store is not local."""

    host: int
    gpus: tuple[int, ...]
    disk_free: int | None


@dataclass(frozen=True, slots=True)
class Plan:
    """Everything a dry run prints. What needs the model's sizes is None when it is not at hand.

    ``in_store``: what a run would not make again; nothing where nobody has looked.
    """

    recipe: Recipe
    machine: Machine
    device: str
    attention: Attention
    shape: ModelShape | None
    shape_note: str
    data: DataSize
    batches: Batches
    rates: Rates
    memory: Memory | None
    stages: tuple[StageEstimate, ...]
    in_store: InStore = field(default_factory=InStore)
    stops: Stops | None = None  # of the model; None where its files are not at hand
    sandbox: str | None = None  # level at which rewards run programs here; None: they run none here
    prepared: tuple[str, ...] = ()  # sentences on the rows that are left; none where not at hand
    doubts: tuple[str, ...] = ()  # of the reward functions, which were called once

    @property
    def disk_bytes(self) -> int:
        """Bytes the whole run leaves on disk at the longest legal lengths."""
        return sum(stage.disk_bytes for stage in self.stages)

    @property
    def host_bytes(self) -> int:
        """Host memory of all workers together; 0 when the model is not at hand."""
        if self.memory is None:
            return 0
        memory, hardware, on_gpu = self.memory, self.recipe.hardware, self.device == "cuda"
        trained = [memory.learner] + ([memory.critic] if memory.critic else [])
        frozen = [weights for weights in (memory.reference, memory.reward_model) if weights]
        total = hardware.rollout.engines * memory.engine
        for learner in trained:
            held = learner.offloaded if on_gpu else learner.device
            total += hardware.learner.ranks * (PROCESS_BYTES + held)
        return total + sum(PROCESS_BYTES + (0 if on_gpu else weights) for weights in frozen)


def plan(recipe: Recipe, machine: Machine | None = None, *, data: DataSize | None = None) -> Plan:
    """Return the plan of ``recipe`` on ``machine`` (default: this one).

    ``data``: the rows of its sources; default: those that the recipe alone determines.

    Raises ``UserError`` when the run certainly cannot fit: a legal sequence longer than a
    micro-batch, fewer calls of a judge than an iteration makes, fewer GPUs than asked for, more
    weights, gradients and optimizer state than a visible GPU or the host holds, less free disk than
    the run writes. A model that cannot be looked up is not an error: its figures are left out and
    the plan says why.
    """
    shape, note = find_shape(recipe.model)
    data = data or data_size(recipe.data)
    hardware = recipe.hardware
    machine = machine or this_machine(recipe.store, gpus=hardware.device != "cpu")
    device = hardware.device
    if device == "auto":
        device = "cuda" if machine.gpus else "cpu"
    attention = choose_attention(
        hardware.learner.attention,
        device=device,
        dtype=recipe.model.dtype,
        problem=flash_missing(),
    )
    settled = _with_attention(recipe, attention.name)
    batches = all_batches(settled, data.demonstrations, data.preferences)
    rates = gpu_rates() if device == "cuda" else cpu_rates(hardware.learner.threads)
    result = Plan(
        recipe=recipe,
        machine=machine,
        device=device,
        attention=attention,
        shape=shape,
        shape_note=note,
        data=data,
        batches=batches,
        rates=rates,
        memory=None if shape is None else _memory(settled, shape, batches, machine, device),
        stages=() if shape is None else stage_estimates(recipe, shape, data, batches, rates),
    )
    check_calls(recipe)
    _check_gpus(result)
    _check_host(result)
    _check_disk(result)
    return result


def _with_attention(recipe: Recipe, name: str) -> Recipe:
    """Return ``recipe`` with the attention ``name`` in place of "auto"."""
    learner = recipe.hardware.learner.model_copy(update={"attention": name})
    hardware = recipe.hardware.model_copy(update={"learner": learner})
    return recipe.model_copy(update={"hardware": hardware})


def this_machine(store: str, *, gpus: bool) -> Machine:
    """Return this machine's memory, GPUs (looked for when ``gpus``) and the store's free disk."""
    disk_free = None
    if "://" not in store:
        root = Path(store).resolve()
        while not root.exists():
            root = root.parent
        disk_free = shutil.disk_usage(root).free
    host = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return Machine(host=host, gpus=_visible_gpus() if gpus else (), disk_free=disk_free)


def _visible_gpus() -> tuple[int, ...]:
    """Ask nvidia-smi, which takes 0.1 s where importing torch takes seconds."""
    if shutil.which("nvidia-smi") is None:
        return ()
    command = ["nvidia-smi", "--query-gpu=memory.total", "--format=csv,noheader,nounits"]
    answer = subprocess.run(
        command, capture_output=True, text=True, timeout=30, check=False, encoding="utf-8"
    )
    if answer.returncode:
        return ()
    sizes = [int(line) * 2**20 for line in answer.stdout.split() if line.isdigit()]
    chosen = os.environ.get("CUDA_VISIBLE_DEVICES")
    return tuple(sizes if chosen is None else sizes[: len([c for c in chosen.split(",") if c])])


def _memory(
    recipe: Recipe, shape: ModelShape, batches: Batches, machine: Machine, device: str
) -> Memory:
    """Return what each worker needs while it holds its fullest micro-batch."""
    dtype, rollout, kl = recipe.model.dtype, recipe.hardware.rollout, recipe.rl.algorithm.kl
    weights = BYTES[dtype] * shape.parameters
    cache: int | None = rollout.kv_cache_gib * GIB
    kv_token = shape.kv_bytes_per_token(BYTES[dtype])
    if device == "cuda":
        gpu = min(machine.gpus, default=0)
        shared = rollout.gpu_memory_utilization * gpu - weights / rollout.tensor_parallel
        cache = int(shared * rollout.tensor_parallel) if gpu else None
    learner = learner_memory(
        shape,
        dtype,
        recipe.hardware.learner,
        on_gpu=device == "cuda",
        tokens=batches.fullest.micro_batch_tokens,
        row_tokens=batches.fullest.row_tokens,
    )
    # the exact KL needs the logits of both models in one place; a value head has one output
    exact = kl.uses_reference and kl.estimator == "full"
    critic = replace(learner, logits=0) if recipe.rl.critic is not None else None
    scored = any(function.name == REWARD_MODEL for function in recipe.reward.functions)
    return Memory(
        learner=replace(learner, reference=weights) if exact else learner,
        critic=critic,
        reference=weights if kl.uses_reference and not exact else 0,
        reward_model=weights if scored else 0,
        engine=engine_memory(shape, dtype, 0 if device == "cuda" else cache or 0),
        kv_tokens=None if cache is None else max(0, cache) // kv_token,
    )


def _check_gpus(result: Plan) -> None:
    """Refuse what the visible GPUs cannot hold; with none visible, assume that the run is for
    another machine."""
    gpus, hardware = result.machine.gpus, result.recipe.hardware
    if not gpus or result.device != "cuda":
        return
    roles = worker_counts(result.recipe)
    ranks, share = sum(roles.values()), hardware.learner.gpus_per_rank
    engines, engine_share = hardware.rollout.engines, hardware.rollout.gpus_per_engine
    needed = ranks * share + engines * engine_share
    one_process = hardware.cluster == "in_process"  # which puts all of them on one GPU
    if not one_process and hardware.ray_address is None and needed > len(gpus) + 1e-9:
        who = " + ".join(f"{count} of the {role}" for role, count in roles.items())
        raise UserError(
            f"hardware: ranks ({who}) x learner.gpus_per_rank = {share:g} plus {engines} engine(s)"
            f" x rollout.gpus_per_engine = {engine_share:g} need {needed:g} GPUs and {len(gpus)}"
            " are visible; lower these or take a machine with more GPUs (a run cannot use two"
            " hosts yet)"
        )
    if result.memory is None:
        return
    smallest = min(gpus)
    states, reserved, engine = result.memory.learner.states, 0, ""
    if one_process or (share < 1 and engine_share < 1):
        reserved = _engine_bytes(result, smallest)
        engine = f", the engine that shares it {gib(reserved)},"
    # a second rank fits the GPU: the critic's, and the frozen models
    if one_process or share <= 0.5:
        states = result.memory.states
    if states + reserved > smallest:
        split = (
            f"raise learner.zero_stage (now {hardware.learner.zero_stage}) or learner.ranks (now"
            f" {hardware.learner.ranks}), or"
        )
        raise UserError(
            f"hardware.learner: weights, gradients and optimizer take {gib(states)} per GPU{engine}"
            f" and the GPU has {gib(smallest)};"
            f" {'use a smaller model or' if one_process else split} set learner.offload_optimizer"
            " to true"
        )


def _engine_bytes(result: Plan, gpu: int) -> int:
    """Return what one engine holds of a GPU of ``gpu`` bytes in any case."""
    rollout, shape = result.recipe.hardware.rollout, result.shape
    if choose(result.recipe.hardware, result.device, 0).engine == "vllm":
        return int(rollout.gpu_memory_utilization * gpu)
    return 0 if shape is None else BYTES[result.recipe.model.dtype] * shape.parameters


def _check_host(result: Plan) -> None:
    """Refuse CPU learners whose weights, gradients and optimizer alone exceed the memory they
    share."""
    memory, hardware = result.memory, result.recipe.hardware
    if memory is None or result.device == "cuda" or hardware.ray_address is not None:
        return
    trained = [memory.learner] + ([memory.critic] if memory.critic else [])
    needed = hardware.learner.ranks * sum(each.states for each in trained)
    needed += memory.reference + memory.reward_model
    if needed > result.machine.host:
        raise UserError(
            "hardware.learner: weights, gradients and optimizer of"
            f" {hardware.learner.ranks} rank(s) take {gib(needed)} and this machine has"
            f" {gib(result.machine.host)}; use a smaller model.path or a machine with more memory"
        )


def _check_disk(result: Plan) -> None:
    free = result.machine.disk_free
    if free is not None and result.disk_bytes > free:
        raise UserError(
            f"store = '{result.recipe.store}': the run writes about {gib(result.disk_bytes)} and"
            f" {gib(free)} are free; free some, lower rl.checkpoint.keep_last or point store"
            " elsewhere"
        )


def render_plan(result: Plan) -> str:
    """Return the plan as plain text: recipe, batches, memory, time and disk, assumptions, and what
    the diagnostics report on the recipe alone."""
    recipe = write_yaml(result.recipe.model_dump(mode="json"))
    states = result.in_store.states
    sections = {
        **({"What would run": state_lines(states)} if states else {}),
        "Resolved recipe": recipe.rstrip().split("\n"),
        **({"Data": list(result.prepared)} if result.prepared else {}),
        "Batch arithmetic": batch_lines(result.recipe, result.data, result.batches),
        **({"Judges": judges} if (judges := [*judge_lines(result.recipe, result.data)]) else {}),
        "End of an answer": stop_lines(result.recipe, result.stops),
        "Memory": _memory_lines(result),
        "Time and disk": _stage_lines(result),
        "Assumptions": assumption_lines(result.rates),
    }
    if result.sandbox is not None:
        sections["Sandbox"] = [f"reward code runs programs at level {result.sandbox}"]
    if warnings := [*result.doubts, *recipe_warnings(result.recipe)]:
        sections["Warnings"] = [f"WARNING: {warning}" for warning in warnings]
    text = [f"Plan of recipe '{result.recipe.name}'"]
    for title, lines in sections.items():
        text += ["", title, *(f"  {line}".rstrip() for line in lines)]
    return "\n".join(text) + "\n"


def recipe_warnings(recipe: Recipe) -> list[str]:
    """Return the warnings that the run will log when it starts, one sentence each."""
    warnings: list[str] = []
    Diagnostics(recipe, log=warnings.append)
    return warnings


def _memory_lines(result: Plan) -> list[str]:
    if result.shape is None or result.memory is None:
        unknown = f"model: {result.shape_note}; memory, time and disk are left out"
        return [unknown, sampler_line(result.recipe, result.device, None)]
    lines = memory_lines(result.recipe, result.shape, result.memory, result.device)
    lines.append(sampler_line(result.recipe, result.device, result.shape))
    lines += engine_lines(
        result.recipe, result.memory.engine, result.memory.kv_tokens, result.device
    )
    lines.append(attention_line(result.attention))
    lines.append(
        f"all workers, host memory: {gib(result.host_bytes)} of {gib(result.machine.host)}"
    )
    if result.machine.gpus:
        sizes = ", ".join(gib(size) for size in result.machine.gpus)
        lines.append(f"GPUs visible here: {sizes}")
    elif result.device == "cuda":
        lines.append("no GPU is visible here: whether the run fits one was not checked")
    elif result.recipe.hardware.device == "auto":
        lines.append("hardware.device = 'auto' means cpu here, as no GPU is visible")
    if result.host_bytes > result.machine.host:
        lines.append(
            "WARNING: more than this machine has; lower hardware.learner.micro_batch_tokens,"
            " hardware.rollout.engines or hardware.rollout.kv_cache_gib"
        )
    return lines


def _stage_lines(result: Plan) -> list[str]:
    if not result.stages:
        return [result.shape_note, *store_lines(result.in_store)]
    free = result.machine.disk_free
    room = "free space of a remote store unknown" if free is None else f"{gib(free)} free"
    return stage_lines(result.stages, result.recipe.store, room, result.in_store)
