"""The rollout engines of a run: which class of them samples, and their processes."""

from collections.abc import Callable, Sequence
from pathlib import Path
from time import monotonic

from rlcore.cluster.activity import activity
from rlcore.cluster.types import Worker
from rlcore.engines.choice import Choice, check_installed, choose, going_on
from rlcore.engines.pool import EnginePool
from rlcore.engines.registry import engine_kind
from rlcore.learner.pool import LearnerPool
from rlcore.models.shape import model_parameters
from rlcore.workers.specs import engine_placement, engine_spec
from schemas.hardware import AUTO
from schemas.recipe import Recipe


class Sampler:
    """Takes a class of engine, and builds engines when they are asked for.

    ``plan`` returns the recipe, as it is now, and the device. ``spawn``: ``Workers.spawn``. ``log``
    gets a sentence where ``auto`` took the class, and one per engine that is ready.
    """

    def __init__(
        self,
        plan: Callable[[], tuple[Recipe, str]],
        spawn: Callable[..., list[Worker]],
        log: Callable[[str], None],
    ) -> None:
        self._plan, self._spawn, self._log = plan, spawn, log
        self._taken: Choice | None = None
        self._built: tuple[str, EnginePool, list[Worker]] | None = None

    def take(self, model_dir: Path, recorded: str | None = None) -> str:
        """Return the engine that samples from now on: what the recipe names, else ``recorded``,
        else by the rule of ``auto``. Raises UserError where it cannot run here."""
        recipe, device = self._plan()
        hardware = recipe.hardware
        choice = going_on(hardware, _by_rule(recipe, device, model_dir), recorded)
        check_installed(hardware, choice)
        if self._taken != choice and hardware.rollout.engine == AUTO:
            self._log(f"rollout engine: {choice.engine} ({choice.why})")
        self._taken = choice
        return choice.engine

    def engines(self, model_dir: Path, before: Sequence[LearnerPool]) -> EnginePool:
        """Return engines of the class taken, which the first call takes by the rule.

        Those there are serve on, unless they are of another class, and then they end. ``before``:
        learners that must be ready before an engine is built.
        """
        engine = self._taken.engine if self._taken else self.take(model_dir)
        if self._built is not None and self._built[0] != engine:
            for worker in self._built[2]:
                worker.stop()
            self._built = None
        if self._built is None:
            recipe, device = self._plan()
            for learner in before:
                learner.ready()
            kind, count = engine_kind(engine), recipe.hardware.rollout.engines
            placement = engine_placement(recipe, engine, device)
            arguments = engine_spec(recipe, model_dir, device), *kind.arguments
            names = [f"rollout-engine-{index}" for index in range(count)]
            workers = self._spawn(kind.target, placement, names, [arguments] * count)
            self._wait(workers, recipe.hardware.timeouts.start_s)
            self._built = engine, _pool(workers, recipe, count * placement.gpus), workers
        return self._built[1]

    def ended(self) -> None:
        """Take note that all processes have ended; the class taken stays."""
        self._built = None

    def _wait(self, workers: Sequence[Worker], timeout_s: float) -> None:
        """Return once every engine is built; log each, with the seconds since this call."""
        began = monotonic()
        for number, worker in enumerate(workers, start=1):
            what = f"rollout engine {number} of {len(workers)}"
            with activity(f"the start of {what}"):
                worker.start("stamp").result(timeout_s)
            self._log(f"{what} is ready, {monotonic() - began:.0f} s")


def _by_rule(recipe: Recipe, device: str, model_dir: Path) -> Choice:
    hardware = recipe.hardware
    asked = hardware.rollout.engine == AUTO
    parameters = model_parameters(recipe.model, model_dir) if asked else 0
    return choose(hardware, device, parameters)


def _pool(workers: Sequence[Worker], recipe: Recipe, gpus: float) -> EnginePool:
    timeouts = recipe.hardware.timeouts
    return EnginePool(
        workers,
        timeout_s=timeouts.rollout_s,
        sync_timeout_s=timeouts.sync_s,
        in_flight=recipe.hardware.rollout.max_num_seqs,
        gpus=gpus,
    )
