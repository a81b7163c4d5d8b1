"""Whether a run fits this machine: the batches, memory and disk that it needs, against the cores,
GPUs and disk that are here."""

import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from rlcore.engines.registry import choose
from rlcore.engines.types import check_heads
from rlcore.learner.attention import (
    Attention,
    choose_attention,
    divides_heads,
    flash_missing,
    uneven_heads,
)
from rlcore.models.shape import ModelShape, find_shape
from rlcore.plan.batches import BatchPlans, all_batches, sampled_sequences, worker_counts
from rlcore.plan.data_size import DataSize, data_size
from rlcore.plan.memory import BYTES, PROCESS_BYTES, Memory, disk_of, gib, memory_of
from rlcore.recipes.load import with_learner
from schemas.errors import UserError
from schemas.judges import judges_used
from schemas.recipe import Recipe


@dataclass(frozen=True, slots=True)
class Machine:
    """What the plan must fit, in bytes. ``disk_free`` is None where the store is not local."""

    host: int
    gpus: tuple[int, ...]
    disk_free: int | None


@dataclass(frozen=True, slots=True)
class Fit:
    """What a run takes of ``machine``. ``shape`` and ``memory`` are None, and ``disk`` (bytes by
    stage, at the longest legal lengths) is empty, where the model's sizes are not at hand;
    ``shape_note`` says why."""

    recipe: Recipe
    machine: Machine
    device: str
    attention: Attention
    shape: ModelShape | None
    shape_note: str
    data: DataSize
    batches: BatchPlans
    memory: Memory | None
    disk: dict[str, int]

    @property
    def rank_bytes(self) -> dict[str, int]:
        """Memory that a rank of actor and critic takes of its device; none where it is unknown."""
        if self.memory is None:
            return {}
        own = 0 if self.device == "cuda" else PROCESS_BYTES
        ranks = {"actor": self.memory.learner, "critic": self.memory.critic}
        return {role: own + rank.device for role, rank in ranks.items() if rank is not None}

    @property
    def host_bytes(self) -> int:
        """Host memory of all workers together; 0 when the model is not at hand."""
        if self.memory is None:
            return 0
        memory, hardware, on_gpu = self.memory, self.recipe.hardware, self.device == "cuda"
        trained = [memory.learner] + ([memory.critic] if memory.critic else [])
        frozen = [memory.reference] * hardware.learner.reference_ranks + [memory.reward_model]
        frozen = [weights for weights in frozen if weights]
        total = hardware.rollout.engines * memory.engine + memory.published
        for learner in trained:
            held = learner.offloaded if on_gpu else learner.device
            total += hardware.learner.ranks * (PROCESS_BYTES + held)
        if on_gpu and not hardware.learner.offload_reference:
            return total + PROCESS_BYTES * len(frozen)
        return total + sum(PROCESS_BYTES + weights for weights in frozen)


def check_machine(
    recipe: Recipe, machine: Machine | None = None, *, data: DataSize | None = None
) -> Fit:
    """Return what a run of ``recipe`` takes of ``machine`` (default: this one).

    ``data``: the rows of its sources; default: those that the recipe alone determines.

    Raises ``UserError`` when the run certainly cannot fit: a legal sequence longer than a
    micro-batch, fewer calls of a judge or prompts than an iteration takes, fewer GPUs than asked
    for, more weights, gradients and optimizer state than a visible GPU or the host holds, no room
    for a sequence in an engine's cache, less free disk than the run writes. A model that cannot be
    looked up is not an error.
    """
    fit = fit_of(recipe, machine, data=data)
    check_calls(recipe)
    _check_prompts(fit)
    _check_width(fit)
    _check_gpus(fit)
    _check_cache(fit)
    _check_host(fit)
    _check_disk(fit)
    return fit


def fit_of(recipe: Recipe, machine: Machine | None = None, *, data: DataSize | None = None) -> Fit:
    """Return what ``check_machine`` compares, unchecked. Raises ``UserError`` for a legal sequence
    longer than a micro-batch."""
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
    resolved = with_learner(recipe, attention=attention.name)
    batches = all_batches(resolved, data.demonstrations, data.preferences, data.pairs)
    return Fit(
        recipe=recipe,
        machine=machine,
        device=device,
        attention=attention,
        shape=shape,
        shape_note=note,
        data=data,
        batches=batches,
        memory=None if shape is None else memory_of(resolved, shape, batches, machine.gpus, device),
        disk={} if shape is None else disk_of(recipe, shape, data, batches),
    )


def _check_prompts(fit: Fit) -> None:
    """Raise UserError where the sources surely hold less for training than an iteration takes."""
    data, section, wanted = fit.data, fit.recipe.data, fit.recipe.rl.rollout.prompts
    if not fit.recipe.rl.enabled or not data.train:
        return
    # A hash chooses what is held out, so that the share is an estimate.
    most = data.train + (data.validation or 0) * bool(section.validation_fraction)
    most += sum(data.test or ()) * bool(section.test_fraction)
    if wanted > most:
        raise UserError(
            f"rl.rollout.prompts = {wanted} exceeds the {most} training prompts that data.sources"
            " hold at most, and an iteration takes no prompt twice; lower it or add data"
        )


def _check_width(fit: Fit) -> None:
    """Raise UserError where the heads of attention cannot be divided among an engine's processes or
    the ranks that divide sequences, or an engine's processes have no core each, all of which would
    be said once the stages before are over. With no GPU visible and device "auto", the run is
    assumed to be for another machine."""
    hardware, cores = fit.recipe.hardware, os.cpu_count() or 1
    width = hardware.rollout.tensor_parallel
    if hardware.device == "cpu" and hardware.ray_address is None and width > cores:
        raise UserError(
            f"hardware.rollout.tensor_parallel = {width} takes a core for each process and this"
            f" machine has {cores}; lower it and gpus_per_engine"
        )
    if fit.shape is None:
        return
    heads, size = fit.shape.num_heads, hardware.learner.sequence_parallel
    if not divides_heads(size, heads, fit.shape.num_kv_heads):
        raise UserError(uneven_heads(size, heads, fit.shape.num_kv_heads, fit.shape.name))
    if heads % width == 0:
        return
    fits = max(each for each in range(1, width) if heads % each == 0)
    raise UserError(
        f"hardware.rollout.tensor_parallel = {width} does not divide the {heads} attention heads of"
        f" {fit.shape.name}; set it and gpus_per_engine to a divisor, such as {fits}"
    )


def check_calls(recipe: Recipe) -> None:
    """Raise UserError for a judge whose ceiling ends the run in its first iteration."""
    needed = sampled_sequences(recipe) if recipe.rl.enabled else 0
    for name, judge in judges_used(recipe.judges, recipe.reward.functions).items():
        if judge.max_calls < needed:
            raise UserError(
                f"judges.{name}.max_calls = {judge.max_calls} is below the {needed:,} responses of"
                " one RL iteration, so the run would end in its first; raise it or lower"
                " rl.rollout.prompts or rl.rollout.samples"
            )


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
    sizes = [int(line) * 2**20 for line in gpu_facts("memory.total", ",nounits") if line.isdigit()]
    chosen = os.environ.get("CUDA_VISIBLE_DEVICES")
    return tuple(
        sizes if chosen is None else sizes[: sum(c not in ("", "-1") for c in chosen.split(","))]
    )


def gpu_facts(query: str, form: str = "") -> list[str]:
    """Return a line per GPU of what nvidia-smi answers to ``query``; none where it fails.

    It takes 0.1 s where importing torch takes seconds.
    """
    command = ["nvidia-smi", f"--query-gpu={query}", f"--format=csv,noheader{form}"]
    try:
        answer = subprocess.run(
            command, capture_output=True, text=True, timeout=30, check=True, encoding="utf-8"
        )
    except (OSError, subprocess.SubprocessError):
        return []
    return [line.strip() for line in answer.stdout.splitlines() if line.strip()]


def _check_gpus(fit: Fit) -> None:
    """Refuse what the visible GPUs cannot hold; with none visible, assume that the run is for
    another machine."""
    gpus, hardware = fit.machine.gpus, fit.recipe.hardware
    if not gpus or fit.device != "cuda":
        return
    roles = worker_counts(fit.recipe)
    ranks, share = sum(roles.values()), hardware.learner.gpus_per_rank
    engines, engine_share = hardware.rollout.engines, hardware.rollout.gpus_per_engine
    needed = ranks * share + engines * engine_share
    one_process = hardware.cluster == "in_process"  # which puts all of them on one GPU
    if not one_process and hardware.ray_address is None and needed > len(gpus) + 1e-9:
        who = " + ".join(f"{count} of the {role}" for role, count in roles.items())
        raise UserError(
            f"hardware: ranks ({who}) x learner.gpus_per_rank = {share:g} plus {engines} engine(s)"
            f" x rollout.gpus_per_engine = {engine_share:g} need {needed:g} GPUs and {len(gpus)}"
            " are visible; lower these or take a machine with more GPUs, or a Ray cluster of"
            " several hosts (hardware.ray_address)"
        )
    if fit.memory is None:
        return
    smallest = min(gpus)
    dtype = fit.recipe.model.dtype
    whole = BYTES[dtype] * fit.shape.parameters if fit.shape is not None else 0
    if hardware.learner.stage(dtype) == 3 and whole > smallest:
        raise UserError(
            f"hardware.learner: each rank loads all weights, {gib(whole)}, before ZeRO-3 divides"
            f" them, and the GPU has {gib(smallest)}; use a smaller model or larger GPUs"
        )
    states, reserved, engine = fit.memory.learner.states, 0, ""
    if one_process or (share < 1 and engine_share < 1):
        reserved = _engine_bytes(fit, smallest)
        engine = f", the engine that shares it {gib(reserved)},"
    # a second rank fits the GPU: the critic's, and the frozen models
    if one_process or share <= 0.5:
        states = fit.memory.states
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


def _check_cache(fit: Fit) -> None:
    """Refuse engines of vLLM that would fail after SFT: on CPU of heads that it has no kernel
    for, and those without room for one sequence. On a GPU those without room at all, since layers
    with a window take less than ``kv_tokens`` says."""
    hardware, memory = fit.recipe.hardware, fit.memory
    if memory is None or memory.kv_tokens is None or hardware.ray_address is not None:
        return
    parameters = fit.shape.parameters if fit.shape is not None else 0
    if choose(hardware, fit.device, parameters).engine != "vllm":
        return
    if fit.shape is not None and fit.device == "cpu":
        check_heads(fit.shape.head_dim, fit.shape.name)
    if not fit.recipe.rl.enabled:
        return
    limit, more = fit.recipe.model.max_tokens, f"kv_cache_gib = {hardware.rollout.kv_cache_gib:g}"
    if fit.device == "cuda":
        share = hardware.rollout.gpu_memory_utilization
        limit, more = 1, f"gpu_memory_utilization = {share:g} or tensor_parallel"
    if memory.kv_tokens < limit:
        raise UserError(
            f"hardware.rollout: beside the weights an engine has room for {memory.kv_tokens:,}"
            f" tokens of keys and values, and model.max_tokens = {fit.recipe.model.max_tokens:,};"
            f" raise {more}, or lower model.max_tokens"
        )


def _engine_bytes(fit: Fit, gpu: int) -> int:
    """Return what one engine holds of a GPU of ``gpu`` bytes in any case."""
    rollout, shape = fit.recipe.hardware.rollout, fit.shape
    if choose(fit.recipe.hardware, fit.device, 0).engine == "vllm":
        return int(rollout.gpu_memory_utilization * gpu)
    return 0 if shape is None else BYTES[fit.recipe.model.dtype] * shape.parameters


def _check_host(fit: Fit) -> None:
    """Refuse CPU learners whose weights, gradients and optimizer exceed the memory they share."""
    memory, hardware = fit.memory, fit.recipe.hardware
    if memory is None or fit.device == "cuda" or hardware.ray_address is not None:
        return
    trained = [memory.learner] + ([memory.critic] if memory.critic else [])
    needed = hardware.learner.ranks * sum(each.states for each in trained)
    needed += memory.reference * hardware.learner.reference_ranks + memory.reward_model
    if needed > fit.machine.host:
        raise UserError(
            "hardware.learner: weights, gradients and optimizer of"
            f" {hardware.learner.ranks} rank(s) take {gib(needed)} and this machine has"
            f" {gib(fit.machine.host)}; use a smaller model.path or a machine with more memory"
        )


def _check_disk(fit: Fit) -> None:
    free, disk = fit.machine.disk_free, sum(fit.disk.values())
    # What is in the store may be this run's own, which is not written again.
    if free is not None and disk > free and disk > free + _held(fit.recipe.store):
        raise UserError(
            f"store = '{fit.recipe.store}': the run writes about {gib(disk)} and"
            f" {gib(free)} are free; free some, lower rl.checkpoint.keep_last or point store"
            " elsewhere"
        )


def _held(store: str) -> int:
    """Return the bytes of the files in ``store``, a folder."""
    files = (Path(top) / name for top, _, names in os.walk(store) for name in names)
    return sum(file.stat().st_size for file in files if file.exists())
