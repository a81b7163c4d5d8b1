"""From a recipe to the settings of its workers: specs, environments and placements."""

from dataclasses import replace
from pathlib import Path

from rlcore.cluster.host_settings import SPINNING
from rlcore.cluster.types import Placement
from rlcore.engines.registry import engine_kind
from rlcore.engines.types import EngineSpec
from rlcore.learner.spec import LearnerSpec
from schemas.optimizer import Optimizer
from schemas.recipe import Recipe
from schemas.stages import Stage


def learner_spec(
    recipe: Recipe,
    model_dir: Path,
    optimizer: Optimizer | None,
    *,
    device: str,
    head: str = "lm",
    reference_dir: Path | None = None,
    stage: str = "",
) -> LearnerSpec:
    """Return the spec of a learner of ``model_dir``; without an optimizer it only scores.

    ``stage``: the one that trains it, which may train an adapter.
    """
    hardware = recipe.hardware.learner
    adamw = optimizer or Optimizer()
    # Over a training of all weights an adapter is not one of the base model.
    trained = recipe.policies
    below = trained[: trained.index(stage)] if stage in trained else ()
    trained_below = not all(map(recipe.model.adapter_of, below))
    return LearnerSpec(
        model_dir=str(model_dir),
        dtype=recipe.model.dtype,
        zero_stage=hardware.stage(recipe.model.dtype),
        offload_optimizer=hardware.offload_optimizer,
        offload_params=hardware.offload_params,
        lr=adamw.lr,
        betas=adamw.betas,
        eps=adamw.eps,
        weight_decay=adamw.weight_decay,
        grad_clip=adamw.grad_clip,
        micro_batch_tokens=hardware.pass_tokens,
        row_tokens=hardware.row_tokens,
        sequence_parallel=hardware.sequence_parallel if optimizer else 1,
        attn_implementation=hardware.attention,
        gradient_checkpointing=hardware.gradient_checkpointing,
        threads=hardware.threads,
        seed=recipe.seed,
        device=device,
        trainable=optimizer is not None,
        collective_timeout_s=recipe.hardware.timeouts.update_s,
        head=head,
        reference_dir=None if reference_dir is None else str(reference_dir),
        adapter=None if optimizer is None else recipe.model.adapter_of(stage),
        adapter_base="" if trained_below else recipe.model.path or "",
        ema=recipe.rl.update.ema if stage == Stage.RL and head == "lm" and optimizer else None,
        full_determinism=recipe.rl.full_determinism,
        yields_memory=recipe.hardware.rollout.sleep,
    )


def learner_placement(recipe: Recipe, device: str) -> Placement:
    """Return GPUs and environment of one learner rank."""
    hardware = recipe.hardware.learner
    env = {
        "OMP_NUM_THREADS": str(hardware.threads),
        "MKL_NUM_THREADS": str(hardware.threads),
        **SPINNING,
    }
    if device == "cpu":
        env["DS_ACCELERATOR"] = "cpu"
    gpus = hardware.gpus_per_rank if device == "cuda" else 0.0
    return Placement(gpus=gpus, env=env, threads=hardware.threads)


def engine_spec(recipe: Recipe, model_dir: Path, device: str) -> EngineSpec:
    """Return the spec of one rollout engine for the model of ``model_dir``."""
    rollout = recipe.hardware.rollout
    return EngineSpec(
        model_dir=str(model_dir),
        dtype=recipe.model.dtype,
        max_model_len=recipe.model.max_tokens,
        max_num_seqs=rollout.max_num_seqs,
        gpu_memory_utilization=recipe.hardware.memory_of_an_engine,
        tensor_parallel_size=rollout.tensor_parallel,
        kv_cache_gib=rollout.kv_cache_gib,
        threads=rollout.threads,
        device=device,
        sleeps=rollout.sleep,
    )


def engine_share(recipe: Recipe, device: str) -> Placement:
    """Return what one rollout engine takes of its host."""
    rollout = recipe.hardware.rollout
    gpus = rollout.gpus_per_engine if device == "cuda" else 0.0
    return Placement(gpus=gpus, threads=rollout.threads, spread=True)


def engine_placement(recipe: Recipe, engine: str, device: str) -> Placement:
    """Return GPUs and environment of one rollout engine, ``engine``."""
    env = engine_kind(engine).environment(engine_spec(recipe, Path(), device))
    return replace(engine_share(recipe, device), env=env)
