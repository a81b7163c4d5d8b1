"""Recipe section ``hardware``: layout only. Nothing here may change the result of training, so it
is in no cache key."""

from collections.abc import Iterator
from typing import Annotated, Literal

from schemas.section import Section, known_or_own, rule, setting

ENGINES = ("vllm", "transformers")
AUTO = "auto"
# Where ``auto`` takes vLLM on CPU (rlcore/engines/registry.py; docs/understand/engines.md).
SMALL_PARAMETERS = 3_000_000


class LearnerHardware(Section):
    """Ranks and memory of the DeepSpeed learner."""

    ranks: int = setting(1, "data-parallel processes", ge=1)
    gpus_per_rank: float = setting(
        0.3, "cuda only: share of a GPU; below 1 others use it too, with ranks = 1 only", gt=0, le=1
    )
    threads: int = setting(1, "CPU threads per rank", ge=1)
    reference_ranks: int = setting(
        1,
        "processes of the frozen reference, among which its sequences are divided; with"
        " zero_stage 3 its weights are too",
        ge=1,
    )
    zero_stage: Literal["auto", 0, 1, 2, 3] = setting(
        AUTO,
        "split over ranks: 1 optimizer, 2 + gradients, 3 + weights (arXiv 1910.02054);"
        " auto = 0 for one rank in float32, whose optimizer is not offloaded, else 1",
    )
    offload_optimizer: bool = setting(False, "optimizer state in host memory")
    offload_params: bool = setting(False, "weights in host memory; ZeRO-3 only")
    sequence_parallel: int = setting(
        1,
        "consecutive ranks that divide the tokens of each sequence (Ulysses, arXiv"
        " 2309.14509): for sequences that do not fit one; they count as one rank for batches",
        ge=1,
    )
    offload_reference: bool = setting(
        False,
        "cuda only: the frozen reference, where it has processes of its own, waits in"
        " host memory while it does not score",
    )
    gradient_checkpointing: bool = setting(
        False, "recompute activations: less memory, about a third slower"
    )
    micro_batch_tokens: int = setting(4096, "tokens per rank and pass", ge=1)
    row_tokens: int | None = setting(
        None,
        "tokens of a packed row; null = one to eight longest sequences, by what padding"
        " costs; one row per pass under flash attention",
        ge=1,
    )
    attention: Literal["auto", "sdpa", "flash_attention_2", "eager"] = setting(
        "auto",
        "implementation; auto = flash_attention_2 on cuda in bfloat16 where flash_attn"
        " (extra flash) imports and serves the model, else sdpa; eager = plain PyTorch",
    )

    def stage(self, dtype: str) -> int:
        """Return the stage of ZeRO for a model of ``dtype``.

        Of auto it is 0 where DeepSpeed would hold twice, and divide by one, what a single rank has
        to itself: that takes memory, and of a small model's step a part that can be measured.
        """
        if self.zero_stage != AUTO:
            return self.zero_stage
        alone = self.ranks == 1 and dtype == "float32" and not self.offload_optimizer
        return 0 if alone else 1

    def layout(self, dtype: str) -> dict[str, int]:
        """Return how many ranks hold the training state of a model of ``dtype``, and how; also over
        how many they divide a sequence, where they do."""
        held = {"ranks": self.ranks, "zero_stage": self.stage(dtype)}
        divided = {"sequence_parallel": self.sequence_parallel}
        return held | divided if self.sequence_parallel > 1 else held

    @property
    def data_parallel(self) -> int:
        """How many shares a batch is divided into."""
        return self.ranks // self.sequence_parallel

    @property
    def pass_tokens(self) -> int:
        """Tokens of a pass, of all ranks that divide its sequences."""
        return self.micro_batch_tokens * self.sequence_parallel

    @property
    def shares_reference(self) -> bool:
        """Whether each rank of the reference holds a part of its weights."""
        return self.zero_stage == 3 and self.reference_ranks > 1

    @rule
    def _ranks_divide_sequences(self) -> Iterator[str]:
        if self.ranks % self.sequence_parallel:
            yield (
                f"sequence_parallel = {self.sequence_parallel} does not divide ranks ="
                f" {self.ranks}; set ranks to a multiple of it"
            )
        if self.sequence_parallel > 1 and self.attention == "eager":
            yield (
                f"sequence_parallel = {self.sequence_parallel} exchanges tokens within sdpa and"
                " flash attention, not attention = 'eager'; set attention to 'auto'"
            )

    @rule
    def _offload_needs_zero(self) -> Iterator[str]:
        if self.offload_params and self.zero_stage != 3:
            yield (f"offload_params needs zero_stage 3, not {self.zero_stage}; set zero_stage to 3")
        if self.offload_reference and self.shares_reference:
            yield (
                f"offload_reference is for a reference that is whole, not in {self.reference_ranks}"
                " parts; set it to false, and offload_params to true"
            )
        if self.offload_optimizer and self.zero_stage == 0:
            yield ("offload_optimizer needs zero_stage 1 or more; set zero_stage to 1")


class RolloutHardware(Section):
    """The rollout engines."""

    engine: Annotated[str, known_or_own((*ENGINES, AUTO), "Class")] = setting(
        AUTO,
        f"what samples: {', '.join(ENGINES)} (runs anywhere), your own class as"
        " 'package.module:Class' or 'path/to/file.py:Class', or auto = vllm on cuda, and on cpu"
        f" transformers for models of fewer than {SMALL_PARAMETERS:,} parameters, else vllm; RL"
        " continues with the one it began with (docs/understand/engines.md)",
    )
    engines: int = setting(1, "engines, a process each", ge=1)
    gpus_per_engine: float = setting(
        0.3, "cuda only: GPUs of each engine; below 1 others use it too", gt=0
    )
    threads: int = setting(1, "CPU threads per engine", ge=1)
    tensor_parallel: int = setting(1, "GPUs that share an engine's weights", ge=1)
    gpu_memory_utilization: float = setting(
        0.5, "share of a GPU's memory for weights and KV cache of its engines", gt=0, le=1
    )
    sleep: bool = setting(
        False,
        "cuda and vllm only: engines give their GPU memory back while learners score"
        " and train; their weights wait in host memory",
    )
    kv_cache_gib: int = setting(1, "CPU only: GiB of KV cache per engine", ge=1)
    max_num_seqs: int = setting(256, "sequences decoded at once", ge=1)

    @rule
    def _tensor_parallel_has_gpus(self) -> Iterator[str]:
        if self.tensor_parallel > 1 and self.gpus_per_engine != self.tensor_parallel:
            yield (
                f"tensor_parallel = {self.tensor_parallel} needs gpus_per_engine ="
                f" {self.tensor_parallel}, not {self.gpus_per_engine:g}"
            )
        if self.sleep and self.engine not in ("vllm", AUTO):
            yield (
                f"sleep = true is vLLM's, and engine = '{self.engine}' keeps its memory; set engine"
                " to 'vllm' or sleep to false"
            )
        if self.tensor_parallel > 1 and self.engine == "transformers":
            yield (
                f"tensor_parallel = {self.tensor_parallel} divides vLLM's weights, and engine ="
                " 'transformers' samples in one process; set engine to 'vllm' or tensor_parallel"
                " to 1"
            )


class Timeouts(Section):
    """Limits of waits, in seconds; the error names what was waited for."""

    start_s: float = setting(300, "start of a worker", gt=0)
    rollout_s: float = setting(1800, "sampling of one batch", gt=0)
    reward_s: float = setting(600, "scoring of one batch", gt=0)
    update_s: float = setting(1800, "one call of the learner", gt=0)
    sync_s: float = setting(300, "transfer of weights to the engines", gt=0)
    stall_s: float = setting(
        45,
        "time without progress (micro-batches, engine steps or rows) after which a"
        " worker counts as hanging, or five times its longest such time so far where that is more",
        gt=0,
    )


class HardwareSection(Section):
    """Where things run."""

    cluster: Literal["ray", "in_process"] = setting(
        "ray", "a process per worker, or all in the run's own process"
    )
    device: Literal["auto", "cpu", "cuda"] = setting(
        "auto", "auto = cuda where the cluster has GPUs, else cpu; it is logged"
    )
    ray_address: str | None = setting(None, "Ray cluster; null = its own, local")
    learner: LearnerHardware = LearnerHardware()
    rollout: RolloutHardware = RolloutHardware()
    reward_workers: int = setting(1, "processes that score, each with a child per function", ge=1)
    timeouts: Timeouts = Timeouts()
    restarts: int = setting(
        2,
        "how often in a row a stage continues in new workers, at its last checkpoint,"
        " after a worker or Ray died or hung; a new checkpoint restarts the count, 0 = the run"
        " ends, also where a learner's memory ran out, else it has half of micro_batch_tokens",
        ge=0,
    )

    @property
    def memory_of_an_engine(self) -> float:
        """Share of a GPU's memory for each engine, of which several may be on it."""
        ranks, engine = self.learner.gpus_per_rank, self.rollout.gpus_per_engine
        room = 1 - ranks if ranks + engine <= 1 else 1
        at_most = max(1, int(room / engine + 1e-9))
        return self.rollout.gpu_memory_utilization / min(self.rollout.engines, at_most)

    def takes_vllm_on_cpu(self, parameters: int) -> bool:
        """Return whether vLLM samples on cpu from a model of ``parameters``; in a run that
        continues only where nothing is recorded of its engine."""
        rollout = self.rollout
        if rollout.engine == AUTO:
            large = parameters >= SMALL_PARAMETERS or rollout.tensor_parallel > 1
            return self.cluster != "in_process" and large
        return rollout.engine == "vllm"

    @rule
    def _ranks_have_gpus_of_their_own(self) -> Iterator[str]:
        share = self.learner.gpus_per_rank
        # Several ranks on one GPU would start, and NCCL would refuse their first collective
        # ("Duplicate GPU detected") only after the stages before the learner.
        for key in ("ranks", "reference_ranks"):
            ranks = getattr(self.learner, key)
            if ranks > 1 and share < 1 and self.device != "cpu":
                yield (
                    f"learner.gpus_per_rank = {share:g} places several of learner.{key} = {ranks}"
                    " on one GPU, which NCCL refuses; set learner.gpus_per_rank to 1,"
                    f" learner.{key} to 1 or, without GPUs, device to 'cpu'"
                )

    @rule
    def _in_process_is_single(self) -> Iterator[str]:
        counts = {
            "learner.ranks": self.learner.ranks,
            "learner.reference_ranks": self.learner.reference_ranks,
            "rollout.tensor_parallel": self.rollout.tensor_parallel,
        }
        for key, count in counts.items():
            if self.cluster == "in_process" and count > 1:
                yield (
                    f"cluster 'in_process' is one process, not {key} = {count}; set it to 1 or"
                    " cluster to 'ray'"
                )
        if self.cluster == "in_process" and self.rollout.engine == "vllm":
            yield (
                "vLLM patches the process it runs in and would slow the learner in it;"
                " set rollout.engine to 'transformers' or cluster to 'ray'"
            )
