"""What must hold before a run starts, asked by the dry run and by the run itself."""

from dataclasses import replace
from pathlib import Path

from rlcore.cluster.address import check_address
from rlcore.cluster.surroundings import obstacles
from rlcore.dry_run.plan import Plan, plan
from rlcore.engines.choice import choose
from rlcore.judges.setup import check_keys
from rlcore.models.base import check_base_model, scratch_stops
from rlcore.models.sizes import model_parameters
from rlcore.models.stops import NEVER_CLOSES, Stops
from rlcore.preflight.environment import check_environment
from rlcore.preflight.files import check_files
from rlcore.preflight.functions import check_functions
from rlcore.preflight.rehearsal import rehearse
from rlcore.preflight.sandbox import check_sandbox
from rlcore.rewards.registry import check_recipe_functions
from schemas.errors import UserError
from schemas.model import ModelSection
from schemas.recipe import Recipe
from schemas.reward_model import SampledPreferences

# Bytes of weights whose values are read here, in seconds; those of larger models are when the run
# copies them.
VALUES_READ_AHEAD = 16 * 2**30


def check_start(recipe: Recipe, *, call_judges: bool = False) -> Plan:
    """Return the plan of a run that may start here. ``call_judges``: each is asked about a row.

    Raises UserError when the recipe names a function, a file, a model directory or a cluster that
    cannot be used, programs cannot be confined, the run surely cannot fit this machine, or its data
    leave it without rows that it needs, or with some that its rewards cannot score. Nothing
    is fetched from the hub, and nothing of the user's is imported in this process but what
    ``model.trust_remote_code`` allows.
    """
    _check_variables(recipe)
    check_recipe_functions(recipe)
    if recipe.hardware.ray_address is None:  # else judges are asked elsewhere
        check_keys(recipe)
    stops = check_model(recipe.model)
    _check_engine(recipe)
    _check_ends(recipe, stops)
    size = check_files(recipe)
    planned = plan(recipe, data=size)
    _check_cluster(recipe)
    sandbox = check_sandbox(recipe)
    check_functions(recipe)
    check_environment(recipe)
    rehearsal = rehearse(recipe, call_judges=call_judges)
    if rehearsal is not None:
        lines = tuple(rehearsal.lines())
        planned = replace(planned, prepared=lines, doubts=rehearsal.doubts)
    return replace(planned, sandbox=sandbox, stops=stops)


def check_evaluation(recipe: Recipe) -> None:
    """Raise UserError, as ``check_start``, where nothing can be evaluated on ``recipe``.

    Its own model and this machine's memory are not looked at: nothing is trained.
    """
    check_recipe_functions(recipe)
    _check_cluster(recipe)
    if recipe.hardware.ray_address is None:
        check_keys(recipe)
    check_files(recipe)
    check_sandbox(recipe)
    check_functions(recipe)
    check_environment(recipe)
    rehearse(recipe, trains=False)


def _check_cluster(recipe: Recipe) -> None:
    if recipe.hardware.ray_address is not None:
        check_address(recipe.hardware.ray_address)
    elif recipe.hardware.cluster == "ray":
        for _, found, remedy in obstacles():
            raise UserError(f"{found}; {remedy}")


def _check_variables(recipe: Recipe) -> None:
    """Refuse environment variables where a path is read as it is; files of data may have them."""
    for key, path in (("model.path", recipe.model.path), ("store", recipe.store)):
        if path is not None and "$" in path and not Path(path).expanduser().exists():
            raise UserError(
                f"{key} = '{path}' names an environment variable, and is read as it is; write the"
                " path"
            )


def check_model(model: ModelSection) -> Stops | None:
    """Return what ends a turn of the model; None of one of the hub, which is looked up when the run
    reads it. Raises UserError for a model of a local directory that cannot be used."""
    if model.path is None:
        return scratch_stops(model)
    directory = Path(model.path).expanduser()
    if not directory.is_dir():
        return None
    from rlcore.learner.trial import try_architecture  # takes seconds

    stops = check_base_model(model, directory, values_to=VALUES_READ_AHEAD)
    try_architecture(directory)
    return stops


def _check_engine(recipe: Recipe) -> None:
    """Refuse a local model whose rows the engine that the recipe takes cannot continue."""
    model, hardware = recipe.model, recipe.hardware
    directory = Path(model.path or "").expanduser()
    if model.path is None or not directory.is_dir() or hardware.ray_address is not None:
        return
    import torch

    from rlcore.models.states import check_states

    found = "cuda" if torch.cuda.is_available() else "cpu"
    device = found if hardware.device == "auto" else hardware.device
    if choose(hardware, device, model_parameters(model, directory)).engine == "transformers":
        check_states(str(directory))


def _check_ends(recipe: Recipe, stops: Stops | None) -> None:
    """Refuse a chat template by which answers are to be learnt that have no end."""
    ranked = recipe.reward_model
    renders = ranked is not None and not isinstance(ranked.preferences, SampledPreferences)
    if stops is not None and stops.closing is None and (recipe.sft.enabled or renders):
        raise UserError(NEVER_CLOSES)
