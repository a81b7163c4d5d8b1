"""GPUs of a verl run: in verl all roles take turns on all of them, here each keeps its own."""

from typing import Any

from rlcore.from_verl.batches import trains_reward_model
from rlcore.from_verl.keys import ACTOR, ROLLOUT
from rlcore.from_verl.learning import estimator, kl
from rlcore.from_verl.settings import Run

ENGINES = {"vllm": "vllm", "hf": "transformers", "sglang": "vllm"}
# verl finds an NPU by itself too; "auto" is a GPU where there is one.
DEVICES = {"cuda": "auto", "cpu": "cpu", "npu": "auto"}
SHARED = 0.2  # of one GPU: actor, critic, reference, reward model and engine make 1.0
SHARED_MEMORY = 0.4  # of the GPU for an engine that shares it with learners


def layout(run: Run) -> dict[str, Any]:
    """Ranks, engines and offload. None of it changes the result of training."""
    gpus = run.count("trainer.n_gpus_per_node", 1) * run.count("trainer.nnodes", 1)
    width = run.count(f"{ROLLOUT}.tensor_model_parallel_size", 1)
    if run.get(f"{ROLLOUT}.name") == "sglang":
        run.note(f"{ROLLOUT}.name = sglang: vLLM samples here")
    if run.get("trainer.device") == "npu":
        run.note("trainer.device = npu: Ascend NPUs are not supported; the recipe is for GPUs")
    offload = run.flag(f"{ACTOR}.fsdp_config.param_offload")
    ours: dict[str, Any] = {
        "hardware.device": run.choice("trainer.device", DEVICES, "cuda"),
        "hardware.rollout.engine": run.choice(f"{ROLLOUT}.name", ENGINES, "vllm"),
        "hardware.learner.offload_params": offload,
        "hardware.learner.offload_optimizer": run.flag(f"{ACTOR}.fsdp_config.optimizer_offload"),
        "hardware.learner.gradient_checkpointing": True,
        **_placement(run, gpus, width),
    }
    ranks = ours["hardware.learner.ranks"]
    return ours | {"hardware.learner.zero_stage": 3 if offload else 2 if ranks > 1 else 1}


def _placement(run: Run, gpus: int, width: int) -> dict[str, Any]:
    """Divide ``gpus`` among learner ranks and engines of ``width`` GPUs each.

    Actor and critic have equal ranks, reference and reward model one each. One GPU is shared by
    all. When only one GPU is left for the learners, they share it; otherwise each rank has its own
    GPU, about half of the GPUs train, and the engines get the rest.
    """
    groups = 2 if estimator(run) == "gae" else 1
    term = kl(run)
    own_reference = term["rl.algorithm.kl.where"] != "none"
    if term.get("rl.algorithm.kl.estimator") == "full":
        own_reference = False  # in the learner: the exact KL needs both models' logits
    singles = int(own_reference) + int(trains_reward_model(run))
    if gpus == 1 and width > 1 and not run.has("trainer.n_gpus_per_node"):
        gpus = 1 + width  # an excerpt with only the engine's width
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
    engines = (gpus - singles - ranks * groups) // width
    return _places(run, ranks, 1, engines, width, shared=False)


def _places(
    run: Run, ranks: int, share: float, engines: int, width: int, *, shared: bool
) -> dict[str, Any]:
    key = f"{ROLLOUT}.gpu_memory_utilization"
    memory = run.number(key, 0.5)
    if shared and memory > SHARED_MEMORY and run.has(key):
        run.note(
            f"{key} = {memory:g}: {SHARED_MEMORY:g}, as our engine keeps its memory while the"
            " learner on that GPU trains"
        )
    memory = min(memory, SHARED_MEMORY) if shared else memory
    run.note(
        f"trainer.*: {ranks} learner rank(s) and {engines} engine(s) of {width} GPU(s) that stay in"
        " place; verl's roles take turns on all GPUs"
    )
    return {
        "hardware.learner.ranks": ranks,
        "hardware.learner.gpus_per_rank": share,
        "hardware.rollout.engines": engines,
        "hardware.rollout.gpus_per_engine": SHARED if shared else width,
        "hardware.rollout.tensor_parallel": width,
        "hardware.rollout.gpu_memory_utilization": memory,
    }
