"""The long-lived workers that the stages of a run share, built from ``recipe.hardware`` on first
use."""

import gc
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from time import monotonic
from typing import Any

from rlcore.cluster.lazy import LazyCluster
from rlcore.cluster.progress import activity
from rlcore.cluster.types import Cluster, Placement, Worker
from rlcore.engines.pool import EnginePool
from rlcore.engines.registry import Choice, check_installed, choose, engine_kind, resumed_choice
from rlcore.envs.pool import EnvironmentPool
from rlcore.learner.pool import LearnerPool
from rlcore.models.classifier import check_reads_ids, is_own, located
from rlcore.models.shape import model_parameters
from rlcore.models.weight_files import remove_abandoned_weights
from rlcore.rewards.judges.setup import judge_setup, prepare_cache, setup_of
from rlcore.rewards.pool import ModelScores, RewardPool, brought_scores, own_scores
from rlcore.rl.specs import engine_placement, engine_spec, learner_placement, learner_spec
from schemas.hardware import AUTO
from schemas.names import REWARD_MODEL, brought_model, by_workers
from schemas.optimizer import Optimizer
from schemas.recipe import Recipe
from schemas.reward_model import BroughtRewardModel

logger = logging.getLogger(__name__)

LEARNER = "rlcore.learner.learner:Learner"
CLASSIFIER = "rlcore.models.classifier:Classifier"
SERVED_MODEL = "rlcore.rewards.judges.reward_model:ServedModel"
REWARD_WORKER = "rlcore.rewards.worker:RewardWorker"
ENVIRONMENT_WORKER = "rlcore.envs.process:EnvironmentProcess"


class Workers:
    """The workers of one run, as a context manager; nothing starts before its first use.

    Learners are returned while they still start; a learner's first call, or its ``ready``, waits
    for it and raises what its constructor raised. ``recipe`` may be replaced: it is that of what is
    built next. ``warn`` gets a sentence, once per run, when the model cannot be packed; ``log`` one
    per engine that is ready.
    """

    def __init__(
        self,
        recipe: Recipe,
        *,
        warn: Callable[[str], None] = logger.warning,
        log: Callable[[str], None] = logger.info,
    ) -> None:
        self.recipe = recipe
        self._warn, self._log, self._warned = warn, log, False
        self._taken: Choice | None = None  # the class of engine; it outlives a restart
        self._begin()

    def _begin(self) -> None:
        self._cluster = LazyCluster(self.recipe.hardware, self.recipe.store)
        self._learners: list[LearnerPool] = []
        self._engines: tuple[str, EnginePool] | None = None  # and of which class they are
        self._reward_workers: list[Worker] | None = None
        self._reward_models: dict[str, ModelScores] = {}  # by function
        self._environments: EnvironmentPool | None = None

    def __enter__(self) -> "Workers":
        return self

    def __exit__(self, *failure: object) -> None:
        self._cluster.close()
        remove_abandoned_weights()

    def restart(self) -> None:
        """End every process and the cluster, whether or not they answer; what is asked for next
        starts again. No pool returned before is of use afterwards."""
        self.__exit__()
        self._begin()
        gc.collect()  # what the old pools held

    @property
    def cluster(self) -> Cluster:
        """Return the cluster, starting it when this is the first use."""
        return self._cluster.get()

    @property
    def device(self) -> str:
        """Return "cuda" or "cpu", as ``hardware.device`` says or the cluster has GPUs."""
        asked = self.recipe.hardware.device
        if asked != "auto":
            return asked
        return "cuda" if self.cluster.num_gpus() > 0 else "cpu"

    def spawn(
        self,
        target: str,
        placement: Placement,
        names: Sequence[str],
        arguments: Sequence[tuple[Any, ...]],
    ) -> list[Worker]:
        """Start a worker of class ``target`` per name, built with its ``arguments``.

        Raises ``UserError`` where the cluster cannot hold all of them.
        """
        placements = self.cluster.place(placement, len(names))
        return [
            self.cluster.spawn(target, *built_with, name=name, placement=placed)
            for placed, name, built_with in zip(placements, names, arguments, strict=True)
        ]

    def learner(
        self,
        model_dir: Path,
        optimizer: Optimizer | None,
        *,
        name: str,
        ranks: int | None = None,
        stage: str = "",
        head: str = "lm",
        reference_dir: Path | None = None,
        dtype: str | None = None,
        on_host: bool = False,
    ) -> LearnerPool:
        """Return a learner that trains ``model_dir``, or an adapter on it where ``stage`` does;
        without an optimizer it only scores.

        ``ranks`` and ``dtype``: None = the recipe's. ``head`` "value" makes it a critic or reward
        model. ``reference_dir``: a frozen copy that it holds in addition to the policy, for the
        exact KL. ``on_host``: it waits in host memory while it does not score.
        """
        spec = learner_spec(
            self.recipe,
            model_dir,
            optimizer,
            device=self.device,
            head=head,
            reference_dir=reference_dir,
            stage=stage,
        )
        spec = replace(spec, dtype=dtype or spec.dtype, on_host=on_host)
        if self._engines is not None and self.recipe.hardware.rollout.sleep:
            self._engines[1].rest()
        ranks = self.recipe.hardware.learner.ranks if ranks is None else ranks
        placement = learner_placement(self.recipe, self.device)
        placements = self.cluster.place(placement, ranks)
        rendezvous = self.cluster.rendezvous(placements[0]) if ranks > 1 else ""
        workers = [
            self.cluster.spawn(
                *(LEARNER, spec, rank, ranks, rendezvous), name=f"{name}-{rank}", placement=placed
            )
            for rank, placed in enumerate(placements)
        ]
        timeouts = self.recipe.hardware.timeouts
        pool = LearnerPool(
            workers,
            timeout_s=timeouts.update_s,
            start_s=timeouts.start_s,
            warn=self._warn_once,
            gpus=ranks * placement.gpus,
            sequence_parallel=spec.sequence_parallel,
        )
        self._learners.append(pool)
        return pool

    def release(self, learner: LearnerPool) -> None:
        """End ``learner``, which frees what it holds."""
        learner.stop()
        self._learners.remove(learner)

    def choose_engine(self, model_dir: Path, recorded: str | None = None) -> str:
        """Return which engine samples from the model of ``model_dir`` from now on: what the recipe
        names, else ``recorded``, the one that sampled before what continues now, else by the rule
        of ``auto``. Raises UserError where it cannot run here."""
        hardware = self.recipe.hardware
        asked = hardware.rollout.engine == AUTO
        parameters = model_parameters(self.recipe.model, model_dir) if asked else 0
        choice = resumed_choice(hardware, choose(hardware, self.device, parameters), recorded)
        check_installed(hardware, choice)
        if self._taken != choice and asked:
            self._log(f"rollout engine: {choice.engine} ({choice.why})")
        self._taken = choice
        return choice.engine

    def engines(self, model_dir: Path) -> EnginePool:
        """Return the rollout engines; built for the model of ``model_dir`` at the first call, which
        chooses their class unless ``choose_engine`` has.

        They hold noise until a load; later calls return the same engines with their current
        weights, unless another class was chosen: then they end.
        """
        engine = self._taken.engine if self._taken else self.choose_engine(model_dir)
        if self._engines is not None and self._engines[0] != engine:
            self._engines[1].stop()
            self._engines = None
        if self._engines is None:
            if self.device == "cuda":
                # vLLM measures free memory, and nothing may allocate meanwhile.
                for learner in self._learners:
                    learner.ready()
            self._engines = engine, self._engine_pool(engine, model_dir)
        return self._engines[1]

    def _engine_pool(self, engine: str, model_dir: Path) -> EnginePool:
        hardware, kind = self.recipe.hardware, engine_kind(engine)
        placement = engine_placement(self.recipe, engine, self.device)
        arguments = engine_spec(self.recipe, model_dir, self.device), *kind.arguments

        def started(numbers: Sequence[int]) -> list[Worker]:
            names = [f"rollout-engine-{number}" for number in numbers]
            workers = self.spawn(kind.target, placement, names, [arguments] * len(names))
            began = monotonic()
            for number, engine in zip(numbers, workers, strict=True):
                what = f"rollout engine {number + 1} of {count}"
                with activity(f"the start of {what}"):
                    engine.start("stamp").result(hardware.timeouts.start_s)
                self._log(f"{what} is ready, {monotonic() - began:.0f} s")
            return workers

        count = hardware.rollout.engines
        # vLLM measures what it takes of a GPU, and another engine there may not start meanwhile.
        alone = [range(number, number + 1) for number in range(count)]
        at_once = alone if 0 < placement.gpus < 1 else [range(count)]
        return EnginePool(
            [worker for numbers in at_once for worker in started(numbers)],
            timeout_s=hardware.timeouts.rollout_s,
            sync_timeout_s=hardware.timeouts.sync_s,
            in_flight=hardware.rollout.max_num_seqs,
            gpus=count * placement.gpus,
            start_new=lambda number: started([number])[0],
            log=self._log,
        )

    def rule_rewards(self, *, brought_for: Path | None = None) -> RewardPool:
        """Return the recipe's reward functions alone, without its reward model, as ``rewards``;
        with the directory of a policy also the models that users bring, to score it."""
        return self._reward_pool({} if brought_for is None else self._brought_models(brought_for))

    def rewards(self, policy: Path, reward_model_dir: Path | None) -> RewardPool:
        """Return the recipe's reward, its workers started at the first call.

        ``policy``: the directory of the model that is scored. ``reward_model_dir``: the trained
        model, where ``reward.functions`` names it. Raises UserError for a brought model of another
        tokenizer that reads ids.
        """
        models = self._brought_models(policy)
        if any(function.name == REWARD_MODEL for function in self.recipe.reward.functions):
            assert reward_model_dir is not None, "the recipe trains the model that it names"
            if REWARD_MODEL not in models:
                learner = self.learner(
                    reward_model_dir, None, name=REWARD_MODEL, ranks=1, head="value"
                )
                models[REWARD_MODEL] = partial(own_scores, learner)
        return self._reward_pool(models)

    def environments(self) -> EnvironmentPool | None:
        """Return the recipe's environments, started at the first call; None without a section."""
        section, timeouts = self.recipe.environment, self.recipe.hardware.timeouts
        if self._environments is None and section is not None:
            names = [f"environment-{index}" for index in range(section.workers)]
            built_with = [(section,)] * len(names)
            workers = self.spawn(ENVIRONMENT_WORKER, Placement(), names, built_with)
            self._environments = EnvironmentPool(workers, section, timeout_s=timeouts.reward_s)
        return self._environments

    def _brought_models(self, policy: Path) -> dict[str, ModelScores]:
        """Return the reward models that the recipe brings, by function; started at first call."""
        for function in [function.name for function in self.recipe.reward.functions]:
            name = brought_model(function)
            if name is None:
                continue
            model = self.recipe.reward_models[name]
            directory = None if model.url is not None else located(name, model)
            if directory is not None and is_own(directory):
                check_reads_ids(f"reward_models.{name}.path = '{model.path}'", directory, policy)
            if function not in self._reward_models:
                self._reward_models[function] = self._brought_model(name, model, directory)
        return self._reward_models

    def _brought_model(
        self, name: str, model: BroughtRewardModel, directory: Path | None
    ) -> ModelScores:
        """``directory``: the model's; None for one that is served."""
        recipe, placement = self.recipe, Placement()
        if directory is None:
            setup = setup_of(recipe, {})
            prepare_cache(setup, recipe.store, self._log)
            kind, built_with = SERVED_MODEL, (name, model, setup)
        elif is_own(directory):
            learner = self.learner(
                *(directory, None),
                name=f"reward-model-{name}",
                ranks=1,
                head="value",
                dtype=model.dtype,
            )
            return partial(own_scores, learner)
        else:
            # A model of the user's is a folder of the flow's own host.
            placement = replace(learner_placement(recipe, self.device), threads=0)
            threads = recipe.hardware.learner.threads
            kind = CLASSIFIER
            built_with = (name, str(directory), model.dtype, self.device, threads)
        (worker,) = self.spawn(kind, placement, [f"reward-model-{name}"], [built_with])
        return partial(brought_scores, worker, model, recipe.hardware.timeouts.update_s)

    def _reward_pool(self, models: Mapping[str, ModelScores]) -> RewardPool:
        section = self.recipe.reward
        functions = tuple(f for f in section.functions if by_workers(f.name))
        judges = judge_setup(self.recipe)
        if self._reward_workers is None:
            if judges is not None:
                prepare_cache(judges, self.recipe.store, self._log)
            scored = section.model_copy(update={"functions": functions})
            count = self.recipe.hardware.reward_workers if functions else 0
            names = [f"reward-{index}" for index in range(count)]
            built_with = [(scored, judges)] * count
            self._reward_workers = self.spawn(REWARD_WORKER, Placement(), names, built_with)
        return RewardPool(
            self._reward_workers,
            section,
            timeout_s=self.recipe.hardware.timeouts.reward_s,
            judges_s=None if judges is None else judges.longest_s,
            models=models,
        )

    def _warn_once(self, line: str) -> None:
        """All learners of a run hold one architecture: policy, reference, critic, reward model."""
        if not self._warned:
            self._warned = True
            self._warn(line)
