"""The long-lived workers of a run, built from ``recipe.hardware`` when first needed."""

import logging
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from threading import Event, Lock

from rlcore.cluster.types import Cluster, Host, Pending, Placement, Worker, WorkerTimeout, gather
from rlcore.cluster.watch import LOOK_S
from rlcore.engines.pool import EnginePool
from rlcore.engines.types import EngineSpec
from rlcore.learner.pool import LearnerPool
from rlcore.learner.spec import LearnerSpec
from rlcore.rewards.pool import RewardPool
from schemas.hardware import HardwareSection
from schemas.names import REWARD_MODEL
from schemas.recipe import Recipe
from schemas.rl import Optimizer

logger = logging.getLogger(__name__)

LEARNER = "rlcore.learner.learner:Learner"
REWARD_WORKER = "rlcore.rewards.worker:RewardWorker"
ENGINES = {
    "vllm": "rlcore.engines.vllm_engine:VllmEngine",
    "transformers": "rlcore.engines.transformers_engine:TransformersEngine",
}
# Modules that workers load by name, for the code fingerprints of the stages that use them.
WORKER_MODULES = (
    "rlcore.learner.learner",
    "rlcore.rewards.child",
    "rlcore.rewards.worker",
    "rlcore.engines.transformers_engine",
    "rlcore.engines.vllm_engine",
)


@dataclass(frozen=True, slots=True)
class _Hosts:
    """The processes of one group of workers; ranks of one process group stay together."""

    target: str
    placement: Placement
    hosts: list[Host]

    def fit(self, target: str, placement: Placement, count: int) -> bool:
        return (self.target, self.placement, len(self.hosts)) == (target, placement, count)


class Workers:
    """Owns the cluster of one run; nothing starts before it is asked for. Use as a context.

    Learners are returned while they still start, so that workers start side by side; a learner's
    first call, or its ``ready``, waits for it and raises what its constructor raised.

    ``warn`` gets a sentence, once a run, when the model cannot be packed.
    """

    def __init__(self, recipe: Recipe, *, warn: Callable[[str], None] = logger.warning) -> None:
        self._recipe = recipe
        self._warn = warn
        self._warned = False
        self._lock = Lock()
        self._cluster: Cluster | None = None
        # The thread stays while the cluster does: Linux ends Ray's processes with the thread that
        # started them.
        self._starter = ThreadPoolExecutor(1, "start-ahead")
        self._ahead: dict[str, Future[None]] = {}
        self._in_need = Event()  # of what starts ahead
        self._idle: list[_Hosts] = []
        self._learners: list[tuple[LearnerPool, _Hosts]] = []
        self._engines: EnginePool | None = None
        self._reward_workers: list[Worker] | None = None
        self._reward_model: LearnerPool | None = None

    def __enter__(self) -> "Workers":
        return self

    def __exit__(self, *failure: object) -> None:
        for started in self._ahead.values():
            started.exception()  # wait; its own failure is of no interest any more
        if self._cluster is not None:
            self._cluster.close()
            self._cluster = None
        self._starter.shutdown()

    @property
    def device(self) -> str:
        """Return "cuda" or "cpu", as ``hardware.device`` says or the cluster has GPUs."""
        asked = self._recipe.hardware.device
        if asked != "auto":
            return asked
        return "cuda" if self.cluster.num_gpus() > 0 else "cpu"

    @property
    def cluster(self) -> Cluster:
        """Return the cluster, starting it when this is the first use."""
        with self._lock:
            if self._cluster is None:
                self._cluster = _start_cluster(self._recipe.hardware)
            return self._cluster

    def start_learner_ahead(self) -> None:
        """Begin in the background what a run needs in any case: the cluster and the learner's
        processes, which import their libraries while the caller goes on.

        Returns at once; the second call does nothing. What fails is raised where it is needed.
        """
        self._start_ahead("learner", self._start_learner)

    def start_engines_ahead(self) -> None:
        """The same for the engines' processes, one after the other until they are needed.

        The first leaves bytecode that the others would compile too, and a core to the caller.
        """
        self._in_need.clear()
        self._start_ahead("engines", self._start_engines)

    def learner(
        self,
        model_dir: Path,
        optimizer: Optimizer,
        *,
        name: str,
        head: str = "lm",
        reference_dir: Path | None = None,
    ) -> LearnerPool:
        """Return a learner that trains ``model_dir``, in the process of one ``released`` if any.

        ``head`` "value" makes it a critic or reward model. ``reference_dir``: a frozen copy that it
        holds beside the policy, for the exact KL.
        """
        ranks = self._hardware.learner.ranks
        return self._learner(
            model_dir, optimizer, name=name, ranks=ranks, head=head, reference_dir=reference_dir
        )

    def release(self, learner: LearnerPool) -> None:
        """Free what ``learner`` holds; its processes serve the next learner of the same layout."""
        (entry,) = [entry for entry in self._learners if entry[0] is learner]
        closing = [host.clear() for host in entry[1].hosts]
        gather(closing, self._hardware.timeouts.start_s)
        self._learners.remove(entry)
        self._idle.append(entry[1])

    def reference(self, model_dir: Path) -> LearnerPool:
        """Start a frozen copy of ``model_dir`` for log-probs."""
        return self._learner(model_dir, None, name="reference", ranks=1)

    def reward_model(self, model_dir: Path) -> LearnerPool:
        """Return the trained reward model, frozen, as a scorer; started at the first call."""
        if self._reward_model is None:
            self._reward_model = self._learner(
                model_dir, None, name=REWARD_MODEL, ranks=1, head="value"
            )
        return self._reward_model

    def engines(self, model_dir: Path) -> EnginePool:
        """Return the rollout engines; built for the model of ``model_dir`` at the first call.

        They hold noise until a load; later calls return the same engines, whatever they hold then.
        """
        if self._engines is None:
            target, placement, count = self._engine_layout()
            names = [f"rollout-engine-{index}" for index in range(count)]
            hosts = self._hosts(target, placement, names)
            if self.device == "cuda":  # vLLM measures what is free; nobody may allocate meanwhile
                for learner, _ in self._learners:
                    learner.ready()
            for host in hosts.hosts:
                host.build(self._engine_spec(model_dir))
            timeouts = self._hardware.timeouts
            for host in hosts.hosts:
                host.start("stamp").result(timeouts.start_s)
            self._engines = EnginePool(
                hosts.hosts, timeout_s=timeouts.rollout_s, sync_timeout_s=timeouts.sync_s
            )
        return self._engines

    def judges(self) -> RewardPool:
        """Return the recipe's reward functions alone, without its reward model; their workers,
        started at the first call, are those of ``rewards``."""
        return self._reward_group(None)

    def rewards(self, reward_model_dir: Path | None) -> RewardPool:
        """Return the recipe's reward, its workers started at the first call.

        ``reward_model_dir``: the trained model, where ``reward.functions`` names it.
        """
        model = None
        if any(function.name == REWARD_MODEL for function in self._recipe.reward.functions):
            assert reward_model_dir is not None, "the recipe trains the model that it names"
            model = self.reward_model(reward_model_dir)
        return self._reward_group(model)

    def _reward_group(self, model: LearnerPool | None) -> RewardPool:
        section = self._recipe.reward
        weights = {function.name: function.weight for function in section.functions}
        functions = tuple(f for f in section.functions if f.name != REWARD_MODEL)
        if self._reward_workers is None:
            judged = section.model_copy(update={"functions": functions})
            self._reward_workers = [
                self.cluster.spawn(
                    REWARD_WORKER, judged, name=f"reward-{index}", placement=Placement()
                )
                for index in range(self._hardware.reward_workers if functions else 0)
            ]
        return RewardPool(
            self._reward_workers,
            timeout_s=self._hardware.timeouts.reward_s,
            row_timeout_s=section.timeout_s,
            offset=section.offset,
            model=model,
            model_weight=weights.get(REWARD_MODEL, 0.0),
        )

    def _warn_once(self, line: str) -> None:
        """All learners of a run hold one architecture: policy, reference, critic, reward model."""
        if not self._warned:
            self._warned = True
            self._warn(line)

    @property
    def _hardware(self) -> HardwareSection:
        return self._recipe.hardware

    def _learner(
        self,
        model_dir: Path,
        optimizer: Optimizer | None,
        *,
        name: str,
        ranks: int,
        head: str = "lm",
        reference_dir: Path | None = None,
    ) -> LearnerPool:
        spec = replace(
            self._learner_spec(model_dir, optimizer),
            head=head,
            reference_dir=None if reference_dir is None else str(reference_dir),
        )
        names = [f"{name}-{rank}" for rank in range(ranks)]
        hosts = self._hosts(LEARNER, self._learner_placement(), names)
        rendezvous = self.cluster.rendezvous() if ranks > 1 else ""
        for rank, host in enumerate(hosts.hosts):
            host.build(spec, rank, ranks, rendezvous)
        timeouts = self._hardware.timeouts
        group = LearnerPool(
            hosts.hosts,
            timeout_s=timeouts.update_s,
            start_s=timeouts.start_s,
            warn=self._warn_once,
        )
        self._learners.append((group, hosts))
        return group

    def _hosts(self, target: str, placement: Placement, names: list[str]) -> _Hosts:
        """Return one idle process of ``target`` for each name, started where there are none."""
        self._in_need.set()
        for started in self._ahead.values():
            started.result()
        idle = [hosts for hosts in self._idle if hosts.fit(target, placement, len(names))]
        if idle:
            self._idle.remove(idle[0])
        hosts = idle[0] if idle else self._start(target, placement, names)
        for host, name in zip(hosts.hosts, names, strict=True):
            host.name = name
        return hosts

    def _start(self, target: str, placement: Placement, names: list[str]) -> _Hosts:
        self.cluster.require_gpus(placement.gpus * len(names))
        hosts = [self.cluster.host(target, name=name, placement=placement) for name in names]
        return _Hosts(target, placement, hosts)

    def _start_ahead(self, what: str, start: Callable[[], None]) -> None:
        if what not in self._ahead and self._hardware.cluster != "in_process":
            # Imported here and not by the thread: it parses Python, and where two threads do so at
            # once CPython fails one of them (SystemError: AST constructor recursion depth mismatch,
            # python/cpython#106905).
            import_module("rlcore.cluster.ray_cluster")
            self._ahead[what] = self._starter.submit(start)

    def _start_learner(self) -> None:
        names = ["learner"] * self._hardware.learner.ranks
        self._idle.append(self._start(LEARNER, self._learner_placement(), names))

    def _start_engines(self) -> None:
        target, placement, count = self._engine_layout()
        self.cluster.require_gpus(placement.gpus * count)
        hosts: list[Host] = []
        for _ in range(count):
            host = self.cluster.host(target, name="rollout-engine", placement=placement)
            hosts.append(host)
            self._wait_while_idle(host.clear())
        self._idle.append(_Hosts(target, placement, hosts))

    def _wait_while_idle(self, loaded: Pending) -> None:
        while not self._in_need.is_set():
            with suppress(WorkerTimeout):
                loaded.result(LOOK_S)
                return

    def _learner_placement(self) -> Placement:
        hardware, device = self._hardware.learner, self.device
        threads = str(hardware.threads)
        # Waiting threads may spin for microseconds only: spinning on, the default, slows a learner
        # ten times beside any other busy process, and not at all halves its speed on free cores.
        env = {
            "OMP_NUM_THREADS": threads,
            "MKL_NUM_THREADS": threads,
            "GOMP_SPINCOUNT": "20000",
        }
        if device == "cpu":
            env["DS_ACCELERATOR"] = "cpu"
        return Placement(gpus=hardware.gpus_per_rank if device == "cuda" else 0.0, env=env)

    def _engine_layout(self) -> tuple[str, Placement, int]:
        """Return target, placement and number of the engines."""
        rollout = self._hardware.rollout
        env = _engine_env(rollout.engine, self._engine_spec(Path()))
        gpus = rollout.gpus_per_engine if self.device == "cuda" else 0.0
        return ENGINES[rollout.engine], Placement(gpus=gpus, env=env), rollout.engines

    def _engine_spec(self, model_dir: Path) -> EngineSpec:
        rollout = self._hardware.rollout
        return EngineSpec(
            model_dir=str(model_dir),
            dtype=self._recipe.model.dtype,
            max_model_len=self._recipe.model.max_tokens,
            max_num_seqs=rollout.max_num_seqs,
            gpu_memory_utilization=rollout.gpu_memory_utilization,
            tensor_parallel_size=rollout.tensor_parallel,
            kv_cache_gib=rollout.kv_cache_gib,
            threads=rollout.threads,
            device=self.device,
        )

    def _learner_spec(self, model_dir: Path, optimizer: Optimizer | None) -> LearnerSpec:
        hardware = self._hardware.learner
        adamw = optimizer or Optimizer()
        return LearnerSpec(
            model_dir=str(model_dir),
            dtype=self._recipe.model.dtype,
            zero_stage=hardware.zero_stage,
            offload_optimizer=hardware.offload_optimizer,
            offload_params=hardware.offload_params,
            lr=adamw.lr,
            betas=adamw.betas,
            eps=adamw.eps,
            weight_decay=adamw.weight_decay,
            grad_clip=adamw.grad_clip,
            micro_batch_tokens=hardware.micro_batch_tokens,
            row_tokens=hardware.row_tokens,
            attn_implementation=hardware.attention,
            gradient_checkpointing=hardware.gradient_checkpointing,
            threads=hardware.threads,
            seed=self._recipe.seed,
            device=self.device,
            trainable=optimizer is not None,
            collective_timeout_s=self._hardware.timeouts.update_s,
        )


def _start_cluster(hardware: HardwareSection) -> Cluster:
    if hardware.cluster == "in_process":
        from rlcore.cluster.in_process import InProcessCluster

        return InProcessCluster()
    from rlcore.cluster.ray_cluster import RayCluster

    return RayCluster(hardware.ray_address, stall_s=hardware.timeouts.stall_s)


def _engine_env(engine: str, spec: EngineSpec) -> dict[str, str]:
    if engine == "vllm":
        from rlcore.engines.vllm_engine import engine_env

        return engine_env(spec)
    return {"OMP_NUM_THREADS": str(spec.threads)}
