"""From what a person calls a model to its path."""

from pathlib import Path

from rlcore.models.files import model_directory
from rlcore.results.folders import LATEST, run_folder, run_names
from rlcore.results.run import Run
from schemas.errors import UserError, did_you_mean


def model_path(name: str, runs: Path) -> str:
    """Return the directory of the model of the run ``name``, its export or its policy where it has
    none; ``name`` itself where no run below ``runs`` has it: a directory, or a name of the hub.

    Raises UserError with the nearest run where it can be neither, and for a run without a policy.
    """
    if run_folder(name, runs) is None and name != LATEST:
        known = run_names(runs)
        if "/" not in name and not Path(name).is_dir() and (meant := did_you_mean(name, known)):
            raise UserError(f"'{name}' is neither a model directory nor a run in {runs}{meant}")
        return name
    run = Run.open(name, runs)
    ref = run.result("export") or run.result("rl")
    if ref is None:
        raise UserError(
            f"the run '{run.name}' has no policy yet; it has come to {', '.join(run.stages)}; let"
            " it finish, or run its recipe again to continue it"
        )
    return str(model_directory(run.store.directory(ref)))
