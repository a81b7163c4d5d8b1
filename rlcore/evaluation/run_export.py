"""The policy of a run as a model directory: its result, or that of any iteration, made again."""

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from rlcore.evaluation.card_facts import gather_card
from rlcore.evaluation.export import export_model
from rlcore.models.files import MODEL_FOLDER, model_directory
from rlcore.results.folders import EXPORTS
from rlcore.results.run import EVALUATE, RL, Run
from rlcore.rl.records import RecordedIterations
from rlcore.rl.replay import Replay
from rlcore.store.artifacts import ArtifactStore
from schemas.artifacts import ArtifactRef
from schemas.errors import UserError
from schemas.names import REWARD_MODEL


@dataclass(frozen=True, slots=True)
class Exported:
    """A model directory; ``weights``: the digest of its weights. ``iteration``: of RL, None in a
    run without it."""

    directory: Path
    iteration: int | None
    weights: str
    evaluated: bool


def export_run(
    run: Run, *, iteration: int | None = None, out: Path | None = None, log: Callable[[str], None]
) -> Exported:
    """Export the policy after ``iteration``, by default that of the run, into ``out``; of a run
    without RL that of its last stage.

    The policy of a run is that of its best iteration once RL has ended; before, that of the newest
    one. An iteration is made again from the nearest checkpoint, and its weights compared with the
    record. ``out`` defaults to a folder of the run. Raises UserError for an iteration that the run
    has not come to, and for an ``out`` that holds anything; ReplayError where the weights are not
    those recorded, ExportError where the reloaded model is not the policy; ``out`` is then as it
    was.
    """
    stage, has_rl = run.recipe.policies[-1], run.recipe.rl.enabled
    result = run.result(stage)
    if not has_rl and iteration is not None:
        raise UserError(
            f"--iteration {iteration}: the run '{run.name}' has none, as rl.enabled = false; leave"
            " it out"
        )
    if not has_rl and result is None:
        raise UserError(
            f"the run '{run.name}' has not ended the stage {stage}, whose policy it exports; let it"
            " continue"
        )
    if iteration is None and result is not None:
        best = run.store.manifest(result).metadata["best_iteration"] if has_rl else None
        if best is not None:
            log(f"RL of {run.name} has ended; its policy is that of iteration {best}, the best")
        parents = {"dataset": run.store.manifest(result).parents["dataset"], "policy": result}
        if (evaluation := run.result(EVALUATE)) is not None:
            parents["evaluation"] = evaluation
        out = _free(out or run.folder / EXPORTS / (stage if best is None else _name(best)))
        return _publish(run, model_directory(run.store.directory(result)), parents, out, best, log)
    recorded = RecordedIterations(
        run.store, run.records(RL), run.name, total=run.recipe.rl.iterations
    )
    if iteration is None:
        iteration = recorded.last
        log(f"RL of {run.name} has not ended; iteration {iteration} is the newest whole one")
    recorded.iteration(iteration)
    out = _free(out or run.folder / EXPORTS / _name(iteration))
    return _export_iteration(run, recorded, iteration, out, log)


def _name(iteration: int) -> str:
    return f"iteration-{iteration:06d}"


def _free(out: Path) -> Path:
    """Return ``out`` where nothing is lost by writing it. Raises UserError."""
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise UserError(f"'{out}' holds something already; give a new or empty directory as --out")
    beside = next(place for place in out.absolute().parents if place.exists())
    if os.path.ismount(out) or not beside.is_dir() or not os.access(beside, os.W_OK | os.X_OK):
        raise UserError(
            f"'{out}' cannot be put in place: it is a mount point, or '{beside}' is no folder that"
            " can be written; give a folder below one that can be as --out"
        )
    return out


def _export_iteration(
    run: Run, recorded: RecordedIterations, number: int, out: Path, log: Callable[[str], None]
) -> Exported:
    with (
        _store(run).scratch() as scratch,
        Replay.open(recorded, run.recipe, start=number, log=log) as replay,
    ):
        while replay.at < number:
            step = replay.step()
            log(f"iteration {step.iteration}: weights {step.digest[:12]}, as recorded")
        replay.learner.export_hf(scratch / MODEL_FOLDER)  # an adapter comes to lie beside it
        parents = {
            role: ref
            for role, ref in recorded.iteration(recorded.first).manifest.parents.items()
            if role in ("dataset", REWARD_MODEL)
        }
        parents["policy"] = recorded.ref(number)
        return _publish(run, scratch / MODEL_FOLDER, parents, out, number, log)


def _publish(
    run: Run,
    policy: Path,
    parents: Mapping[str, ArtifactRef],
    out: Path,
    number: int | None,
    log: Callable[[str], None],
) -> Exported:
    record = export_model(
        policy,
        out,
        dtype=run.recipe.export.dtype,
        card=gather_card(run.recipe, _store(run), parents, warn=log),
        trust_remote_code=run.recipe.model.trust_remote_code,
        origin=parents["policy"],
    )
    return Exported(out, number, record["weights_digest"], "evaluation" in parents)


def _store(run: Run) -> ArtifactStore:
    return ArtifactStore(run.store.root, writer="an export")
