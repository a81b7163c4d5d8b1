"""All checks that must pass before a run, a fork, an evaluation or an evolving starts, in their
order."""

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import torch

from rlcore.cluster.address import check_address
from rlcore.cluster.host_settings import obstacles
from rlcore.cluster.hosts import Host, check_store, own_first, place
from rlcore.cluster.types import Placement
from rlcore.engines.registry import choose
from rlcore.envs.process import tools_of
from rlcore.envs.registry import BUILTIN, check_name
from rlcore.evolve.prompts import check_templates
from rlcore.learner.packing_check import try_architecture
from rlcore.models.adapter import check_adapter
from rlcore.models.architectures import check_states
from rlcore.models.base import check_base_model, scratch_stops
from rlcore.models.classifier import check_base, check_classifier, located
from rlcore.models.files import local_directory
from rlcore.models.shape import model_parameters
from rlcore.models.stop_tokens import NEVER_CLOSES, Stops
from rlcore.models.tokenizer import model_tokenizer
from rlcore.plan.batches import worker_counts
from rlcore.plan.data_size import check_files
from rlcore.plan.functions import check_functions
from rlcore.plan.machine import Fit, check_machine
from rlcore.plan.rehearsal import Rehearsal, rehearse
from rlcore.results.compare import recipe_differences
from rlcore.rewards.judges.setup import check_keys, setup_of
from rlcore.rewards.registry import check_recipe_functions
from rlcore.rl.fork import beyond
from rlcore.rl.specs import engine_share, learner_placement
from rlcore.rollout.turns import TurnEncoder
from rlcore.sandbox.probe import find_sandbox
from rlcore.sandbox.types import Level
from schemas.environment import GAMES, MCP
from schemas.errors import UserError
from schemas.judges import may_verify
from schemas.model import ModelSection
from schemas.names import BASE_MODEL, by_workers
from schemas.recipe import Recipe
from schemas.reward_model import SampledPreferences


def check_fits(before: Recipe, after: Recipe, name: str, number: int) -> None:
    """Raise UserError where ``after`` cannot continue from iteration ``number`` of a run of
    ``before``; ``name``: what the user calls it."""
    shapes = [_shape(recipe) for recipe in (before, after)]
    for changed in recipe_differences(shapes):
        old, new = changed.values
        raise UserError(
            f"{name} does not fit: {changed.name} {old} -> {new} makes another model than that of"
            " the checkpoint; leave it as it was, or start without a fork"
        )
    if after.rl.critic is not None and before.rl.critic is None:
        raise UserError(
            f"{name} does not fit: rl.critic is set and the checkpoint holds no critic; set"
            " rl.critic to null, or start without a fork"
        )
    if number >= after.rl.iterations:
        raise UserError(beyond(name, number, after))


def _shape(recipe: Recipe) -> dict[str, Any]:
    """Return what decides the tensors of the model and its tokenizer."""
    part = recipe.slice_for(BASE_MODEL)
    origin = recipe.model.model_dump(mode="json", include={"path", "revision", "dtype"})
    return {**part, "model": {**part["model"], **origin}}


# Bytes of weights whose values are read here, in seconds; those of larger models are when the run
# copies them.
VALUES_READ_AHEAD = 16 * 2**30


@dataclass(frozen=True, slots=True)
class StartCheck:
    """What was found out of a run that may start here. ``stops``: None where the model's files are
    not at hand; ``sandbox``: the level at which rewards run programs here, None: they run none;
    ``rehearsal``: None where rows are not at hand; ``hosts``: ``layout_lines``."""

    fit: Fit
    stops: Stops | None = None
    sandbox: Level | None = None
    rehearsal: Rehearsal | None = None
    hosts: tuple[str, ...] = ()

    @property
    def doubts(self) -> tuple[str, ...]:
        """Sentences on the reward functions, which were called once."""
        return () if self.rehearsal is None else self.rehearsal.doubts


def check_start(recipe: Recipe, *, call_judges: bool = False) -> StartCheck:
    """Return what was found out of a run that may start here. ``call_judges``: each is asked about
    a row.

    Raises UserError when the recipe names a function, a file, a model directory or a cluster that
    cannot be used, programs cannot be confined, the run surely cannot fit this machine, or its data
    leave it without rows that it needs, or with some that its rewards cannot score. Nothing
    is fetched from the hub, and nothing of the user's is imported in this process but what
    ``model.trust_remote_code`` allows.
    """
    _check_variables(recipe)
    check_recipe_functions(recipe)
    check_keys(recipe)
    stops = check_model(recipe.model)
    _check_engine(recipe)
    _check_reward_models(recipe, recipe.rl.rollout.max_new_tokens)
    _check_ends(recipe, stops)
    fit = check_machine(recipe, data=check_files(recipe))
    hosts = _check_cluster(recipe)
    sandbox = check_sandbox(recipe)
    check_functions(recipe)
    check_environment(recipe)
    return StartCheck(fit, stops, sandbox, rehearse(recipe, call_judges=call_judges), hosts)


def check_evaluation(recipe: Recipe) -> None:
    """Raise UserError, as ``check_start``, where nothing can be evaluated on ``recipe``.

    Its own model and this machine's memory are not looked at: nothing is trained.
    """
    check_recipe_functions(recipe)
    _check_reward_models(recipe, recipe.evaluate.max_new_tokens)
    _check_cluster(recipe)
    check_keys(recipe)
    check_files(recipe)
    check_sandbox(recipe)
    check_functions(recipe)
    check_environment(recipe)
    rehearse(recipe, trains=False)


def check_evolve(recipe: Recipe) -> None:
    """Raise UserError, as ``check_evaluation``, where nothing can be evolved on ``recipe``: also
    for a template that cannot be rendered, a game, and rewards that check no answer."""
    check_templates(recipe.evolve)
    environment = recipe.environment
    if environment is not None and environment.name in GAMES:
        raise UserError(
            f"environment.name = {environment.name!r} is a game, which has no answer to verify;"
            " evolve a recipe of problems with answers"
        )
    functions = [f for f in recipe.reward.functions if by_workers(f.name)]
    if not any(may_verify(function, recipe.judges) for function in functions):
        raise UserError(
            "reward.functions holds no function that checks correctness, so no accuracy could be"
            " told; add one, of weight 0 if it is for that alone"
        )
    check_evaluation(recipe)


def check_sandbox(recipe: Recipe) -> Level | None:
    """Return the level at which the recipe's rewards run programs here, None where none does.

    None also on an existing cluster, whose nodes find out themselves. Raises UserError when the
    level that the recipe asks for does not hold here.
    """
    runs_programs = any(function.name == "code" for function in recipe.reward.functions)
    if not runs_programs or recipe.hardware.ray_address is not None:
        return None
    return find_sandbox(recipe.reward.sandbox).level


def check_environment(recipe: Recipe) -> None:
    """Raise UserError for an environment that cannot be built, or a chat template that cannot carry
    its episodes.

    One is built in a child process. On an existing cluster, where modules, variables and sandbox
    may be others, none is, and of a class of the user only its name is looked at. The template of a
    hub model is looked at when the run reads it.
    """
    section = recipe.environment
    if section is None:
        return
    if section.name != MCP:
        check_name(section.name)
    ours = section.name in BUILTIN and not section.options
    is_here = recipe.hardware.ray_address is None
    if not is_here and not ours:
        return
    model = recipe.model
    directory = local_directory(model.path)
    tools = tools_of(section, build=is_here)
    if directory is not None:
        tokenizer = model_tokenizer(model, directory)
        TurnEncoder(tokenizer, tools, section.max_observation_tokens).check()


def _check_cluster(recipe: Recipe) -> tuple[str, ...]:
    """Return ``layout_lines``."""
    if recipe.hardware.ray_address is not None:
        answer = check_address(recipe.hardware.ray_address)
        return () if answer is None else tuple(layout_lines(recipe, answer.hosts))
    if recipe.hardware.cluster == "ray":
        for _, found, remedy in obstacles():
            raise UserError(f"{found}; {remedy}")
    return ()


def layout_lines(recipe: Recipe, hosts: Sequence[Host]) -> list[str]:
    """Return a line per host that holds learners or engines of a run, and how weights reach them;
    nothing where the cluster has one.

    Raises UserError, as the run would, where they do not fit ``hosts`` or the store is a folder of
    one of them.
    """
    if len(hosts) < 2:
        return []
    here = {one.address for found in psutil.net_if_addrs().values() for one in found}
    own = next((host.address for host in hosts if host.address in here), "")
    hosts = own_first(hosts, own)
    device = recipe.hardware.device
    if device == "auto":
        device = "cuda" if any(host.gpus for host in hosts) else "cpu"
    ranks, engine = learner_placement(recipe, device), engine_share(recipe, device)
    held: dict[str, list[str]] = defaultdict(list)
    gpus: dict[str, float] = defaultdict(float)

    def put(placement: Placement, count: int, what: str) -> list[str]:
        placed = place(hosts, placement, count, gpus_used=gpus, engines=Counter())
        for number, one in enumerate(placed):
            held[one.host].append(f"{what} {number}")
            gpus[one.host] += one.gpus
        return [one.host for one in placed]

    counts = worker_counts(recipe)
    lies = {role: put(ranks, count, f"{role} rank") for role, count in counts.items()}
    engines = put(engine, recipe.hardware.rollout.engines, "rollout engine")
    check_store(recipe.store, {hosts[0].address, *held})
    lines = [f"{h.address}: {', '.join(held[h.address])}" for h in hosts if h.address in held]
    first = lies["policy"][0]
    others = ", ".join(sorted(set(engines) - {first}))
    store = f", through Ray's object store to {others}" if others else ""
    return [*lines, f"weights: in memory on {first}{store}"]


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
    directory = local_directory(model.path)
    if directory is None:
        return None
    stops = check_base_model(model, directory, values_to=VALUES_READ_AHEAD)
    check_adapter(model.adapter, directory)
    try_architecture(directory)
    return stops


def _check_reward_models(recipe: Recipe, new_tokens: int) -> None:
    """Raise UserError for a brought reward model that cannot score ``new_tokens`` tokens."""
    if recipe.reward_model is not None:
        longest = max(recipe.reward_model.max_tokens, recipe.longest_sequence(new_tokens))
        check_base(recipe.reward_model, local_directory(recipe.model.path), longest=longest)
    check_classifiers(recipe, new_tokens)
    for name, model in recipe.reward_models.items():
        if model.url is not None:
            from rlcore.rewards.judges.reward_model import probe_model  # loads its HTTP client

            probe_model(name, model, setup_of(recipe, {}))


def check_classifiers(recipe: Recipe, new_tokens: int, *, fetch: bool = False) -> None:
    """Raise UserError for a reward model in a directory that cannot score answers of ``new_tokens``
    tokens; ``fetch``: one of the hub is downloaded and looked at, too."""
    for name, model in recipe.reward_models.items():
        if model.url is None:
            if fetch:
                model = model.model_copy(update={"path": str(located(name, model))})
            check_classifier(name, model, longest=recipe.longest_sequence(new_tokens))


def _check_engine(recipe: Recipe) -> None:
    """Refuse a local model whose rows the engine that the recipe takes cannot continue."""
    model, hardware = recipe.model, recipe.hardware
    directory = local_directory(model.path)
    if directory is None or hardware.ray_address is not None:
        return
    found = "cuda" if torch.cuda.is_available() else "cpu"
    device = found if hardware.device == "auto" else hardware.device
    if choose(hardware, device, model_parameters(model, directory)).engine == "transformers":
        check_states(str(directory))


def _check_ends(recipe: Recipe, stops: Stops | None) -> None:
    """Refuse a chat template by which answers are to be learnt that have no end."""
    ranked = recipe.reward_model
    renders = ranked is not None and not isinstance(ranked.preferences, SampledPreferences)
    renders = renders or recipe.preference is not None
    if stops is not None and stops.closing is None and (recipe.sft.enabled or renders):
        raise UserError(NEVER_CLOSES)
