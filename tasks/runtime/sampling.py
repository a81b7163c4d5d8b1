"""Which rollout engine a stage samples with: recorded in all that the stage makes, and kept to by
who goes on with it or makes it anew, even where ``auto`` would now take another."""

from pathlib import Path

from rlcore.rl.sampled_by import newest_engine
from tasks.runtime.keys import generation_key, generations
from tasks.runtime.stage_run import StageRun


def sampling(
    run: StageRun,
    model_dir: Path,
    *,
    recorded: str | None = None,
    kind: str | None = None,
    otherwise: str | None = None,
) -> StageRun:
    """Return ``run`` with its engine chosen, for the model of ``model_dir``, and named in lineage.

    What the recipe names counts first. Then ``recorded``, by what the run goes on with; the engine
    of an earlier result of the same content (of ``kind``, by default the stage's own), which is
    being made anew; and ``otherwise``. None means nothing is known. At last the rule of ``auto``.
    Raises UserError where the engine cannot run here.
    """
    known = recorded or _of_earlier_result(run, kind or run.kind) or otherwise
    return run.sampling_with(run.workers.choose_engine(model_dir, known))


def _of_earlier_result(run: StageRun, kind: str) -> str | None:
    numbers = generations(run.store, kind, run.keys.key)
    keys = [generation_key(run.keys.key, number) for number in numbers if number < run.generation]
    return newest_engine(run.store, kind, keys)
